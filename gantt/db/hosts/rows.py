# SPDX-License-Identifier: Apache-2.0
"""Rows of hosts, read and written as the core's types.

Facts are decoded once for each provider and ``facts_stamp``, and the claims placed on a host are
read once for each ``claims_stamp``: under load only the counters of a row differ from one read to
the next.
"""

import collections
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gantt.core.claims.claim import State
from gantt.core.messages import quoting
from gantt.core.messages.layout import ALL_OF_IT, Layout, unsettled
from gantt.core.messages.request import Purpose
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources import host_keys
from gantt.core.resources.host import HostFacts, HostRow, Placed, UnreadableFacts
from gantt.core.resources.host_keys import HostKey
from gantt.db.engine import engine
from gantt.db.hosts.details import KnownDetails, ProviderDetails, mark_of, of_row, with_details
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

LOG = logging.getLogger(__name__)

#: The narrow columns of a provider, in the order that ``Counters`` unpacks.
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
    'sparse_classes',
    *(f'cap_{c}' for c in CORE_CLASS_COLUMNS.values()),
    *(f'used_{c}' for c in CORE_CLASS_COLUMNS.values()),
    *(f'foreign_{c}' for c in CORE_CLASS_COLUMNS.values()),
)

#: Columns of ``provider_facts`` that are not JSON.
PLAIN_FACTS = [
    column.name
    for column in models.provider_facts.c
    if column.name not in ('provider_id', 'facts', 'signing_key')
]
#: Columns that a HostRow is built of, beside ``details``, and that no claim changes.
FACTS = ('id', 'facts_stamp', 'uuid', 'name', *PLAIN_FACTS, 'facts', 'signing_key')

_facts = msgspec.json.Decoder(HostFacts)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: Parts of the facts; those with rows of their own are read there.
_PARTS = {
    field.name: msgspec.json.Decoder(field.type)
    for field in msgspec.structs.fields(HostFacts)
    if field.name not in ('inventories', 'traits')
}
_encode = msgspec.msgpack.Encoder().encode
_key = msgspec.json.Decoder(HostKey)
_amounts = msgspec.json.Decoder(dict[str, int])
_texts = msgspec.json.Decoder(list[str])
#: Errors of decoders for rows that a later release has written, or that were damaged.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError)
Amounts = dict[int, dict[str, int]]
NOTHING: Amounts = {}
encode = msgspec.json.encode
decode_amounts, decode_facts = _amounts.decode, _facts.decode


def key(text: str | None) -> HostKey | None:
    """Return the key of a host, from JSON; None: it has none."""
    return None if text is None else _key.decode(text)


def known_key(text: str | None) -> HostKey | None:
    """Return the same; an unreadable key admits no message."""
    return ColumnReader().read('signing_key', key, text, host_keys.UNREADABLE)


class ColumnReader:
    """A reader of columns one at a time that goes on where one cannot be read.

    :ivar problems: column -> why it cannot be read
    """

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def read(self, name: str, decode: Callable[[Any], Any], stored: Any, otherwise: Any) -> Any:
        """Return the value of a column, or a default where it cannot be read."""
        try:
            return decode(stored)
        except UNREADABLE as e:
            self.problems[name] = quoting.plain(str(e), quoting.SENTENCE_MAX)
            return otherwise

    def __str__(self) -> str:
        return '; '.join(f'{name}: {problem}' for name, problem in self.problems.items())


def known_amounts(text: str) -> dict[str, int]:
    """Return class -> amount, from JSON, for sums; unreadable ones are left out, see the audit."""
    try:
        return _amounts.decode(text)
    except UNREADABLE:
        return {}


def known_texts(text: str) -> list[str]:
    """Return a list from JSON; an empty one where it cannot be read."""
    return ColumnReader().read('', _texts.decode, text, [])


def known_purpose(text: str) -> Purpose:
    """Return the purpose of a claim; an unreadable one counts as CREATE, and bars creates."""
    return ColumnReader().read('', Purpose, text, Purpose.CREATE)


def known_state(text: str) -> State:
    """Return the state of a claim; an unreadable one counts as not ended."""
    return ColumnReader().read('', State, text, State.CONFIRMED)


def body(text: str | None) -> dict[str, Any] | None:
    """Return a claim's layout as in JSON."""
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])


def layout(text: str | None) -> Layout | None:
    """Return the layout of a claim, from JSON; None: none."""
    try:
        return unsettled(body(text))
    except UNREADABLE:
        return ALL_OF_IT


def text(value: Any) -> str:
    """Return a value as JSON text."""
    try:
        return encode(value).decode()
    except UnicodeEncodeError:
        return encode(_storable(msgspec.to_builtins(value))).decode()


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return engine.storable(value)
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
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
    sparse_classes: int
    cap: list[int]
    used: list[int]
    foreign: list[int]
    #: class -> [cap, used, foreign], of the classes that are not hot
    others: dict[str, list[int]]


def counters(row: Sequence[Any]) -> Counters:
    """Return counters from the columns of ``COUNTERS``."""
    cap, used, foreign = list(row[11:15]), list(row[15:19]), list(row[19:23])
    return Counters(*row[:11], cap, used, foreign, {})  # type: ignore[call-arg]


#: Facts remembered for hosts with equal facts, where there are few hosts.
FACTS_MIN = 64


class Memory:
    """Cache of the decoded rows of this process: bounded, thread-safe."""

    def __init__(self, hosts: int = 32_768) -> None:
        self._hosts = hosts
        self._lock = threading.Lock()
        self._templates: dict[int, tuple[int, HostRow]] = {}
        self._decoded: collections.OrderedDict[bytes, HostFacts] = collections.OrderedDict()
        self.details = KnownDetails()
        self._no_hosts: dict[int, int] = {}
        self._placed: dict[int, tuple[int, tuple[Placed, ...], bytes | None]] = {}

    def template(self, provider_id: int, facts_stamp: int) -> HostRow | None:
        """Return the row as of that stamp; its counters are meaningless."""
        cached = self._templates.get(provider_id)
        return cached[1] if cached is not None and cached[0] == facts_stamp else None

    def details_of(self, provider_id: int, mark: str | None) -> ProviderDetails | None:
        """Return the details of a provider whose record has that mark; None: not known."""
        cached_details = self.details.known(mark)
        if cached_details is None and mark is not None and provider_id in self._templates:
            last_details = of_row(self._templates[provider_id][1])
            cached_details = last_details if last_details.digest == mark else None
        return cached_details

    def share(self, details: ProviderDetails) -> ProviderDetails:
        """Remember details and return the shared ones; see ``KnownDetails.shared``."""
        return self.details.shared(details, most=len(self._templates) // 4)

    def learn(self, row: Any, details: ProviderDetails) -> HostRow:
        """Return a host row from the columns of ``FACTS`` and its details; remember it."""
        details = self.share(details)
        values = {name: getattr(row, name) for name in PLAIN_FACTS}
        try:
            values |= {'facts': self.decode(row.facts, details), 'key': key(row.signing_key)}
        except UNREADABLE:
            values |= _as_far_as_readable(row, details)
        template = HostRow(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            aggregates=details.aggregates,
            **values,
        )
        if mark_of(row.facts) in (None, details.digest):  # else they were written meanwhile
            self.keep(template, row.facts_stamp)
        return template

    def keep(self, row: HostRow, facts_stamp: int) -> None:
        """Remember ``row`` as that of its provider at that stamp."""
        with self._lock:
            if len(self._templates) >= self._hosts:
                for provider_id in list(self._templates)[: self._hosts // 8]:
                    del self._templates[provider_id]
            self._templates[row.id] = (facts_stamp, row)

    def is_no_host(self, provider_id: int, facts_stamp: int) -> bool:
        """Return whether a provider is known to have had no record of a host at that stamp."""
        return self._no_hosts.get(provider_id) == facts_stamp

    def keep_no_host(self, provider_id: int, facts_stamp: int) -> None:
        """Remember that a provider had no record of a host."""
        with self._lock:
            if len(self._no_hosts) >= self._hosts:
                for old_id in list(self._no_hosts)[: self._hosts // 8]:
                    del self._no_hosts[old_id]
            self._no_hosts[provider_id] = facts_stamp

    def decode(self, facts: str, details: ProviderDetails) -> HostFacts:
        """Return facts from JSON and rows; hosts with equal facts share one object."""
        text = f'{details.digest}{facts}'
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        with self._lock:
            cached = self._decoded.get(digest)
            if cached is not None:
                self._decoded.move_to_end(digest)
                return cached
        decoded = self.details.sharing(with_details(decode_facts(facts), details))
        with self._lock:
            self._decoded[digest] = decoded
            # With a metric in them nearly all facts occur once.
            while len(self._decoded) > max(FACTS_MIN, len(self._templates) // 4):
                self._decoded.popitem(last=False)
        return decoded

    def placed(
        self, provider_id: int, stamp: int
    ) -> tuple[tuple[Placed, ...], bytes | None] | None:
        """Return the claims placed there as of that stamp, and the digest of the quiet state.

        The digest is empty where the state is not quiet, None where that is not known.
        """
        cached = self._placed.get(provider_id)
        return (cached[1], cached[2]) if cached is not None and cached[0] == stamp else None

    def last_placed(self, provider_id: int) -> tuple[Placed, ...]:
        """Return the claims placed there at the last read; empty where that is not known."""
        cached = self._placed.get(provider_id)
        return cached[1] if cached is not None else ()

    def keep_placed(
        self, provider_id: int, stamp: int, placed: tuple[Placed, ...], quiet: bytes | None
    ) -> None:
        """Remember the claims placed on a host."""
        with self._lock:
            if len(self._placed) >= self._hosts:
                for old_id in list(self._placed)[: self._hosts // 8]:
                    del self._placed[old_id]
            self._placed[provider_id] = (stamp, placed, quiet)


def _as_far_as_readable(row: Any, details: ProviderDetails) -> dict[str, Any]:
    """Return readable fields of a host, closed with the reasons why the rest is not known."""
    reader = ColumnReader()
    signing_key = reader.read('signing_key', key, row.signing_key, host_keys.UNREADABLE)
    parts = reader.read('facts', _parts.decode, row.facts, {})
    facts = {
        name: reader.read(name, decoder.decode, parts[name], None)
        for name, decoder in _PARTS.items()
        if name in parts
    }
    facts = {name: value for name, value in facts.items() if name not in reader.problems}
    if not reader.problems:  # the unreadable parts are in rows of their own
        return {'facts': with_details(HostFacts(**facts), details), 'key': signing_key}
    problem = f'cannot be read by this release: {reader}'
    LOG.warning(
        'Host is closed because its record cannot be read: host=%s problem=%s', row.name, reader
    )
    stored = {'service_disabled': row.service_disabled, 'facts': row.facts}
    if 'signing_key' in reader.problems:
        stored['signing_key'] = row.signing_key
    return {
        'facts': with_details(UnreadableFacts(**facts, stored=stored), details),
        'key': signing_key,
        'service_disabled': problem,
    }


def host_row(template: HostRow, row: Counters) -> HostRow:
    """Return the complete row of a provider."""
    used = {name: amount for name, amount in zip(CORE_CLASSES, row.used, strict=True) if amount}
    foreign = {
        name: amount for name, amount in zip(CORE_CLASSES, row.foreign, strict=True) if amount
    }
    for name, (_, claimed, unclaimed) in row.others.items():
        if claimed:
            used[name] = claimed
        if unclaimed:
            foreign[name] = unclaimed
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
    """Return class -> cap - used - foreign."""
    room_by_class = {
        name: cap - used - foreign
        for name, cap, used, foreign in zip(
            CORE_CLASSES, row.cap, row.used, row.foreign, strict=True
        )
    }
    for name, (cap, used, foreign) in row.others.items():
        room_by_class[name] = cap - used - foreign
    return room_by_class


def flag(row: Counters) -> None:
    """Set or clear the over-full flag after changes of the world, which need not fit."""
    row.over_committed = int(
        any(map(_is_over, row.cap, row.used, row.foreign))
        or any(_is_over(*usage) for usage in row.others.values())
    )


def unflag(row: Counters) -> None:
    """Clear the over-full flag if all of it fits; writers of claims never set it.

    A claim that overfills a host would be a bug, which the audit detects by the missing flag.
    """
    if row.over_committed:
        flag(row)


def _is_over(cap: int, used: int, foreign: int) -> bool:
    return used + foreign > cap


def counted(row: Counters, amounts: Mapping[str, int], sign: int) -> Mapping[str, int]:
    """Return the amounts that are counted.

    Ends always succeed: no amount is given back to a class without a row.
    """
    if sign > 0:
        return amounts
    return {
        name: amount
        for name, amount in amounts.items()
        if name in CORE_CLASS_INDEX or name in row.others
    }


def add(row: Counters, amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add amounts to the usage."""
    for name, amount in counted(row, amounts, sign).items():
        column = CORE_CLASS_INDEX.get(name)
        if column is not None:
            row.used[column] += sign * amount
        else:
            row.others.setdefault(name, [0, 0, 0])[1] += sign * amount


CORE_CLASS_INDEX = {name: index for index, name in enumerate(CORE_CLASSES)}
