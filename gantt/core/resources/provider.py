# SPDX-License-Identifier: Apache-2.0
"""Resource providers in the sense of Placement: trees of objects with inventories.

A provider with the record of a host is a host, see ``HostRow``; it is a root.  Others are pools,
which are roots too, or nested below any provider.  The checks of all stores are defined here.
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


#: Reasons for refusing a parent, or a name or uuid: ``why`` of the error.
UNKNOWN, LOOP, FIXED = 'unknown', 'loop', 'fixed'
NAME_TAKEN, UUID_TAKEN = 'name taken', 'uuid taken'


class ResourceProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A resource provider, a host or not.

    :ivar name: its own, unique among providers
    :ivar root: uuid of the root of its tree; its own if it is the root
    :ivar parent: uuid; None: it is a root
    :ivar host: name of the service host, of a host
    :ivar generation: grows with every change of its inventories and usage
    :ivar used: by class, usage by live claims
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
    """Return the kind of a provider that is not a host, by its parent."""
    return HostKind.POOL if parent is None else HostKind.NESTED


def subtree(top: int, parents: Mapping[int, int | None]) -> set[int]:
    """Return a provider and all its descendants.

    :param parents: parents of all providers of its tree
    """
    children: dict[int | None, list[int]] = {}
    for provider, parent in parents.items():
        children.setdefault(parent, []).append(provider)
    descendants, open_ones = {top}, [top]
    while open_ones:
        added = [child for child in children.get(open_ones.pop(), ()) if child not in descendants]
        descendants.update(added)
        open_ones += added
    return descendants


class VocabularyEntry(msgspec.Struct, frozen=True):
    """A resource class or a trait.

    :ivar changed_at: seconds; None: it is a standard one, or was not created by a request
    """

    name: str
    changed_at: float | None = None


class ProviderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Names and position of a provider in its tree; see ``ResourceProvider``."""

    uuid: str
    name: str
    generation: int
    root: str
    parent: str | None = None
    changed_at: float | None = None


class ProviderFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of providers: matching ones meet all conditions.

    :ivar in_tree: uuid of any provider of the tree
    :ivar member_of: sets of aggregates' uuids, of each of which it is in at least one
    :ivar not_member_of: aggregates of which it is in none
    :ivar required: sets of traits, of each of which it has at least one
    :ivar forbidden: traits of which it has none
    :ivar resources: class -> amount, available in one piece
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
        """Required and forbidden traits."""
        return self.forbidden.union(*self.required)


class ProviderTraits(msgspec.Struct, frozen=True):
    """The traits of a provider, by name."""

    generation: int
    traits: list[VocabularyEntry]


class ProviderAggregates(msgspec.Struct, frozen=True):
    """The aggregates that a provider is in by itself: uuids, sorted."""

    generation: int
    aggregates: list[str]


# -- checks --------------------------------------------------------------------------
def check(name: str, uuid: str | None, inventories: Mapping[str, Inventory]) -> None:
    """Check name, uuid and inventories of a provider.

    :raises InvalidMessage: names the field
    """
    if not 0 < len(name) <= base.NAME_MAX or not _NAME.match(name):
        problem = f'expected 1 to {base.NAME_MAX} characters, none of them a control character'
        raise exceptions.invalid('provider.name', problem)
    if uuid is not None and not _UUID.match(uuid):
        raise exceptions.invalid('provider.uuid', base.UUID_EXPECTED)
    check_inventories(inventories)


def check_inventories(inventories: Mapping[str, Inventory]) -> None:
    """Check the inventories of a provider.

    :raises InvalidMessage: names the class and the field
    """
    for name, inventory in inventories.items():
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='provider.inventories', name=name)
        problem = inventory.problem(free=True)
        if problem is None and inventory.total < 1:
            problem = 'total', f'expected 1 to {resource_classes.AMOUNT_MAX}, got {inventory.total}'
        if problem is not None:
            raise exceptions.invalid(f'provider.inventories.{name}.{problem[0]}', problem[1])


def check_below(parent: str, ids: Collection[int], parent_id: int) -> None:
    """Check that a provider may be moved below another one.

    :param ids: its subtree
    :raises InvalidMessage: the new parent is in it
    """
    if parent_id in ids:
        problem = (
            f'{parent} is the provider itself or below it; expected one outside of its subtree'
        )
        raise exceptions.InvalidMessage(field='provider.parent', problem=problem, why=LOOP)


def check_used(uuid: str, used: Mapping[str, int], inventories: Iterable[str]) -> None:
    """Check that a provider may be left with no other classes than ``inventories``.

    :raises InUse: one of the other classes is used
    """
    lost = sorted(name for name, amount in used.items() if amount and name not in inventories)
    if lost:
        raise exceptions.InUse(
            f'provider.inventories.{lost[0]}: {used[lost[0]]} are claimed on provider {uuid}; a '
            'class can be taken away when nothing of it is',
            uuid=uuid,
            classes=lost,
        )


def check_unused(uuid: str, children: int, claims: int) -> None:
    """Check that a provider may be deleted.

    :raises InUse: it has children, or live claims
    """
    if children:
        problem = f'{children} providers are below it; delete or move them first'
        raise exceptions.InUse(f'provider {uuid}: {problem}', uuid=uuid, children=children)
    if claims:
        problem = f'{claims} live claims take from it; release them first'
        raise exceptions.InUse(f'provider {uuid}: {problem}', uuid=uuid, claims=claims)


def check_generation(uuid: str, current: int, given: int | None) -> None:
    """Check that a change is based on the current generation.

    :param given: None: any generation
    :raises StaleGeneration: it is based on another one
    """
    if given is not None and given != current:
        raise exceptions.StaleGeneration(uuid=uuid, generation=given, current=current)


def check_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that traits or resource classes exist.

    :raises NotFound: its ``names`` are the missing ones
    """
    missing = sorted(set(names) - set(known))
    if missing:
        raise exceptions.NotFound(kind=kind, name=', '.join(missing), names=missing)


def not_there(uuid: str) -> exceptions.NotFound:
    """Return the error for an unknown provider."""
    return exceptions.NotFound(kind='provider', name=uuid)


def unknown_parent(parent: str) -> exceptions.InvalidMessage:
    """Return the error for an unknown parent provider."""
    problem = f'no provider has the uuid {parent}; expected that of one that is there'
    return exceptions.InvalidMessage(field='provider.parent', problem=problem, why=UNKNOWN)


def keeps_its_parent(parent: str | None) -> exceptions.InvalidMessage:
    """Return the error for a change of the parent of a provider that has one."""
    problem = f'expected the parent that it has; got {parent}'
    return exceptions.InvalidMessage(field='provider.parent', problem=problem, why=FIXED)


def name_taken(name: str, uuid: str) -> exceptions.InvalidMessage:
    """Return the error for a name that another provider has."""
    problem = f'{name!r} is the name of provider {uuid}; expected one of its own'
    return exceptions.InvalidMessage(field='provider.name', problem=problem, why=NAME_TAKEN)


def uuid_taken(uuid: str, name: str) -> exceptions.InvalidMessage:
    """Return the error for a uuid that another provider has."""
    problem = f'{uuid} is the uuid of provider {name!r}; expected one of its own'
    return exceptions.InvalidMessage(field='provider.uuid', problem=problem, why=UUID_TAKEN)


def reports_it_itself(uuid: str, host: str) -> exceptions.ReportedByHost:
    """Return the error for a request that changes inventories that a host reports itself."""
    return exceptions.ReportedByHost(
        f'provider {uuid} is host {host!r}: its reports say what it has; that requests say it is '
        f'for "gantt-manage host inventories {host} --by api"',
        uuid=uuid,
        host=host,
    )


def is_a_host(uuid: str, host: str) -> exceptions.Refused:
    """Return the error for an operation that is not allowed on a host."""
    return exceptions.ReportedByHost(
        f'provider {uuid} is host {host!r}: it is a root, and it is deleted by "gantt-manage host '
        'decommission"',
        uuid=uuid,
        host=host,
    )
