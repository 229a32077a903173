# SPDX-License-Identifier: Apache-2.0
"""Rows read and written as the core's types: hosts, and claims with their allocations.

Facts are decoded once for each provider and ``facts_stamp``, and what is
placed on a host is read once for each ``claims_stamp``: under load only the
counters of a row differ from one read to the next.
"""

import collections
import hashlib
import itertools
import operator
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.claims.claim import EXPIRES, LIVE, Claim, State
from gantt.core.claims.places import PlaceLetGo, PlaceTaken
from gantt.core.messages.layout import Layout, unsettled
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.host import HostFacts, HostKind, HostRow, Placed
from gantt.core.resources.host_keys import HostKey
from gantt.db.engine import engine, retry, session
from gantt.db.hosts import inherited, planned, sole
from gantt.db.hosts.details import KnownDetails, ProviderDetails, mark_of, of_row, with_details
from gantt.db.schema import claim_form, models
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
#: Columns that a HostRow is made of, beside ``details``, and that no claim changes.
FACTS = ('id', 'facts_stamp', 'uuid', 'name', 'kind', *PLAIN_FACTS, 'facts', 'signing_key')

_facts = msgspec.json.Decoder(HostFacts)
_encode = msgspec.msgpack.Encoder().encode
_key = msgspec.json.Decoder(HostKey)
_amounts = msgspec.json.Decoder(dict[str, int])
Amounts = dict[int, dict[str, int]]
NOTHING: Amounts = {}
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
        #: Whether claims are written in the narrow form, as was read last; the write looks again.
        self.narrow: bool | None = None
        self._hosts = hosts
        self._lock = threading.Lock()
        self._templates: dict[int, tuple[int, HostRow]] = {}
        self._decoded: collections.OrderedDict[bytes, HostFacts] = collections.OrderedDict()
        self.details = KnownDetails()
        self._no_hosts: dict[int, int] = {}
        self._placed: dict[int, tuple[int, tuple[Placed, ...], bytes | None]] = {}

    def template(self, provider_id: int, facts_stamp: int) -> HostRow | None:
        """The row as of that stamp, with counters of no meaning."""
        found = self._templates.get(provider_id)
        return found[1] if found is not None and found[0] == facts_stamp else None

    def details_of(self, provider_id: int, mark: str | None) -> ProviderDetails | None:
        """What a provider whose record has that mark has; None: that is not known."""
        found = self.details.known(mark)
        if found is None and mark is not None and provider_id in self._templates:
            before = of_row(self._templates[provider_id][1])
            found = before if before.digest == mark else None
        return found

    def share(self, details: ProviderDetails) -> ProviderDetails:
        """The same, remembered; see ``KnownDetails.shared``."""
        return self.details.shared(details, most=len(self._templates) // 4)

    def learn(self, row: Any, details: ProviderDetails) -> HostRow:
        """From the columns of ``FACTS``, and what its rows say."""
        details = self.share(details)
        template = HostRow(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            kind=HostKind(row.kind),
            aggregates=details.aggregates,
            facts=self.decode(row.facts, details),
            key=key(row.signing_key),
            **{name: getattr(row, name) for name in PLAIN_FACTS},
        )
        if mark_of(row.facts) in (None, details.digest):  # else they were written meanwhile
            self.keep(template, row.facts_stamp)
        return template

    def keep(self, row: HostRow, facts_stamp: int) -> None:
        """Remember ``row`` as what its provider says at that stamp."""
        with self._lock:
            if len(self._templates) >= self._hosts:
                for provider_id in list(self._templates)[: self._hosts // 8]:
                    del self._templates[provider_id]
            self._templates[row.id] = (facts_stamp, row)

    def is_no_host(self, provider_id: int, facts_stamp: int) -> bool:
        """Whether a provider is known to have had no record of a host at that stamp."""
        return self._no_hosts.get(provider_id) == facts_stamp

    def keep_no_host(self, provider_id: int, facts_stamp: int) -> None:
        """Remember that it had none."""
        with self._lock:
            if len(self._no_hosts) >= self._hosts:
                for known in list(self._no_hosts)[: self._hosts // 8]:
                    del self._no_hosts[known]
            self._no_hosts[provider_id] = facts_stamp

    def decode(self, facts: str, details: ProviderDetails) -> HostFacts:
        """Facts from JSON and rows; hosts that say the same share one object."""
        text = f'{details.digest}{facts}'
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        with self._lock:
            found = self._decoded.get(digest)
            if found is not None:
                self._decoded.move_to_end(digest)
                return found
        decoded = self.details.sharing(with_details(decode_facts(facts), details))
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

    def last_placed(self, provider_id: int) -> tuple[Placed, ...]:
        """What was placed there when it was read last; empty where that is not known."""
        found = self._placed.get(provider_id)
        return found[1] if found is not None else ()

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


def flag(row: Counters) -> None:
    """Flag as over-full, or no more, after what the world may do: it is not held to what fits."""
    row.over_committed = int(
        any(map(_is_over, row.cap, row.used, row.foreign))
        or any(_is_over(*of) for of in row.others.values())
    )


def unflag(row: Counters) -> None:
    """Take the flag away where all of it fits; what writers of claims do never sets it.

    One that made a host over-full would be at fault, which the audit sees by the flag that is
    not there.
    """
    if row.over_committed:
        flag(row)


def _is_over(cap: int, used: int, foreign: int) -> bool:
    return used + foreign > cap


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
    'planned': lambda claim: None if claim.planned is None else text(claim.planned),
    'adopted': lambda claim: int(claim.adopted),
    'other': lambda claim: _other(claim.allocations.get(claim.provider_id, {})),
    'sole': lambda claim: sole.sole_of(claim),
    **{
        column: lambda claim, name=name: _of_own_host(claim, name)  # type: ignore[misc]
        for name, column in CORE_CLASS_COLUMNS.items()
    },
}
#: Columns that only narrow claims have, see ``claim_form``.
AMOUNTS = (*CORE_CLASS_COLUMNS.values(), 'other')
NARROW = (*AMOUNTS, 'project_id', 'user_id', 'consumer_type', 'sole')
#: Every column of ``claims``, and how it is got from a claim.
CLAIM: dict[str, Callable[[Claim], Any]] = {
    column.name: _MADE.get(column.name) or operator.attrgetter(column.name)
    for column in models.claims.c
}
_READ = [c for c in models.claims.c if c.name not in ('live', 'expires_at', *NARROW)]
_FIELDS = [
    *('group' if column.name == 'group_uuid' else column.name for column in _READ),
    *('project_id', 'user_id', 'consumer_type', 'host'),
]
CLAIMS = sa.select(
    *_READ,
    claim_form.PROJECT.label('project_id'),
    claim_form.USER.label('user_id'),
    claim_form.TYPE.label('consumer_type'),
    # Of claims that lie on a provider which is no host: none.
    sa.case((models.providers.c.kind == HostKind.HOST.value, models.providers.c.name)).label(
        'host'
    ),
    *(models.claims.c[column] for column in AMOUNTS),
).select_from(
    claim_form.OWNED.outerjoin(
        models.providers, models.providers.c.id == models.claims.c.provider_id
    )
)


def _of_own_host(claim: Claim, name: str) -> int | None:
    amounts = claim.allocations.get(claim.provider_id)
    return None if amounts is None else amounts.get(name, 0)


def _other(amounts: Mapping[str, int]) -> str | None:
    other = {name: amount for name, amount in amounts.items() if name not in CORE_CLASS_COLUMNS}
    return text(other) if other else None


def claim_values(claim: Claim, narrow: bool) -> dict[str, Any]:
    """The columns of ``claims`` for a claim."""
    return {name: of(claim) for name, of in CLAIM.items() if narrow or name not in NARROW}


def claim(row: Sequence[Any], allocations: Amounts, inherits: Amounts = NOTHING) -> Claim:
    """A claim from a row of ``CLAIMS``."""
    values = dict(zip(_FIELDS, row, strict=False))
    values['state'] = State(values['state'])
    values['lifecycle'] = Lifecycle(values['lifecycle'])
    values['purpose'] = Purpose(values['purpose'])
    if values['layout'] is not None:
        values['layout'] = msgspec.json.decode(values['layout'])
    values['planned'] = planned.of_text(values['planned'])
    values['adopted'] = bool(values['adopted'])
    values['host'] = values['host'] or ''
    values['consumer_type'] = values['consumer_type'] or 'INSTANCE'
    return Claim(allocations=allocations, inherits=inherits, **values)


def consumer_values(claims: Iterable[Claim | PlaceTaken | PlaceLetGo]) -> list[dict[str, Any]]:
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


def allocation_values(claim: Claim, narrow: bool) -> list[dict[str, Any]]:
    """The rows of ``allocations`` for a claim."""
    return [
        {'claim_id': claim.id, 'provider_id': provider_id, **amount_values(amounts)}
        | {'inherits': inherited.text_of(claim.inherits.get(provider_id))}
        for provider_id, amounts in sorted(claim.allocations.items())
        if not narrow or provider_id != claim.provider_id
    ]


def amount_values(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Hot classes as columns, the rest as JSON."""
    values: dict[str, Any] = {
        column: amounts.get(name, 0) for name, column in CORE_CLASS_COLUMNS.items()
    }
    return {**values, 'other': _other(amounts)}


def amounts(row: Any, prefix: str = '') -> dict[str, int]:
    """The amounts of one row of ``allocations``, or of a narrow claim."""
    found = {
        name: amount
        for name, column in CORE_CLASS_COLUMNS.items()
        if (amount := getattr(row, prefix + column))
    }
    other = getattr(row, f'{prefix}other')
    if other is not None:
        found.update(_amounts.decode(other))
    return found


# -- claims with their allocations ------------------------------------------------------
_ids: Any = sa.bindparam('ids', expanding=True)
_a = models.allocations
#: What a claim takes beside its host, as :func:`taken` reads it.
SHARE = [column.label(f'beside_{column.name}') for column in _a.c if column.name != 'claim_id']
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
    query = CLAIMS
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
        query = query.order_by(_c.id).limit(limit)
    return whole_claims(tx.all(with_shares(query)))


def with_shares(query: Any) -> Any:
    """A query of ``CLAIMS`` with all that they take, ascending by id.

    In one statement: a claim may be moved from one form to the other between two.
    """
    of = query.subquery('of')
    source = of.outerjoin(_a, _a.c.claim_id == of.c.id)
    return sa.select(of, *SHARE).select_from(source).order_by(of.c.id)


def whole_claims(found: Sequence[Any]) -> list[Claim]:
    """Claims from rows of such a query."""
    by_claim = itertools.groupby(found, operator.attrgetter('id'))
    return [
        claim(rows[0], taken(rows), inherited.of_rows(rows))
        for rows in (list(of) for _, of in by_claim)
    ]


def taken(rows: Sequence[Any]) -> dict[int, dict[str, int]]:
    """What a claim takes: rows of it, one for each provider in ``allocations``, or one alone."""
    first = rows[0]
    taken = {} if first.vcpu is None else {first.provider_id: amounts(first)}
    for row in rows:
        if row.beside_provider_id is not None:
            taken[row.beside_provider_id] = amounts(row, 'beside_')
    return taken


def layouts_on(tx: session.Tx, hosts: Iterable[int]) -> dict[int, dict[str, Layout]]:
    """Host -> claim -> what it takes inside, of the live claims; every host is in it."""
    found: dict[int, dict[str, Layout]] = {pid: {} for pid in sorted(hosts)}
    for row in tx.all(LAYOUTS, ids=list(found)) if found else ():
        inside = layout(row.layout)
        if inside is not None:
            found[row.provider_id][row.id] = inside
    return found


_consumer_ids: Any = sa.bindparam('ids', expanding=True)
#: Those of the claim that was made first come last: they are what holds.
OWNERS = (
    sa.select(
        models.claims.c.consumer,
        claim_form.PROJECT.label('project_id'),
        claim_form.USER.label('user_id'),
        claim_form.TYPE.label('consumer_type'),
    )
    .select_from(claim_form.OWNED)
    .where(models.claims.c.consumer.in_(_consumer_ids))
    .order_by(models.claims.c.created_at.desc(), models.claims.c.id.desc())
)


def owners(tx: session.Tx, consumers: Collection[str]) -> dict[str, dict[str, Any]]:
    """Project, user and type of these consumers of whom a claim is stored, live or ended."""
    found = tx.all(OWNERS, ids=sorted(set(consumers))) if consumers else ()
    return {
        row.consumer: {
            'project_id': row.project_id,
            'user_id': row.user_id,
            'consumer_type': row.consumer_type or 'INSTANCE',
        }
        for row in found
    }


# -- the forms of claims: whose they are, which one is written ----------------------
def read_narrow(tx: session.Tx) -> bool:
    """Whether claims are written in the narrow form just now."""
    return bool(tx.first(claim_form.FORM).claims_form != claim_form.WIDE)


def writes_narrow(tx: session.Tx) -> bool:
    """Whether this transaction writes the narrow form; the mark waits until it has ended."""
    return form_held(tx) != claim_form.WIDE


def form_held(tx: session.Tx) -> int:
    """``meta.claims_form``, which whoever changes it writes once this transaction has ended."""
    if tx.kind == 'postgresql':  # what it takes anyway, before it looks
        tx.connection.exec_driver_sql('LOCK TABLE claims IN ROW EXCLUSIVE MODE')
    form = claim_form.FORM_SHARED if tx.kind == 'mysql' else claim_form.FORM
    return int(tx.first(form).claims_form)


def hold_consumers(tx: session.Tx, values: Sequence[dict[str, Any]]) -> None:
    """Lock consumers for whom claims are about to be made, where these are wide.

    Narrow ones meet at ``sole``, and have no rows of consumers that a purge could take.
    """
    if values and not writes_narrow(tx):
        tx.insert_or_step(models.consumers, values, 'uuid', 'generation')


def insert_claims(tx: session.Tx, made: Sequence[Claim], narrow: bool) -> None:
    """The rows of claims that are new.

    A consumer stays its project's while a claim of it is stored: a wide claim says so by its row,
    a narrow one takes over what those before it say.

    :raises Again: another transaction has made a claim that may not live beside one of these
    """
    if narrow:
        known = owners(tx, [claim.consumer for claim in made])
        made = [msgspec.structs.replace(one, **known.get(one.consumer, {})) for one in made]
    # Who inserts for the same consumers waits, in this order.
    made = sorted(made, key=lambda claim: (claim.consumer, claim.id))
    try:
        tx.many(models.claims.insert(), [claim_values(claim, narrow) for claim in made])
    except Exception as e:
        if not sole.is_of_sole(retry.root_of(e)):
            raise
        raise retry.Again('a claim for the same consumer came to be meanwhile') from e
    amounts = [values for claim in made for values in allocation_values(claim, narrow)]
    tx.many(models.allocations.insert(), amounts)
