# SPDX-License-Identifier: Apache-2.0
"""Messages that an unmodified Nova really sent, sent again.

They go to Nova's topic on Nova's exchange, with the context they had; only the
times are today's and the instances are new on a second round.
"""

import datetime
from typing import Any

import oslo_messaging as om

from gantt.rpc.nova import captures

CAPTURES = (
    ('boot', 'one instance'),
    ('boot-multi3', 'three instances in one call'),
    ('boot-anti-affinity-third', 'third member of an anti-affinity group'),
    ('boot-host-2.74', 'a host that does not exist here'),
)


class NoValidHost(Exception):
    """What Nova would rebuild from the answer."""


def load(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Context and arguments of a captured call."""
    found = captures.load(name)
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return found.context | {'timestamp': now.isoformat()}, found.args


class NovaConductor:
    """Calls ``select_destinations`` the way nova-conductor does.

    :param transport: of Nova's exchange
    """

    def __init__(self, transport: Any) -> None:
        target = om.Target(exchange='nova', topic='scheduler', version='4.5')
        self._client = om.get_rpc_client(transport, target, timeout=60, call_monitor_timeout=30)

    def call(self, name: str) -> list[list[dict[str, Any]]]:
        """Per instance the chosen host and its alternates.

        :raises NoValidHost: with the verdict
        """
        context, args = load(name)
        try:
            answer = self._client.call(context, 'select_destinations', **args)
        except om.RemoteError as e:
            if e.exc_type == 'NoValidHost':
                raise NoValidHost(e.value) from None
            raise
        return [[s['nova_object.data'] for s in selections] for selections in answer]
