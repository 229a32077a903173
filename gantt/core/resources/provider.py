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


#: Why a parent is refused, or a name or uuid: ``why`` of the error.
UNKNOWN, LOOP, FIXED = 'unknown', 'loop', 'fixed'
NAME_TAKEN, UUID_TAKEN = 'name taken', 'uuid taken'


class ResourceProvider(msgspec.Struct, frozen=True, kw_only=True):
    """One provider, a host or not.

    :ivar name: its own, by which no other provider goes
    :ivar root: uuid of the root of its tree; its own of a root
    :ivar parent: uuid; None: it is a root
    :ivar host: name of the service host, of a host
    :ivar generation: grows with every change of its inventories and of what is used
    :ivar used: by class, what live claims take
    :ivar changed_at: seconds; None: never by a request
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
    changed_at: float | None = None


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


class VocabularyEntry(msgspec.Struct, frozen=True):
    """A resource class or a trait.

    :ivar changed_at: seconds; None: it is a standard one, or was made by no request
    """

    name: str
    changed_at: float | None = None


class ProviderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider is called and where it stands; see ``ResourceProvider``."""

    uuid: str
    name: str
    generation: int
    root: str
    parent: str | None = None
    changed_at: float | None = None


class ProviderFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which providers are wanted: those that meet all of it.

    :ivar in_tree: uuid of any provider of the tree
    :ivar member_of: of each of these sets of aggregates' uuids it is in one at least
    :ivar not_member_of: it is in none of these
    :ivar required: of each of these sets of traits it has one at least
    :ivar forbidden: it has none of these
    :ivar resources: class -> amount, which it could give in one piece
    """

    name: str | None = None
    uuid: str | None = None
    in_tree: str | None = None
    member_of: tuple[frozenset[str], ...] = ()
    not_member_of: frozenset[str] = frozenset()
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    resources: dict[str, int] = {}

    @property
    def traits(self) -> frozenset[str]:
        """All that are named."""
        return self.forbidden.union(*self.required)


class ProviderTraits(msgspec.Struct, frozen=True):
    """The traits of a provider, by name."""

    generation: int
    traits: list[VocabularyEntry]


class ProviderAggregates(msgspec.Struct, frozen=True):
    """The aggregates that a provider is in by itself: uuids, sorted."""

    generation: int
    aggregates: list[str]


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
        problem = inventory.problem(free=True)
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
        raise exceptions.InvalidMessage(field='provider.parent', problem=problem, why=LOOP)


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


def check_generation(uuid: str, current: int, given: int | None) -> None:
    """Whether a change was made from what is so now.

    :param given: None: whatever it is
    :raises StaleGeneration: it was not
    """
    if given is not None and given != current:
        raise exceptions.StaleGeneration(uuid=uuid, generation=given, current=current)


def check_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Whether there are such traits, or resource classes.

    :raises NotFound: ``names`` are those that are not
    """
    missing = sorted(set(names) - set(known))
    if missing:
        raise exceptions.NotFound(kind=kind, name=', '.join(missing), names=missing)


def not_there(uuid: str) -> exceptions.NotFound:
    """To be raised where there is no such provider."""
    return exceptions.NotFound(kind='provider', name=uuid)


def unknown_parent(parent: str) -> exceptions.InvalidMessage:
    """To be raised where there is no such provider."""
    problem = f'no provider has the uuid {parent}; expected that of one that is there'
    return exceptions.InvalidMessage(field='provider.parent', problem=problem, why=UNKNOWN)


def keeps_its_parent(parent: str | None) -> exceptions.InvalidMessage:
    """To be raised where a provider that has a parent is to get another, or none."""
    problem = f'expected the parent that it has; got {parent}'
    return exceptions.InvalidMessage(field='provider.parent', problem=problem, why=FIXED)


def name_taken(name: str, uuid: str) -> exceptions.InvalidMessage:
    """To be raised where another provider goes by the name."""
    problem = f'{name!r} is the name of provider {uuid}; expected one of its own'
    return exceptions.InvalidMessage(field='provider.name', problem=problem, why=NAME_TAKEN)


def uuid_taken(uuid: str, name: str) -> exceptions.InvalidMessage:
    """To be raised where another provider has the uuid."""
    problem = f'{uuid} is the uuid of provider {name!r}; expected one of its own'
    return exceptions.InvalidMessage(field='provider.uuid', problem=problem, why=UUID_TAKEN)


def reports_it_itself(uuid: str, host: str) -> exceptions.ReportedByHost:
    """To be raised where requests change what the reports of a host say that it has."""
    return exceptions.ReportedByHost(
        f'provider {uuid} is host {host!r}: its reports say what it has; that requests say it is '
        f'for "gantt-manage host inventories {host} --by api"',
        uuid=uuid,
        host=host,
    )


def is_a_host(uuid: str, host: str) -> exceptions.Refused:
    """To be raised where a host is treated as if it were none."""
    return exceptions.ReportedByHost(
        f'provider {uuid} is host {host!r}: it is a root, and it is deleted by "gantt-manage host '
        'decommission"',
        uuid=uuid,
        host=host,
    )
