# SPDX-License-Identifier: Apache-2.0
"""Details of a provider: inventories, traits and aggregates, as in their rows.

The rows are authoritative.  ``inventories`` and ``provider_traits`` have a row for each; the
aggregates of a host are those that it is a member of by its name, and those in
``provider_aggregates``.

They rarely change and are many, so they are not read with each metric that a host reports.  A
writer of a host's record writes a *mark* into it: the digest of these rows, in the same transaction
and under the lock of the host.  A process that knows the details of this digest reads no rows, and
hosts with the same digest share the details read for one of them.  A digest identifies its content:
it is valid in whatever state a database is restored to.

If the record of a host was damaged so that it has no mark, its rows are read.
"""

import collections
import hashlib
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostFacts, HostRow
from gantt.db.engine import engine, session
from gantt.db.schema import models

_providers = models.providers
_inventories = models.inventories
_provider_traits = models.provider_traits
_provider_aggregates = models.provider_aggregates
_aggregates = models.aggregates
_aggregate_members = models.aggregate_members

#: Largest amount of an empty inventory that has none: rows without inventory have null.
NO_LARGEST = -1
#: Usage without an inventory has a row with a total of 0, without a largest amount.
is_stated = sa.or_(_inventories.c.total > 0, _inventories.c.max_unit.is_not(None))

_INVENTORY_FIELDS = Inventory.__struct_fields__
_INVENTORY_DEFAULTS = (0, *Inventory.__struct_defaults__)
_DETAILS_MARK = re.compile(r'[{,]"details":"([0-9a-f]{32})"}')
_MARK_LENGTH = len(',"details":""}') + 32
_encode = msgspec.msgpack.Encoder().encode
_ids: Any = sa.bindparam('ids', expanding=True)


class ProviderDetails(msgspec.Struct, frozen=True):
    """Inventories, traits and aggregates of a provider.

    :ivar traits: ascending, as are the uuids of its aggregates
    :ivar digest: digest of all other fields, 32 hexadecimal digits
    """

    inventories: dict[str, Inventory]
    traits: list[str]
    aggregates: list[str]
    digest: str

    @property
    def offered(self) -> dict[str, Inventory]:
        """The inventories, without the empty ones."""
        return {name: stated for name, stated in self.inventories.items() if stated.total > 0}


#: Details that are remembered, where there are few hosts.
DETAILS_MIN = 64
#: Different inventories, lists of traits and cells that hosts may share: 1 to 20 kB each.
PARTS_MAX = 768


class DetailsCache:
    """Cache of the details that this process has read or written: bounded, thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._details_by_digest: collections.OrderedDict[str, ProviderDetails] = (
            collections.OrderedDict()
        )
        self._parts: collections.OrderedDict[bytes, Any] = collections.OrderedDict()
        #: By object identity: mostly a host keeps its details.
        self._details_by_objects: dict[tuple[int, int, int], ProviderDetails] = {}

    def by_digest(self, digest: str | None) -> ProviderDetails | None:
        """Return the details with that digest, if known."""
        return None if digest is None else self._details_by_digest.get(digest)

    def of_row(self, row: HostRow) -> ProviderDetails:
        """Return the details of a host, with their digest."""
        facts = row.facts
        cached = self._details_by_objects.get(
            _objects(facts.inventories, facts.traits, row.aggregates)
        )
        if (
            cached is not None
            and cached.inventories is facts.inventories
            and cached.traits is facts.traits
            and cached.aggregates is row.aggregates
        ):
            return cached
        return details_of_row(row)

    def shared(self, details: ProviderDetails, most: int) -> ProviderDetails:
        """Return equal details that share parts with those of other hosts of the same model.

        :param most: number of details to remember, where that is more than ``DETAILS_MIN``
        """
        with self._lock:
            cached = self._details_by_digest.get(details.digest)
            if cached is None:
                cached = self._details_by_digest[details.digest] = msgspec.structs.replace(
                    details,
                    inventories=self._part(details.inventories),
                    traits=self._part(details.traits),
                )
                self._details_by_objects[_objects_of(cached)] = cached
                while len(self._details_by_digest) > max(DETAILS_MIN, most):
                    _, evicted = self._details_by_digest.popitem(last=False)
                    self._details_by_objects.pop(_objects_of(evicted), None)
            else:
                self._details_by_digest.move_to_end(details.digest)
            return cached

    def sharing(self, facts: HostFacts) -> HostFacts:
        """Return equal facts that share the NUMA cells of another host of the same model."""
        if not facts.numa:
            return facts
        with self._lock:
            cells = self._part(facts.numa)
        return facts if cells is facts.numa else msgspec.structs.replace(facts, numa=cells)

    def _part(self, part: Any) -> Any:
        key = _encode(part)
        cached = self._parts.setdefault(key, part)
        self._parts.move_to_end(key)
        while len(self._parts) > PARTS_MAX:
            self._parts.popitem(last=False)
        return cached


def _objects(inventories: object, traits: object, aggregates: object) -> tuple[int, int, int]:
    return id(inventories), id(traits), id(aggregates)


def _objects_of(details: ProviderDetails) -> tuple[int, int, int]:
    return _objects(details.inventories, details.traits, details.aggregates)


class StoredFacts(HostFacts, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """Facts as they are stored: the digest of the details is the last field."""

    details: str = ''


def details_of(
    inventories: Mapping[str, Inventory], traits: Iterable[str], aggregates: Iterable[str]
) -> ProviderDetails:
    """Return details with their digest, computed of the stored form."""
    by_class = dict(sorted(inventories.items()))
    trait_names, uuids = sorted(set(traits)), sorted(set(aggregates))
    numbers = [
        (
            name,
            *(
                inventory.total,
                inventory.reserved,
                inventory.min_unit,
                inventory.max_unit,
                inventory.step_size,
            ),
            float(inventory.allocation_ratio),
        )
        for name, inventory in by_class.items()
    ]
    try:
        text = _encode((numbers, trait_names, uuids))
    except UnicodeEncodeError:
        trait_names = sorted(map(engine.storable, trait_names))
        text = _encode((numbers, trait_names, uuids))
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return ProviderDetails(by_class, trait_names, uuids, digest)


def details_of_row(row: HostRow) -> ProviderDetails:
    """Return the details of a host."""
    return details_of(row.facts.inventories, row.facts.traits, row.aggregates)


def with_details(facts: HostFacts, details: ProviderDetails) -> HostFacts:
    """Return facts with the details of the rows."""
    if facts.inventories is details.inventories and facts.traits is details.traits:
        return facts
    return msgspec.structs.replace(facts, inventories=details.inventories, traits=details.traits)


def details_digest(facts: str) -> str | None:
    """Return the digest of the details in a host's record, from JSON; None: it was damaged."""
    match = _DETAILS_MARK.fullmatch(facts[-_MARK_LENGTH:])
    return None if match is None else match[1]


def replace_details_mark(stored: str, details: ProviderDetails) -> str:
    """Return the stored text of unreadable facts, its digest of details replaced if it has one."""
    if details_digest(stored) is None:
        return stored
    return f'{stored[: -len(details.digest) - 2]}{details.digest}"}}'


def with_details_mark(facts: HostFacts, details: ProviderDetails) -> StoredFacts:
    """Return facts with the digest of their details, without the parts that have their own rows."""
    fields = {name: getattr(facts, name) for name in HostFacts.__struct_fields__}
    return StoredFacts(**{**fields, 'inventories': {}, 'traits': [], 'details': details.digest})


# -- rows -----------------------------------------------------------------------------
def _null_as(column: sa.Column) -> Any:
    return sa.cast(sa.null(), column.type).label(column.name)


_NO_NUMBERS = [_null_as(_inventories.c[name]) for name in _INVENTORY_FIELDS]


def _part(kind: str, provider_id: Any, name: Any, *numbers: Any) -> Any:
    kind_column: Any = sa.literal_column(f"'{kind}'").label('kind')
    columns = provider_id.label('provider_id'), sa.cast(name, sa.String(255)).label('name')
    return sa.select(kind_column, *columns, *(numbers or _NO_NUMBERS)).where(provider_id.in_(_ids))


_AGGREGATE_SELECTS = (
    _part('aggregate', _provider_aggregates.c.provider_id, _provider_aggregates.c.uuid),
    _part('aggregate', _providers.c.id, _aggregates.c.uuid)
    .select_from(
        _providers.join(_aggregate_members, _aggregate_members.c.host == _providers.c.name)
    )
    .join(_aggregates, _aggregates.c.id == _aggregate_members.c.aggregate_id),
)
SELECT_AGGREGATES = sa.union_all(*_AGGREGATE_SELECTS)
#: One statement for all details: its cost is a round trip.
SELECT_DETAILS = sa.union_all(
    _part(
        'inventory',
        _inventories.c.provider_id,
        models.resource_classes.c.name,
        *(_inventories.c[n] for n in _INVENTORY_FIELDS),
    )
    .join(models.resource_classes, models.resource_classes.c.id == _inventories.c.class_id)
    .where(is_stated),
    _part('trait', _provider_traits.c.provider_id, models.traits.c.name).join(
        models.traits, models.traits.c.id == _provider_traits.c.trait_id
    ),
    *_AGGREGATE_SELECTS,
)


def aggregates_of(tx: session.Tx, ids: Collection[int]) -> dict[int, list[str]]:
    """Return the aggregates' uuids of these providers, ascending; every provider is a key."""
    aggregates: dict[int, set[str]] = {pid: set() for pid in ids}
    for row in tx.in_parts(SELECT_AGGREGATES, ids=sorted(ids)):
        aggregates[row.provider_id].add(row.name)
    return {pid: sorted(uuids) for pid, uuids in aggregates.items()}


def read(tx: session.Tx, ids: Collection[int]) -> dict[int, ProviderDetails]:
    """Return the details in the rows of these providers; every provider is a key."""
    details_of_provider: dict[int, ProviderDetails] = {}
    for chunk in session.in_parts(sorted(ids)):
        inventories: dict[int, dict[str, Inventory]] = {pid: {} for pid in chunk}
        names: dict[str, dict[int, set[str]]] = {
            kind: {pid: set() for pid in chunk} for kind in ('trait', 'aggregate')
        }
        for kind, pid, name, *numbers in tx.all(SELECT_DETAILS, ids=chunk):
            if kind == 'inventory':
                inventories[pid][name] = _inventory(*numbers)
            else:
                names[kind][pid].add(name)
        for pid in chunk:
            details_of_provider[pid] = details_of(
                inventories[pid], names['trait'][pid], names['aggregate'][pid]
            )
    return details_of_provider


def _inventory(*numbers: Any) -> Inventory:
    """Return an inventory without default values: these are not encoded."""
    fields = {
        name: value
        for name, value, default in zip(
            _INVENTORY_FIELDS, numbers, _INVENTORY_DEFAULTS, strict=True
        )
        if value != default
    }
    if fields.get('max_unit') == NO_LARGEST:
        del fields['max_unit']
    return Inventory(**{'total': 0, **fields})


def stored_inventory(inventory: Inventory) -> dict[str, Any]:
    """Return the columns of ``inventories`` for an inventory."""
    values = msgspec.structs.asdict(inventory)
    if not inventory.total and inventory.max_unit is None:
        values['max_unit'] = NO_LARGEST
    return values
