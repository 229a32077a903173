# SPDX-License-Identifier: Apache-2.0
"""One queue for the topics of many hosts.

Each message server of the library has connections and threads of its own, so
ten thousand hosts cannot have one each.  Their topics are bound to the queue of
the one topic that is served.  A queue that the broker lost with a restart is
declared again by the server, without these bindings, so they are made anew
whenever the server's connection is another one, and now and then anyway.
"""

import logging
import threading
import time
from typing import Any

from gantt.rpc.amqp import driver
from gantt.rpc.amqp.consumer import Consumer

LOG = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
ANYWAY_SECONDS = 300.0
CONNECT_SECONDS = 10.0


class Bindings:
    """Keeps topics bound to the queue of another topic.

    :param consumer: of the queue
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
        self._thread = threading.Thread(target=self._keep, name='bindings', daemon=True)

    def start(self) -> None:
        """Bind now, and again whenever it is needed.

        :raises Exception: the broker refused or is away
        """
        self.bind()
        self._thread.start()

    def bind(self) -> None:
        """Bind every topic; the broker has answered when this returns."""
        with driver.connection_beside(self._transport) as own:
            own.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
            channel = own.default_channel
            for topic in self._topics[:-1]:
                channel.queue_bind(self._queue, self._exchange, topic, nowait=True)
            # The last one waits: what is wrong with any of them is said here.
            for topic in self._topics[-1:]:
                channel.queue_bind(self._queue, self._exchange, topic)

    def stop(self) -> None:
        """Bind no more; what is bound goes with the queue."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _keep(self) -> None:
        seen, bound_at = self._consumer.channel, time.monotonic()
        while not self._stopping.wait(CHECK_SECONDS):
            now = self._consumer.channel
            if now is seen and time.monotonic() - bound_at < ANYWAY_SECONDS:
                continue
            try:
                self.bind()
            except Exception as e:  # sockets, AMQP, TLS: it is tried again in two seconds
                LOG.warning('The topics of %d hosts could not be bound: %s', len(self._topics), e)
                continue
            seen, bound_at = now, time.monotonic()
