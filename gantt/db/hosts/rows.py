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
from typing import Any, TypeVar

import msgspec

from gantt.core.claims.claim import State
from gantt.core.messages import quoting
from gantt.core.messages.layout import UNREADABLE_LAYOUT, Layout, layout_with_amounts
from gantt.core.messages.request import Purpose
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources import host_keys
from gantt.core.resources.host import HostFacts, HostRow, Placed, UnreadableFacts
from gantt.core.resources.host_keys import HostKey
from gantt.db.engine import engine
from gantt.db.hosts.details import (
    DetailsCache,
    ProviderDetails,
    details_digest,
    details_of_row,
    with_details,
)
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

LOG = logging.getLogger(__name__)

V = TypeVar('V')

#: The narrow columns of a provider, in the order that ``Counters`` unpacks.
COUNTER_COLUMNS = (
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
PLAIN_FACTS_COLUMNS = [
    column.name
    for column in models.provider_facts.c
    if column.name not in ('provider_id', 'facts', 'signing_key')
]
#: Columns that a HostRow is built of, besides ``details``, and that no claim changes.
FACTS_COLUMNS = ('id', 'facts_stamp', 'uuid', 'name', *PLAIN_FACTS_COLUMNS, 'facts', 'signing_key')

_facts_decoder = msgspec.json.Decoder(HostFacts)
_raw_parts_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: Parts of the facts; those with rows of their own are read there.
_PART_DECODERS = {
    field.name: msgspec.json.Decoder(field.type)
    for field in msgspec.structs.fields(HostFacts)
    if field.name not in ('inventories', 'traits')
}
_encode = msgspec.msgpack.Encoder().encode
_key_decoder = msgspec.json.Decoder(HostKey)
_amounts_decoder = msgspec.json.Decoder(dict[str, int])
_texts_decoder = msgspec.json.Decoder(list[str])
#: Errors of decoders for rows that a later release has written, or that were damaged.
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, TypeError)
Amounts = dict[int, dict[str, int]]
NO_AMOUNTS: Amounts = {}
encode = msgspec.json.encode
decode_amounts, decode_facts = _amounts_decoder.decode, _facts_decoder.decode


def decode_key(text: str | None) -> HostKey | None:
    """Return the key of a host, from JSON; None: it has none."""
    return None if text is None else _key_decoder.decode(text)


def readable_key(text: str | None) -> HostKey | None:
    """Return the key of a host, from JSON; an unreadable key becomes one that admits no message."""
    return ColumnReader().read('signing_key', decode_key, text, host_keys.UNREADABLE_KEY)


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
        except DECODE_ERRORS as e:
            self.problems[name] = quoting.plain_text(str(e), quoting.SENTENCE_CHARACTERS_MAX)
            return otherwise

    def __str__(self) -> str:
        return '; '.join(f'{name}: {problem}' for name, problem in self.problems.items())


def readable_amounts(text: str) -> dict[str, int]:
    """Return class -> amount, from JSON, for sums; unreadable ones are left out, see the audit."""
    try:
        return _amounts_decoder.decode(text)
    except DECODE_ERRORS:
        return {}


def readable_texts(text: str) -> list[str]:
    """Return a list from JSON; an empty one where it cannot be read."""
    return ColumnReader().read('', _texts_decoder.decode, text, [])


def readable_purpose(text: str) -> Purpose:
    """Return the purpose of a claim; an unreadable one counts as CREATE, and blocks creates."""
    return ColumnReader().read('', Purpose, text, Purpose.CREATE)


def readable_state(text: str) -> State:
    """Return the state of a claim; an unreadable one counts as not ended."""
    return ColumnReader().read('', State, text, State.CONFIRMED)


def decode_layout_fields(text: str | None) -> dict[str, Any] | None:
    """Return a claim's layout as plain values, from JSON; None: it has no layout."""
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])


def decode_layout(text: str | None) -> Layout | None:
    """Return the layout of a claim, from JSON; None: none."""
    try:
        return layout_with_amounts(decode_layout_fields(text))
    except DECODE_ERRORS:
        return UNREADABLE_LAYOUT


def json_text(value: Any) -> str:
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
    #: class -> [cap, used, foreign], of non-core classes
    others: dict[str, list[int]]


def counters(row: Sequence[Any]) -> Counters:
    """Return counters from the columns of ``COUNTER_COLUMNS``."""
    cap, used, foreign = list(row[11:15]), list(row[15:19]), list(row[19:23])
    return Counters(*row[:11], cap, used, foreign, {})  # type: ignore[call-arg]


#: Facts remembered for hosts with equal facts, where there are few hosts.
FACTS_MIN = 64


class RowCache:
    """Cache of the decoded rows of this process: bounded, thread-safe."""

    def __init__(self, hosts: int = 32_768) -> None:
        self._hosts = hosts
        self._lock = threading.Lock()
        self._templates: dict[int, tuple[int, HostRow]] = {}
        self._decoded: collections.OrderedDict[bytes, HostFacts] = collections.OrderedDict()
        self.details = DetailsCache()
        self._no_hosts: dict[int, int] = {}
        self._placed: dict[int, tuple[int, tuple[Placed, ...], bytes | None]] = {}

    def template(self, provider_id: int, facts_stamp: int) -> HostRow | None:
        """Return the row of a host as of ``facts_stamp``; its counters are meaningless."""
        cached = self._templates.get(provider_id)
        return cached[1] if cached is not None and cached[0] == facts_stamp else None

    def details_of(self, provider_id: int, mark: str | None) -> ProviderDetails | None:
        """Return the details of a provider whose record has the digest ``mark``; None: unknown."""
        cached_details = self.details.by_digest(mark)
        if cached_details is None and mark is not None and provider_id in self._templates:
            last_details = details_of_row(self._templates[provider_id][1])
            cached_details = last_details if last_details.digest == mark else None
        return cached_details

    def share_details(self, details: ProviderDetails) -> ProviderDetails:
        """Remember details and return the shared ones; see ``DetailsCache.shared``."""
        return self.details.shared(details, most=len(self._templates) // 4)

    def remember_row(self, row: Any, details: ProviderDetails) -> HostRow:
        """Return a host row from the columns of ``FACTS_COLUMNS`` and its details; remember it."""
        details = self.share_details(details)
        values = {name: getattr(row, name) for name in PLAIN_FACTS_COLUMNS}
        try:
            values |= {'facts': self.decode(row.facts, details), 'key': decode_key(row.signing_key)}
        except DECODE_ERRORS:
            values |= _as_far_as_readable(row, details)
        template = HostRow(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            aggregates=details.aggregates,
            **values,
        )
        if details_digest(row.facts) in (None, details.digest):  # else they were written meanwhile
            self.remember_template(template, row.facts_stamp)
        return template

    def remember_template(self, row: HostRow, facts_stamp: int) -> None:
        """Remember ``row`` as its provider's row as of ``facts_stamp``."""
        self._remember(self._templates, row.id, (facts_stamp, row))

    def _remember(self, cache: dict[int, V], provider_id: int, value: V) -> None:
        with self._lock:
            if len(cache) >= self._hosts:
                for old_id in list(cache)[: self._hosts // 8]:
                    del cache[old_id]
            cache[provider_id] = value

    def is_no_host(self, provider_id: int, facts_stamp: int) -> bool:
        """Return whether a provider is known to have had no record of a host at that stamp."""
        return self._no_hosts.get(provider_id) == facts_stamp

    def remember_no_host(self, provider_id: int, facts_stamp: int) -> None:
        """Remember that a provider had no record of a host."""
        self._remember(self._no_hosts, provider_id, facts_stamp)

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
        """Return a provider's claims as of ``stamp``, and the digest of a report without changes.

        The digest is empty where the state is not quiet, None where that is not known.
        """
        cached = self._placed.get(provider_id)
        return (cached[1], cached[2]) if cached is not None and cached[0] == stamp else None

    def last_placed(self, provider_id: int) -> tuple[Placed, ...]:
        """Return a provider's claims at the last read; empty where that is not known."""
        cached = self._placed.get(provider_id)
        return cached[1] if cached is not None else ()

    def remember_placed(
        self, provider_id: int, stamp: int, placed: tuple[Placed, ...], quiet: bytes | None
    ) -> None:
        """Remember the claims placed on a host."""
        self._remember(self._placed, provider_id, (stamp, placed, quiet))


def _as_far_as_readable(row: Any, details: ProviderDetails) -> dict[str, Any]:
    """Return readable fields of a host, closed with the reasons why the rest is not known."""
    reader = ColumnReader()
    signing_key = reader.read('signing_key', decode_key, row.signing_key, host_keys.UNREADABLE_KEY)
    parts = reader.read('facts', _raw_parts_decoder.decode, row.facts, {})
    facts = {
        name: reader.read(name, decoder.decode, parts[name], None)
        for name, decoder in _PART_DECODERS.items()
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
    used, foreign = usage(row)
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


def usage(row: Counters) -> tuple[dict[str, int], dict[str, int]]:
    """Return the usage by claims, and outside of claims, by class; zeros are left out."""
    used = {name: amount for name, amount in zip(CORE_CLASSES, row.used, strict=True) if amount}
    foreign = {
        name: amount for name, amount in zip(CORE_CLASSES, row.foreign, strict=True) if amount
    }
    for name, (_, claimed, unclaimed) in row.others.items():
        if claimed:
            used[name] = claimed
        if unclaimed:
            foreign[name] = unclaimed
    return used, foreign


def free_amounts(row: Counters) -> dict[str, int]:
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


def update_over_full_flag(row: Counters) -> None:
    """Set or clear the over-full flag after changes of the world, which need not fit."""
    row.over_committed = int(
        any(map(_is_over, row.cap, row.used, row.foreign))
        or any(_is_over(*usage) for usage in row.others.values())
    )


def clear_over_full_flag(row: Counters) -> None:
    """Clear the over-full flag if all of it fits; writers of claims never set it.

    A claim that overfills a host would be a bug, which the audit detects by the missing flag.
    """
    if row.over_committed:
        update_over_full_flag(row)


def _is_over(cap: int, used: int, foreign: int) -> bool:
    return used + foreign > cap


def counted_amounts(row: Counters, amounts: Mapping[str, int], sign: int) -> Mapping[str, int]:
    """Return those of ``amounts`` that a provider's row counts.

    Ends always succeed: no amount is given back to a class without a row.
    """
    if sign > 0:
        return amounts
    return {
        name: amount
        for name, amount in amounts.items()
        if name in CORE_CLASS_INDEX or name in row.others
    }


def add_usage(row: Counters, amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add amounts to the usage."""
    for name, amount in counted_amounts(row, amounts, sign).items():
        column = CORE_CLASS_INDEX.get(name)
        if column is not None:
            row.used[column] += sign * amount
        else:
            row.others.setdefault(name, [0, 0, 0])[1] += sign * amount


CORE_CLASS_INDEX = {name: index for index, name in enumerate(CORE_CLASSES)}
