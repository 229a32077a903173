# SPDX-License-Identifier: Apache-2.0
"""Rows read and written as the core's types: hosts, and claims with their allocations.

Facts are decoded once for each provider and ``facts_stamp``, and what is
placed on a host is read once for each ``claims_stamp``: under load only the
counters of a row differ from one read to the next.
"""

import collections
import hashlib
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.claims.claim import EXPIRES, LIVE, Claim, State
from gantt.core.messages.layout import Layout, unsettled
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.host import HostFacts, HostKind, HostRow, Placed
from gantt.core.resources.host_keys import HostKey
from gantt.db.engine import engine, session
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

#: The narrow part of a provider, in the order that ``Counters`` unpacks.
COUNTERS = (
    'id',
    'generation',
    'version',
    'claims_stamp',
    'facts_stamp',
    'epoch',
    'sequence',
    'full_sequence',
    'reported_at',
    'over_committed',
    'cold',
    *(f'cap_{c}' for c in CORE_CLASS_COLUMNS.values()),
    *(f'used_{c}' for c in CORE_CLASS_COLUMNS.values()),
    *(f'foreign_{c}' for c in CORE_CLASS_COLUMNS.values()),
)

#: What ``provider_facts`` has as it is, beside JSON.
PLAIN_FACTS = [
    column.name
    for column in models.provider_facts.c
    if column.name not in ('provider_id', 'aggregates', 'facts', 'signing_key')
]
#: Columns that a HostRow is made of, and that no claim changes.
FACTS = ('id', 'facts_stamp', 'uuid', 'name', 'kind', *PLAIN_FACTS, 'aggregates', 'facts')
FACTS += ('signing_key',)

_names = msgspec.json.Decoder(list[str])
_facts = msgspec.json.Decoder(HostFacts)
_key = msgspec.json.Decoder(HostKey)
_amounts = msgspec.json.Decoder(dict[str, int])
encode = msgspec.json.encode
decode_amounts, decode_facts = _amounts.decode, _facts.decode


def key(text: str | None) -> HostKey | None:
    """The key of a host, from JSON; None: it has none."""
    return None if text is None else _key.decode(text)


def layout(text: str | None) -> Layout | None:
    """What a claim's layout takes, from JSON; None: nothing."""
    return None if text is None else unsettled(msgspec.json.decode(text))


def text(value: Any) -> str:
    """A value as JSON text."""
    try:
        return encode(value).decode()
    except UnicodeEncodeError:
        return encode(_storable(msgspec.to_builtins(value))).decode()


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return engine.storable(value)
    if isinstance(value, dict):
        return {_storable(key): _storable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(inner) for inner in value]
    return value


class Counters(msgspec.Struct, array_like=True):
    """A provider's counters as they are in the database, or will be."""

    id: int
    generation: int
    version: int
    claims_stamp: int
    facts_stamp: int
    epoch: int
    sequence: int
    full_sequence: int
    reported_at: float
    over_committed: int
    cold: int
    cap: list[int]
    used: list[int]
    foreign: list[int]
    #: class -> [cap, used, foreign], of the classes that are not hot
    others: dict[str, list[int]]


def counters(row: Sequence[Any]) -> Counters:
    """From the columns of ``COUNTERS``."""
    cap, used, foreign = list(row[11:15]), list(row[15:19]), list(row[19:23])
    return Counters(*row[:11], cap, used, foreign, {})  # type: ignore[call-arg]


#: Facts remembered for hosts that say the same, where there are few hosts.
FACTS_MIN = 64


class Memory:
    """What this process has decoded: bounded, safe to use from any thread."""

    def __init__(self, hosts: int = 32_768) -> None:
        self._hosts = hosts
        self._lock = threading.Lock()
        self._templates: dict[int, tuple[int, HostRow]] = {}
        self._decoded: collections.OrderedDict[bytes, HostFacts] = collections.OrderedDict()
        self._placed: dict[int, tuple[int, tuple[Placed, ...], bytes | None]] = {}

    def template(self, provider_id: int, facts_stamp: int) -> HostRow | None:
        """The row as of that stamp, with counters of no meaning."""
        found = self._templates.get(provider_id)
        return found[1] if found is not None and found[0] == facts_stamp else None

    def learn(self, row: Any) -> HostRow:
        """From the columns of ``FACTS``."""
        template = HostRow(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            kind=HostKind(row.kind),
            aggregates=_names.decode(row.aggregates),
            facts=self.decode(row.facts),
            key=key(row.signing_key),
            **{name: getattr(row, name) for name in PLAIN_FACTS},
        )
        self.keep(template, row.facts_stamp)
        return template

    def keep(self, row: HostRow, facts_stamp: int) -> None:
        """Remember ``row`` as what its provider says at that stamp."""
        with self._lock:
            if len(self._templates) >= self._hosts:
                for provider_id in list(self._templates)[: self._hosts // 8]:
                    del self._templates[provider_id]
            self._templates[row.id] = (facts_stamp, row)

    def decode(self, facts: str) -> HostFacts:
        """Facts from JSON; hosts that say the same share one object."""
        digest = hashlib.blake2b(facts.encode(), digest_size=16).digest()
        with self._lock:
            found = self._decoded.get(digest)
            if found is not None:
                self._decoded.move_to_end(digest)
                return found
        decoded = _facts.decode(facts)
        with self._lock:
            self._decoded[digest] = decoded
            # With a metric in them nearly all facts are said once.
            while len(self._decoded) > max(FACTS_MIN, len(self._templates) // 4):
                self._decoded.popitem(last=False)
        return decoded

    def placed(
        self, provider_id: int, stamp: int
    ) -> tuple[tuple[Placed, ...], bytes | None] | None:
        """What is placed there as of that stamp, and the digest of the quiet state.

        The digest is empty where the state is not quiet, None where that is not known.
        """
        found = self._placed.get(provider_id)
        return (found[1], found[2]) if found is not None and found[0] == stamp else None

    def keep_placed(
        self, provider_id: int, stamp: int, placed: tuple[Placed, ...], quiet: bytes | None
    ) -> None:
        """Remember what is placed on a host."""
        with self._lock:
            if len(self._placed) >= self._hosts:
                for known in list(self._placed)[: self._hosts // 8]:
                    del self._placed[known]
            self._placed[provider_id] = (stamp, placed, quiet)


def host_row(template: HostRow, row: Counters) -> HostRow:
    """A provider, whole."""
    used = {name: amount for name, amount in zip(CORE_CLASSES, row.used, strict=True) if amount}
    foreign = {
        name: amount for name, amount in zip(CORE_CLASSES, row.foreign, strict=True) if amount
    }
    for name, (_, taken, outside) in row.others.items():
        if taken:
            used[name] = taken
        if outside:
            foreign[name] = outside
    return msgspec.structs.replace(
        template,
        generation=row.generation,
        version=row.version,
        epoch=row.epoch,
        sequence=row.sequence,
        full_sequence=row.full_sequence,
        reported_at=row.reported_at,
        over_committed=bool(row.over_committed),
        used=used,
        foreign=foreign,
    )


def room(row: Counters) -> dict[str, int]:
    """Class -> cap - used - foreign."""
    left = {
        name: cap - used - foreign
        for name, cap, used, foreign in zip(
            CORE_CLASSES, row.cap, row.used, row.foreign, strict=True
        )
    }
    for name, (cap, used, foreign) in row.others.items():
        left[name] = cap - used - foreign
    return left


def add(row: Counters, amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add amounts to what is used."""
    for name, amount in amounts.items():
        column = CORE_CLASS_INDEX.get(name)
        if column is not None:
            row.used[column] += sign * amount
        else:
            row.others.setdefault(name, [0, 0, 0])[1] += sign * amount


CORE_CLASS_INDEX = {name: index for index, name in enumerate(CORE_CLASSES)}


# -- claims -----------------------------------------------------------------------
def expires_at(claim: Claim) -> float | None:
    """When the sweeper may end it, None: never."""
    if claim.state is State.RESERVED and claim.lifecycle in EXPIRES:
        return claim.lease_until
    return None


#: Columns of ``claims`` that are not a field of ``Claim`` as it is -> how they follow from it.
_MADE: dict[str, Callable[[Claim], Any]] = {
    'state': lambda claim: claim.state.value,
    'live': lambda claim: int(claim.state in LIVE),
    'lifecycle': lambda claim: claim.lifecycle.value,
    'purpose': lambda claim: claim.purpose.value,
    'expires_at': lambda claim: expires_at(claim),
    'group_uuid': lambda claim: claim.group,
    'layout': lambda claim: None if claim.layout is None else text(claim.layout),
    'adopted': lambda claim: int(claim.adopted),
}
#: Every column of ``claims``, and how it is got from a claim.
CLAIM: dict[str, Callable[[Claim], Any]] = {
    column.name: _MADE.get(column.name) or operator.attrgetter(column.name)
    for column in models.claims.c
}
_READ = [column for column in models.claims.c if column.name not in ('live', 'expires_at')]
_FIELDS = [
    *('group' if column.name == 'group_uuid' else column.name for column in _READ),
    *('project_id', 'user_id', 'consumer_type', 'host'),
]
CLAIMS = sa.select(
    *_READ,
    models.consumers.c.project_id,
    models.consumers.c.user_id,
    models.consumers.c.type.label('consumer_type'),
    models.providers.c.name.label('host'),
).select_from(
    models.claims.outerjoin(
        models.consumers, models.consumers.c.uuid == models.claims.c.consumer
    ).outerjoin(models.providers, models.providers.c.id == models.claims.c.provider_id)
)


def claim_values(claim: Claim) -> dict[str, Any]:
    """The columns of ``claims`` for a claim."""
    return {name: of(claim) for name, of in CLAIM.items()}


def claim(row: Sequence[Any], allocations: dict[int, dict[str, int]]) -> Claim:
    """A claim from a row of ``CLAIMS``."""
    values = dict(zip(_FIELDS, row, strict=True))
    values['state'] = State(values['state'])
    values['lifecycle'] = Lifecycle(values['lifecycle'])
    values['purpose'] = Purpose(values['purpose'])
    if values['layout'] is not None:
        values['layout'] = msgspec.json.decode(values['layout'])
    values['adopted'] = bool(values['adopted'])
    values['host'] = values['host'] or ''
    values['consumer_type'] = values['consumer_type'] or 'INSTANCE'
    return Claim(allocations=allocations, **values)


def consumer_values(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """The columns of ``consumers`` for the consumers of these claims."""
    rows = {
        claim.consumer: {
            'uuid': claim.consumer,
            'project_id': claim.project_id,
            'user_id': claim.user_id,
            'type': claim.consumer_type,
        }
        for claim in claims
    }
    return [rows[uuid] for uuid in sorted(rows)]


def allocation_values(claim: Claim) -> list[dict[str, Any]]:
    """The rows of ``allocations`` for a claim."""
    return [
        {'claim_id': claim.id, 'provider_id': provider_id, **amount_values(amounts)}
        for provider_id, amounts in sorted(claim.allocations.items())
    ]


def amount_values(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Hot classes as columns, the rest as JSON."""
    values: dict[str, Any] = {
        column: amounts.get(name, 0) for name, column in CORE_CLASS_COLUMNS.items()
    }
    other = {name: amount for name, amount in amounts.items() if name not in CORE_CLASS_COLUMNS}
    values['other'] = text(other) if other else None
    return values


def amounts(row: Any) -> dict[str, int]:
    """The amounts of one row of ``allocations``."""
    found = {
        name: amount
        for name, column in CORE_CLASS_COLUMNS.items()
        if (amount := getattr(row, column))
    }
    if row.other is not None:
        found.update(_amounts.decode(row.other))
    return found


# -- claims with their allocations ------------------------------------------------------
_ids: Any = sa.bindparam('ids', expanding=True)
ALLOCATIONS = sa.select(models.allocations).where(models.allocations.c.claim_id.in_(_ids))
_c = models.claims.c
LAYOUTS = sa.select(_c.provider_id, _c.id, _c.layout).where(
    _c.provider_id.in_(_ids), _c.live == 1, _c.layout.is_not(None)
)


def load_claims(
    tx: session.Tx,
    *,
    ids: Sequence[str] | None = None,
    request_ids: Sequence[str] | None = None,
    provider_ids: Sequence[int] | None = None,
    live: bool = False,
    where: Sequence[Any] = (),
    limit: int | None = None,
) -> list[Claim]:
    """Claims with their allocations, ascending by id."""
    query = CLAIMS.order_by(_c.id)
    for column, among in (
        (_c.id, ids),
        (_c.request_id, request_ids),
        (_c.provider_id, provider_ids),
    ):
        if among is not None:
            query = query.where(column.in_(list(among)))
    if live:
        query = query.where(_c.live == 1)
    query = query.where(*where)
    if limit is not None:
        query = query.limit(limit)
    found = tx.all(query)
    shares = allocations(tx, [row.id for row in found])
    return [claim(row, shares.get(row.id, {})) for row in found]


def allocations(tx: session.Tx, ids: Sequence[str]) -> dict[str, dict[int, dict[str, int]]]:
    """Claim id -> provider id -> class -> amount."""
    found: dict[str, dict[int, dict[str, int]]] = {}
    for start in range(0, len(ids), 1000):
        for row in tx.all(ALLOCATIONS, ids=list(ids[start : start + 1000])):
            found.setdefault(row.claim_id, {})[row.provider_id] = amounts(row)
    return found


def layouts_on(tx: session.Tx, hosts: Iterable[int]) -> dict[int, dict[str, Layout]]:
    """Host -> claim -> what it takes inside, of the live claims; every host is in it."""
    found: dict[int, dict[str, Layout]] = {pid: {} for pid in sorted(hosts)}
    for row in tx.all(LAYOUTS, ids=list(found)) if found else ():
        inside = layout(row.layout)
        if inside is not None:
            found[row.provider_id][row.id] = inside
    return found
