# SPDX-License-Identifier: Apache-2.0
"""Client of one topic: calls and casts that end, and errors of our own."""

import contextlib
import functools
import itertools
import logging
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.rpc import wire
from gantt.rpc.amqp.caller import NoReply
from gantt.rpc.amqp.publisher import Undeliverable
from gantt.rpc.amqp.transport import PUBLISH_RETRIES, Transport
from gantt.rpc.call import RESULT_KEY, SERVER_KEY, SERVER_NAME_WANTED_KEY

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: A first try waits for this share of the whole time, within these bounds, and each next one
#: after silence so many times as long.
_FIRST_TRY_SHARE, _TRY_GROWTH = 1 / 6, 1.5
_FIRST_TRY_SECONDS_MIN, _FIRST_TRY_SECONDS_MAX = 0.5, 1.4
#: Seconds that a try needs.  Where less is left after one, it is added to it; where less is left
#: after a pause, the call ends.
_TRY_SECONDS_MIN = 0.4

#: Most tries of one call, whatever time is left.
TRIES_MAX = 100

#: The answer needs some time on its way back after the budget was spent there.
_GRACE_SECONDS = 2.0

#: Longest pause between two tries.
_PAUSE_SECONDS_MAX = 5.0

#: Servers whose names are stored, and for how long after an answer.
_KNOWN_SERVERS_MAX, _KNOWN_SERVER_SECONDS = 16, 600.0
#: Seconds within which a live server answers a ping; known servers that are pinged before a next
#: try; pings that are sent along with them to whoever takes calls off the topic.  The broker deals
#: them out in turn: a stopped server has some of them, and one of the others the rest.
_PING_SECONDS, _PINGS_MAX, _SHARED_TOPIC_PINGS = 0.3, 3, 4
_PING_METHOD = 'oslo_rpc_server_ping'

#: Pause before a call is published again.
_PUBLISH_PAUSE_SECONDS = 1.0


#: Wait for an answer of this process to itself, which takes milliseconds.
_ECHO_SECONDS = 1.5
#: Least time between two renewals of connections for the lack of answers.
_RENEWAL_INTERVAL_SECONDS = 10.0


#: Times of the last renewal of this process's connections, by transport.
_renewed_at: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
#: Held by the one thread that checks.
_renewal_lock = threading.Lock()


def renew_if_silent(carrier: Transport) -> bool:
    """Renew the connections of a transport if no answer reaches it; return whether it did.

    A connection may be open, and acknowledge, and carry nothing: no call would ever have an
    answer.  Called after a call had none.  No other thread waits while one checks.
    """
    if carrier.is_in_process or not _renewal_lock.acquire(blocking=False):
        return False
    try:
        last_renewal = _renewed_at.get(carrier, float('-inf'))
        if (
            time.monotonic() - last_renewal < _RENEWAL_INTERVAL_SECONDS
            or carrier.caller.receives_answers(_ECHO_SECONDS)
        ):
            return False
        LOG.warning(
            'No answers arrive from a broker that accepts messages; its connections are replaced: '
            'broker=%s',
            carrier.address,
        )
        _renewed_at[carrier] = time.monotonic()
        carrier.renew()
        return True
    finally:
        _renewal_lock.release()


class NoAnswer(exceptions.Unavailable):
    """An error where the call, the service or the answer is lost, or the service is stopped."""


class NoConsumer(NoAnswer):
    """An error where the broker has no queue for the call.

    No server was ever started there, or the broker was started again since, and none has connected.
    """


class TryTimeouts:
    """Timeouts of the tries of one call.

    The server that took the call may be stopped, or stuck, and another one free: so the first
    try is short.  The next one after a silent one waits half as long again: an answer that is
    merely slow is not requested again and again.

    :param seconds: timeout of all tries
    :param first: timeout of the first one; None: a sixth of ``seconds``, within 0.5 to 1.4 s
    :ivar silent_since: when the last try was sent, where it got no answer; None: it got one
    :ivar servers_tried: names of the servers that a try was sent to by name
    :ivar unheard_since: since when no server has listened on the topic; None: one did at the last
        try
    """

    def __init__(self, seconds: float, first: float | None = None) -> None:
        if first is None:
            first = min(
                max(_FIRST_TRY_SHARE * seconds, _FIRST_TRY_SECONDS_MIN), _FIRST_TRY_SECONDS_MAX
            )
        self._next_seconds = first
        self.silent_since: float | None = None
        self.servers_tried: set[str] = set()
        self.unheard_since: float | None = None

    def next_timeout(self, left: float) -> float:
        """Return seconds for the next try; the last one gets all that is left."""
        if self.silent_since is not None:
            self._next_seconds *= _TRY_GROWTH
        return self._next_seconds if self._next_seconds + _TRY_SECONDS_MIN < left else left

    @property
    def unheard_seconds(self) -> float:
        """Seconds for which no server has listened, as seen by the tries; 0: one listens."""
        return 0.0 if self.unheard_since is None else time.monotonic() - self.unheard_since


class KnownServers:
    """Servers that answered on a topic, with the time of their last answer.  Any thread."""

    def __init__(self) -> None:
        self._seen_at: dict[str, float] = {}
        #: Whether one has ever answered.
        self.were_seen = False
        self._lock = threading.Lock()

    def note(self, name: str) -> None:
        """Record an answer of a server."""
        self.were_seen = True
        with self._lock:
            self._seen_at.pop(name, None)
            self._seen_at[name] = time.monotonic()
            while len(self._seen_at) > _KNOWN_SERVERS_MAX:
                del self._seen_at[next(iter(self._seen_at))]

    def forget(self, name: str) -> None:
        """Drop a server that does not listen any more."""
        with self._lock:
            self._seen_at.pop(name, None)

    def seen(self, name: str) -> float:
        """Return when a server answered last, in monotonic seconds."""
        return self._seen_at.get(name, float('-inf'))

    def latest(self) -> list[str]:
        """Return the names of servers that answered not long ago, the latest first."""
        since = time.monotonic() - _KNOWN_SERVER_SECONDS
        with self._lock:
            return [name for name, seen_at in reversed(self._seen_at.items()) if seen_at > since]


class ServerCaller:
    """Calls and casts on one topic; publishing and waiting are bounded.

    :param carrier: from ``gantt.client.get_transport``
    """

    def __init__(self, carrier: Transport, topic: str) -> None:
        self._carrier = carrier
        self._topic = topic
        self._servers = KnownServers()
        self._exchange = wire.exchange_of_topic(topic)

    def call(
        self,
        method: str,
        timeout: float,
        *,
        context_id: str = '',
        topic: str | None = None,
        publish_tries: int = PUBLISH_RETRIES + 1,
        patience: TryTimeouts | None = None,
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
        send = functools.partial(
            self._send_call, method, context_id=context_id, topic=topic, args=args
        )
        if patience is None:
            return send(timeout, call_tries=publish_tries)
        end = time.monotonic() + timeout
        server = self._other_server(patience)
        sent = time.monotonic()
        patience.silent_since, unheard_since = None, patience.unheard_since
        patience.unheard_since = None
        try:
            if server is not None:
                patience.servers_tried.add(server)
                try:
                    return send(max(0.001, end - sent), call_tries=1, server=server)
                except NoConsumer as e:  # it has ended, and others are there
                    self._servers.forget(server)
                    raise NoAnswer(e.message) from None
                except exceptions.BrokerUnavailable as e:
                    # Hosts may write to no server's own queue.
                    LOG.debug('Call goes to any server: not_taken_by=%s error=%s', server, e)
            return send(max(0.001, end - time.monotonic()), call_tries=publish_tries)
        except NoConsumer:
            patience.unheard_since = sent if unheard_since is None else unheard_since
            raise
        except NoAnswer:
            patience.silent_since = sent
            raise

    def _other_server(self, patience: TryTimeouts) -> str | None:
        """Return the server for the next try after one without an answer; None: any.

        The last try may be one that a stopped server took off the shared queue, and a next one
        there may come to the same server: so it is sent to a server by its name.
        """
        if patience.silent_since is None:
            return None
        names = [name for name in self._servers.latest() if name not in patience.servers_tried]
        for name in names:
            if self._servers.seen(name) > patience.silent_since:
                return name
        return self._server_answering_ping(names[:_PINGS_MAX], patience.servers_tried)

    def _server_answering_ping(self, names: Iterable[str], excluded: Container[str]) -> str | None:
        """Return the server that answers a ping first.

        A client may know no server yet, or only the one that is stopped: so pings go to the shared
        queue as well, and those who answer them are known from now on.

        :param names: known servers
        :param excluded: servers that are not to be returned
        """
        shared_pings = (_SHARED_TOPIC_PINGS - 1) * [self._topic]
        try:
            pending = self._carrier.caller.begin(
                self._exchange,
                self._topic,
                _PING_METHOD,
                {},
                version=wire.VERSION,
                context={SERVER_NAME_WANTED_KEY: True},
                seconds=_PING_SECONDS,
                also=[*shared_pings, *(f'{self._topic}.{name}' for name in names)],
            )
            with contextlib.closing(pending.results()) as responses:
                for response in responses:
                    if _has_server_name(response):
                        self._servers.note(response[SERVER_KEY])
                        if response[SERVER_KEY] not in excluded:
                            return str(response[SERVER_KEY])
        except (exceptions.GanttError, Undeliverable) as e:
            LOG.debug('Ping failed: topic=%s error=%s', self._topic, e)
        return None

    def call_until_answered(
        self,
        method: str,
        timeout: float,
        transient: tuple[type[Exception], ...],
        *,
        context_id: str,
        most: int = TRIES_MAX,
        **args: Any,
    ) -> Any:
        """Call an idempotent method again and again within ``timeout``.

        :param transient: errors after which another try makes sense
        :raises GanttError: the final answer, or the error of the last try
        """
        patience = TryTimeouts(timeout)
        return retry_pauses(
            lambda left: self.call(
                method,
                patience.next_timeout(left),
                context_id=context_id,
                patience=patience,
                **args,
            ),
            timeout,
            most=most,
            transient=transient,
            what=f'{method} of {context_id}',
        )

    @property
    def was_answered(self) -> bool:
        """True where a server has answered a call of this client."""
        return self._servers.were_seen

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
        self._send_call(method, 0.0, context_id, topic, args)

    def _send_call(
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
        :param server: name of the server on the topic that is to get the call; None: any server
        """
        name = topic or self._topic
        key = name if server is None else f'{name}.{server}'
        context = {'request_id': context_id, SERVER_NAME_WANTED_KEY: True}
        try:
            if call_tries:
                return self._call_once(key, context, method, timeout, args, call_tries)
            self._publish(
                lambda: self._carrier.caller.cast(
                    self._exchange, key, method, args, version=wire.VERSION, context=context
                ),
                PUBLISH_RETRIES + 1,
                math.inf,
            )
        except NoReply:
            renew_if_silent(self._carrier)
            raise NoAnswer(f'{method}: no answer from {name} within {timeout:.1f} s') from None
        except Undeliverable:
            raise NoConsumer(f'{method}: nobody listens on {name}') from None
        return None

    def _call_once(
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
        pending = self._publish(
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
        if not _has_server_name(response):
            return response
        self._servers.note(response[SERVER_KEY])
        return response[RESULT_KEY]

    def _publish(self, send: Callable[[], T], tries: int, end: float) -> T:
        """Run ``send``, and again where the broker does not accept the message, until ``end``."""
        for tried in range(1, tries + 1):
            try:
                return send()
            except exceptions.BrokerUnavailable:
                self._carrier.drop_senders()
                pause = _PUBLISH_PAUSE_SECONDS * tried
                if tried == tries or time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
        raise exceptions.Bug(invariant='the last try to publish raises')


def _has_server_name(response: Any) -> bool:
    return isinstance(response, dict) and response.keys() == {SERVER_KEY, RESULT_KEY}


def retry_pauses(
    attempt: Callable[[float], T],
    seconds: float,
    *,
    most: int,
    transient: tuple[type[Exception], ...],
    what: str,
) -> T:
    """Try until it works, an answer is final, or ``most`` tries or all but 0.4 s are over.

    :param attempt: gets the seconds that are left
    :param transient: errors after which another try makes sense
    :raises GanttError: the final answer, or the error of the last try
    """
    began = time.monotonic()
    end = began + seconds
    pause = 0.1
    for tried in range(1, most + 1):
        try:
            return attempt(max(0.001, end - time.monotonic()))
        except transient as e:
            hint = getattr(e, 'kwargs', {}).get('retry_after_ms')
            wait = hint / 1000 if isinstance(hint, int | float) else pause
            wait = min(wait, _PAUSE_SECONDS_MAX) * random.uniform(0.8, 1.2)
            is_last = tried == most or time.monotonic() + wait + _TRY_SECONDS_MIN >= end
            if not is_last:
                LOG.info(
                    'Call failed and is repeated: call=%s try=%d wait_seconds=%.1f error=%s',
                    what,
                    tried,
                    wait,
                    e,
                )
                time.sleep(wait)
                # A busy machine sleeps longer.  A try without the time for an answer would hide
                # what this one found out.
                is_last = time.monotonic() + _TRY_SECONDS_MIN >= end
            if is_last:
                if tried > 1 and isinstance(e, NoAnswer):
                    spent = time.monotonic() - began
                    text = f'{e.message}; it was the last of {tried} tries in {spent:.1f} s'
                    raise type(e)(text, **e.kwargs) from None
                raise
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
    raise exceptions.Bug(invariant='at least one try')


def within_budget(
    method: str,
    request: Any,
    patience: TryTimeouts,
    send: Callable[..., Any],
    transient: tuple[type[Exception], ...],
) -> Any:
    """Send a request again and again under its id, until its budget is spent.

    Each try has the rest of the budget, and all but the first say that they repeat.

    :param send: as ``ServerCaller.call``
    :param transient: errors after which another try makes sense
    :raises GanttError: the final answer, or the error of the last try
    """
    tried = itertools.count(1)

    def once(left: float) -> Any:
        left_ms = max(1, int(left * 1000))
        repeat = next(tried) > 1 or request.repeat
        body = msgspec.structs.replace(request, budget_ms=left_ms, repeat=repeat)
        seconds = patience.next_timeout(left)
        if seconds >= left:
            seconds = left + _GRACE_SECONDS
        return send(
            method,
            seconds,
            patience=patience,
            context_id=request.request_id,
            publish_tries=1,
            request=base.to_builtins(body),
        )

    seconds, what = request.budget_ms / 1000, f'{method} {request.request_id}'
    return retry_pauses(once, seconds, most=TRIES_MAX, transient=transient, what=what)
