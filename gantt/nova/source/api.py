# SPDX-License-Identifier: Apache-2.0
"""GET requests to one service through keystoneauth: bounded, with errors that help.

A request is tried again where the service is away or busy; a refusal is final.  Pages
are requested until one is empty, with a bound.  An answer has a bound as a whole, and so
have all requests of one pass: libraries bound the time between two bytes only.

The sessions come from the options: of [nova] for both services, or of [placement] as well.
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
from keystoneauth1 import loading
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from gantt import exceptions
from gantt.conf import keystone
from gantt.core.messages import base
from gantt.nova.source.nova_api_types import NOVA_VERSION, PLACEMENT_VERSION
from gantt.rpc.amqp.timers import in_thread

LOG = logging.getLogger(__name__)

T = TypeVar('T')
#: Called with an entry of another shape, and the error.
MalformedHandler = Callable[[Any, exceptions.InvalidMessage], None]

#: Tries of one request, and the pause after the first; each later one is twice as long.
TRIES, PAUSE_SECONDS = 3, 0.5
#: A whole answer's time limit, in multiples of that for its next byte.
ANSWER_TIMEOUT_FACTOR = 2.0
#: Between two checks whether the process is to stop.
STOP_CHECK_SECONDS = 0.5
#: Abandoned answers that still arrive: with more, nothing is requested.
ABANDONED_REQUESTS_MAX = 16
#: A page that comes too late is requested again, so many times smaller, down to the least.
PAGE_SIZE_DIVISOR, PAGE_SIZE_MIN = 4, 25
#: Most entries of one list; a longer one is taken for endless.
LIST_ENTRIES_MAX = 1_000_000

#: Errors worth another try: the service is away, or too busy.
_RETRIED_ERRORS = (
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
_TIMEOUT_ERRORS = (ks.ConnectTimeout, ks.GatewayTimeout, ks.RequestTimeout)


class _AnswerTimeout(Exception):
    """An error without an answer in time, where a smaller request may help."""


@dataclasses.dataclass(eq=False)
class Api:
    """API of one service.

    :ivar name: name for people: ``Nova``, ``Placement``
    :ivar group: group of the options for its address
    :ivar version: the microversion of requests
    :ivar pause: seconds before the second try
    :ivar stopping: event: once it is set nothing is requested any more, and pauses end
    """

    adapter: Adapter
    name: str
    group: str
    version: str
    pause: float = PAUSE_SECONDS
    stopping: dataclasses.InitVar[threading.Event | None] = None

    def __post_init__(self, stopping: threading.Event | None) -> None:
        self._stopping = stopping or threading.Event()
        self._answer_seconds = ANSWER_TIMEOUT_FACTOR * float(self.adapter.session.timeout or 30.0)
        self._deadline = math.inf
        self._lock = threading.Lock()
        self._abandoned_requests: list[futures.Future[Any]] = []
        self._page_sizes: dict[str, int] = {}

    def set_time_limit(self, seconds: float) -> None:
        """Set the time limit of all requests from now on, together."""
        self._deadline = time.monotonic() + seconds

    def get(self, path: str, tp: type[T], key: str, **params: Any) -> T:
        """Return the value of ``key`` in the answer.

        :raises Misconfigured: credentials or addresses are wrong
        :raises NotFound: there is no such object
        :raises Unavailable: no answer, or one that means "later"
        :raises InvalidMessage: the answer is of another shape; names the field
        """
        try:
            return self._value(path, tp, key, params)
        except _AnswerTimeout as e:
            raise exceptions.Unavailable(str(e)) from None

    def _value(
        self, path: str, tp: type[T], key: str, params: dict[str, Any], smaller: bool = False
    ) -> T:
        """Return a value, as ``get`` does.

        :raises _AnswerTimeout: no answer in time; where a smaller request is possible, after the
            first try already
        """
        body = self._get_with_retries(path, params, smaller)
        request_name = f'{self.name}: GET {path}'
        if not isinstance(body, dict) or key not in body:
            raise exceptions.invalid(request_name, f'expected an object with {key!r}')
        return base.decode(body[key], tp, inside=f'{request_name}: {key}')

    def entries(
        self,
        path: str,
        tp: type[T],
        key: str,
        on_malformed: MalformedHandler | None = None,
        **params: Any,
    ) -> list[T]:
        """Return all entries of a list that comes whole.

        :param on_malformed: called with each entry of another shape, which is omitted; None: raises
        """
        listed = self.get(path, list[Any], key, **params)
        return list(self._decoded(listed, tp, f'{path}: {key}', on_malformed))

    def pages(
        self,
        path: str,
        tp: type[T],
        key: str,
        size: int,
        by: str = 'id',
        on_malformed: MalformedHandler | None = None,
        **params: Any,
    ) -> Iterator[T]:
        """Yield all entries of a list that comes in pages.

        :param by: field that is the marker; '': pages are requested by offset
        :param on_malformed: as for :meth:`entries`
        """
        entries_read, marker = 0, ''
        size = min(size, self._page_sizes.get(path, size))
        while True:
            position = {'marker': marker} if by and marker else {}
            if not by and entries_read:
                position = {'offset': str(entries_read)}
            parameters = {'limit': str(size), **position, **params}
            try:
                page = self._value(path, list[Any], key, parameters, size > PAGE_SIZE_MIN)
            except _AnswerTimeout as e:
                if size <= PAGE_SIZE_MIN:
                    raise exceptions.Unavailable(str(e)) from None
                size = self._page_sizes[path] = max(PAGE_SIZE_MIN, size // PAGE_SIZE_DIVISOR)
                LOG.warning(
                    'API is too slow for this page size; smaller pages are read: page_size=%d '
                    'error=%s',
                    size,
                    e,
                )
                continue
            if not page:
                return
            yield from self._decoded(page, tp, f'{path}: {key}', on_malformed)
            entries_read += len(page)
            last_marker = self._marker(page[-1], by, path) if by else ''
            if entries_read > LIST_ENTRIES_MAX or (by and last_marker == marker):
                raise exceptions.Unavailable(
                    f'{self.name}: GET {path}: the list does not end ({entries_read} entries)'
                )
            marker = last_marker

    def _decoded(
        self, entries: list[Any], tp: type[T], where: str, on_malformed: MalformedHandler | None
    ) -> Iterator[T]:
        for number, entry in enumerate(entries):
            try:
                yield base.decode(entry, tp, inside=f'{self.name}: GET {where}[{number}]')
            except exceptions.InvalidMessage as e:
                if on_malformed is None:
                    raise
                on_malformed(entry, e)

    def _marker(self, entry: Any, by: str, path: str) -> str:
        marker = entry.get(by) if isinstance(entry, dict) else None
        if marker is None:
            raise exceptions.invalid(
                f'{self.name}: GET {path}', f'expected {by!r} in the last entry'
            )
        return str(marker)

    def _get_with_retries(self, path: str, params: dict[str, Any], smaller: bool) -> Any:
        pause = self.pause
        for tries_left in reversed(range(TRIES)):
            if self._stopping.is_set():
                raise exceptions.Unavailable(f'{self.name}: GET {path}: not asked when stopping')
            try:
                return self._get_in_time(path, params)
            except _RETRIED_ERRORS as e:
                if smaller and isinstance(e, _TIMEOUT_ERRORS):
                    raise _AnswerTimeout(f'{self.name}: GET {path}: {_error_text(e)}') from None
                if not tries_left:
                    raise exceptions.Unavailable(
                        f'{self.name}: GET {path}: {_error_text(e)} ({TRIES} tries)'
                    ) from None
                LOG.info(
                    'API request failed and is repeated: api=%s path=%s wait_seconds=%.1f error=%s',
                    self.name,
                    path,
                    pause,
                    _error_text(e),
                )
                self._stopping.wait(pause)
                pause *= 2
        raise exceptions.Bug(invariant='the last try returns or raises')

    def _get_in_time(self, path: str, params: dict[str, Any]) -> Any:
        """Send a request in a thread of its own, which is abandoned when the answer is late."""
        seconds = min(self._answer_seconds, self._deadline - time.monotonic())
        if seconds <= 0:
            raise exceptions.Unavailable(
                f'{self.name}: GET {path}: not asked: the time limit of all requests is used up'
            )
        with self._lock:
            self._abandoned_requests = [
                answer_ for answer_ in self._abandoned_requests if not answer_.done()
            ]
            late_count = len(self._abandoned_requests)
        if late_count >= ABANDONED_REQUESTS_MAX:
            raise exceptions.Unavailable(
                f'{self.name}: GET {path}: not asked: {late_count} late answers still arrive'
            )
        answer = in_thread(functools.partial(self._get_once, path, params), f'GET {path}')
        end = time.monotonic() + seconds
        while not self._stopping.is_set():
            remaining = end - time.monotonic()
            if futures.wait([answer], max(0.0, min(remaining, STOP_CHECK_SECONDS))).done:
                return answer.result()
            if remaining <= 0:
                break
        with self._lock:
            self._abandoned_requests.append(answer)
        if self._stopping.is_set():
            raise exceptions.Unavailable(
                f'{self.name}: GET {path}: its answer is not awaited, as the process stops'
            )
        raise _AnswerTimeout(f'{self.name}: GET {path}: no whole answer in {seconds:.1f} s')

    def _get_once(self, path: str, params: dict[str, Any]) -> Any:
        try:
            answer = self.adapter.get(path, params=params, microversion=self.version)
            return msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            raise exceptions.invalid(f'{self.name}: GET {path}', 'expected JSON') from None
        except _RETRIED_ERRORS:
            raise
        except ks.NotFound:
            raise exceptions.NotFound(kind=self.name, name=path) from None
        except ks.NotAcceptable:
            raise self._misconfigured(
                f'{self.name} does not know microversion {self.version}',
                'A newer release of it is needed',
            ) from None
        except (ks.Unauthorized, ks.Forbidden) as e:
            raise self._misconfigured(
                f'{self.name}: GET {path}: {_error_text(e)}',
                'Give the credentials of a user with the role admin on a project',
            ) from None
        except (
            ks.CatalogException,
            ks.AuthorizationFailure,
            ks.DiscoveryFailure,
            ks.InvalidResponse,
        ) as e:
            if isinstance(e.__context__, _RETRIED_ERRORS):
                # keystoneauth calls an identity service that does not answer a wrong address.
                raise ks.ConnectFailure(_error_text(e)) from None
            raise self._misconfigured(
                _error_text(e), 'See auth_url, region_name and valid_interfaces'
            ) from None
        except ks.ClientException as e:
            raise exceptions.Unavailable(f'{self.name}: GET {path}: {_error_text(e)}') from None

    def misplaced(self, path: str) -> exceptions.Misconfigured:
        """Return the error for a path that every such service has, and this one has not."""
        return self._misconfigured(
            f'{self.name} is not where GET {path} was asked: 404',
            'Set endpoint_override, or mend the URL in the catalog, e.g. '
            'https://nova.example.org/v2.1',
        )

    def _misconfigured(self, problem: str, fix: str) -> exceptions.Misconfigured:
        return exceptions.Misconfigured(option=f'[{self.group}]', problem=problem, fix=fix)


def _error_text(error: Exception) -> str:
    return ' '.join(str(error).split())[:500] or type(error).__name__


def apis(conf: Any, seconds: float, stopping: threading.Event | None = None) -> tuple[Api, Api]:
    """Return Nova and Placement, as they are configured; nothing is requested yet.

    :param seconds: how long one request may take, where ``timeout`` is not set
    :param stopping: event that ends tries and pauses
    :raises Misconfigured: names option and group
    """
    keystone.register_opts(conf)
    nova = _session(conf, 'nova', seconds)
    is_separate = keystone.has_credentials(conf, 'placement')
    placement = _session(conf, 'placement', seconds) if is_separate else nova
    return (
        Api(_adapter(conf, 'nova', nova), 'Nova', 'nova', NOVA_VERSION, stopping=stopping),
        Api(
            _adapter(conf, 'placement', placement),
            'Placement',
            'placement',
            PLACEMENT_VERSION,
            stopping=stopping,
        ),
    )


def _session(conf: Any, group: str, seconds: float) -> Session:
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
    except ks.ClientException as e:
        raise _misconfigured(keystone.section(conf, group), str(e)) from None
    if auth is None:
        raise _misconfigured(keystone.section(conf, group), 'auth_type is not set')
    session = loading.load_session_from_conf_options(conf, group, auth=auth)
    if session.timeout is None:
        session.timeout = float(seconds)
    return session


def _adapter(conf: Any, group: str, session: Session) -> Any:
    # Retries are ours, so that they are bounded in one place.
    return loading.load_adapter_from_conf_options(conf, group, session=session)


def _misconfigured(group: str, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option=f'[{group}] auth_type',
        problem=problem,
        fix='e.g. auth_type = password, with auth_url, username, password, project_name, '
        'user_domain_name and project_domain_name',
    )
