# SPDX-License-Identifier: Apache-2.0
"""One topic as a client sees it: calls and casts that end, and errors of our own."""

import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import oslo_messaging as om

from gantt import exceptions
from gantt.rpc import driver, transport, wire

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Longest pause between two tries.
_PAUSE_MOST = 5.0

#: Before a call is published again; the library waits as long.
_PUBLISH_PAUSE = 1.0


class Caller:
    """Calls and casts on one topic; publishing and waiting are bounded.

    :param carrier: made by ``gantt.client.get_transport``
    """

    def __init__(self, carrier: om.transport.RPCTransport, topic: str) -> None:
        self._carrier = carrier
        self._topic = topic
        self._client = om.get_rpc_client(
            carrier,
            om.Target(exchange=transport.EXCHANGE, topic=topic, version=wire.VERSION),
            retry=transport.PUBLISH_RETRIES,
            transport_options=om.TransportOptions(at_least_once=True),
        )

    def call(
        self, method: str, timeout: float, *, context_id: str = '', topic: str | None = None,
        publish_tries: int = transport.PUBLISH_RETRIES + 1, **args: Any,
    ) -> Any:  # fmt: skip
        """Call and wait for the answer.

        :param timeout: seconds
        :param context_id: shown in the log lines of the receiver
        :param topic: another topic than the client's
        :param publish_tries: 1 for who calls again anyway
        :raises GanttError: what the receiver raised
        :raises BrokerUnavailable: the broker does not take the message
        :raises Unavailable: no answer within ``timeout``, or nobody listens
        """
        return self._sent(method, timeout, context_id, topic, args, publish_tries)

    def cast(
        self, method: str, *, context_id: str = '', topic: str | None = None, **args: Any
    ) -> None:
        """Send without waiting for an answer; the broker has it when this returns.

        :raises BrokerUnavailable, Unavailable: it was not sent
        """
        self._sent(method, 0.0, context_id, topic, args)

    def _sent(
        self, method: str, timeout: float, context_id: str, topic: str | None,
        args: dict[str, Any], call_tries: int = 0,
    ) -> Any:  # fmt: skip
        """:param call_tries: 0: a cast"""
        client = self._client if topic is None else self._client.prepare(topic=topic)
        context = {'request_id': context_id}
        try:
            driver.ready_for_calls(self._carrier)
            if call_tries:
                return self._called(client, context, method, timeout, args, call_tries)
            client.cast(context, method, **args)
        except exceptions.GanttError as e:
            raise _clean(e) from None
        except om.MessagingTimeout:
            raise exceptions.Unavailable(
                f'{method}: no answer from {topic or self._topic} within {timeout:.1f} s'
            ) from None
        except om.MessageUndeliverable:
            raise exceptions.Unavailable(
                f'{method}: nobody listens on {topic or self._topic}'
            ) from None
        except driver.AWAY as e:
            raise exceptions.BrokerUnavailable(
                url=transport.address(self._carrier), problem=str(e)
            ) from None
        except om.RemoteError as e:
            raise exceptions.Unavailable(f'{method}: {e.exc_type}: {e.value}') from None
        return None

    def _called(
        self, client: Any, context: dict[str, str], method: str, timeout: float,
        args: dict[str, Any], tries: int,
    ) -> Any:  # fmt: skip
        """Call, with all tries to publish inside the timeout.

        Each of the library's own tries may take the whole of it where a broker takes no
        messages (an alarm) or says nothing any more.
        """
        end = time.monotonic() + timeout
        for tried in range(tries):
            left = max(0.001, end - time.monotonic())
            try:
                return client.prepare(timeout=left, retry=0).call(context, method, **args)
            except driver.AWAY:
                driver.drop_senders(self._carrier)
                pause = _PUBLISH_PAUSE * (tried + 1)
                if tried == tries - 1 or time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
        raise exceptions.Bug(invariant='the last try to publish raises')


def _clean(error: exceptions.GanttError) -> exceptions.GanttError:
    """A rebuilt error without the type and text that the library adds."""
    cls = next(c for c in type(error).__mro__ if c.__module__ == exceptions.__name__)
    return cls(error.message, **error.kwargs)


def again(
    attempt: Callable[[float], T], seconds: float, *, most: int,
    passing: tuple[type[Exception], ...], what: str,
) -> T:  # fmt: skip
    """Try until it works, an answer is final, or ``seconds`` or ``most`` tries are over.

    :param attempt: gets the seconds that are left
    :param passing: errors after which another try makes sense
    :raises GanttError: the final answer, or what the last try met
    """
    end = time.monotonic() + seconds
    pause = 0.1
    for tried in range(1, most + 1):
        try:
            return attempt(max(0.001, end - time.monotonic()))
        except passing as e:
            hint = getattr(e, 'kwargs', {}).get('retry_after_ms')
            wait = hint / 1000 if isinstance(hint, int | float) else pause
            wait = min(wait, _PAUSE_MOST) * random.uniform(0.8, 1.2)
            if tried == most or time.monotonic() + wait >= end:
                raise
            LOG.info('%s: try %d failed, again in %.1f s: %s', what, tried, wait, e)
            time.sleep(wait)
            pause = min(pause * 2, _PAUSE_MOST)
    raise exceptions.Bug(invariant='at least one try')
