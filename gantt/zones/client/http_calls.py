# SPDX-License-Identifier: Apache-2.0
"""The Zones port over HTTP: one bounded call each, with nothing trusted in its answer.

Redirects are never followed, and nothing is decompressed.  A call has a bound in time, head and
body together, and its answer one in bytes; an unreadable answer counts as none.  The answering zone
has to be the registered one: its uuid is in each answer's head.
"""

import functools
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import httpcore2 as httpcore
import msgspec

from gantt import exceptions
from gantt.core.messages.zone_step import ZoneExplanation
from gantt.core.trace import traceparent
from gantt.zones.client.bounded_network import BoundedNetwork
from gantt.zones.client.credentials import ZoneTls
from gantt.zones.model.messages import (
    HostDigestsPage,
    HostDigestsQuery,
    ZoneAllocated,
    ZoneAllocation,
    ZoneCapacity,
    ZoneCapacityOf,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneInfo,
    ZoneLease,
    ZoneRecord,
    ZoneSummary,
)

P = ParamSpec('P')
T = TypeVar('T')
#: Bodies of calls about a request.
Body = TypeVar('Body', ZoneEvaluation, ZoneAllocation, ZoneCapacityOf)

#: Maximum bytes of one answer; timeout of connecting, in seconds.
ANSWER_BYTES_MAX, CONNECT_SECONDS = 4 << 20, 2.0
#: Maximum number of connections to the zones of one credential together, and of those kept open.
CONNECTIONS_MAX, IDLE_CONNECTIONS_MAX = 128, 64
NO_HEADERS: Mapping[str, str] = {}
#: Milliseconds after which a busy zone is called again; it need not send a hint.
BUSY_RETRY_AFTER_MS = 50
HEADERS = {'OpenStack-API-Version': 'scheduler 1.0', 'Accept-Encoding': 'identity'}
#: Bytes of the id of one call within a trace.
CALL_ID_BYTES = 8
#: Header of each answer with the uuid of the zone.
ZONE_HEADER = b'gantt-zone'
#: Error code of a zone's refusal -> exception here.
_ERRORS_BY_CODE: Mapping[str, type[exceptions.GanttError]] = {
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
    """Credentials of this zone for calls to child zones."""

    def __call__(self, zone: ZoneRecord) -> Mapping[str, str]:
        """Return the headers that identify this zone in a call.  :raises GanttError:"""
        ...

    def forget(self, zone: ZoneRecord) -> bool:
        """Forget refused headers; return whether a next call sends other ones."""
        ...

    def tls(self, zone: ZoneRecord) -> ZoneTls:
        """Return the TLS settings of connections to a zone.  :raises Misconfigured:"""
        ...


def _ignore_observation(*_: object, **__: object) -> None:
    """Observe nothing."""


def _with_observation(
    method: Callable[Concatenate['HttpZones', ZoneRecord, P], T],
) -> Callable[Concatenate['HttpZones', ZoneRecord, P], T]:
    """Return a call to a zone that observes its duration, and whether the zone answered."""

    @functools.wraps(method)
    def call(self: 'HttpZones', zone: ZoneRecord, /, *args: P.args, **options: P.kwargs) -> T:
        begun, outcome = time.monotonic(), 'answered'
        try:
            return method(self, zone, *args, **options)
        except exceptions.GanttError as e:
            outcome = 'unresponsive' if isinstance(e, exceptions.Unavailable) else 'refused'
            raise
        finally:
            self._observe(
                'gantt_zone_call_duration_seconds',
                time.monotonic() - begun,
                zone=zone.name,
                call=method.__name__,
                outcome=outcome,
            )

    return call


class HttpZones:
    """Calls over HTTP: ``ports.Zones``.  Any thread.

    :param credentials: by which this zone is known there
    :param observe: adds the duration of each call to a histogram
    """

    def __init__(
        self, credentials: Credentials, observe: Callable[..., None] = _ignore_observation
    ) -> None:
        self._credentials = credentials
        self._observe = observe
        #: Zone and call -> path, ETag and answer of the last one.
        self._last_answers: dict[tuple[str, str], tuple[str, str, Any]] = {}
        #: By credential; the files of one are read with the first connection.
        self._pools: dict[str, tuple[BoundedNetwork, httpcore.ConnectionPool]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for _, pool in pools.values():
            pool.close()

    @_with_observation
    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        return self._call(zone, 'GET', '', None, ZoneInfo, seconds)

    @_with_observation
    def summary(self, zone: ZoneRecord, seconds: float) -> ZoneSummary:
        return self._get_if_changed(zone, '/summary', ZoneSummary, seconds)

    @_with_observation
    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        return self._call_for_request(zone, 'POST', '/evaluations', body, ZoneEvaluated, seconds)

    @_with_observation
    def capacity(self, zone: ZoneRecord, body: ZoneCapacityOf, seconds: float) -> ZoneCapacity:
        return self._call_for_request(zone, 'POST', '/capacity', body, ZoneCapacity, seconds)

    @_with_observation
    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        return self._call_for_request(
            zone, 'PUT', f'/allocations/{key}', body, ZoneAllocated, seconds
        )

    @_with_observation
    def allocation(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneAllocated | None:
        try:
            return self._call(zone, 'GET', f'/allocations/{key}', None, ZoneAllocated, seconds)
        except exceptions.NotFound:
            return None

    @_with_observation
    def release(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
        path = f'/allocations/{key}' + (f'/claims/{claim_id}' if claim_id else '')
        self._call(zone, 'DELETE', path, None, ZoneAllocated, seconds)

    @_with_observation
    def extend(self, zone: ZoneRecord, key: str, lease_seconds: int, seconds: float) -> None:
        body, path = ZoneLease(seconds=lease_seconds), f'/allocations/{key}/lease'
        self._call(zone, 'PUT', path, body, ZoneAllocated, seconds)

    @_with_observation
    def explain(
        self, zone: ZoneRecord, key: str, seconds: float, trace: str = ''
    ) -> ZoneExplanation:
        path = f'/explanations/{key}'
        return self._call(zone, 'GET', path, None, ZoneExplanation, seconds, trace)

    @_with_observation
    def changes(
        self, zone: ZoneRecord, since: float, seconds: float, after: str = ''
    ) -> ZoneChanges:
        path = f'/changes?since={since!r}' + (f'&after_claim={after}' if after else '')
        return self._get_if_changed(zone, path, ZoneChanges, seconds)

    @_with_observation
    def host_digests(
        self, zone: ZoneRecord, query: HostDigestsQuery, seconds: float
    ) -> HostDigestsPage:
        return self._call(zone, 'POST', '/host-digests', query, HostDigestsPage, seconds)

    # -- inside ------------------------------------------------------------------------
    def _call_for_request(
        self, zone: ZoneRecord, method: str, path: str, body: Body, answer: type[T], seconds: float
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
        extra_headers = (
            {'traceparent': traceparent(trace, secrets.token_hex(CALL_ID_BYTES))} if trace else {}
        )
        status, data, _ = self._send(zone, method, path, body, seconds, extra_headers)
        return _decode_answer(zone, status, data, answer)

    def _get_if_changed(self, zone: ZoneRecord, path: str, answer: type[T], seconds: float) -> T:
        """Call by conditional GET: an unchanged answer is neither sent nor read again."""
        at = zone.uuid, path.partition('?')[0]
        last_path, etag, last = self._last_answers.get(at, ('', '', None))
        conditions = {'If-None-Match': etag} if etag and last_path == path else {}
        status, data, etag = self._send(zone, 'GET', path, None, seconds, conditions)
        if status == 304 and conditions and isinstance(last, answer):
            return last
        decoded = _decode_answer(zone, status, data, answer)
        self._last_answers[at] = path, etag, decoded
        return decoded

    def _send(
        self,
        zone: ZoneRecord,
        method: str,
        path: str,
        body: Any,
        seconds: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes, str]:
        """Return status, body and ETag of an answer that is no refusal.

        A token may be revoked long before it expires: where it is refused the call is repeated once
        with a new one.  All calls may be repeated.

        :raises Unavailable: no answer, or not of this zone
        :raises Refused, Conflict, NotFound: the zone refuses
        """
        end = time.monotonic() + max(seconds, 0.001)
        content = None if body is None else msgspec.json.encode(body)
        status, data, etag, zone_uuid = self._exchange(
            zone, method, path, content, end, extra_headers
        )
        if status == 401 and self._credentials.forget(zone):
            status, data, etag, zone_uuid = self._exchange(
                zone, method, path, content, end, extra_headers
            )
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
            max_keepalive_connections=IDLE_CONNECTIONS_MAX,
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

    def _exchange(
        self,
        zone: ZoneRecord,
        method: str,
        path: str,
        content: bytes | None,
        end: float,
        extra_headers: Mapping[str, str],
    ) -> tuple[int, bytes, str, str]:
        """Return status, body, ETag and uuid of the zone, of any answer.

        :param end: by the monotonic clock
        :raises Unavailable: no answer, or not of this zone
        """
        headers = {**HEADERS, **self._credentials(zone), **extra_headers}
        if content is not None:
            headers['Content-Type'] = 'application/json'
        url = f'{zone.url.rstrip("/")}/zone/v1{path}'
        seconds = max(end - time.monotonic(), 0.001)
        bounds = {'connect': min(CONNECT_SECONDS, seconds), 'pool': seconds}
        network, pool = self._pool_of(zone)
        try:
            with (
                network.deadline(end),
                pool.stream(
                    method,
                    url,
                    headers=list(headers.items()),
                    content=content,
                    extensions={'timeout': bounds},
                ) as response,
            ):
                data = _read_body(response)
                status, zone_uuid = response.status, _header(response, ZONE_HEADER)
                etag = _header(response, b'etag')
        except _NO_ANSWER as e:
            if isinstance(e, httpcore.ConnectError):
                self._forget(zone, pool)  # there may be other certificates by now
            problem = str(e) or type(e).__name__
            raise exceptions.Unavailable(f'{url}: no answer: {problem}') from None
        if zone.uuid and zone_uuid != zone.uuid:
            raise exceptions.Unavailable(
                f'{url}: expected the zone {zone.uuid}; got {zone_uuid!r:.60}'
            )
        return status, data, etag, zone_uuid


def _decode_answer(zone: ZoneRecord, status: int, data: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=answer)
    except (msgspec.MsgspecError, RecursionError) as e:
        problem = f'zone {zone.name}: an answer ({status}) cannot be read: {e}'
        raise exceptions.Unavailable(problem) from None


def _read_body(response: httpcore.Response) -> bytes:
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
    """Return the error for a zone's refusal with its ``code``; its text is for the log only."""
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
        return exceptions.Busy(reason=text, retry_after_ms=BUSY_RETRY_AFTER_MS)
    kind = _ERRORS_BY_CODE.get(code)
    if kind is not None:
        return kind(text)
    if status == 404:
        return exceptions.NotFound(text)
    if status in (429, 503, 504) or status >= 500 or status // 100 == 3:
        return exceptions.Unavailable(text)
    return exceptions.Refused(text)
