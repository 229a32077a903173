# SPDX-License-Identifier: Apache-2.0
"""Client of hosts' agents: build a guest, delete one."""

from typing import Any

from gantt.client.calls import ServerCaller
from gantt.core.messages import base
from gantt.core.messages.base import TOPIC_PREFIX, topic_of
from gantt.core.messages.build import Build, Delete
from gantt.rpc.amqp.transport import Transport

__all__ = ['TOPIC_PREFIX', 'ComputeClient', 'topic_of']


class ComputeClient:
    """Calls and casts of ``build`` and ``delete`` on the topic that a Selection names."""

    def __init__(self, transport: Transport, *, timeout: float = 10.0) -> None:
        self._caller = ServerCaller(transport, TOPIC_PREFIX)
        self._timeout = timeout

    def build(self, topic: str, build: Build, *, wait: bool = False) -> Any:
        """Start a guest under its claim.

        :param topic: ``Selection.build_topic``, or ``topic_of(host)``
        :param build: as ``Selection.build()`` creates it for the selected host
        :param wait: wait for the agent's answer; otherwise only for the broker
        :raises Unavailable: no agent listens there, or no answer came
        :raises BrokerUnavailable: it was not sent
        """
        return self._send(topic, 'build', build.consumer, wait, build=base.to_builtins(build))

    def delete(self, topic: str, delete: Delete, *, wait: bool = False) -> Any:
        """Stop a guest and release its claim; as :meth:`build`."""
        return self._send(topic, 'delete', delete.consumer, wait, delete=base.to_builtins(delete))

    def _send(self, topic: str, method: str, context_id: str, wait: bool, **args: Any) -> Any:
        if wait:
            return self._caller.call(
                method, self._timeout, context_id=context_id, topic=topic, **args
            )
        self._caller.cast(method, context_id=context_id, topic=topic, **args)
        return None
