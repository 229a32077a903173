# SPDX-License-Identifier: Apache-2.0
"""Providers as Placement means them: what has inventories, in trees.

A provider with the record of a host is one, see ``HostRow``; it is a root.  Others are pools, which
are roots too, or nested below any provider.  What all stores refuse about them stands here.
"""

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from gantt import exceptions
from gantt.core.messages import base, resource_classes
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostKind

_NAME = re.compile(base.NAME)
_UUID = re.compile(base.UUID)


class ResourceProvider(msgspec.Struct, frozen=True, kw_only=True):
    """One provider, a host or not.

    :ivar name: its own, by which no other provider goes
    :ivar root: uuid of the root of its tree; its own of a root
    :ivar parent: uuid; None: it is a root
    :ivar host: name of the service host, of a host
    :ivar generation: grows with every change of its inventories and of what is used
    :ivar used: by class, what live claims take
    """

    id: int
    uuid: str
    name: str
    kind: HostKind
    root: str
    parent: str | None = None
    host: str | None = None
    generation: int = 0
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}


def kind_of(parent: object) -> HostKind:
    """What a provider that is no host is, by what it is below of."""
    return HostKind.POOL if parent is None else HostKind.NESTED


def subtree(top: int, parents: Mapping[int, int | None]) -> set[int]:
    """A provider and all that are below it.

    :param parents: of all providers of its tree
    """
    children: dict[int | None, list[int]] = {}
    for one, parent in parents.items():
        children.setdefault(parent, []).append(one)
    found, open_ones = {top}, [top]
    while open_ones:
        new = [one for one in children.get(open_ones.pop(), ()) if one not in found]
        found.update(new)
        open_ones += new
    return found


# -- what is refused ----------------------------------------------------------------
def check(name: str, uuid: str | None, inventories: Mapping[str, Inventory]) -> None:
    """Whether a provider may be called so, and have these.

    :raises InvalidMessage: names the field
    """
    if not 0 < len(name) <= base.NAME_MAX or not _NAME.match(name):
        problem = f'expected 1 to {base.NAME_MAX} characters, none of them a control character'
        raise exceptions.invalid('provider.name', problem)
    if uuid is not None and not _UUID.match(uuid):
        raise exceptions.invalid('provider.uuid', base.UUID_EXPECTED)
    check_inventories(inventories)


def check_inventories(inventories: Mapping[str, Inventory]) -> None:
    """:raises InvalidMessage: names the class and the field"""
    for name, inventory in inventories.items():
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='provider.inventories', name=name)
        problem = inventory.problem()
        if problem is None and inventory.total < 1:
            problem = 'total', f'expected 1 to {resource_classes.AMOUNT_MAX}, got {inventory.total}'
        if problem is not None:
            raise exceptions.invalid(f'provider.inventories.{name}.{problem[0]}', problem[1])


def check_below(parent: str, ids: Collection[int], parent_id: int) -> None:
    """Whether a provider may go below another one.

    :param ids: its subtree
    :raises InvalidMessage: the new parent is in it
    """
    if parent_id in ids:
        problem = (
            f'{parent} is the provider itself or below it; expected one outside of its subtree'
        )
        raise exceptions.invalid('provider.parent', problem)


def check_used(uuid: str, used: Mapping[str, int], inventories: Iterable[str]) -> None:
    """Whether it may have no other classes than these.

    :raises InUse: one of the others is used
    """
    gone = sorted(name for name, amount in used.items() if amount and name not in inventories)
    if gone:
        raise exceptions.InUse(
            f'provider.inventories.{gone[0]}: {used[gone[0]]} are claimed on provider {uuid}; a '
            'class can be taken away when nothing of it is',
            uuid=uuid,
            classes=gone,
        )


def check_unused(uuid: str, children: int, claims: int) -> None:
    """Whether a provider may be deleted.

    :raises InUse: it has children, or live claims
    """
    if children:
        problem = f'{children} providers are below it; delete or move them first'
        raise exceptions.InUse(f'provider {uuid}: {problem}', uuid=uuid, children=children)
    if claims:
        problem = f'{claims} live claims take from it; release them first'
        raise exceptions.InUse(f'provider {uuid}: {problem}', uuid=uuid, claims=claims)


def unknown_parent(parent: str) -> exceptions.InvalidMessage:
    """To be raised where there is no such provider."""
    problem = f'no provider has the uuid {parent}; expected that of one that is there'
    return exceptions.invalid('provider.parent', problem)


def name_taken(name: str, uuid: str) -> exceptions.InvalidMessage:
    """To be raised where another provider goes by the name."""
    problem = f'{name!r} is the name of provider {uuid}; expected one of its own'
    return exceptions.invalid('provider.name', problem)


def uuid_taken(uuid: str, name: str) -> exceptions.InvalidMessage:
    """To be raised where another provider has the uuid."""
    problem = f'{uuid} is the uuid of provider {name!r}; expected one of its own'
    return exceptions.invalid('provider.uuid', problem)


def is_a_host(uuid: str, host: str) -> exceptions.Refused:
    """To be raised where a host is treated as if it were none."""
    return exceptions.Refused(
        f'provider {uuid} is host {host!r}: what it has it reports itself, it is a root, and it is '
        'deleted by "gantt-manage host decommission"',
        uuid=uuid,
        host=host,
    )
