# SPDX-License-Identifier: Apache-2.0
"""The Zones port over HTTP: one bounded call each, with nothing trusted in its answer.

Redirects are never followed, and nothing is decompressed.  A call has a bound in time, head and
body together, and its answer one in bytes; an unreadable answer counts as none.  The answering zone
has to be the registered one: its uuid is in each answer's head.
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
    HostDigestsPage,
    HostDigestsQuery,
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
#: Bodies of calls about a request.
B = TypeVar('B', ZoneEvaluation, ZoneAllocation, ZoneCapacityOf)

#: Maximum bytes of one answer; timeout of connecting, in seconds.
ANSWER_BYTES_MAX, CONNECT_SECONDS = 4 << 20, 2.0
#: Maximum number of connections to the zones of one credential together, and of those kept open.
CONNECTIONS_MAX, HELD_MAX = 128, 64
NO_HEADERS: Mapping[str, str] = {}
#: Milliseconds after which a busy zone is called again; it need not send a hint.
BUSY_MS = 50
HEADERS = {'OpenStack-API-Version': 'scheduler 1.0', 'Accept-Encoding': 'identity'}
#: Bytes of the id of one call within a trace.
CALL_BYTES = 8
#: Header of each answer with the uuid of the zone.
ZONE_HEADER = b'gantt-zone'
#: Error code of a zone's refusal -> exception here.
_REFUSALS: Mapping[str, type[exceptions.GanttError]] = {
    'gantt.offer_gone': exceptions.OfferGone,
    'gantt.allocation_outdated': exceptions.OfferGone,
    'gantt.token_refused': exceptions.OfferGone,
    'gantt.request_cancelled': exceptions.OfferGone,
    'gantt.zone_loop': exceptions.ZoneLoop,
}

#: Errors that count as no answer.
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
    """Credentials of this zone towards others."""

    def __call__(self, zone: ZoneRecord) -> Mapping[str, str]:
        """Return the headers that identify this zone in a call.  :raises GanttError:"""
        ...

    def forget(self, zone: ZoneRecord) -> bool:
        """Forget refused headers; return whether a next call sends other ones."""
        ...

    def tls(self, zone: ZoneRecord) -> ZoneTls:
        """Return the TLS settings of connections to a zone.  :raises Misconfigured:"""
        ...


class HttpZones:
    """Calls over HTTP, see ``scheduler.ports.zones``.  Any thread.

    :param credentials: by which this zone is known there
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        #: Zone and call -> path, ETag and answer of the last one.
        self._last: dict[tuple[str, str], tuple[str, str, Any]] = {}
        #: By credential; the files of one are read with the first connection.
        self._pools: dict[str, tuple[BoundedNetwork, httpcore.ConnectionPool]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
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

    def release(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
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

    def marks(self, zone: ZoneRecord, query: HostDigestsQuery, seconds: float) -> HostDigestsPage:
        return self._call(zone, 'POST', '/host-digests', query, HostDigestsPage, seconds)

    # -- inside ------------------------------------------------------------------------
    def _ask(
        self, zone: ZoneRecord, method: str, path: str, body: B, answer: type[T], seconds: float
    ) -> T:
        """Call about a request, whose trace id is in the head as well."""
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
        """Call by conditional GET: an unchanged answer is neither sent nor read again."""
        at = zone.uuid, path.partition('?')[0]
        last_path, etag, last = self._last.get(at, ('', '', None))
        conditions = {'If-None-Match': etag} if etag and last_path == path else {}
        status, data, etag = self._sent(zone, 'GET', path, None, seconds, conditions)
        if status == 304 and conditions and isinstance(last, answer):
            return last
        decoded = _decoded(zone, status, data, answer)
        self._last[at] = path, etag, decoded
        return decoded

    def _sent(
        self,
        zone: ZoneRecord,
        method: str,
        path: str,
        body: Any,
        seconds: float,
        more: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes, str]:
        """Return status, body and ETag of an answer that is no refusal.

        A token may be revoked long before it expires: where it is refused the call is repeated once
        with a new one.  All calls may be repeated.

        :raises Unavailable: no answer, or not of this zone
        :raises Refused, Conflict, NotFound: the zone refuses
        """
        end = time.monotonic() + max(seconds, 0.001)
        content = None if body is None else msgspec.json.encode(body)
        status, data, etag, zone_uuid = self._exchanged(zone, method, path, content, end, more)
        if status == 401 and self._credentials.forget(zone):
            status, data, etag, zone_uuid = self._exchanged(zone, method, path, content, end, more)
        if status // 100 == 2 or status == 304:
            return status, data, etag
        refused = refusal_of(f'{zone.url.rstrip("/")}/zone/v1{path}', status, data)
        refused.kwargs['zone'] = zone_uuid
        raise refused

    def _pool_of(self, zone: ZoneRecord) -> tuple[BoundedNetwork, httpcore.ConnectionPool]:
        """Return the connections to the zones of one credential.  :raises Misconfigured: of that"""
        with self._lock:
            connections = self._pools.get(zone.credential)
        if connections is not None:
            return connections
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
        """Read the files of a credential anew; calls in progress keep their connections."""
        with self._lock:
            connections = self._pools.get(zone.credential)
            if zone.credential and connections is not None and connections[1] is pool:
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
        """Return status, body, ETag and uuid of the zone, of any answer.

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
                status, zone_uuid = response.status, _header(response, ZONE_HEADER)
                etag = _header(response, b'etag')
        except _NO_ANSWER as e:
            if isinstance(e, httpcore.ConnectError):
                self._forget(zone, pool)  # there may be other certificates by now
            problem = str(e) or type(e).__name__
            raise exceptions.Unavailable(f'{url}: no answer: {problem}') from None
        if zone.uuid and zone_uuid != zone.uuid:
            raise exceptions.Unavailable(
                f'{url}: it is not the zone {zone.uuid}: it is {zone_uuid!r:.60}'
            )
        return status, data, etag, zone_uuid


def _decoded(zone: ZoneRecord, status: int, data: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=answer)
    except (msgspec.MsgspecError, RecursionError) as e:
        problem = f'zone {zone.name}: an answer ({status}) cannot be read: {e}'
        raise exceptions.Unavailable(problem) from None


def _read(response: httpcore.Response) -> bytes:
    """Return the body, within its bounds.  :raises ValueError:"""
    data = bytearray()
    for part in response.iter_stream():
        data += part
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f'the answer has more than {ANSWER_BYTES_MAX} bytes')
    return bytes(data)


def _header(response: httpcore.Response, name: bytes) -> str:
    """Return the first value of a header, with its name in lower case; '': there is none."""
    values = [value for header_name, value in response.headers if header_name.lower() == name]
    return values[0].decode('ascii', 'replace') if values else ''


def refusal_of(url: str, status: int, data: bytes) -> exceptions.GanttError:
    """Return the error for a zone's refusal with its ``code``; its text is for the log alone."""
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
    kind = _REFUSALS.get(code)
    if kind is not None:
        return kind(text)
    if status == 404:
        return exceptions.NotFound(text)
    if status in (429, 503, 504) or status >= 500 or status // 100 == 3:
        return exceptions.Unavailable(text)
    return exceptions.Refused(text)
