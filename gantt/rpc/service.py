# SPDX-License-Identifier: Apache-2.0
"""The RPC side of one scheduler process, wired from its configuration.

    rpc = RpcService(conf, scheduler, count=recorder.count)
    rpc.start()      # waits for the broker; raises BrokerUnavailable
    ...
    rpc.stop()       # takes nothing new, answers what it has, closes

``conf`` is the process's global configuration object (see ``transport``).
"""

import functools
import logging
import threading
import time
from typing import Any

import oslo_messaging as om

from gantt import exceptions
from gantt.rpc import driver, transport, wire
from gantt.rpc.endpoints import ClaimsMethods, SchedulerMethods, StatsMethods
from gantt.rpc.later import Later
from gantt.rpc.nova_compat import NovaMethods, Terms
from gantt.rpc.replies import CHANNELS, Count
from gantt.rpc.server import Interface, Topic
from gantt.rpc.stats import Ratios

LOG = logging.getLogger(__name__)

#: A broker that is there declares a queue within milliseconds.
_DECLARE_SECONDS = 15.0


def _count_nothing(name: str, value: float = 1, **labels: str) -> None:
    """For callers that keep no metrics."""


def _not_closing(record: logging.LogRecord) -> bool:
    return 'during closing channel' not in str(record.msg)


def _is_open(channel: Any) -> bool:
    if channel is None:
        return False
    # py-amqp's channels say whether they are open, those in memory whether they are closed.
    return bool(getattr(channel, 'is_open', not getattr(channel, 'closed', False)))


class RpcService:
    """All topics of a scheduler.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``
    :param server: name in queue names, [DEFAULT] host if not given; the same after a restart,
        or the queues of each start stay behind in the broker
    :param count: ``Recorder.count``
    :param url: broker, in place of ``transport_url``
    """

    def __init__(
        self, conf: Any, scheduler: Any, *, server: str | None = None,
        count: Count = _count_nothing, url: str | None = None,
    ) -> None:  # fmt: skip
        self._conf = conf.rpc
        self._count = count
        self._server = server or conf.host
        self._later = Later(conf.rpc.reply_backlog)
        self._replies = CHANNELS[conf.rpc.reply_channel](
            self._later, conf.rpc.reply_retry_seconds, count
        )
        self._own = transport.own_transport(conf, url)
        self._nova = self._nova_transport(conf, url)
        self._nova_methods: NovaMethods | None = None
        self._topics = self._wired(scheduler)
        self._running: list[Topic] = []

    @staticmethod
    def _nova_transport(conf: Any, url: str | None) -> Any:
        if not conf.rpc.nova_enabled:
            return None
        return transport.nova_transport(conf, url)

    def _wired(self, scheduler: Any) -> list[Topic]:
        ratios = Ratios(
            cpu=self._conf.dictionary_cpu_allocation_ratio,
            ram=self._conf.dictionary_ram_allocation_ratio,
            disk=self._conf.dictionary_disk_allocation_ratio,
        )
        own = functools.partial(self._topic, self._own, transport.EXCHANGE)
        topics = [
            own(wire.SCHEDULER_TOPIC, SchedulerMethods(scheduler, self._replies).interface),
            own(wire.CLAIMS_TOPIC, ClaimsMethods(scheduler).interface),
            own(wire.STATS_TOPIC, StatsMethods(scheduler, ratios).interface),
        ]
        if self._nova is not None:
            terms = Terms(
                budget_seconds=self._conf.nova_budget_seconds,
                lease_seconds=self._conf.nova_lease_seconds,
                max_attempts=self._conf.nova_max_attempts,
                clock_skew_seconds=self._conf.nova_clock_skew_seconds,
            )
            self._nova_methods = NovaMethods(scheduler, self._replies, self._later, terms)
            topics.append(
                self._topic(
                    self._nova,
                    self._conf.nova_exchange,
                    self._conf.nova_topic,
                    self._nova_methods.interface,
                )  # fmt: skip
            )
        return topics

    def _topic(self, carrier: Any, exchange: str, topic: str, interface: Interface) -> Topic:
        return Topic(
            carrier, om.Target(exchange=exchange, topic=topic, server=self._server), interface,
            self._replies, threads=self._conf.worker_threads, queue=self._conf.worker_queue,
            payload_bytes_max=self._conf.payload_bytes_max, count=self._count,
        )  # fmt: skip

    def start(self) -> None:
        """Wait for the brokers, then listen.

        :raises BrokerUnavailable: after [rpc] start_wait_seconds; nothing listens
        :raises Misconfigured: a queue exists and was declared otherwise
        """
        for carrier in filter(None, (self._own, self._nova)):
            transport.wait_for_broker(carrier, self._conf.start_wait_seconds)
        self._later.start()
        if self._nova_methods is not None:
            self._nova_methods.attached()
        try:
            for topic in self._topics:
                self._started(topic)
                self._running.append(topic)
        except exceptions.GanttError:
            self.stop(0.0)
            raise
        LOG.info(
            'Listening on %s at %s', ', '.join(t.name for t in self._topics), self.address
        )  # fmt: skip

    @staticmethod
    def _started(topic: Topic) -> None:
        """Start a topic; the library would try for ever to declare what the broker refuses."""
        errors: list[Exception] = []

        def start() -> None:
            try:
                topic.start()
            except Exception as e:
                errors.append(e)

        thread = threading.Thread(target=start, name=f'start-{topic.name}', daemon=True)
        thread.start()
        thread.join(_DECLARE_SECONDS)
        if not errors and not thread.is_alive():
            return
        said = str(errors[0]) if errors else f'no answer within {_DECLARE_SECONDS:.0f} s'
        raise exceptions.Misconfigured(
            option='[oslo_messaging_rabbit]',
            problem=f'the queues of topic {topic.name} cannot be declared: {said}',
            fix='After PRECONDITION_FAILED: the queue exists with other settings; use those (for '
            'the topic of Nova in [rpc] nova_rabbit_options), or delete the queue',
        ) from None

    @property
    def address(self) -> str:
        """The broker, without password."""
        return transport.address(self._own)

    def health(self) -> dict[str, int]:
        """Depths of queues, for health checks and metrics."""
        return {
            'calls_pending': self._replies.pending,
            'replies_waiting': self._later.depth,
            **{f'waiting_{t.name}': t.depth for t in self._topics},
        }

    def attached(self) -> dict[str, bool]:
        """The topics listened on, and whether the broker has their consumer, as far as is known.

        A connection that is cut is known at once, one that falls silent after the heartbeat.
        """
        return {
            topic.name: _is_open(driver.attachment_of(topic._server)) for topic in self._running
        }

    def stop_taking(self) -> None:
        """Consume nothing more.  Takes up to some seconds, all topics at once."""
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
        end = time.monotonic() + (self._conf.drain_seconds if seconds is None else seconds)
        # py-amqp remarks on each message that crosses the closing of a channel.
        logging.getLogger('amqp').addFilter(_not_closing)
        self.stop_taking()
        while (self._replies.pending or self._later.depth) and time.monotonic() < end:
            time.sleep(0.02)
        done = [t.finish(max(0.5, end - time.monotonic())) for t in self._running]
        unanswered = self._replies.pending
        dropped = self._later.stop()
        if unanswered or dropped:
            LOG.warning('%d calls are left without an answer, %d replies were not delivered',
                        unanswered, dropped)  # fmt: skip
        for carrier in filter(None, (self._own, self._nova)):
            carrier.cleanup()
        return all(done) and not unanswered and not dropped
