# SPDX-License-Identifier: Apache-2.0
"""The Zones port over HTTP: one bounded call each, and nothing believed that comes back.

Redirects are never followed, and nothing is decompressed.  A call has a bound in time, head and
body together, and its answer one in bytes; one that cannot be read is as good as none.  Who answers
has to be the zone that is registered: its uuid is in each answer's head.
"""

import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import httpcore2 as httpcore
import msgspec

from gantt import exceptions
from gantt.core.trace import traceparent
from gantt.core.zones.messages import (
    HostMarksPage,
    HostMarksQuery,
    ZoneAllocated,
    ZoneAllocation,
    ZoneCapacity,
    ZoneCapacityOf,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneExplanation,
    ZoneInfo,
    ZoneLease,
    ZoneRecord,
    ZoneSummary,
)
from gantt.zones.bounded_network import BoundedNetwork
from gantt.zones.credentials import ZoneTls

T = TypeVar('T')
#: What is asked about a request.
B = TypeVar('B', ZoneEvaluation, ZoneAllocation, ZoneCapacityOf)

#: Bytes of one answer; seconds until a connection stands.
ANSWER_BYTES_MAX, CONNECT_SECONDS = 4 << 20, 2.0
#: Connections to the zones of one credential together, and those that are held open.
CONNECTIONS_MAX, HELD_MAX = 128, 64
NO_HEADERS: Mapping[str, str] = {}
#: After so long a zone that was busy is asked again, in milliseconds; it need not say when.
BUSY_MS = 50
HEADERS = {'OpenStack-API-Version': 'scheduler 1.0', 'Accept-Encoding': 'identity'}
#: Bytes of the id of one call within a trace.
CALL_BYTES = 8
#: In the head of each answer: who gives it.
ZONE_HEADER = b'gantt-zone'
#: What a zone says no with -> what that is here.
_REFUSALS: Mapping[str, type[exceptions.GanttError]] = {
    'gantt.offer_gone': exceptions.OfferGone,
    'gantt.allocation_outdated': exceptions.OfferGone,
    'gantt.token_refused': exceptions.OfferGone,
    'gantt.request_cancelled': exceptions.OfferGone,
    'gantt.zone_loop': exceptions.ZoneLoop,
}

#: What is as good as no answer.
_NO_ANSWER = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
    httpcore.ProxyError,
    OSError,
    ValueError,
)


class Credentials(Protocol):
    """By what this zone is known to others."""

    def __call__(self, zone: ZoneRecord) -> Mapping[str, str]:
        """What is sent with a call so that it knows who asks.  :raises GanttError:"""
        ...

    def forget(self, zone: ZoneRecord) -> bool:
        """What was sent is refused there; whether a next call sends something else."""
        ...

    def tls(self, zone: ZoneRecord) -> ZoneTls:
        """How connections to it are made.  :raises Misconfigured:"""
        ...


class HttpZones:
    """See ``scheduler.ports.zones``.  Any thread.

    :param credentials: by which this zone is known there
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        #: Zone and call -> path, ETag and answer of the last one.
        self._last: dict[tuple[str, str], tuple[str, str, Any]] = {}
        #: By credential; what a file of one has is read with the first connection.
        self._pools: dict[str, tuple[BoundedNetwork, httpcore.ConnectionPool]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close its connections."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for _, pool in pools.values():
            pool.close()

    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        return self._call(zone, 'GET', '', None, ZoneInfo, seconds)

    def summary(self, zone: ZoneRecord, seconds: float) -> ZoneSummary:
        return self._changed(zone, '/summary', ZoneSummary, seconds)

    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        return self._ask(zone, 'POST', '/evaluations', body, ZoneEvaluated, seconds)

    def capacity(self, zone: ZoneRecord, body: ZoneCapacityOf, seconds: float) -> ZoneCapacity:
        return self._ask(zone, 'POST', '/capacity', body, ZoneCapacity, seconds)

    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        return self._ask(zone, 'PUT', f'/allocations/{key}', body, ZoneAllocated, seconds)

    def allocation(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneAllocated | None:
        try:
            return self._call(zone, 'GET', f'/allocations/{key}', None, ZoneAllocated, seconds)
        except exceptions.NotFound:
            return None

    def give_back(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
        path = f'/allocations/{key}' + (f'/claims/{claim_id}' if claim_id else '')
        self._call(zone, 'DELETE', path, None, ZoneAllocated, seconds)

    def extend(self, zone: ZoneRecord, key: str, lease_seconds: int, seconds: float) -> None:
        body, path = ZoneLease(seconds=lease_seconds), f'/allocations/{key}/lease'
        self._call(zone, 'PUT', path, body, ZoneAllocated, seconds)

    def explain(
        self, zone: ZoneRecord, key: str, seconds: float, trace: str = ''
    ) -> ZoneExplanation:
        path = f'/explanations/{key}'
        return self._call(zone, 'GET', path, None, ZoneExplanation, seconds, trace)

    def changes(
        self, zone: ZoneRecord, since: float, seconds: float, after: str = ''
    ) -> ZoneChanges:
        path = f'/changes?since={since!r}' + (f'&behind={after}' if after else '')
        return self._changed(zone, path, ZoneChanges, seconds)

    def marks(self, zone: ZoneRecord, query: HostMarksQuery, seconds: float) -> HostMarksPage:
        return self._call(zone, 'POST', '/host-marks', query, HostMarksPage, seconds)

    # -- inside ------------------------------------------------------------------------
    def _ask(
        self, zone: ZoneRecord, method: str, path: str, body: B, answer: type[T], seconds: float
    ) -> T:
        """A call about a request, whose trace id is in the head as well."""
        return self._call(zone, method, path, body, answer, seconds, body.request.trace or '')

    def _call(
        self,
        zone: ZoneRecord,
        method: str,
        path: str,
        body: Any,
        answer: type[T],
        seconds: float,
        trace: str = '',
    ) -> T:
        more = {'traceparent': traceparent(trace, secrets.token_hex(CALL_BYTES))} if trace else {}
        status, data, _ = self._sent(zone, method, path, body, seconds, more)
        return _decoded(zone, status, data, answer)

    def _changed(self, zone: ZoneRecord, path: str, answer: type[T], seconds: float) -> T:
        """By conditional GET: what has not changed is neither sent nor read again."""
        at = zone.uuid, path.partition('?')[0]
        last_path, etag, last = self._last.get(at, ('', '', None))
        known = {'If-None-Match': etag} if etag and last_path == path else {}
        status, data, etag = self._sent(zone, 'GET', path, None, seconds, known)
        if status == 304 and known and isinstance(last, answer):
            return last
        found = _decoded(zone, status, data, answer)
        self._last[at] = path, etag, found
        return found

    def _sent(
        self,
        zone: ZoneRecord,
        method: str,
        path: str,
        body: Any,
        seconds: float,
        more: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes, str]:
        """Status, body and ETag of an answer that is no refusal.

        A token may be revoked long before it expires: where it is refused the call is made once
        more with a new one.  All calls may be repeated.

        :raises Unavailable: no answer, or not of this zone
        :raises Refused, Conflict, NotFound: the zone says no
        """
        end = time.monotonic() + max(seconds, 0.001)
        content = None if body is None else msgspec.json.encode(body)
        status, data, etag, who = self._exchanged(zone, method, path, content, end, more)
        if status == 401 and self._credentials.forget(zone):
            status, data, etag, who = self._exchanged(zone, method, path, content, end, more)
        if status // 100 == 2 or status == 304:
            return status, data, etag
        refused = refusal_of(f'{zone.url.rstrip("/")}/zone/v1{path}', status, data)
        refused.kwargs['zone'] = who
        raise refused

    def _pool_of(self, zone: ZoneRecord) -> tuple[BoundedNetwork, httpcore.ConnectionPool]:
        """Connections to the zones of one credential.  :raises Misconfigured: of that"""
        with self._lock:
            known = self._pools.get(zone.credential)
        if known is not None:
            return known
        tls = self._credentials.tls(zone)
        network = BoundedNetwork(tls.pin)
        pool = httpcore.ConnectionPool(
            ssl_context=tls.context,
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=HELD_MAX,
            network_backend=network,
        )
        with self._lock:
            return self._pools.setdefault(zone.credential, (network, pool))

    def _forget(self, zone: ZoneRecord, pool: httpcore.ConnectionPool) -> None:
        """Read the files of a credential anew; calls that go on have their connections still."""
        with self._lock:
            known = self._pools.get(zone.credential)
            if zone.credential and known is not None and known[1] is pool:
                del self._pools[zone.credential]

    def _exchanged(
        self,
        zone: ZoneRecord,
        method: str,
        path: str,
        content: bytes | None,
        end: float,
        more: Mapping[str, str],
    ) -> tuple[int, bytes, str, str]:
        """Status, body, ETag and uuid of the zone, of whatever it answers.

        :param end: by the monotonic clock
        :raises Unavailable: no answer, or not of this zone
        """
        headers = {**HEADERS, **self._credentials(zone), **more}
        if content is not None:
            headers['Content-Type'] = 'application/json'
        url = f'{zone.url.rstrip("/")}/zone/v1{path}'
        seconds = max(end - time.monotonic(), 0.001)
        bounds = {'connect': min(CONNECT_SECONDS, seconds), 'pool': seconds}
        network, pool = self._pool_of(zone)
        try:
            with (
                network.until(end),
                pool.stream(
                    method,
                    url,
                    headers=list(headers.items()),
                    content=content,
                    extensions={'timeout': bounds},
                ) as response,
            ):
                data = _read(response)
                status, who = response.status, _header(response, ZONE_HEADER)
                etag = _header(response, b'etag')
        except _NO_ANSWER as e:
            if isinstance(e, httpcore.ConnectError):
                self._forget(zone, pool)  # there may be other certificates by now
            problem = str(e) or type(e).__name__
            raise exceptions.Unavailable(f'{url}: no answer: {problem}') from None
        if zone.uuid and who != zone.uuid:
            raise exceptions.Unavailable(
                f'{url}: it is not the zone {zone.uuid}: it is {who!r:.60}'
            )
        return status, data, etag, who


def _decoded(zone: ZoneRecord, status: int, data: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=answer)
    except (msgspec.MsgspecError, RecursionError) as e:
        problem = f'zone {zone.name}: an answer ({status}) cannot be read: {e}'
        raise exceptions.Unavailable(problem) from None


def _read(response: httpcore.Response) -> bytes:
    """The body, within its bounds.  :raises ValueError:"""
    data = bytearray()
    for part in response.iter_stream():
        data += part
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f'the answer has more than {ANSWER_BYTES_MAX} bytes')
    return bytes(data)


def _header(response: httpcore.Response, name: bytes) -> str:
    """The first one of a name, in lower case; '': there is none."""
    found = [value for known, value in response.headers if known.lower() == name]
    return found[0].decode('ascii', 'replace') if found else ''


def refusal_of(url: str, status: int, data: bytes) -> exceptions.GanttError:
    """What a zone says no with, and its ``code``; its words are for the log alone."""
    code, detail = '', ''
    try:
        first = msgspec.json.decode(data)['errors'][0]
        code, detail = str(first['code']), str(first['detail'])[:500]
    except (msgspec.MsgspecError, RecursionError, KeyError, IndexError, TypeError):
        pass
    text = f'{url}: {status} {code} {detail}'.rstrip()
    refused = _error_of(status, code, text)
    refused.kwargs['code'] = code
    return refused


def _error_of(status: int, code: str, text: str) -> exceptions.GanttError:
    if code == exceptions.Busy.code:
        return exceptions.Busy(reason=text, retry_after_ms=BUSY_MS)
    known = _REFUSALS.get(code)
    if known is not None:
        return known(text)
    if status == 404:
        return exceptions.NotFound(text)
    if status in (429, 503, 504) or status >= 500 or status // 100 == 3:
        return exceptions.Unavailable(text)
    return exceptions.Refused(text)
