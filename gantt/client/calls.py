# SPDX-License-Identifier: Apache-2.0
"""Client of one topic: calls and casts that end, and errors of our own."""

import functools
import logging
import math
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from gantt import exceptions
from gantt.rpc import wire
from gantt.rpc.amqp.caller import NoReply
from gantt.rpc.amqp.publisher import Undeliverable
from gantt.rpc.amqp.transport import PUBLISH_RETRIES, Transport
from gantt.rpc.call import NAMES_SERVER, RESULT, SERVER

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: A first try waits for this share of the whole time, within these bounds, and each next one
#: so many times as long.
_FIRST_SHARE, _GROWTH = 1 / 6, 1.5
_FIRST_LEAST, _FIRST_MOST = 0.5, 1.4
#: The rest after a try is added to it where that is too short for a try of its own.
_TRY_LEAST = 0.4

#: Most tries of one call, whatever time is left.
TRIES_MOST = 100

#: Longest pause between two tries.
_PAUSE_MOST = 5.0

#: Servers whose names are stored, and for how long after an answer.
_SERVERS_MOST, _CACHED_SECONDS = 16, 600.0
#: Seconds within which a live server answers a ping; servers that are pinged before a next try.
_PING_SECONDS, _PINGS_MOST = 0.3, 3
_PING = 'oslo_rpc_server_ping'

#: Pause before a call is published again.
_PUBLISH_PAUSE = 1.0


#: Wait for an answer of this process to itself, which takes milliseconds.
_ECHO_SECONDS = 1.5
#: Least time between two renewals of connections for the lack of answers.
_RENEWED_SECONDS = 10.0


class _Renewals:
    """Times of the last renewal of this process's connections, by transport."""

    def __init__(self) -> None:
        self.at: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        #: Held by the one thread that checks.
        self.renewing = threading.Lock()


_renewals = _Renewals()


def renew_if_deaf(carrier: Transport) -> bool:
    """Renew the connections of a transport if no answer reaches it; return whether it did.

    A connection may be open, and acknowledge, and carry nothing: no call would ever have an
    answer.  Called after a call had none.  No other thread waits while one checks.
    """
    if carrier.is_in_process or not _renewals.renewing.acquire(blocking=False):
        return False
    try:
        last_renewal = _renewals.at.get(carrier, float('-inf'))
        if time.monotonic() - last_renewal < _RENEWED_SECONDS or carrier.caller.receives_answers(
            _ECHO_SECONDS
        ):
            return False
        LOG.warning(
            'No answers arrive from a broker that accepts messages; its connections are replaced: '
            'broker=%s',
            carrier.address,
        )
        _renewals.at[carrier] = time.monotonic()
        carrier.renew()
        return True
    finally:
        _renewals.renewing.release()


class NoAnswer(exceptions.Unavailable):
    """An error where the call, the service or the answer is lost, or the service is stopped."""


class NobodyListens(NoAnswer):
    """An error where the broker has no queue for the call: no server was ever started there."""


class Patience:
    """Timeouts of the tries of one call.

    The server that took the call may be stopped, or stuck, and another one free: so the first
    try is short.  Each next one waits half as long again: an answer that is merely slow is not
    requested again and again.

    :param seconds: timeout of all tries
    :param first: timeout of the first one; None: a sixth of all, 0.5 to 1.4 s
    :ivar silent_since: when the last try was sent, where it had no answer; None: it had one
    :ivar asked: servers that were sent a try by name, and did not answer
    """

    def __init__(self, seconds: float, first: float | None = None) -> None:
        if first is None:
            first = min(max(_FIRST_SHARE * seconds, _FIRST_LEAST), _FIRST_MOST)
        self._next = first
        self.silent_since: float | None = None
        self.asked: set[str] = set()

    def next(self, left: float) -> float:
        """Return seconds for the next try; the last one gets all that is left."""
        wait, self._next = self._next, _GROWTH * self._next
        return wait if wait + _TRY_LEAST < left else left


class Servers:
    """Servers that answered on a topic, with the time of their last answer.  Any thread."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def note(self, name: str) -> None:
        """Record an answer of a server."""
        with self._lock:
            self._seen.pop(name, None)
            self._seen[name] = time.monotonic()
            while len(self._seen) > _SERVERS_MOST:
                del self._seen[next(iter(self._seen))]

    def forget(self, name: str) -> None:
        """Drop a server that does not listen any more."""
        with self._lock:
            self._seen.pop(name, None)

    def seen(self, name: str) -> float:
        """Return when a server answered last, in monotonic seconds."""
        return self._seen.get(name, float('-inf'))

    def latest(self) -> list[str]:
        """Return servers that answered not long ago, the last one first."""
        since = time.monotonic() - _CACHED_SECONDS
        with self._lock:
            return [name for name, seen_at in reversed(self._seen.items()) if seen_at > since]


class ServerCaller:
    """Calls and casts on one topic; publishing and waiting are bounded.

    :param carrier: from ``gantt.client.get_transport``
    """

    def __init__(self, carrier: Transport, topic: str) -> None:
        self._carrier = carrier
        self._topic = topic
        self._servers = Servers()
        self._exchange = wire.exchange_of(topic)

    def call(
        self,
        method: str,
        timeout: float,
        *,
        context_id: str = '',
        topic: str | None = None,
        publish_tries: int = PUBLISH_RETRIES + 1,
        patience: Patience | None = None,
        **args: Any,
    ) -> Any:
        """Call and wait for the answer.

        :param timeout: seconds
        :param context_id: shown in the log lines of the receiver
        :param topic: another topic than the client's
        :param publish_tries: 1 for a caller that calls again anyway
        :param patience: for a call that is tried again: after a try without an answer, the next
            one goes to another server
        :raises GanttError: the error that the receiver raised
        :raises BrokerUnavailable: the broker does not take the message
        :raises Unavailable: no answer within ``timeout``, or no server listens
        """
        send = functools.partial(self._sent, method, context_id=context_id, topic=topic, args=args)
        if patience is None:
            return send(timeout, call_tries=publish_tries)
        began = time.monotonic()
        server = self._elsewhere(patience)
        sent = time.monotonic()
        patience.silent_since = None
        try:
            timeout = max(0.001, timeout - (sent - began))
            return send(timeout, call_tries=publish_tries, server=server)
        except exceptions.Unavailable as e:
            if isinstance(e, NoAnswer):
                patience.silent_since = sent
            if server is not None:
                patience.asked.add(server)
                if isinstance(e, NobodyListens):  # it has ended, and others are there
                    self._servers.forget(server)
                    raise NoAnswer(e.message) from None
            raise

    def _elsewhere(self, patience: Patience) -> str | None:
        """Return the server for the next try after one without an answer; None: any."""
        if patience.silent_since is None:
            return None
        names = [name for name in self._servers.latest() if name not in patience.asked]
        for name in names[:_PINGS_MOST]:
            if self._servers.seen(name) > patience.silent_since:
                return name
            try:
                self._sent(_PING, _PING_SECONDS, '', None, {}, 1, server=name)
            except exceptions.GanttError:
                patience.asked.add(name)
            else:
                return name
        return None

    def call_again(
        self,
        method: str,
        timeout: float,
        passing: tuple[type[Exception], ...],
        *,
        context_id: str,
        most: int = TRIES_MOST,
        **args: Any,
    ) -> Any:
        """Call an idempotent method again and again within ``timeout``.

        :param passing: errors after which another try makes sense
        :raises GanttError: the final answer, or the error of the last try
        """
        patience = Patience(timeout)
        return again(
            lambda left: self.call(
                method,
                patience.next(left),
                context_id=context_id,
                patience=patience,
                **args,
            ),
            timeout,
            most=most,
            passing=passing,
            what=f'{method} of {context_id}',
        )

    def is_unheard(self) -> bool:
        """Return whether no server takes calls off the topic now; False also if unknown."""
        if self._carrier.is_in_process:
            return False
        try:
            return not self._carrier.consumers(self._topic)
        except exceptions.BrokerUnavailable:
            return False

    def cast(
        self, method: str, *, context_id: str = '', topic: str | None = None, **args: Any
    ) -> None:
        """Send without waiting for an answer; the broker has it when this returns.

        :raises BrokerUnavailable, Unavailable: it was not sent
        """
        self._sent(method, 0.0, context_id, topic, args)

    def _sent(
        self,
        method: str,
        timeout: float,
        context_id: str,
        topic: str | None,
        args: dict[str, Any],
        call_tries: int = 0,
        server: str | None = None,
    ) -> Any:
        """Send a call or a cast.

        :param call_tries: 0: a cast
        :param server: the one to have it, among those that listen to the topic; None: any
        """
        name = topic or self._topic
        key = name if server is None else f'{name}.{server}'
        context = {'request_id': context_id, NAMES_SERVER: True}
        try:
            if call_tries:
                return self._called(key, context, method, timeout, args, call_tries)
            self._published(
                lambda: self._carrier.caller.cast(
                    self._exchange, key, method, args, version=wire.VERSION, context=context
                ),
                PUBLISH_RETRIES + 1,
                math.inf,
            )
        except NoReply:
            if method != _PING:
                renew_if_deaf(self._carrier)
            raise NoAnswer(f'{method}: no answer from {name} within {timeout:.1f} s') from None
        except Undeliverable:
            raise NobodyListens(f'{method}: nobody listens on {name}') from None
        return None

    def _called(
        self,
        key: str,
        context: dict[str, Any],
        method: str,
        timeout: float,
        args: dict[str, Any],
        tries: int,
    ) -> Any:
        """Call, with all tries to publish inside the timeout."""
        end = time.monotonic() + timeout
        # An error of the server, such as that its broker is away, is an answer: not sent again.
        pending = self._published(
            lambda: self._carrier.caller.begin(
                self._exchange,
                key,
                method,
                args,
                version=wire.VERSION,
                context=context,
                seconds=max(0.001, end - time.monotonic()),
            ),
            tries,
            end,
        )
        response = pending.result()
        if not isinstance(response, dict) or response.keys() != {SERVER, RESULT}:
            return response  # from a server that does not name itself
        self._servers.note(response[SERVER])
        return response[RESULT]

    def _published(self, send: Callable[[], T], tries: int, end: float) -> T:
        """Send, again where the broker does not take it, until ``end``."""
        for tried in range(1, tries + 1):
            try:
                return send()
            except exceptions.BrokerUnavailable:
                self._carrier.drop_senders()
                pause = _PUBLISH_PAUSE * tried
                if tried == tries or time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
        raise exceptions.Bug(invariant='the last try to publish raises')


def again(
    attempt: Callable[[float], T],
    seconds: float,
    *,
    most: int,
    passing: tuple[type[Exception], ...],
    what: str,
) -> T:
    """Try until it works, an answer is final, or ``seconds`` or ``most`` tries are over.

    :param attempt: gets the seconds that are left
    :param passing: errors after which another try makes sense
    :raises GanttError: the final answer, or the error of the last try
    """
    began = time.monotonic()
    end = began + seconds
    pause = 0.1
    for tried in range(1, most + 1):
        try:
            return attempt(max(0.001, end - time.monotonic()))
        except passing as e:
            hint = getattr(e, 'kwargs', {}).get('retry_after_ms')
            wait = hint / 1000 if isinstance(hint, int | float) else pause
            wait = min(wait, _PAUSE_MOST) * random.uniform(0.8, 1.2)
            if tried == most or time.monotonic() + wait >= end:
                if tried > 1 and isinstance(e, NoAnswer):
                    spent = time.monotonic() - began
                    text = f'{e.message}; it was the last of {tried} tries in {spent:.1f} s'
                    raise type(e)(text, **e.kwargs) from None
                raise
            LOG.info(
                'Call failed and is repeated: call=%s try=%d wait_seconds=%.1f error=%s',
                what,
                tried,
                wait,
                e,
            )
            time.sleep(wait)
            pause = min(pause * 2, _PAUSE_MOST)
    raise exceptions.Bug(invariant='at least one try')
