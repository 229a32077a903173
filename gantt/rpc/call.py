# SPDX-License-Identifier: Apache-2.0
"""A message as our methods see it."""

import time
from collections.abc import Mapping
from typing import Any

#: Seconds that our own callers wait at most (``call_seconds``); others by default half of it.
DEFAULT_CALLER_SECONDS = 120.0


#: Mark in the context of a call that its answer is to name the server, and the answer's keys.
SERVER_NAME_WANTED_KEY, SERVER_KEY, RESULT_KEY = 'names_server', 'gantt.server', 'result'


class RpcCall:
    """A received message on its way to an answer.

    :ivar raw: the library's incoming message
    :ivar server: server name of this process on the topic
    :ivar method: '' until it was checked to be text
    :ivar parameters: types of the method's arguments, by name
    :ivar arrived: monotonic seconds
    :ivar newer_minor: True where the sender has a newer minor version than we do
    :ivar monitor_seconds: the caller gives up after so long without a sign of
        life (call monitoring); None where it waits its whole timeout
    """

    __slots__ = (
        'arrived',
        'method',
        'monitor_seconds',
        'newer_minor',
        'raw',
        'server',
        'parameters',
    )

    def __init__(self, raw: Any, server: str = '') -> None:
        self.raw = raw
        self.server = server
        self.arrived = time.monotonic()
        self.method = ''
        self.parameters: Mapping[str, Any] = {}
        self.newer_minor = False
        self.monitor_seconds = _seconds(raw.client_timeout)

    @property
    def args(self) -> dict[str, Any]:
        """The arguments, once it was checked that they are an object."""
        arguments: dict[str, Any] = self.raw.args
        return arguments

    @property
    def context(self) -> dict[str, Any]:
        """The context that the sender acts in."""
        context: dict[str, Any] = self.raw.ctxt
        return context

    def named(self, result: Any) -> Any:
        """Return a result as it is sent: with the server's name, where the caller wants it."""
        if not self.server or not self.raw.names_server:
            return result
        return {SERVER_KEY: self.server, RESULT_KEY: result}

    @property
    def wants_answer(self) -> bool:
        """True for a call, not a cast, that can be answered."""
        is_call = bool(self.raw.orig_msg_id) and self.raw.reply_q is not None
        return is_call and _is_short_text(self.raw.msg_id) and self.has_usable_reply_queue

    @property
    def has_usable_reply_queue(self) -> bool:
        """True where an answer could be sent at all: the sender may have written anything."""
        return self.raw.reply_q is None or _is_short_text(self.raw.reply_q)

    @property
    def log_id(self) -> str:
        """The request id of the context for log lines, '-' where there is none."""
        request_id = self.raw.request_id
        return request_id[:255] if isinstance(request_id, str) and request_id.isprintable() else '-'

    @property
    def age_ms(self) -> float:
        """Milliseconds since it was received."""
        return (time.monotonic() - self.arrived) * 1000

    def is_awaited(self, seconds: float = DEFAULT_CALLER_SECONDS) -> bool:
        """Return whether its caller may still wait.

        :param seconds: how long a caller waits that does not state it
        """
        return self.age_ms < 1000 * (self.monitor_seconds or seconds)

    def left_seconds(self, most: float) -> float:
        """Return how long to wait for an answer that the caller still gets, at most ``most``."""
        if self.monitor_seconds is None:
            return most  # also for a cast, however long it had to wait before
        return max(0.001, min(most, 0.75 * self.monitor_seconds) - self.age_ms / 1000)


def _is_short_text(value: Any) -> bool:
    """Return whether AMQP can carry it as a name; lone surrogates cannot be written at all."""
    return (
        isinstance(value, str)
        and 0 < len(value.encode('utf-8', 'surrogatepass')) <= 255
        and (value.isascii() or not any('\ud800' <= c <= '\udfff' for c in value))
    )


def _seconds(value: Any) -> float | None:
    """Return a sender's value as seconds; None where it makes no sense."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < 1e6 else None
