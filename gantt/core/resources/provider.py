# SPDX-License-Identifier: Apache-2.0
"""Resource providers in the sense of Placement: trees of objects with inventories.

A provider with the record of a host is a host, see ``HostRow``; it is a root.  Others are pools,
which are roots too, or nested below any provider.  The checks of all stores are defined here.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.messages import base, resource_classes
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostKind

_NAME = re.compile(base.NAME_PATTERN)
_UUID = re.compile(base.UUID_PATTERN)


#: Reasons for refusing a parent, or a name or uuid: ``why`` of the error.
PARENT_UNKNOWN, PARENT_LOOP, PARENT_FIXED = 'unknown', 'loop', 'fixed'
NAME_TAKEN, UUID_TAKEN = 'name taken', 'uuid taken'


class ResourceProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A resource provider, a host or not.

    :ivar name: its own, unique among providers
    :ivar root: uuid of the root of its tree; its own if it is the root
    :ivar parent: uuid; None: it is a root
    :ivar host: name of the service host, of a host
    :ivar generation: grows with every change of its inventories and usage
    :ivar used: usage by live claims, by class
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
        raise exceptions.InvalidMessage(field='provider.parent', problem=problem, why=PARENT_LOOP)


def check_used(uuid: str, used: Mapping[str, int], inventories: Iterable[str]) -> None:
    """Check that a provider may be left with no other classes than ``inventories``.

    :raises InUse: one of the other classes is used
    """
    lost = sorted(name for name, amount in used.items() if amount and name not in inventories)
    if lost:
        raise exceptions.InUse(
            f'provider.inventories.{lost[0]}: {used[lost[0]]} are claimed on provider {uuid}; a '
            'class can be removed once none of it is claimed',
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


def unknown_provider(uuid: str) -> exceptions.NotFound:
    """Return the error for an unknown provider."""
    return exceptions.NotFound(kind='provider', name=uuid)


def unknown_parent(parent: str) -> exceptions.InvalidMessage:
    """Return the error for an unknown parent provider."""
    problem = f'no provider has the uuid {parent}; expected that of one that is there'
    return exceptions.InvalidMessage(field='provider.parent', problem=problem, why=PARENT_UNKNOWN)


def parent_cannot_change(parent: str | None) -> exceptions.InvalidMessage:
    """Return the error for a change of the parent of a provider that has one."""
    problem = f'expected the parent that it has; got {parent}'
    return exceptions.InvalidMessage(field='provider.parent', problem=problem, why=PARENT_FIXED)


def name_taken(name: str, uuid: str) -> exceptions.InvalidMessage:
    """Return the error for a name that another provider has."""
    problem = f'{name!r} is the name of provider {uuid}; expected one of its own'
    return exceptions.InvalidMessage(field='provider.name', problem=problem, why=NAME_TAKEN)


def uuid_taken(uuid: str, name: str) -> exceptions.InvalidMessage:
    """Return the error for a uuid that another provider has."""
    problem = f'{uuid} is the uuid of provider {name!r}; expected one of its own'
    return exceptions.InvalidMessage(field='provider.uuid', problem=problem, why=UUID_TAKEN)


def reported_by_host(uuid: str, host: str) -> exceptions.ReportedByHost:
    """Return the error for a request that changes inventories that a host reports itself."""
    return exceptions.ReportedByHost(
        f'provider {uuid} is host {host!r}: its reports say what it has; that requests say it is '
        f'for "gantt-manage host inventories {host} --by api"',
        uuid=uuid,
        host=host,
    )


def provider_is_host(uuid: str, host: str) -> exceptions.Refused:
    """Return the error for an operation that is not allowed on a host."""
    return exceptions.ReportedByHost(
        f'provider {uuid} is host {host!r}: it is a root, and it is deleted by "gantt-manage host '
        'decommission"',
        uuid=uuid,
        host=host,
    )


#: The trait of a provider that shares its inventories within its aggregates.
SHARES_TRAIT = 'MISC_SHARES_VIA_AGGREGATE'


class SharedPool(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """State of one shared or nested provider.

    :ivar id: id of the provider, which is not a host
    :ivar name: its own, unique among providers
    :ivar version: grows with each write
    :ivar usage_version: of its inventories and usage, if an own commit has returned these at a
        later version than the complete state; 0: it has not
    :ivar used: sum of the live claims' allocations, by class
    :ivar foreign: use by what runs outside any claim, by class
    :ivar aggregates: uuids; it serves every host that is in one of them, if it shares
    :ivar root: id of the host that it is nested below; else 0
    :ivar parent: id of its direct parent, where it is nested; else 0
    :ivar traits: ascending
    """

    id: int
    uuid: str = ''
    name: str = ''
    version: int = 0
    usage_version: int = 0
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}
    aggregates: list[str] = []
    root: int = 0
    parent: int = 0
    traits: list[str] = []

    @property
    def is_shared(self) -> bool:
        """True where it serves hosts by their aggregates."""
        return bool(self.aggregates) and (not self.root or SHARES_TRAIT in self.traits)


class PoolUsage(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A pool as a commit left it, or as it read it under the lock.

    :ivar version: version of the pool after the commit
    :ivar is_written: the commit has written it, and increased the version by one
    """

    id: int
    version: int
    is_written: bool = False
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}


#: Upper bound of the providers of a circle that its line names.
CIRCLE_NAMES_MAX = 5


class TreeNode(NamedTuple):
    """The position of a provider in its tree, as stored in its row.

    :ivar name: of a host the name of its service, of others their own
    :ivar kind: as stored, not necessarily one of ``HostKind``
    :ivar parent: id; None: it is a root
    :ivar root: id of the root of its tree; its own of a root
    :ivar is_host: it has the record of a host
    """

    id: int
    uuid: str
    name: str
    kind: str
    parent: int | None
    root: int
    is_host: bool

    @property
    def shown(self) -> str:
        """Name of the provider in a line of the audit, with the uuid that commands accept."""
        return f'provider {self.uuid} ({self.name})'


def roots_of(parents: Mapping[int, int | None]) -> dict[int, int]:
    """Return the root that each provider reaches by its parents.

    Providers that reach none are left out: a parent is missing, or they lead into a circle.

    :param parents: parent of every provider; None: it is a root
    """
    root_of: dict[int, int | None] = {}
    for provider in parents:
        path: dict[int, None] = {}
        ancestor: int | None = provider
        while (
            ancestor is not None
            and ancestor not in root_of
            and ancestor not in path
            and ancestor in parents
        ):
            path[ancestor] = None
            root_candidate, ancestor = ancestor, parents[ancestor]
        if ancestor is None:
            root: int | None = root_candidate
        else:
            root = root_of.get(ancestor)  # in a circle, or below a missing parent: none
        root_of.update(dict.fromkeys(path, root))
    return {provider: root for provider, root in root_of.items() if root is not None}


def tree_faults(nodes: Sequence[TreeNode]) -> Iterator[str]:
    """Yield a line for each fault of the trees; providers below a fault are not named again.

    :param nodes: all providers
    """
    node_of = {node.id: node for node in nodes}
    parents = {node.id: node.parent for node in nodes}
    roots = roots_of(parents)
    yield from _orphans(nodes, node_of, roots)
    for circle in _parent_circles(parents, roots):
        names = [node_of[provider].name for provider in circle[:CIRCLE_NAMES_MAX]]
        suffix = (
            f' and {len(circle) - CIRCLE_NAMES_MAX} more' if len(circle) > CIRCLE_NAMES_MAX else ''
        )
        yield f'{node_of[circle[0]].shown}: is below itself, by {", ".join(names)}{suffix}'
    for node in nodes:
        root = roots.get(node.id)
        if root is not None and root != node.root:
            noted = (
                node_of[node.root].shown
                if node.root in node_of
                else f'row {node.root}, which is gone'
            )
            yield f'{node.shown}: its root is {node_of[root].shown}, its row says {noted}'
    for node in nodes:
        yield from _kind(node)


def _orphans(
    nodes: Iterable[TreeNode], of: Mapping[int, TreeNode], roots: Mapping[int, int]
) -> Iterator[str]:
    """Yield a line for each provider whose parent is missing, with the number below it."""
    orphans = {node.id for node in nodes if node.parent is not None and node.parent not in of}
    if not orphans:
        return
    # As if each of these were a root.
    parents = {
        provider: None if provider in orphans else node.parent for provider, node in of.items()
    }
    trees = Counter(root for provider, root in roots_of(parents).items() if provider not in roots)
    for provider in sorted(orphans):
        descendants = trees[provider] - 1
        suffix = f'; {descendants} are below it' if descendants else ''
        yield f'{of[provider].shown}: its parent, row {of[provider].parent}, is gone{suffix}'


def _parent_circles(
    parents: Mapping[int, int | None], roots: Mapping[int, int]
) -> Iterator[list[int]]:
    """Yield circles of parents, each once, beginning with its lowest id."""
    seen: set[int] = set()
    for provider in sorted(parents.keys() - roots.keys()):
        path: dict[int, None] = {}
        ancestor: int | None = provider
        while ancestor in parents and ancestor not in seen and ancestor not in path:
            assert ancestor is not None  # a root is reached by none of these
            path[ancestor] = None
            ancestor = parents[ancestor]
        seen.update(path)
        if ancestor in path:
            steps = list(path)
            circle = steps[steps.index(ancestor) :]
            first = circle.index(min(circle))
            yield circle[first:] + circle[:first]


def _kind(node: TreeNode) -> Iterator[str]:
    expected = HostKind.HOST if node.is_host else kind_of(node.parent)
    if node.kind != expected.value:
        record = 'has the record of a host' if node.is_host else 'has no record of a host'
        place = 'is a root' if node.parent is None else 'is below another one'
        yield f'{node.shown}: is of kind {node.kind}, {record} and {place}'
    elif node.is_host and node.parent is not None:
        yield f'{node.shown}: is a host, and below another provider'
