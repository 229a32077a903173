# SPDX-License-Identifier: Apache-2.0
"""Calls of a zone to those directly below, as bytes, over lines that lose, delay and double."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import msgspec

from devel.sim.network import Network
from gantt import exceptions
from gantt.zones.client.http_calls import refusal_of
from gantt.zones.model.messages import (
    ZoneAllocated,
    ZoneAllocation,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneInfo,
    ZoneLease,
    ZoneRecord,
    ZoneSummary,
)

T = TypeVar('T')
#: Zone and id of the request, '' for what exists there: an answer has come.
NoteAnswer = Callable[[str, str], None]


class ZoneCall(NamedTuple):
    """A call on its way.

    :ivar parent: uuid of the calling zone
    :ivar words: the parts of the path and the query
    """

    parent: str
    words: tuple[Any, ...]
    body: bytes = b''


class ZoneReply(NamedTuple):
    """An answer on its way."""

    status: int
    body: bytes


class LossyLinks:
    """The Zones port of one process.

    :param who: name of its zone
    :param parent: uuid of its zone
    :param networks: lines to each zone, by uuid
    :param note: called with each answer
    """

    def __init__(
        self,
        who: str,
        parent: Callable[[], str],
        networks: Mapping[str, Network],
        note: NoteAnswer,
    ) -> None:
        self._who, self._parent, self._networks, self._note = who, parent, networks, note

    def close(self) -> None:
        pass

    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        info = self._call(zone, 'discover', ZoneInfo, seconds)
        self._note(zone.name, '')
        return info

    def summary(self, zone: ZoneRecord, seconds: float) -> ZoneSummary:
        return self._call(zone, 'summary', ZoneSummary, seconds)

    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        evaluated = self._call(zone, 'evaluate', ZoneEvaluated, seconds, body=body)
        self._note(zone.name, body.request.request_id)
        return evaluated

    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        return self._call(zone, 'allocate', ZoneAllocated, seconds, key, body=body)

    def allocation(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneAllocated | None:
        try:
            return self._call(zone, 'allocation', ZoneAllocated, seconds, key)
        except exceptions.NotFound:
            return None

    def release(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
        assert not claim_id, 'no caller of a simulated tree ends one claim of a request'
        self._call(zone, 'release', ZoneAllocated, seconds, key)

    def extend(self, zone: ZoneRecord, key: str, lease_seconds: int, seconds: float) -> None:
        body = ZoneLease(seconds=lease_seconds)
        self._call(zone, 'extend', ZoneAllocated, seconds, key, body=body)

    def changes(
        self, zone: ZoneRecord, since: float, seconds: float, after: str = ''
    ) -> ZoneChanges:
        return self._call(zone, 'changes', ZoneChanges, seconds, since, after or None)

    def _none(self, zone: ZoneRecord, *_: object) -> NoReturn:
        raise exceptions.Unavailable('it is not looked at from above in this world')

    capacity = explain = host_digests = _none

    def _call(
        self,
        zone: ZoneRecord,
        method: str,
        answer: type[T],
        seconds: float,
        *words: Any,
        body: object = None,
    ) -> T:
        sent = b'' if body is None else msgspec.json.encode(body)
        call = ZoneCall(self._parent(), words, sent)
        line = line_of(self._who, zone.name)
        result = self._networks[zone.uuid].call(line, f'zone {method}', call, max(seconds, 0.001))
        reply = cast(ZoneReply, result)
        if reply.status != 200:
            raise refusal_of(f'{zone.name} {method}', reply.status, reply.body)
        return msgspec.json.decode(reply.body, type=answer)


def line_of(above: str, below: str) -> str:
    """Return the name of the line between two zones."""
    return f'{above}>{below}'
