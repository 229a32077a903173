# SPDX-License-Identifier: Apache-2.0
"""One message as our methods see it."""

import time
from collections.abc import Mapping
from typing import Any

#: So long our own callers wait at most (``call_seconds``); those of others by default half of it.
CALLER_SECONDS = 120.0


#: In the context of a call: that the answer is to say who answers, and under what it does.
NAMES_SERVER, SERVER, RESULT = 'names_server', 'gantt.server', 'result'


class RpcCall:
    """A received message on its way to an answer.

    :ivar raw: the library's incoming message
    :ivar server: under which name it is listened for here, beside the topic's own
    :ivar method: '' until it was checked to be text
    :ivar takes: types of the method's arguments, by name
    :ivar arrived: monotonic seconds
    :ivar newer_minor: the sender speaks a newer minor version than we do
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
        'takes',
    )

    def __init__(self, raw: Any, server: str = '') -> None:
        self.raw = raw
        self.server = server
        self.arrived = time.monotonic()
        self.method = ''
        self.takes: Mapping[str, Any] = {}
        self.newer_minor = False
        self.monitor_seconds = _seconds(raw.client_timeout)

    @property
    def args(self) -> dict[str, Any]:
        """The arguments, once it was checked that they are an object."""
        found: dict[str, Any] = self.raw.args
        return found

    @property
    def context(self) -> dict[str, Any]:
        """The context that the sender acts in."""
        found: dict[str, Any] = self.raw.ctxt
        return found

    def named(self, result: Any) -> Any:
        """A result as it is sent: with who answers, where the caller wants to know."""
        context = self.raw.ctxt
        if not self.server or not isinstance(context, dict) or not context.get(NAMES_SERVER):
            return result
        return {SERVER: self.server, RESULT: result}

    @property
    def wants_answer(self) -> bool:
        """A call, not a cast, and one that can be answered."""
        is_call = bool(self.raw.orig_msg_id) and self.raw.reply_q is not None
        return is_call and _is_short_text(self.raw.msg_id) and self.has_usable_reply_queue

    @property
    def has_usable_reply_queue(self) -> bool:
        """Whether an answer could be sent at all: what the sender wrote may be anything."""
        return self.raw.reply_q is None or _is_short_text(self.raw.reply_q)

    @property
    def log_id(self) -> str:
        """The request id of the context for log lines, '-' where there is none."""
        found = self.raw.request_id
        return found[:255] if isinstance(found, str) and found.isprintable() else '-'

    @property
    def age_ms(self) -> float:
        """Milliseconds since it was received."""
        return (time.monotonic() - self.arrived) * 1000

    def is_awaited(self, seconds: float = CALLER_SECONDS) -> bool:
        """Whether its caller may still wait.

        :param seconds: how long one waits that does not say it
        """
        return self.age_ms < 1000 * (self.monitor_seconds or seconds)

    def left_seconds(self, most: float) -> float:
        """How long to look for an answer: one that the caller still gets, and at most so long."""
        if self.monitor_seconds is None:
            return most  # also of a cast, however long it had to wait before
        return max(0.001, min(most, 0.75 * self.monitor_seconds) - self.age_ms / 1000)


def _is_short_text(value: Any) -> bool:
    """Whether AMQP can carry it as a name; half a character cannot be written at all."""
    return (
        isinstance(value, str)
        and 0 < len(value.encode('utf-8', 'surrogatepass')) <= 255
        and (value.isascii() or not any('\ud800' <= c <= '\udfff' for c in value))
    )


def _seconds(value: Any) -> float | None:
    """A sender's idea of seconds; None where it makes no sense."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < 1e6 else None
