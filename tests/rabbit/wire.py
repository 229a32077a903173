# SPDX-License-Identifier: Apache-2.0
"""The other end of the wire by hand: bytes to an exchange, bytes from a reply queue."""

import contextlib
import json
import socket
import threading
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import kombu

from gantt.rpc.wire import exchange_of_topic


class Wire:
    """One connection that publishes anything and reads its own reply queue."""

    def __init__(self, url: str) -> None:
        self._connection = kombu.Connection(url.replace('rabbit://', 'amqp://', 1))
        self._channel = self._connection.channel()
        self.reply_q = f'reply_{uuid.uuid4().hex}'
        kombu.Queue(self.reply_q, durable=False, auto_delete=True, channel=self._channel).declare()
        self.replies: list[dict[str, Any]] = []
        self._consumer = kombu.Consumer(
            self._channel,
            [kombu.Queue(self.reply_q, durable=False, auto_delete=True)],
            on_message=self._keep,
            no_ack=True,
        )
        self._consumer.consume()

    def also_reads(self, queue: str) -> None:
        """Declare another reply queue and read it, too."""
        self._consumer.add_queue(kombu.Queue(queue, durable=False, auto_delete=True))
        self._consumer.consume()

    def close(self) -> None:
        self._connection.release()

    def _keep(self, message: Any) -> None:
        self.replies.append(json.loads(message.body))

    def send(
        self,
        body: bytes | str,
        *,
        topic: str,
        exchange: str | None = None,
        content_type: str = 'application/json',
        content_encoding: str = 'utf-8',
        headers: dict[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        """Publish bytes as they are."""
        self._channel.basic_publish(
            self._channel.prepare_message(
                body,
                content_type=content_type,
                content_encoding=content_encoding,
                headers=headers,
                properties=properties,
            ),
            exchange=exchange or exchange_of_topic(topic),
            routing_key=topic,
        )

    def call(
        self,
        message: dict[str, Any],
        *,
        topic: str,
        exchange: str | None = None,
        seconds: float = 30.0,
    ) -> dict[str, Any]:
        """Send an enveloped call and wait for the raw reply to it, envelope included."""
        msg_id = uuid.uuid4().hex
        body = message | {
            '_msg_id': msg_id,
            '_reply_q': self.reply_q,
            '_unique_id': uuid.uuid4().hex,
        }
        self.send(envelope(body), topic=topic, exchange=exchange)
        return self.reply_to(msg_id, seconds)

    def reply_to(self, msg_id: str, seconds: float = 30.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while True:
            for reply in self.replies:
                if json.loads(reply['oslo.message'])['_msg_id'] == msg_id:
                    return reply
            assert time.monotonic() < end, 'no reply came'
            try:
                self._connection.drain_events(timeout=0.2)
            except TimeoutError:
                continue


def envelope(message: dict[str, Any]) -> str:
    """A message as oslo.messaging puts it on the wire."""
    return json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(message)})


class Proxy:
    """A way to the broker that a test can close and open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname, parts.port or 5672)
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.port = self._listener.getsockname()[1]
        login = f'{parts.username}:{parts.password}'
        self.url = parts._replace(netloc=f'{login}@127.0.0.1:{self.port}').geturl()
        self._pairs: list[socket.socket] = []
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """The broker is away: connections break and new ones are refused at once."""
        self._open = False
        pairs, self._pairs = self._pairs, []
        for end in pairs:
            _shut(end)

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                _shut(near)
                continue
            far = socket.create_connection(self._to)
            self._pairs += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
