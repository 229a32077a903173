# SPDX-License-Identifier: Apache-2.0
"""Reports of a host: now and then a full one, in between what changed since.

A delta is cumulative since the last full report that the scheduler accepted,
so any delta may be lost, repeated or overtaken: the next one has it all
again.  Running and pending guests are always listed completely.
"""

import logging
import random
from collections.abc import Callable

from msgspec import UNSET

from gantt import exceptions
from gantt.compute.agent.journal import Stamp
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import REJECTED, Session
from gantt.compute.ports import HostReadings, SchedulerPort
from gantt.core.messages.report import HostReport

LOG = logging.getLogger(__name__)

#: At least one in so many reports is a full one.
FULL_EVERY_MAX = 10
#: Times that a full report overtaken by another message is repeated soon.
OVERTAKEN_MAX = 3
JITTER = 0.1


class Reporter:
    """A builder and sender of one host's reports; used by one thread at a time.

    :param look: returns the guests and the facts of the host
    """

    def __init__(
        self,
        session: Session,
        port: SchedulerPort,
        look: Callable[[], tuple[GuestInventory, HostReadings]],
        full_every: int = FULL_EVERY_MAX,
    ) -> None:
        self._session = session
        self._port = port
        self._look = look
        self._full_every = max(1, min(full_every, FULL_EVERY_MAX))
        self._base: Stamp | None = None
        self._since_full = 0
        self._sent: dict[str, object] = {}
        self._changed: set[str] = set()
        self._overtaken = 0
        self._stale = 0  # full reports in a row that no message of ours had overtaken
        self._all = False
        self._last_problem = ''

    def report_all(self) -> None:
        """Let the next report be a full one."""
        self._all = True

    def make(self) -> HostReport:
        """Return the next report.

        :raises Fenced, NotRegistered: nothing may be sent now
        """
        stamp = self._session.stamp()
        guest_inventory, facts = self._look()
        facts_now = {
            field: value
            for field in HostReport.FACTS
            if (value := getattr(facts, field)) is not UNSET
        }
        full = (
            self._all
            or self._base is None
            or self._base.epoch != stamp.epoch
            or self._since_full + 1 >= self._full_every
            or not self._sent.keys() <= facts_now.keys()  # only a full report can leave a field out
        )
        if full:
            self._all = False
            self._changed = set()
            facts_sent = facts_now
        else:
            self._changed |= {
                field
                for field, value in facts_now.items()
                if field not in self._sent or value != self._sent[field]
            }
            facts_sent = {field: facts_now[field] for field in self._changed if field in facts_now}
        self._sent = facts_now
        self._since_full = 0 if full else self._since_full + 1
        return HostReport(
            name=self._session.name,
            epoch=stamp.epoch,
            sequence=stamp.sequence,
            full=full,
            base=None if full or self._base is None else self._base.sequence,
            running=guest_inventory.running,
            pending=guest_inventory.pending,
            **facts_sent,
        )

    def send(self) -> bool:
        """Create a report and send it; return whether the next one should follow soon.

        :raises Fenced, NotRegistered: nothing may be sent now
        :raises Unavailable: the scheduler cannot be reached
        """
        report = self.make()
        stamp = Stamp(report.epoch, report.sequence)
        if report.full:
            # Until it is known to be accepted, no delta may build on it.
            self._base = None
        try:
            outcome = self._port.report(report)
        except REJECTED as e:
            self._base = None
            self._session.rejected(stamp, e)
            return not (self._session.is_fenced or isinstance(e, exceptions.NotProven))
        except exceptions.Refused as e:
            self._base = None
            self._complain(e)
            return False
        return self._accepted(stamp, outcome) if report.full else False

    def _accepted(self, stamp: Stamp, outcome: str | None) -> bool:
        if outcome == 'applied':
            self._base = stamp
            self._overtaken = self._stale = 0
            self._last_problem = ''
            return False
        self._overtaken += 1
        if outcome == 'stale' and self._session.is_last(stamp):
            # Not overtaken by a message of ours: another sender has used up our numbers.
            self._stale += 1
            if self._stale >= OVERTAKEN_MAX:
                self._overtaken = self._stale = 0
                self._session.begin_anew(stamp)
                return True
        return self._overtaken <= OVERTAKEN_MAX

    def _complain(self, error: exceptions.Refused) -> None:
        if str(error) != self._last_problem:
            self._last_problem = str(error)
            LOG.error('Report was refused: host=%s error=%s', self._session.name, error)


def jittered(seconds: float, rng: random.Random) -> float:
    """Return ``seconds`` ± 10 %, so that hosts do not report in step."""
    return seconds * rng.uniform(1 - JITTER, 1 + JITTER)
