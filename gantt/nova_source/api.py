# SPDX-License-Identifier: Apache-2.0
"""GET, and nothing else, of one service through keystoneauth: bounded, with errors that help.

A request is tried again where the service is away or says that it is busy; what
it refuses is final.  Pages are asked for until one is empty, with a bound.  An answer
has a bound as a whole, and so has all that is asked in one pass: libraries bound
the time between two bytes only.
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
#: Is told of an entry that is of another shape, and in what.
MalformedHandler = Callable[[Any, exceptions.InvalidMessage], None]

#: Tries of one request, and the pause after the first; each later one is twice as long.
TRIES, PAUSE_SECONDS = 3, 0.5
#: A whole answer may take so many times what its next byte may.
ANSWER_TIMES = 2.0
#: Between two looks whether the process is to stop.
LOOK_SECONDS = 0.5
#: Answers that were given up and still arrive: with more, nothing is asked.
GIVEN_UP_MOST = 16
#: A page that comes too late is asked for again, so many times smaller, down to the least.
FEWER_TIMES, PAGE_LEAST = 4, 25
#: Entries of one list: what has more is no list that ends.
ENTRIES_MOST = 1_000_000

#: Worth another try: the service is away, or too busy.
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

#: Of these the ones that say that the answer takes too long.
_SLOW = (ks.ConnectTimeout, ks.GatewayTimeout, ks.RequestTimeout)


class _Late(Exception):
    """There was no answer in time, and asking for less of it may help."""


@dataclasses.dataclass(eq=False)
class Api:
    """One service.

    :ivar name: for people: ``Nova``, ``Placement``
    :ivar group: of the options that say how it is reached
    :ivar version: the microversion to ask in
    :ivar pause: seconds before the second try
    :ivar stopping: once it is set nothing is asked any more, and no pause goes on
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
        """What is asked from now on is to be answered in so many seconds, all in all."""
        self._end = time.monotonic() + seconds

    def get(self, path: str, tp: type[T], key: str, **params: Any) -> T:
        """The value of ``key`` in the answer.

        :raises Misconfigured: credentials or addresses are wrong
        :raises NotFound: there is no such thing
        :raises Unavailable: no answer, or one that says "later"
        :raises InvalidMessage: the answer is of another shape; names the field
        """
        try:
            return self._value(path, tp, key, params)
        except _Late as e:
            raise exceptions.Unavailable(str(e)) from None

    def _value(
        self, path: str, tp: type[T], key: str, params: dict[str, Any], smaller: bool = False
    ) -> T:
        """:raises _Late: it was too late; where asking for less is possible, at the first try"""
        body = self._tried(path, params, smaller)
        where = f'{self.name}: GET {path}'
        if not isinstance(body, dict) or key not in body:
            raise exceptions.invalid(where, f'expected an object with {key!r}')
        return base.decode(body[key], tp, inside=f'{where}: {key}')

    def entries(
        self, path: str, tp: type[T], key: str, odd: MalformedHandler | None = None, **params: Any
    ) -> list[T]:
        """All entries of a list that comes whole.

        :param odd: is told of each entry of another shape, which is left out; None: raises
        """
        found = self.get(path, list[Any], key, **params)
        return list(self._decoded(found, tp, f'{path}: {key}', odd))

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
        """All entries of a list that comes in pages.

        :param by: field that a marker has; '': pages are asked for by offset
        :param odd: as for :meth:`entries`
        """
        found, marker = 0, ''
        size = min(size, self._page_sizes.get(path, size))
        while True:
            where = {'marker': marker} if by and marker else {}
            if not by and found:
                where = {'offset': str(found)}
            parameters = {'limit': str(size), **where, **params}
            try:
                page = self._value(path, list[Any], key, parameters, size > PAGE_LEAST)
            except _Late as e:
                if size <= PAGE_LEAST:
                    raise exceptions.Unavailable(str(e)) from None
                size = self._page_sizes[path] = max(PAGE_LEAST, size // FEWER_TIMES)
                LOG.warning('%s; from now on in pages of %d', e, size)
                continue
            if not page:
                return
            yield from self._decoded(page, tp, f'{path}: {key}', odd)
            found += len(page)
            last = self._marker(page[-1], by, path) if by else ''
            if found > ENTRIES_MOST or (by and last == marker):
                raise exceptions.Unavailable(
                    f'{self.name}: GET {path}: the list does not end ({found} entries)'
                )
            marker = last

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
        found = entry.get(by) if isinstance(entry, dict) else None
        if found is None:
            raise exceptions.invalid(
                f'{self.name}: GET {path}', f'expected {by!r} in the last entry'
            )
        return str(found)

    def _tried(self, path: str, params: dict[str, Any], smaller: bool) -> Any:
        pause = self.pause
        for left in reversed(range(TRIES)):
            if self._stopping.is_set():
                raise exceptions.Unavailable(f'{self.name}: GET {path}: not asked when stopping')
            try:
                return self._in_time(path, params)
            except _PASSING as e:
                if smaller and isinstance(e, _SLOW):
                    raise _Late(f'{self.name}: GET {path}: {_text_of(e)}') from None
                if not left:
                    raise exceptions.Unavailable(
                        f'{self.name}: GET {path}: {_text_of(e)} ({TRIES} tries)'
                    ) from None
                LOG.info('%s: GET %s: %s; again in %.1f s', self.name, path, _text_of(e), pause)
                self._stopping.wait(pause)
                pause *= 2
        raise exceptions.Bug(invariant='the last try returns or raises')

    def _in_time(self, path: str, params: dict[str, Any]) -> Any:
        """In a thread of its own, which nobody waits for when it is too late."""
        seconds = min(self._answer_seconds, self._end - time.monotonic())
        if seconds <= 0:
            raise exceptions.Unavailable(f'{self.name}: GET {path}: the pass takes too long')
        with self._lock:
            self._given_up = [one for one in self._given_up if not one.done()]
            late = len(self._given_up)
        if late >= GIVEN_UP_MOST:
            raise exceptions.Unavailable(
                f'{self.name}: GET {path}: not asked: {late} answers still arrive'
            )
        answer = in_thread(functools.partial(self._once, path, params), f'GET {path}')
        end = time.monotonic() + seconds
        while not self._stopping.is_set():
            left = end - time.monotonic()
            if futures.wait([answer], max(0.0, min(left, LOOK_SECONDS))).done:
                return answer.result()
            if left <= 0:
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
        """For a path that every such service has, and this one has not."""
        return self._wrong(
            f'{self.name} is not where GET {path} was asked: 404',
            'Set endpoint_override, or mend the URL in the catalog, e.g. '
            'https://nova.example.org/v2.1',
        )

    def _wrong(self, problem: str, fix: str) -> exceptions.Misconfigured:
        return exceptions.Misconfigured(option=f'[{self.group}]', problem=problem, fix=fix)


def _text_of(error: Exception) -> str:
    return ' '.join(str(error).split())[:500] or type(error).__name__
