# SPDX-License-Identifier: Apache-2.0
"""What a provider has: inventories, traits and aggregates, as their rows say.

The rows are the truth.  ``inventories`` and ``provider_traits`` have a row for each; the aggregates
of a host are those that it is a member of by its name, and those in ``provider_aggregates``.

They rarely change and are many, so they are not read with each metric that a host reports anew.
Whoever writes the record of a host writes a *mark* into it: the digest of what the rows are, in
the same transaction and under the lock of the host.  A process that knows what has this digest
reads no rows, and hosts with the same digest share what was read of one of them.  A digest is of
what it stands for: it is right in whatever state a database is put back to.

Of a host whose record was damaged so that it has no mark they are read.
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

_p = models.providers
_i = models.inventories
_t = models.provider_traits
_g = models.provider_aggregates
_a = models.aggregates
_m = models.aggregate_members

#: Providers that one statement asks of: about fifty rows each.
CHUNK = 500
#: Of an inventory of nothing at all without a largest amount: null stands where there is none.
NO_LARGEST = -1
#: What is used without an inventory has a row of nothing, without a largest amount.
is_stated = sa.or_(_i.c.total > 0, _i.c.max_unit.is_not(None))

_NUMBERS = Inventory.__struct_fields__
_DEFAULTS = (0, *Inventory.__struct_defaults__)
_MARK = re.compile(r'[{,]"details":"([0-9a-f]{32})"}')
_MARK_LENGTH = len(',"details":""}') + 32
_encode = msgspec.msgpack.Encoder().encode
_ids: Any = sa.bindparam('ids', expanding=True)


class ProviderDetails(msgspec.Struct, frozen=True):
    """What a provider has.

    :ivar traits: ascending, as are the uuids of its aggregates
    :ivar digest: of all the others, 32 hexadecimal digits
    """

    inventories: dict[str, Inventory]
    traits: list[str]
    aggregates: list[str]
    digest: str


#: Details that are remembered, where there are few hosts.
DETAILS_MIN = 64
#: Different inventories, lists of traits and cells that others may have too: 1 to 20 kB each.
PARTS_MAX = 768


class KnownDetails:
    """What this process has read or written: bounded, safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[str, ProviderDetails] = collections.OrderedDict()
        self._parts: collections.OrderedDict[bytes, Any] = collections.OrderedDict()
        #: By the very objects: mostly a host has what it had.
        self._of_objects: dict[tuple[int, int, int], ProviderDetails] = {}

    def known(self, digest: str | None) -> ProviderDetails | None:
        """What has that digest, if it is known."""
        return None if digest is None else self._known.get(digest)

    def of_row(self, row: HostRow) -> ProviderDetails:
        """What a host has, with its digest."""
        facts = row.facts
        found = self._of_objects.get(_objects(facts.inventories, facts.traits, row.aggregates))
        if (
            found is not None
            and found.inventories is facts.inventories
            and found.traits is facts.traits
            and found.aggregates is row.aggregates
        ):
            return found
        return of_row(row)

    def shared(self, details: ProviderDetails, most: int) -> ProviderDetails:
        """The same, made of what others have too where it is equal, as of one model.

        :param most: details to remember, where that is more than ``DETAILS_MIN``
        """
        with self._lock:
            found = self._known.get(details.digest)
            if found is None:
                found = self._known[details.digest] = msgspec.structs.replace(
                    details,
                    inventories=self._part(details.inventories),
                    traits=self._part(details.traits),
                )
                self._of_objects[_objects_of(found)] = found
                while len(self._known) > max(DETAILS_MIN, most):
                    _, gone = self._known.popitem(last=False)
                    self._of_objects.pop(_objects_of(gone), None)
            else:
                self._known.move_to_end(details.digest)
            return found

    def sharing(self, facts: HostFacts) -> HostFacts:
        """The same, with the cells of another host where they are equal, as of one model."""
        if not facts.numa:
            return facts
        with self._lock:
            cells = self._part(facts.numa)
        return facts if cells is facts.numa else msgspec.structs.replace(facts, numa=cells)

    def _part(self, part: Any) -> Any:
        key = _encode(part)
        found = self._parts.setdefault(key, part)
        self._parts.move_to_end(key)
        while len(self._parts) > PARTS_MAX:
            self._parts.popitem(last=False)
        return found


def _objects(inventories: object, traits: object, aggregates: object) -> tuple[int, int, int]:
    return id(inventories), id(traits), id(aggregates)


def _objects_of(details: ProviderDetails) -> tuple[int, int, int]:
    return _objects(details.inventories, details.traits, details.aggregates)


class StoredFacts(HostFacts, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """Facts as they are stored: the mark comes last."""

    details: str = ''


def details_of(
    inventories: Mapping[str, Inventory], traits: Iterable[str], aggregates: Iterable[str]
) -> ProviderDetails:
    """With their digest, which is that of what a database keeps of them."""
    made = dict(sorted(inventories.items()))
    listed, uuids = sorted(set(traits)), sorted(set(aggregates))
    numbers = [
        (
            name,
            *(of.total, of.reserved, of.min_unit, of.max_unit, of.step_size),
            float(of.allocation_ratio),
        )
        for name, of in made.items()
    ]
    try:
        text = _encode((numbers, listed, uuids))
    except UnicodeEncodeError:
        listed = sorted(map(engine.storable, listed))
        text = _encode((numbers, listed, uuids))
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return ProviderDetails(made, listed, uuids, digest)


def of_row(row: HostRow) -> ProviderDetails:
    """What a host has."""
    return details_of(row.facts.inventories, row.facts.traits, row.aggregates)


def with_details(facts: HostFacts, details: ProviderDetails) -> HostFacts:
    """Facts with what the rows say."""
    if facts.inventories is details.inventories and facts.traits is details.traits:
        return facts
    return msgspec.structs.replace(facts, inventories=details.inventories, traits=details.traits)


def mark_of(facts: str) -> str | None:
    """The digest that a record has, from JSON; None: somebody has damaged it."""
    found = _MARK.fullmatch(facts[-_MARK_LENGTH:])
    return None if found is None else found[1]


def marked_anew(stored: str, details: ProviderDetails) -> str:
    """The text of facts that cannot be read, with the mark that it gets where it has one."""
    if mark_of(stored) is None:
        return stored
    return f'{stored[: -len(details.digest) - 2]}{details.digest}"}}'


def marked(facts: HostFacts, details: ProviderDetails) -> StoredFacts:
    """Facts with the mark, without what stands in rows."""
    stated = {name: getattr(facts, name) for name in HostFacts.__struct_fields__}
    return StoredFacts(**{**stated, 'inventories': {}, 'traits': [], 'details': details.digest})


# -- rows -----------------------------------------------------------------------------
def _nothing(column: sa.Column) -> Any:
    return sa.cast(sa.null(), column.type).label(column.name)


_NO_NUMBERS = [_nothing(_i.c[name]) for name in _NUMBERS]


def _part(kind: str, provider_id: Any, name: Any, *numbers: Any) -> Any:
    what: Any = sa.literal_column(f"'{kind}'").label('kind')
    columns = provider_id.label('provider_id'), sa.cast(name, sa.String(255)).label('name')
    return sa.select(what, *columns, *(numbers or _NO_NUMBERS)).where(provider_id.in_(_ids))


_AGGREGATES = (
    _part('aggregate', _g.c.provider_id, _g.c.uuid),
    _part('aggregate', _p.c.id, _a.c.uuid)
    .select_from(_p.join(_m, _m.c.host == _p.c.name))
    .join(_a, _a.c.id == _m.c.aggregate_id),
)
AGGREGATES = sa.union_all(*_AGGREGATES)
#: One statement for all of it: a round trip is what it costs.
READ = sa.union_all(
    _part(
        'inventory', _i.c.provider_id, models.resource_classes.c.name, *(_i.c[n] for n in _NUMBERS)
    )
    .join(models.resource_classes, models.resource_classes.c.id == _i.c.class_id)
    .where(is_stated),
    _part('trait', _t.c.provider_id, models.traits.c.name).join(
        models.traits, models.traits.c.id == _t.c.trait_id
    ),
    *_AGGREGATES,
)


def aggregates_of(tx: session.Tx, ids: Collection[int]) -> dict[int, list[str]]:
    """Uuids of the aggregates of these providers, ascending; every one of them is in it."""
    found: dict[int, set[str]] = {pid: set() for pid in ids}
    for some in _chunks(ids):
        for row in tx.all(AGGREGATES, ids=some):
            found[row.provider_id].add(row.name)
    return {pid: sorted(uuids) for pid, uuids in found.items()}


def read(tx: session.Tx, ids: Collection[int]) -> dict[int, ProviderDetails]:
    """What the rows of these providers say; every one of them is in it."""
    found: dict[int, ProviderDetails] = {}
    for some in _chunks(ids):
        inventories: dict[int, dict[str, Inventory]] = {pid: {} for pid in some}
        named: dict[str, dict[int, set[str]]] = {
            kind: {pid: set() for pid in some} for kind in ('trait', 'aggregate')
        }
        for kind, pid, name, *numbers in tx.all(READ, ids=some):
            if kind == 'inventory':
                inventories[pid][name] = _inventory(*numbers)
            else:
                named[kind][pid].add(name)
        for pid in some:
            found[pid] = details_of(inventories[pid], named['trait'][pid], named['aggregate'][pid])
    return found


def _chunks(ids: Collection[int]) -> Iterable[list[int]]:
    wanted = sorted(ids)
    return (wanted[start : start + CHUNK] for start in range(0, len(wanted), CHUNK))


def _inventory(*numbers: Any) -> Inventory:
    """What is the default is left out: such is not written where an inventory is encoded."""
    stated = {
        name: value
        for name, value, default in zip(_NUMBERS, numbers, _DEFAULTS, strict=True)
        if value != default
    }
    if stated.get('max_unit') == NO_LARGEST:
        del stated['max_unit']
    return Inventory(**{'total': 0, **stated})


def stored(inventory: Inventory) -> dict[str, Any]:
    """The columns of ``inventories`` that say what there is."""
    values = msgspec.structs.asdict(inventory)
    if not inventory.total and inventory.max_unit is None:
        values['max_unit'] = NO_LARGEST
    return values
