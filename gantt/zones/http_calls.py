# SPDX-License-Identifier: Apache-2.0
"""The Zones port over HTTP: one bounded call each, and nothing believed that comes back.

Redirects are never followed.  An answer has a bound in bytes and in time; one that cannot be read
is as good as none.  Who answers has to be the zone that is registered: its uuid is in each answer's
head.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx
import msgspec

from gantt import exceptions
from gantt.core.zones.messages import (
    ZoneAllocated,
    ZoneAllocation,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneInfo,
    ZoneRecord,
)

T = TypeVar('T')

#: Bytes of one answer; seconds until a connection stands.
ANSWER_BYTES_MAX, CONNECT_SECONDS = 4 << 20, 2.0
#: Connections to all zones together, and those that are held open.
CONNECTIONS_MAX, HELD_MAX = 128, 64
VERSION = {'OpenStack-API-Version': 'scheduler 1.7'}
#: In the head of each answer: who gives it.
ZONE_HEADER = 'Gantt-Zone'
#: What a zone says no with -> what that is here.
_REFUSALS: Mapping[str, type[exceptions.GanttError]] = {
    'gantt.offer_gone': exceptions.OfferGone,
    'gantt.token_refused': exceptions.OfferGone,
    'gantt.request_cancelled': exceptions.OfferGone,
    'gantt.zone_loop': exceptions.ZoneLoop,
}

#: Zone -> what is sent with a call so that it knows who asks.  May raise GanttError.
Credentials = Callable[[ZoneRecord], Mapping[str, str]]


class HttpZones:
    """See ``scheduler.ports.zones``.  Any thread.

    :param credentials: by which this zone is known there
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._client = httpx.Client(
            follow_redirects=False,
            limits=httpx.Limits(
                max_connections=CONNECTIONS_MAX, max_keepalive_connections=HELD_MAX
            ),
            headers=VERSION,
            trust_env=False,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        return self._call(zone, 'GET', '', None, ZoneInfo, seconds)

    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        return self._call(zone, 'POST', '/evaluations', body, ZoneEvaluated, seconds)

    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        return self._call(zone, 'PUT', f'/allocations/{key}', body, ZoneAllocated, seconds)

    def allocation(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneAllocated | None:
        try:
            return self._call(zone, 'GET', f'/allocations/{key}', None, ZoneAllocated, seconds)
        except exceptions.NotFound:
            return None

    def give_back(self, zone: ZoneRecord, key: str, seconds: float) -> None:
        self._call(zone, 'DELETE', f'/allocations/{key}', None, ZoneAllocated, seconds)

    def changes(self, zone: ZoneRecord, since: float, seconds: float) -> ZoneChanges:
        return self._call(zone, 'GET', f'/changes?since={since!r}', None, ZoneChanges, seconds)

    # -- inside ------------------------------------------------------------------------
    def _call(
        self, zone: ZoneRecord, method: str, path: str, body: Any, answer: type[T], seconds: float
    ) -> T:
        headers = dict(self._credentials(zone))
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers['Content-Type'] = 'application/json'
        url = f'{zone.url.rstrip("/")}/zone/v1{path}'
        end = time.monotonic() + max(seconds, 0.001)
        timeout = httpx.Timeout(max(seconds, 0.001), connect=min(CONNECT_SECONDS, seconds))
        try:
            with self._client.stream(
                method, url, headers=headers, content=content, timeout=timeout
            ) as response:
                data = _read(response, end)
                status, who = response.status_code, response.headers.get(ZONE_HEADER, '')
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:
            problem = str(e) or type(e).__name__
            raise exceptions.Unavailable(f'{url}: no answer: {problem}') from None
        if zone.uuid and who != zone.uuid:
            raise exceptions.Unavailable(
                f'{url}: it is not the zone {zone.uuid}: it is {who!r:.60}'
            )
        if status // 100 == 2:
            try:
                return msgspec.json.decode(data, type=answer)
            except msgspec.MsgspecError as e:
                raise exceptions.Unavailable(f'{url}: an answer cannot be read: {e}') from None
        refused = _refusal(url, status, data)
        refused.kwargs['zone'] = who
        raise refused


def _read(response: httpx.Response, end: float) -> bytes:
    """The body, within its bounds.  :raises ValueError:"""
    data = bytearray()
    for part in response.iter_bytes():
        data += part
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f'the answer has more than {ANSWER_BYTES_MAX} bytes')
        if time.monotonic() > end:
            raise ValueError('the answer takes too long')
    return bytes(data)


def _refusal(url: str, status: int, data: bytes) -> exceptions.GanttError:
    """What a zone says no with; its words are for the log alone."""
    code, detail = '', ''
    try:
        first = msgspec.json.decode(data)['errors'][0]
        code, detail = str(first['code']), str(first['detail'])[:500]
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
        pass
    text = f'{url}: {status} {code} {detail}'.rstrip()
    known = _REFUSALS.get(code)
    if known is not None:
        return known(text)
    if status == 404:
        return exceptions.NotFound(text)
    if status in (429, 503, 504) or status >= 500 or status // 100 == 3:
        return exceptions.Unavailable(text)
    return exceptions.Refused(text)
