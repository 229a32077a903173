# SPDX-License-Identifier: Apache-2.0
"""RPC side of one process that serves topics, wired from its configuration.

    rpc = RpcService(conf, scheduler, extensions=extensions, count=recorder.count)
    rpc.start()      # waits for the broker; raises BrokerUnavailable
    ...
    rpc.stop()       # takes nothing new, answers what it has, closes

``conf`` is the process's global configuration object (see ``transport``).
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import oslo_messaging as om

from gantt import exceptions
from gantt.rpc import wire
from gantt.rpc.amqp import refusals, transport
from gantt.rpc.amqp.dead_letters import DeadLetters
from gantt.rpc.amqp.reader import BrokerInbox, QueueReader
from gantt.rpc.amqp.replies import Count, ReplyWriter, no_count
from gantt.rpc.amqp.self_ping import SelfPing
from gantt.rpc.amqp.timers import DelayedExecutor, in_thread
from gantt.rpc.api.endpoints import ClaimsMethods, SchedulerMethods, StatsMethods
from gantt.rpc.api.stats import Ratios
from gantt.rpc.server import DatabasePause, Interface, Method, Topic, WorkerPool

LOG = logging.getLogger(__name__)

#: A broker that is there declares a queue within milliseconds.
_DECLARE_SECONDS = 15.0


def _ignore(problem: str) -> None:
    """Ignore a problem, for callers within another program; the health check reports it."""


def _not_closing(record: logging.LogRecord) -> bool:
    return 'during closing channel' not in str(record.msg)


class PeerTopic(Protocol):
    """A topic that another program calls, by a broker of its own.

    :ivar carrier: the transport
    :ivar name: name of the topic
    :ivar broker_option: the option that names the broker
    """

    carrier: Any
    exchange: str
    name: str
    broker_option: str

    def interface(
        self, replies: ReplyWriter, later: DelayedExecutor, is_paused: Callable[[], bool]
    ) -> Interface:
        """Return the methods.

        :param later: timer thread for delayed jobs
        :param is_paused: returns whether calls are left to other processes
        """

    def start(self) -> None:
        """Begin: the topic is consumed next."""

    def stop(self) -> None:
        """End, after all calls are answered."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RpcExtensions:
    """Topics and methods that capabilities add to the RPC side of a process.

    :ivar topics: name -> methods of further own topics
    :ivar stats_methods: further methods of ``gantt-stats``
    """

    topics: Mapping[str, Interface] = dataclasses.field(default_factory=dict)
    stats_methods: Mapping[str, Method] = dataclasses.field(default_factory=dict)
    peer: PeerTopic | None = None


class RpcService:
    """RPC side of a process: all its topics.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``; None: it serves
        only the topics of capabilities
    :param server: name in queue names, [DEFAULT] host if not given; the same after a restart,
        or the queues of each start remain in the broker
    :param count: ``Recorder.count``
    :param url: broker, in place of ``transport_url``
    :param on_stuck: called, with the problem, by a thread of its own where the broker works
        but nothing is received here: the process is to end, for another to take its place
    """

    def __init__(
        self,
        conf: Any,
        scheduler: Any | None,
        *,
        extensions: RpcExtensions,
        server: str | None = None,
        count: Count = no_count,
        url: str | None = None,
        on_stuck: Callable[[str], None] = _ignore,
    ) -> None:
        self._conf = conf.rpc
        self._scheduler = scheduler
        self._count = count
        self._server = server or conf.host
        self._delayed_executor = DelayedExecutor(conf.rpc.reply_backlog)
        self._replies = ReplyWriter(self._delayed_executor, conf.rpc.reply_retry_seconds, count)
        self._own_transport = transport.own_transport(conf, url)
        transport.service_defaults(conf)
        self._dead_letters = DeadLetters(self._own_transport, conf.rpc, self._server, count)
        self._peer = extensions.peer
        self._pausing: DatabasePause | None = None
        self._topics = self._make_topics(scheduler, extensions)
        self._running: list[Topic] = []
        self._self_ping = SelfPing(self._conf, lambda: self._running, on_stuck, count)
        if scheduler is not None:
            self._pausing = DatabasePause(scheduler, lambda: self._running, count)

    def _make_topics(self, scheduler: Any | None, extensions: RpcExtensions) -> list[Topic]:
        """Return the topics, which share what they are connected to."""
        interfaces: dict[str, Interface] = {}
        if scheduler is not None:
            ratios = Ratios(
                cpu=self._conf.dictionary_cpu_allocation_ratio,
                ram=self._conf.dictionary_ram_allocation_ratio,
                disk=self._conf.dictionary_disk_allocation_ratio,
            )
            stats_methods = StatsMethods(scheduler, ratios, extensions.stats_methods)
            interfaces |= {
                wire.SCHEDULER_TOPIC: SchedulerMethods(scheduler, self._replies).interface,
                wire.CLAIMS_TOPIC: ClaimsMethods(scheduler).interface,
                wire.STATS_TOPIC: stats_methods.interface,
            }
        topics = [
            self._topic(self._own_transport, wire.exchange_of_topic(name), name, interface)
            for name, interface in (interfaces | dict(extensions.topics)).items()
        ]
        peer = self._peer
        if peer is not None:
            interface = peer.interface(self._replies, self._delayed_executor, self._is_paused)
            topics.append(self._topic(peer.carrier, peer.exchange, peer.name, interface))
        return topics

    def _is_paused(self) -> bool:
        return self._pausing is not None and self._pausing.is_paused

    def _topic(self, carrier: Any, exchange: str, topic: str, interface: Interface) -> Topic:
        return Topic(
            carrier,
            om.Target(exchange=exchange, topic=topic, server=self._server),
            interface,
            self._replies,
            WorkerPool(topic, self._conf.worker_threads, self._conf.worker_queue_limit),
            payload_bytes_max=self._conf.payload_bytes_max,
            count=self._count,
            dead_letter_queue=self._dead_letters,
        )

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the brokers, then listen.

        :param is_stopping: returns whether to give up waiting, called several times a second
        :returns: False where it gave up; nothing listens
        :raises BrokerUnavailable: after [rpc] start_wait_seconds; nothing listens
        :raises Misconfigured: a queue exists and was declared otherwise
        """
        for carrier in self._carriers:
            is_peers = self._peer is not None and carrier is self._peer.carrier
            option = self._peer.broker_option if self._peer and is_peers else 'transport_url'
            seconds = self._conf.start_wait_seconds
            if not transport.wait_for_broker(carrier, seconds, option, is_stopping):
                return False
        self._start_answering()
        try:
            for topic in self._topics:
                self._started(topic)
                self._running.append(topic)
        except exceptions.GanttError:
            self.stop(0.0)
            raise
        if self._scheduler is not None:
            inbox = BrokerInbox(self._lendable_readers, lambda: self._replies.has_room)
            self._scheduler.read_from(inbox)
        for carrier in self._carriers:
            names = ','.join(t.name for t in self._topics if t.carrier is carrier)
            LOG.info('Topics are consumed: topics=%s broker=%s', names, carrier.address)
        if not self._own_transport.is_in_process:
            self._self_ping.start()
            if self._pausing is not None:
                self._pausing.start()
        return True

    def _start_answering(self) -> None:
        self._delayed_executor.start()
        self._replies.start()
        if self._peer is not None:
            self._peer.start()

    def _lendable_readers(self) -> list[QueueReader]:
        """Return the connections that the scheduling thread reads."""
        return [
            lendable_reader
            for topic in self._running
            if (lendable_reader := topic.lendable_reader) is not None
        ]

    @staticmethod
    def _started(topic: Topic) -> None:
        """Start a topic within a bound; the library retries refused declarations for ever."""
        started = in_thread(topic.start, f'start-{topic.name}')
        try:
            started.result(_DECLARE_SECONDS)
        except exceptions.GanttError:
            raise
        except Exception as e:
            no_answer = f'no answer within {_DECLARE_SECONDS:.0f} s'
            raise topic.undeclared(
                refusals.refusal_text(e) if started.done() else no_answer
            ) from None

    @property
    def address(self) -> str:
        """Address of the broker, without password."""
        return self._own_transport.address

    def health(self) -> dict[str, int]:
        """Return depths of queues, for health checks and metrics."""
        return {
            'calls_pending': self._replies.pending,
            'replies_waiting': self._delayed_executor.depth,
            'self_pings_failed': self._self_ping.failed,
            'rebuilds': self._self_ping.rebuilds,
            'topics_paused': sum(topic.is_paused for topic in self._running),
            **{f'waiting_{t.name}': t.depth for t in self._topics},
        }

    def attached(self) -> dict[str, bool]:
        """Return the topics listened on -> whether the broker has their consumer, if known.

        A connection that is cut is known at once, one that falls silent after the heartbeat.
        """
        return {topic.name: topic.is_attached for topic in self._running}

    @property
    def problem(self) -> str:
        """Problem that the self-ping found although consumers are attached."""
        return self._self_ping.problem

    @property
    def paused(self) -> str:
        """Reason why calls are left to other schedulers; empty: they are not."""
        return '' if self._pausing is None else self._pausing.problem

    @property
    def _carriers(self) -> list[Any]:
        return (
            [self._own_transport]
            if self._peer is None
            else [self._own_transport, self._peer.carrier]
        )

    def stop_taking(self) -> None:
        """Stop consuming.  Takes up to some seconds, all topics at once."""
        threads = [threading.Thread(target=t.stop_taking, daemon=True) for t in self._running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)

    def stop(self, seconds: float | None = None) -> bool:
        """Accept no new call, answer the accepted ones, close.

        Call it before the scheduler is stopped: its answers go out through here.

        :param seconds: None: [rpc] drain_seconds
        :returns: whether everything accepted was answered in time
        """
        self._self_ping.stop()
        if self._pausing is not None:
            self._pausing.stop()
        end = time.monotonic() + (self._conf.drain_seconds if seconds is None else seconds)
        # py-amqp remarks on each message that crosses the closing of a channel.
        logging.getLogger('amqp').addFilter(_not_closing)
        self.stop_taking()
        self._answer_until(end)
        done = [t.finish(max(0.5, end - time.monotonic())) for t in self._running]
        # Messages that the receiving threads still held were accepted meanwhile.
        self._answer_until(end)
        unanswered = self._replies.pending
        dropped = self._delayed_executor.stop()
        self._replies.stop()
        self._dead_letters.stop()
        if self._peer is not None:
            self._peer.stop()
        if unanswered or dropped:
            LOG.warning(
                'Process stops with unfinished calls: unanswered=%d undelivered=%d',
                unanswered,
                dropped,
            )
        for carrier in self._carriers:
            carrier.cleanup()
        return all(done) and not unanswered and not dropped

    def _answer_until(self, end: float) -> None:
        while (self._replies.pending or self._delayed_executor.depth) and time.monotonic() < end:
            time.sleep(0.02)
