# SPDX-License-Identifier: Apache-2.0
"""Builds and deletes received over the message broker."""

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import oslo_messaging as om

from gantt.compute.agent.agent import Agent, BuildOutcome, Halted
from gantt.compute.farm import Farm, Fault
from gantt.core.messages import base
from gantt.core.messages.base import topic_of
from gantt.core.messages.build import Build, Delete
from gantt.rpc import wire
from gantt.rpc.amqp.consumer import Consumer
from gantt.rpc.amqp.replies import ReplyWriter, no_count
from gantt.rpc.amqp.timers import DelayedExecutor
from gantt.rpc.call import RpcCall
from gantt.rpc.server import DEFERRED_REPLY, Interface, Method, Topic, WorkerPool

# -- One queue for the topics of many hosts.
TOPICS_CHECK_SECONDS = 2.0
REBIND_SECONDS = 300.0


class Bindings:
    """Bindings of topics to the queue of another topic, renewed after reconnections.

    :param consumer: consumer of the queue
    """

    def __init__(
        self, transport: Any, consumer: Consumer, exchange: str, queue: str, topics: list[str]
    ) -> None:
        self._transport = transport
        self._consumer = consumer
        self._exchange = exchange
        self._queue = queue
        self._topics = topics
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_bound, name='bindings', daemon=True)

    def start(self) -> None:
        """Bind every topic now, and again after each reconnection.

        :raises Exception: the broker refused or is away
        """
        self.bind()
        self._thread.start()

    def bind(self) -> None:
        """Bind every topic; the broker has answered when this returns."""
        with self._transport.opened() as connection:
            channel = connection.channel()
            for topic in self._topics[:-1]:
                channel.queue_bind(self._queue, self._exchange, topic, nowait=True)
            # The last one waits for the answer: an error of any of them is raised here.
            for topic in self._topics[-1:]:
                channel.queue_bind(self._queue, self._exchange, topic)

    def stop(self) -> None:
        """Stop renewing the bindings; the broker deletes them with the queue."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _keep_bound(self) -> None:
        bound_channel, bound_at = self._consumer.reader.channel, time.monotonic()
        while not self._stopping.wait(TOPICS_CHECK_SECONDS):
            channel = self._consumer.reader.channel
            if channel is bound_channel and time.monotonic() - bound_at < REBIND_SECONDS:
                continue
            try:
                self.bind()
            except Exception as e:  # sockets, AMQP, TLS: it is tried again in two seconds
                LOG.warning(
                    'Topics of hosts cannot be bound: hosts=%d error=%s', len(self._topics), e
                )
                continue
            bound_channel, bound_at = channel, time.monotonic()


LOG = logging.getLogger(__name__)

PAYLOAD_BYTES_MAX = 1 << 20
REPLY_SECONDS = 10.0
REPLY_BACKLOG = 1000


def interface_of(
    builder: Agent | Farm,
    command: Callable[[Fault], dict[str, object]] | None = None,
    level: int = logging.INFO,
) -> Interface:
    """Return the methods of a host's topic.

    :param command: runs an order on a farm; None: not a farm
    :param level: level of the log line with the outcome of a build or delete
    """
    build = functools.partial(_run, builder.build, level)
    delete = functools.partial(_run, builder.delete, level)
    methods = {
        'build': Method(build, parameters={'build': Build}, bytes_max=None),
        'delete': Method(delete, parameters={'delete': Delete}),
    }
    if command is not None:
        methods['farm_command'] = Method(
            lambda call: command(wire.argument(call)), parameters={'order': Fault}, bytes_max=None
        )
    return Interface(methods)


def _run(act: Callable[[Any], BuildOutcome], level: int, call: RpcCall) -> Any:
    try:
        outcome = act(wire.argument(call))
    except Halted:
        return DEFERRED_REPLY  # a dead host answers nothing
    LOG.log(
        level,
        'Build or delete ended: guest=%s outcome=%s reason=%s',
        outcome.consumer,
        outcome.outcome,
        outcome.reason or '-',
    )
    return base.to_builtins(outcome)


class BuildListener:
    """A server of the topic of a host, or that of a farm for all its hosts.

    :param carrier: transport from ``gantt.client.get_transport``
    :param name: name of the host or the farm; its topic is ``gantt-compute.<name>``
    :param hosts: further hosts whose topics lead here
    """

    def __init__(
        self,
        carrier: Any,
        name: str,
        interface: Interface,
        hosts: list[str] | None = None,
        *,
        threads: int = 4,
        queue: int = 1000,
    ) -> None:
        self.topic = topic_of(name)
        self._later = DelayedExecutor(REPLY_BACKLOG, 'compute-later')
        self._replies = ReplyWriter(self._later, REPLY_SECONDS, no_count)
        self._topic_server = Topic(
            carrier,
            om.Target(exchange=wire.EXCHANGE, topic=self.topic, server=name),
            interface,
            self._replies,
            WorkerPool(self.topic, threads, queue),
            payload_bytes_max=PAYLOAD_BYTES_MAX,
            count=no_count,
        )
        self._bindings = None
        if hosts:
            self._bindings = Bindings(
                carrier,
                self._topic_server.consumer,
                wire.EXCHANGE,
                self.topic,
                [topic_of(host) for host in hosts],
            )

    def start(self) -> None:
        """Start to listen.  The broker must be there."""
        self._later.start()
        self._replies.start()
        self._topic_server.start()
        if self._bindings is not None:
            self._bindings.start()

    def stop(self, seconds: float) -> bool:
        """Accept no new build, finish the accepted ones; return whether they ended in time."""
        if self._bindings is not None:
            self._bindings.stop()
        self._topic_server.stop_taking()
        done = self._topic_server.finish(seconds)
        self._replies.stop()
        self._later.stop()
        return done
