# SPDX-License-Identifier: Apache-2.0
"""The scheduler's port for reports, as a source uses it for hosts that are not its own."""

import logging

from gantt import exceptions
from gantt.compute.agent.agent import Halted
from gantt.compute.ports import SchedulerPort
from gantt.core.messages.report import HostReport, Registered, RegisterHost

LOG = logging.getLogger(__name__)


class LeftAlone(Halted):
    """The scheduler does not let us speak for a host; nothing is done until somebody hurries."""


class Port:
    """Notes what the scheduler does not take.

    :ivar left_out: resource classes that it does not know
    :ivar refused: hosts that it does not let us speak for
    """

    def __init__(self, port: SchedulerPort) -> None:
        self.left_out: frozenset[str] = frozenset()
        self.refused: set[str] = set()
        self._port = port
        self.confirm, self.refuse, self.release = port.confirm, port.refuse, port.release

    def register(self, message: RegisterHost) -> Registered:
        """Announce a host.

        :raises LeftAlone: somebody else speaks for it
        """
        try:
            registered = self._port.register(message)
        except exceptions.Refused as e:
            self.refused.add(message.name)
            LOG.error(
                'Host %s is left alone, and asked for again now and then: %s', message.name, e
            )
            raise LeftAlone(str(e)) from None
        self.refused.discard(message.name)
        if message.uuid is not None and registered.uuid != message.uuid:
            LOG.warning(
                'Host %s has the uuid %s with the scheduler, its node in Nova is %s: who names it '
                'by the uuid of the node does not find it. Is the old node gone for good, take '
                'the host off the scheduler, and it comes in anew',
                message.name,
                registered.uuid,
                message.uuid,
            )
        return registered

    def report(self, report: HostReport) -> str | None:
        """Report; after the refusal of a class, without it."""
        try:
            return self._port.report(report)
        except exceptions.UnknownResourceClass as e:
            name = str(e.kwargs.get('name', ''))
            if name in self.left_out or not name:
                raise
            self.left_out |= {name}
            LOG.warning(
                'Resource class %s is not known to the scheduler and left out: declare it by '
                'PUT /v1/resource-classes/%s',
                name,
                name,
            )
            raise exceptions.Unavailable(f'again without {name}') from None
