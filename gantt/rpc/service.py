# SPDX-License-Identifier: Apache-2.0
"""RPC side of one process that serves topics, wired from its configuration.

    rpc = RpcService(conf, scheduler, count=recorder.count)
    rpc.start()      # waits for the broker; raises BrokerUnavailable
    ...
    rpc.stop()       # takes nothing new, answers what it has, closes

``conf`` is the process's global configuration object (see ``transport``).
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import oslo_messaging as om

from gantt import exceptions
from gantt.rpc import wire
from gantt.rpc.amqp import publisher, refusals, transport
from gantt.rpc.amqp.dead_letters import DeadLetters
from gantt.rpc.amqp.inbox import BrokerInbox
from gantt.rpc.amqp.reader import QueueReader
from gantt.rpc.amqp.replies import Count, ReplyWriter
from gantt.rpc.amqp.self_ping import SelfPing
from gantt.rpc.amqp.timers import DelayedExecutor, in_thread
from gantt.rpc.api.endpoints import ClaimsMethods, SchedulerMethods, StatsMethods
from gantt.rpc.api.planner_methods import PlannerMethods
from gantt.rpc.api.stats import Ratios
from gantt.rpc.call import RpcCall
from gantt.rpc.nova.notifier import NovaNotifier
from gantt.rpc.nova.topic import NovaMethods, TopicSettings
from gantt.rpc.server.pausing import Pausing
from gantt.rpc.server.server import Interface, Topic, WorkerPool

LOG = logging.getLogger(__name__)

#: A broker that is there declares a queue within milliseconds.
_DECLARE_SECONDS = 15.0


def _count_nothing(name: str, value: float = 1, **labels: str) -> None:
    """Count nothing, for callers that keep no metrics."""


def _ignore(problem: str) -> None:
    """Ignore a problem, for callers within another program; the health check reports it."""


def _not_closing(record: logging.LogRecord) -> bool:
    return 'during closing channel' not in str(record.msg)


class RpcService:
    """RPC side of a process: all its topics.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``; None: it plans groups alone
    :param server: name in queue names, [DEFAULT] host if not given; the same after a restart,
        or the queues of each start stay behind in the broker
    :param count: ``Recorder.count``
    :param url: broker, in place of ``transport_url``
    :param planner: ``gantt.scheduler.groups.planner.GroupPlanner``; None: other processes plan
    :param on_stuck: called, with the problem, by a thread of its own where the broker works
        but nothing is received here: the process is to end, for another to take its place
    """

    def __init__(
        self,
        conf: Any,
        scheduler: Any | None,
        *,
        planner: Any | None = None,
        server: str | None = None,
        count: Count = _count_nothing,
        url: str | None = None,
        on_stuck: Callable[[str], None] = _ignore,
    ) -> None:
        self._conf = conf.rpc
        self._scheduler = scheduler
        self._count = count
        self._server = server or conf.host
        self._later = DelayedExecutor(conf.rpc.reply_backlog)
        self._replies = ReplyWriter(self._later, conf.rpc.reply_retry_seconds, count)
        self._own = transport.own_transport(conf, url)
        transport.service_defaults(conf)
        self._dead_letters = DeadLetters(self._own, conf.rpc, self._server, count)
        self._nova: Any = None
        if conf.rpc.nova_enabled and scheduler is not None:
            self._nova = transport.nova_transport(conf, url)
        self._nova_methods: NovaMethods | None = None
        self._notifier: NovaNotifier | None = None
        if self._nova is not None:
            nova_url = transport.nova_url(conf, url)
            self._notifier = NovaNotifier(conf, nova_url, conf.host, count)
        self._topics = self._wired(scheduler, planner)
        self._running: list[Topic] = []
        self._self_ping = SelfPing(self._conf, lambda: self._running, on_stuck, count)
        self._pausing: Pausing | None = None
        if scheduler is not None:
            self._pausing = Pausing(scheduler, lambda: self._running, count)

    def _wired(self, scheduler: Any | None, planner: Any | None) -> list[Topic]:
        """Return the topics, which share what they are connected to."""
        ratios = Ratios(
            cpu=self._conf.dictionary_cpu_allocation_ratio,
            ram=self._conf.dictionary_ram_allocation_ratio,
            disk=self._conf.dictionary_disk_allocation_ratio,
        )
        interfaces: dict[str, Interface] = {}
        if scheduler is not None:
            interfaces |= {
                wire.SCHEDULER_TOPIC: SchedulerMethods(scheduler, self._replies).interface,
                wire.CLAIMS_TOPIC: ClaimsMethods(scheduler).interface,
                wire.STATS_TOPIC: StatsMethods(scheduler, ratios).interface,
            }
        if planner is not None:
            interfaces[wire.PLANNER_TOPIC] = PlannerMethods(planner).interface
        topics = [
            self._topic(self._own, wire.exchange_of(name), name, interface)
            for name, interface in interfaces.items()
        ]
        if self._notifier is not None:
            terms = TopicSettings(
                budget_seconds=self._conf.nova_budget_seconds,
                lease_seconds=self._conf.nova_lease_seconds,
                max_attempts=self._conf.nova_max_attempts,
                clock_skew_seconds=self._conf.nova_clock_skew_seconds,
            )
            self._nova_methods = NovaMethods(
                scheduler,
                self._replies,
                self._later,
                terms,
                self._notifier,
                heartbeat_seconds=self._nova.rabbit.heartbeat_timeout_threshold,
                give_back=self._given_back_to_nova,
            )
            topics.append(
                self._topic(
                    self._nova,
                    self._conf.nova_exchange,
                    self._conf.nova_topic,
                    self._nova_methods.interface,
                )
            )
        return topics

    def _given_back_to_nova(self, call: RpcCall, seconds: float) -> bool:
        """Put a call of Nova's back into the queue, for other schedulers to take.

        :param seconds: how long its caller waits
        """
        is_paused = self._pausing is not None and self._pausing.is_paused
        if not is_paused or not call.raw.is_whole_text:
            return False
        message = call.raw.message | {
            '_msg_id': call.raw.msg_id,
            '_reply_q': call.raw.reply_q,
            '_timeout': call.raw.client_timeout,
        }
        try:
            call.raw.carrier.caller.send(
                self._conf.nova_exchange, self._conf.nova_topic, message, seconds, True
            )
        except (exceptions.BrokerUnavailable, publisher.Undeliverable) as e:
            LOG.warning('Call of Nova cannot be returned to its queue: error=%s', e)
            return False
        return True

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
            is_nova = carrier is self._nova and self._conf.nova_transport_url
            option = '[rpc] nova_transport_url' if is_nova else 'transport_url'
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
            inbox = BrokerInbox(self._lent, lambda: self._replies.has_room)
            self._scheduler.read_from(inbox)
        for carrier in self._carriers:
            names = ','.join(t.name for t in self._topics if t.carrier is carrier)
            LOG.info('Topics are consumed: topics=%s broker=%s', names, carrier.address)
        if not self._own.is_in_process:
            self._self_ping.start()
            if self._pausing is not None:
                self._pausing.start()
        return True

    def _start_answering(self) -> None:
        self._later.start()
        self._replies.start()
        if self._notifier is not None:
            self._notifier.start()
        if self._nova_methods is not None:
            self._nova_methods.attached()

    def _lent(self) -> list[QueueReader]:
        """Return the connections that the placing thread reads."""
        return [lent for topic in self._running if (lent := topic.lent) is not None]

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
            raise topic.undeclared(refusals.text_of(e) if started.done() else no_answer) from None

    @property
    def address(self) -> str:
        """Address of the broker, without password."""
        return self._own.address

    def health(self) -> dict[str, int]:
        """Return depths of queues, for health checks and metrics."""
        return {
            'calls_pending': self._replies.pending,
            'replies_waiting': self._later.depth,
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
        return [carrier for carrier in (self._own, self._nova) if carrier is not None]

    def stop_taking(self) -> None:
        """Stop consuming.  Takes up to some seconds, all topics at once."""
        threads = [threading.Thread(target=t.stop_taking, daemon=True) for t in self._running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)

    def stop(self, seconds: float | None = None) -> bool:
        """Take nothing new, answer what was accepted, close.

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
        dropped = self._later.stop()
        self._replies.stop()
        self._dead_letters.stop()
        if self._notifier is not None:
            self._notifier.stop()
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
        while (self._replies.pending or self._later.depth) and time.monotonic() < end:
            time.sleep(0.02)
