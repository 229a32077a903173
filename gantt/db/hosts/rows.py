# SPDX-License-Identifier: Apache-2.0
"""Rows of hosts, read and written as the core's types.

Facts are decoded once for each provider and ``facts_stamp``, and what is
placed on a host is read once for each ``claims_stamp``: under load only the
counters of a row differ from one read to the next.
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
    if column.name not in ('provider_id', 'facts', 'signing_key')
]
#: Columns that a HostRow is made of, beside ``details``, and that no claim changes.
FACTS = ('id', 'facts_stamp', 'uuid', 'name', *PLAIN_FACTS, 'facts', 'signing_key')

_facts = msgspec.json.Decoder(HostFacts)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: Of facts; what stands in rows of its own is read there.
_PARTS = {
    field.name: msgspec.json.Decoder(field.type)
    for field in msgspec.structs.fields(HostFacts)
    if field.name not in ('inventories', 'traits')
}
_encode = msgspec.msgpack.Encoder().encode
_key = msgspec.json.Decoder(HostKey)
_amounts = msgspec.json.Decoder(dict[str, int])
_texts = msgspec.json.Decoder(list[str])
#: Raised by decoders where a later release has written what is stored, or somebody damaged it.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError)
Amounts = dict[int, dict[str, int]]
NOTHING: Amounts = {}
encode = msgspec.json.encode
decode_amounts, decode_facts = _amounts.decode, _facts.decode


def key(text: str | None) -> HostKey | None:
    """The key of a host, from JSON; None: it has none."""
    return None if text is None else _key.decode(text)


def known_key(text: str | None) -> HostKey | None:
    """The same; of one that cannot be read nobody is let pass."""
    return ColumnReader().read('signing_key', key, text, host_keys.UNREADABLE)


class ColumnReader:
    """Reads columns of a row one by one, and goes on where one cannot be read.

    :ivar problems: column -> why it cannot be read
    """

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def read(self, name: str, decode: Callable[[Any], Any], stored: Any, otherwise: Any) -> Any:
        """The value of a column; what to go on with where it cannot be read."""
        try:
            return decode(stored)
        except UNREADABLE as e:
            self.problems[name] = quoting.plain(str(e), quoting.SENTENCE_MAX)
            return otherwise

    def __str__(self) -> str:
        return '; '.join(f'{name}: {why}' for name, why in self.problems.items())


def known_amounts(text: str) -> dict[str, int]:
    """Class -> amount, from JSON, for sums; what cannot be read is left out, see the audit."""
    try:
        return _amounts.decode(text)
    except UNREADABLE:
        return {}


def known_texts(text: str) -> list[str]:
    """A list from JSON; of one that cannot be read nothing is known."""
    return ColumnReader().read('', _texts.decode, text, [])


def known_purpose(text: str) -> Purpose:
    """The purpose of a claim; one that cannot be read is in the way of creates, as most are."""
    return ColumnReader().read('', Purpose, text, Purpose.CREATE)


def known_state(text: str) -> State:
    """The state of a claim; of one that cannot be read nobody knows that it has ended."""
    return ColumnReader().read('', State, text, State.CONFIRMED)


def body(text: str | None) -> dict[str, Any] | None:
    """A claim's layout as JSON has it."""
    return None if text is None else msgspec.json.decode(text, type=dict[str, Any])


def layout(text: str | None) -> Layout | None:
    """What a claim's layout takes, from JSON; None: nothing."""
    try:
        return unsettled(body(text))
    except UNREADABLE:
        return ALL_OF_IT


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


def _as_far_as_readable(row: Any, details: ProviderDetails) -> dict[str, Any]:
    """A host with the reasons why the rest of it is not known: it is closed, for these."""
    unread = ColumnReader()
    has_key = unread.read('signing_key', key, row.signing_key, host_keys.UNREADABLE)
    parts = unread.read('facts', _parts.decode, row.facts, {})
    facts = {
        name: unread.read(name, of.decode, parts[name], None)
        for name, of in _PARTS.items()
        if name in parts
    }
    facts = {name: value for name, value in facts.items() if name not in unread.problems}
    if not unread.problems:  # in rows there is what cannot be read
        return {'facts': with_details(HostFacts(**facts), details), 'key': has_key}
    problem = f'cannot be read by this release: {unread}'
    LOG.warning(
        'a host is closed, as its record cannot be read: host=%s problem=%s', row.name, unread
    )
    stored = {'service_disabled': row.service_disabled, 'facts': row.facts}
    if 'signing_key' in unread.problems:
        stored['signing_key'] = row.signing_key
    return {
        'facts': with_details(UnreadableFacts(**facts, stored=stored), details),
        'key': has_key,
        'service_disabled': problem,
    }


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


def counted(row: Counters, amounts: Mapping[str, int], sign: int) -> Mapping[str, int]:
    """The amounts as far as they are counted at all.

    What ends always ends: of a class of which no row is left there nothing is given back.
    """
    if sign > 0:
        return amounts
    return {n: of for n, of in amounts.items() if n in CORE_CLASS_INDEX or n in row.others}


def add(row: Counters, amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add amounts to what is used."""
    for name, amount in counted(row, amounts, sign).items():
        column = CORE_CLASS_INDEX.get(name)
        if column is not None:
            row.used[column] += sign * amount
        else:
            row.others.setdefault(name, [0, 0, 0])[1] += sign * amount


CORE_CLASS_INDEX = {name: index for index, name in enumerate(CORE_CLASSES)}
