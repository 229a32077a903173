# SPDX-License-Identifier: Apache-2.0
"""Calls of a process to itself over the broker; without an answer it ends.

A connection may be stuck although it is open: the broker forgot the consumer, a
queue lost its leader, a firewall swallows one direction.  The library notices
what breaks and connects again; it does not notice what is merely silent.  So each
topic is called now and then, by way of the broker and back.  Where that fails
several times in a row although the broker confirms a message on a new
connection each time, the connections of this process are at fault.  They are not
repaired: the process ends, and its supervisor starts another one in its place.
"""

import functools
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Protocol

import oslo_messaging as om

from gantt import exceptions
from gantt.rpc.amqp import publisher
from gantt.rpc.amqp.replies import Count
from gantt.rpc.amqp.timers import in_thread

LOG = logging.getLogger(__name__)

#: Name of the method, that of the library's own endpoint for it; every topic has it.
PING_METHOD = 'oslo_rpc_server_ping'

#: A broker that is there takes a connection and confirms a message within this.
BROKER_SECONDS = 10.0
#: Seconds that a call may take beyond its own bound: connections are opened without one.
PING_GRACE_SECONDS = 1.0


class PingedTopic(Protocol):
    """A topic that listens here."""

    name: str
    carrier: Any
    target: om.Target


class SelfPing:
    """A periodic call of every topic of this process, each in a thread of its own.

    :param conf: the options of [rpc]
    :param topics: returns the topics that listen now
    :param on_stuck: called once, with the problem, when this process is to end and be replaced
    """

    def __init__(
        self,
        conf: Any,
        topics: Callable[[], Iterable[PingedTopic]],
        on_stuck: Callable[[str], None],
        count: Count,
    ) -> None:
        self._conf = conf
        self._topics = topics
        self._on_stuck = on_stuck
        self._count = count
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pings_under_way: dict[str, Future[None]] = {}
        #: Topics that answered since the start.
        self._answered: set[str] = set()
        self._problem_seen = ''
        self._stuck = 0
        self.failed = 0
        self.rebuilds = 0

    def start(self) -> None:
        """Start the thread, unless [rpc] self_ping_seconds is 0."""
        if self._conf.self_ping_seconds:
            self._thread = threading.Thread(target=self._run, name='self-ping', daemon=True)
            self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop calling."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def problem(self) -> str:
        """Description of the failure, for a health check; '' until enough calls failed in a row."""
        if self.failed < self._conf.self_ping_failures:
            return ''
        return f'{self.failed} times in a row no answer to a call of itself: {self._problem_seen}'

    def _run(self) -> None:
        while not self._stopping.wait(self._conf.self_ping_seconds):
            try:
                self._ping_round()
            except Exception:
                LOG.exception('Self-ping failed unexpectedly; the next one follows')

    def _ping_round(self) -> None:
        problems = self._unanswered()
        if self._stopping.is_set():
            return
        self._count('gantt_rpc_self_pings_total', 1, outcome='failed' if problems else 'answered')
        if not problems:
            self.failed = self._stuck = self.rebuilds = 0
            return
        self._problem_seen = _first(problems)
        self.failed += 1
        LOG.warning(
            'Call of this process to itself got no answer: failures=%d error=%s',
            self.failed,
            self._problem_seen,
        )
        if not self._broker_works() or self._stuck < self._conf.self_ping_failures:
            return
        # Where no answer ever came another process would fare no better, and end as well.
        if problems.keys() & self._answered and not self.rebuilds:
            LOG.critical(
                'The broker works, but this process receives nothing; it ends so that another one '
                'replaces it: problem=%s',
                self.problem,
            )
            self.rebuilds = 1
            self._count('gantt_rpc_self_ping_exits_total')
            self._on_stuck(self.problem)

    def _broker_works(self) -> bool:
        """Return whether the broker confirms a message now.

        Counts how often it did although nothing was received here.  Where it does not, and for
        a while after, the library is about to connect again.
        """
        carriers = {t.carrier.address: t.carrier for t in self._topics()}
        pings = {
            url: in_thread(functools.partial(check_broker, carrier), 'self-ping')
            for url, carrier in carriers.items()
        }
        problems = _problems(pings, BROKER_SECONDS)
        if problems:
            LOG.info(
                'The broker accepts no message on a new connection either: error=%s',
                _first(problems),
            )
            self._stuck = 0
            return False
        if not self._stuck:
            # Earlier calls may hang in an earlier failure.
            self._pings_under_way.clear()
        self._stuck += 1
        return True

    def _unanswered(self) -> dict[str, str]:
        """Call all topics; return those that did not answer, with the reason."""
        seconds = self._conf.self_ping_wait_seconds
        for topic in self._topics():
            # No second call is started while one hangs.
            earlier_ping = self._pings_under_way.get(topic.name)
            if earlier_ping is None or earlier_ping.done():
                ping = functools.partial(ping_topic, topic, seconds)
                self._pings_under_way[topic.name] = in_thread(ping, 'self-ping')
        problems = _problems(self._pings_under_way, seconds + PING_GRACE_SECONDS)
        self._answered |= self._pings_under_way.keys() - problems.keys()
        return problems


def _problems(pings: dict[str, Future[None]], seconds: float) -> dict[str, str]:
    """Return the problems of pings that did not end well within so many seconds."""
    done = wait(pings.values(), seconds).done
    problems = {}
    for name, ping in pings.items():
        if ping not in done:
            problems[name] = 'it hangs'
        elif (error := ping.exception()) is not None:
            # Sockets, AMQP, TLS, time-outs: each is a problem and no more.
            problems[name] = ' '.join(str(error).split()) or type(error).__name__
    return problems


def _first(problems: dict[str, str]) -> str:
    return next(f'{name}: {problem}' for name, problem in problems.items())


def ping_topic(topic: PingedTopic, seconds: float) -> None:
    """Call one topic of this process.

    :raises Exception: no answer; may take longer than ``seconds``
    """
    target = topic.target
    try:
        pending = topic.carrier.caller.begin(
            target.exchange,
            f'{target.topic}.{target.server}',
            PING_METHOD,
            {},
            version='1.0',
            context={},
            seconds=seconds,
        )
        pending.result()
    except exceptions.BrokerUnavailable:
        topic.carrier.drop_senders()
        raise


def check_broker(carrier: Any) -> None:
    """Have the broker confirm a message, on a new connection.

    The message has no queue to go to: the broker gives it back before the confirm.

    :raises Exception: the broker does not confirm, or does not answer; the call may hang
    """
    with carrier.opened() as connection:
        publisher.write_replies(connection, [(f'gantt-{uuid.uuid4().hex}', b'{}')])
