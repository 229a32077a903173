# SPDX-License-Identifier: Apache-2.0
"""GET requests to one service through keystoneauth: bounded, with errors that help.

A request is tried again where the service is away or busy; a refusal is final.  Pages
are requested until one is empty, with a bound.  An answer has a bound as a whole, and so
have all requests of one pass: libraries bound the time between two bytes only.
"""

import dataclasses
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, TypeVar

import keystoneauth1.exceptions as ks
import msgspec
from keystoneauth1.adapter import Adapter

from gantt import exceptions
from gantt.core.messages import base
from gantt.rpc.amqp.timers import in_thread

LOG = logging.getLogger(__name__)

T = TypeVar('T')
#: Called with an entry of another shape, and the error.
MalformedHandler = Callable[[Any, exceptions.InvalidMessage], None]

#: Tries of one request, and the pause after the first; each later one is twice as long.
TRIES, PAUSE_SECONDS = 3, 0.5
#: A whole answer's time limit, in multiples of that for its next byte.
ANSWER_TIMES = 2.0
#: Between two checks whether the process is to stop.
LOOK_SECONDS = 0.5
#: Abandoned answers that still arrive: with more, nothing is requested.
GIVEN_UP_MOST = 16
#: A page that comes too late is requested again, so many times smaller, down to the least.
FEWER_TIMES, PAGE_LEAST = 4, 25
#: Most entries of one list; a longer one is taken for endless.
ENTRIES_MOST = 1_000_000

#: Errors worth another try: the service is away, or too busy.
_PASSING = (
    ks.ConnectFailure,
    ks.ConnectTimeout,
    ks.UnknownConnectionError,
    ks.InternalServerError,
    ks.BadGateway,
    ks.ServiceUnavailable,
    ks.GatewayTimeout,
    ks.RequestTimeout,
)

#: Those among them where the answer takes too long.
_SLOW = (ks.ConnectTimeout, ks.GatewayTimeout, ks.RequestTimeout)


class _Late(Exception):
    """An error without an answer in time, where a smaller request may help."""


@dataclasses.dataclass(eq=False)
class Api:
    """API of one service.

    :ivar name: name for people: ``Nova``, ``Placement``
    :ivar group: group of the options for its address
    :ivar version: the microversion of requests
    :ivar pause: seconds before the second try
    :ivar stopping: once it is set nothing is requested any more, and no pause goes on
    """

    adapter: Adapter
    name: str
    group: str
    version: str
    pause: float = PAUSE_SECONDS
    stopping: dataclasses.InitVar[threading.Event | None] = None

    def __post_init__(self, stopping: threading.Event | None) -> None:
        self._stopping = stopping or threading.Event()
        self._answer_seconds = ANSWER_TIMES * float(self.adapter.session.timeout or 30.0)
        self._end = math.inf
        self._lock = threading.Lock()
        self._given_up: list[futures.Future[Any]] = []
        self._page_sizes: dict[str, int] = {}

    def begin(self, seconds: float) -> None:
        """Set the time limit of all requests from now on, together."""
        self._end = time.monotonic() + seconds

    def get(self, path: str, tp: type[T], key: str, **params: Any) -> T:
        """Return the value of ``key`` in the answer.

        :raises Misconfigured: credentials or addresses are wrong
        :raises NotFound: there is no such object
        :raises Unavailable: no answer, or one that means "later"
        :raises InvalidMessage: the answer is of another shape; names the field
        """
        try:
            return self._value(path, tp, key, params)
        except _Late as e:
            raise exceptions.Unavailable(str(e)) from None

    def _value(
        self, path: str, tp: type[T], key: str, params: dict[str, Any], smaller: bool = False
    ) -> T:
        """Return a value, as ``get`` does.

        :raises _Late: it was too late; where a smaller request is possible, at the first try
        """
        body = self._tried(path, params, smaller)
        request_name = f'{self.name}: GET {path}'
        if not isinstance(body, dict) or key not in body:
            raise exceptions.invalid(request_name, f'expected an object with {key!r}')
        return base.decode(body[key], tp, inside=f'{request_name}: {key}')

    def entries(
        self, path: str, tp: type[T], key: str, odd: MalformedHandler | None = None, **params: Any
    ) -> list[T]:
        """Return all entries of a list that comes whole.

        :param odd: called with each entry of another shape, which is left out; None: raises
        """
        listed = self.get(path, list[Any], key, **params)
        return list(self._decoded(listed, tp, f'{path}: {key}', odd))

    def pages(
        self,
        path: str,
        tp: type[T],
        key: str,
        size: int,
        by: str = 'id',
        odd: MalformedHandler | None = None,
        **params: Any,
    ) -> Iterator[T]:
        """Yield all entries of a list that comes in pages.

        :param by: field that is the marker; '': pages are requested by offset
        :param odd: as for :meth:`entries`
        """
        entries_read, marker = 0, ''
        size = min(size, self._page_sizes.get(path, size))
        while True:
            position = {'marker': marker} if by and marker else {}
            if not by and entries_read:
                position = {'offset': str(entries_read)}
            parameters = {'limit': str(size), **position, **params}
            try:
                page = self._value(path, list[Any], key, parameters, size > PAGE_LEAST)
            except _Late as e:
                if size <= PAGE_LEAST:
                    raise exceptions.Unavailable(str(e)) from None
                size = self._page_sizes[path] = max(PAGE_LEAST, size // FEWER_TIMES)
                LOG.warning(
                    'API is too slow for this page size; smaller pages are read: page_size=%d '
                    'error=%s',
                    size,
                    e,
                )
                continue
            if not page:
                return
            yield from self._decoded(page, tp, f'{path}: {key}', odd)
            entries_read += len(page)
            last_marker = self._marker(page[-1], by, path) if by else ''
            if entries_read > ENTRIES_MOST or (by and last_marker == marker):
                raise exceptions.Unavailable(
                    f'{self.name}: GET {path}: the list does not end ({entries_read} entries)'
                )
            marker = last_marker

    def _decoded(
        self, found: list[Any], tp: type[T], where: str, odd: MalformedHandler | None
    ) -> Iterator[T]:
        for number, entry in enumerate(found):
            try:
                yield base.decode(entry, tp, inside=f'{self.name}: GET {where}[{number}]')
            except exceptions.InvalidMessage as e:
                if odd is None:
                    raise
                odd(entry, e)

    def _marker(self, entry: Any, by: str, path: str) -> str:
        marker = entry.get(by) if isinstance(entry, dict) else None
        if marker is None:
            raise exceptions.invalid(
                f'{self.name}: GET {path}', f'expected {by!r} in the last entry'
            )
        return str(marker)

    def _tried(self, path: str, params: dict[str, Any], smaller: bool) -> Any:
        pause = self.pause
        for tries_left in reversed(range(TRIES)):
            if self._stopping.is_set():
                raise exceptions.Unavailable(f'{self.name}: GET {path}: not asked when stopping')
            try:
                return self._in_time(path, params)
            except _PASSING as e:
                if smaller and isinstance(e, _SLOW):
                    raise _Late(f'{self.name}: GET {path}: {_text_of(e)}') from None
                if not tries_left:
                    raise exceptions.Unavailable(
                        f'{self.name}: GET {path}: {_text_of(e)} ({TRIES} tries)'
                    ) from None
                LOG.info(
                    'API request failed and is repeated: api=%s path=%s wait_seconds=%.1f error=%s',
                    self.name,
                    path,
                    pause,
                    _text_of(e),
                )
                self._stopping.wait(pause)
                pause *= 2
        raise exceptions.Bug(invariant='the last try returns or raises')

    def _in_time(self, path: str, params: dict[str, Any]) -> Any:
        """Request in a thread of its own, which is abandoned when it is too late."""
        seconds = min(self._answer_seconds, self._end - time.monotonic())
        if seconds <= 0:
            raise exceptions.Unavailable(f'{self.name}: GET {path}: the pass takes too long')
        with self._lock:
            self._given_up = [answer_ for answer_ in self._given_up if not answer_.done()]
            late_count = len(self._given_up)
        if late_count >= GIVEN_UP_MOST:
            raise exceptions.Unavailable(
                f'{self.name}: GET {path}: not asked: {late_count} answers still arrive'
            )
        answer = in_thread(functools.partial(self._once, path, params), f'GET {path}')
        end = time.monotonic() + seconds
        while not self._stopping.is_set():
            remaining = end - time.monotonic()
            if futures.wait([answer], max(0.0, min(remaining, LOOK_SECONDS))).done:
                return answer.result()
            if remaining <= 0:
                break
        with self._lock:
            self._given_up.append(answer)
        if self._stopping.is_set():
            raise exceptions.Unavailable(f'{self.name}: GET {path}: not waited for when stopping')
        raise _Late(f'{self.name}: GET {path}: no whole answer in {seconds:.1f} s')

    def _once(self, path: str, params: dict[str, Any]) -> Any:
        try:
            answer = self.adapter.get(path, params=params, microversion=self.version)
            return msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            raise exceptions.invalid(f'{self.name}: GET {path}', 'expected JSON') from None
        except _PASSING:
            raise
        except ks.NotFound:
            raise exceptions.NotFound(kind=self.name, name=path) from None
        except ks.NotAcceptable:
            raise self._wrong(
                f'{self.name} does not know microversion {self.version}',
                'A newer release of it is needed',
            ) from None
        except (ks.Unauthorized, ks.Forbidden) as e:
            raise self._wrong(
                f'{self.name}: GET {path}: {_text_of(e)}',
                'Give the credentials of a user with the role admin on a project',
            ) from None
        except (
            ks.CatalogException,
            ks.AuthorizationFailure,
            ks.DiscoveryFailure,
            ks.InvalidResponse,
        ) as e:
            if isinstance(e.__context__, _PASSING):
                # keystoneauth calls an identity service that does not answer a wrong address.
                raise ks.ConnectFailure(_text_of(e)) from None
            raise self._wrong(
                _text_of(e), 'See auth_url, region_name and valid_interfaces'
            ) from None
        except ks.ClientException as e:
            raise exceptions.Unavailable(f'{self.name}: GET {path}: {_text_of(e)}') from None

    def misplaced(self, path: str) -> exceptions.Misconfigured:
        """Return the error for a path that every such service has, and this one has not."""
        return self._wrong(
            f'{self.name} is not where GET {path} was asked: 404',
            'Set endpoint_override, or mend the URL in the catalog, e.g. '
            'https://nova.example.org/v2.1',
        )

    def _wrong(self, problem: str, fix: str) -> exceptions.Misconfigured:
        return exceptions.Misconfigured(option=f'[{self.group}]', problem=problem, fix=fix)


def _text_of(error: Exception) -> str:
    return ' '.join(str(error).split())[:500] or type(error).__name__
