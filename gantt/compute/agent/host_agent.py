# SPDX-License-Identifier: Apache-2.0
"""Agent of a host as a row of due times: register, settle, report, report again.

It has no thread and no clock of its own: ``turn`` does what is due and returns
when to call it again, so that one thread can serve one host or ten thousand.

Reports are full now and then, and have in between what changed since.  A delta is cumulative
since the last full report that the scheduler accepted, so any delta may be lost, repeated or
overtaken: the next one has it all again.  Running and pending guests are always listed completely.
"""

import logging
import random
import time
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from gantt import exceptions
from gantt.compute.agent import running_guests
from gantt.compute.agent.agent import Agent, AgentSettings, Halted
from gantt.compute.agent.journal import Journal, Stamp
from gantt.compute.agent.runner import PeriodicTasks
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import REJECTION_ERRORS, Fenced, Session
from gantt.compute.ports import GuestDriver, HostReadings, SchedulerPort
from gantt.core.messages.report import (
    FAILED_BUILDS,
    IO_WORKLOAD,
    UNCHECKED_DAYS,
    HostReport,
    RegisterHost,
    ReportedMetric,
)

LOG = logging.getLogger(__name__)

RETRY_SECONDS_FIRST, RETRY_SECONDS_MAX = 1.0, 30.0


#: At least one in so many reports is a full one.
FULL_EVERY_MAX = 10


#: Times that a full report overtaken by another message is repeated soon.
OVERTAKEN_REPORTS_MAX = 3


JITTER_SHARE = 0.1


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
        self._base_sequence: Stamp | None = None
        self._since_full = 0
        self._sent_facts: dict[str, object] = {}
        self._changed: set[str] = set()
        self._overtaken = 0
        self._stale = 0  # full reports in a row that no message of ours had overtaken
        self._must_report_all = False
        self._last_problem = ''

    def report_all(self) -> None:
        """Let the next report be a full one."""
        self._must_report_all = True

    def next_report(self) -> HostReport:
        """Return the next report.

        :raises Fenced, NotRegistered: nothing may be sent now
        """
        stamp = self._session.stamp()
        guest_inventory, facts = self._look()
        facts_now = {
            field: value
            for field in HostReadings.__struct_fields__
            if (value := getattr(facts, field)) is not UNSET
        }
        full = (
            self._must_report_all
            or self._base_sequence is None
            or self._base_sequence.epoch != stamp.epoch
            or self._since_full + 1 >= self._full_every
            or not self._sent_facts.keys()
            <= facts_now.keys()  # only a full report can leave a field out
        )
        if full:
            self._must_report_all = False
            self._changed = set()
            facts_sent = facts_now
        else:
            self._changed |= {
                field
                for field, value in facts_now.items()
                if field not in self._sent_facts or value != self._sent_facts[field]
            }
            facts_sent = {field: facts_now[field] for field in self._changed if field in facts_now}
        self._sent_facts = facts_now
        self._since_full = 0 if full else self._since_full + 1
        return HostReport(
            name=self._session.name,
            epoch=stamp.epoch,
            sequence=stamp.sequence,
            full=full,
            base=None if full or self._base_sequence is None else self._base_sequence.sequence,
            running=guest_inventory.running,
            pending=guest_inventory.pending,
            **facts_sent,
        )

    def send(self) -> bool:
        """Create a report and send it; return whether the next one should follow soon.

        :raises Fenced, NotRegistered: nothing may be sent now
        :raises Unavailable: the scheduler cannot be reached
        """
        report = self.next_report()
        stamp = Stamp(report.epoch, report.sequence)
        if report.full:
            # Until it is known to be accepted, no delta may build on it.
            self._base_sequence = None
        try:
            outcome = self._port.report(report)
        except REJECTION_ERRORS as e:
            self._base_sequence = None
            self._session.rejected(stamp, e)
            return not (self._session.is_fenced or isinstance(e, exceptions.NotProven))
        except exceptions.Refused as e:
            self._base_sequence = None
            self._log_problem(e)
            return False
        return self._accepted(stamp, outcome) if report.full else False

    def _accepted(self, stamp: Stamp, outcome: str | None) -> bool:
        if outcome == 'applied':
            self._base_sequence = stamp
            self._overtaken = self._stale = 0
            self._last_problem = ''
            return False
        self._overtaken += 1
        if outcome == 'stale' and self._session.is_last(stamp):
            # Not overtaken by a message of ours: another sender has used up our numbers.
            self._stale += 1
            if self._stale >= OVERTAKEN_REPORTS_MAX:
                self._overtaken = self._stale = 0
                self._session.register_again(stamp)
                return True
        return self._overtaken <= OVERTAKEN_REPORTS_MAX

    def _log_problem(self, error: exceptions.Refused) -> None:
        if str(error) != self._last_problem:
            self._last_problem = str(error)
            LOG.error('Report was refused: host=%s error=%s', self._session.name, error)


def jittered(seconds: float, rng: random.Random) -> float:
    """Return ``seconds`` ± 10 %, so that hosts do not report in step."""
    return seconds * rng.uniform(1 - JITTER_SHARE, 1 + JITTER_SHARE)


class HostAgentSettings(msgspec.Struct, frozen=True):
    """Settings of a host of a farm or of a report source.

    :ivar report_seconds: 0: as the scheduler sets it
    :ivar level: level of the log line of a registration
    """

    report_seconds: float = 0.0
    full_every: int = 10
    change_seconds: float = 1.0
    terms: AgentSettings = AgentSettings()
    level: int = logging.INFO


class HostAgent(PeriodicTasks):
    """Agent of one host; ``turn`` is called by one thread at a time.

    :param look: returns the guests and the facts of the host
    """

    def __init__(
        self,
        session: Session,
        port: SchedulerPort,
        look: Callable[[], tuple[GuestInventory, HostReadings]],
        settings: HostAgentSettings,
        rng: random.Random,
    ) -> None:
        self.name = session.name
        self.session = session
        self.agent: Agent | None = None
        self.reports = 0
        self.failures = 0
        self._settings = settings
        self._rng = rng
        self._is_finished = False
        self._wait = RETRY_SECONDS_FIRST
        self._reporter = Reporter(session, port, look, settings.full_every)

    def turn(self) -> float:
        """Do what is due; return the seconds until the next turn."""
        try:
            soon = self._send_report()
        except Halted:
            return self._interval()
        except Fenced as e:
            # Idle until it is restarted; logged again each time, so that it is noticed.
            LOG.error('Agent no longer builds and reports: error=%s', e)
            return self._interval()
        except exceptions.Refused as e:
            LOG.error('Host cannot register or report: host=%s error=%s', self.name, e)
            return self._pause_after_failure()
        except exceptions.Unavailable as e:
            self.failures += 1
            LOG.log(
                logging.WARNING if self._wait <= RETRY_SECONDS_FIRST else logging.INFO,
                'Registration or report failed and is repeated: host=%s error=%s',
                self.name,
                e,
            )
            return self._pause_after_failure()
        self._wait = RETRY_SECONDS_FIRST
        if soon:
            return self._settings.change_seconds
        # Hosts that started together must not report together ever after.
        spread = self._rng.uniform(0.1, 1.0) if self.reports == 1 else 1.0
        return self._interval() * spread

    def changed(self, doubt: bool) -> None:
        """Send a report soon; with ``doubt``, a full one."""
        if doubt:
            self._reporter.report_all()
        self.run_within(self._settings.change_seconds)

    def status(self) -> dict[str, object]:
        """Return the state, for the log."""
        return {
            'host': self.name,
            'epoch': self.session.epoch,
            'fenced': self.session.is_fenced,
            'reports': self.reports,
            'failures': self.failures,
            'disagreements': self.agent.disagreements if self.agent else 0,
            'check': 'off' if self.agent and self.agent.trust.check_is_off else 'on',
        }

    def _send_report(self) -> bool:
        self.session.raise_if_fenced()
        is_first = not self.session.is_registered
        if is_first:
            registered = self.session.register()
            LOG.log(
                self._settings.level,
                'Host is registered: host=%s epoch=%d',
                self.name,
                registered.epoch,
            )
        if self.agent is not None and not self._is_finished:
            self.agent.recover()
        self._is_finished = True
        soon = self._reporter.send()
        self.reports += 1
        if self.agent is not None and self.reports % self._settings.full_every == 1:
            self.agent.purge_journal()
            if self.agent.has_pending:
                self.run_in_background(self.agent.resume)
        return soon

    def _interval(self) -> float:
        return jittered(self._settings.report_seconds or self.session.report_seconds, self._rng)

    def _pause_after_failure(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, RETRY_SECONDS_MAX)
        return jittered(wait, self._rng)


def with_agent(
    announcement: RegisterHost,
    port: SchedulerPort,
    driver: GuestDriver,
    journal: Journal,
    settings: HostAgentSettings,
    rng: random.Random,
    wall: Callable[[], float] = time.time,
) -> HostAgent:
    """Return the agent of a host that builds guests: its ``agent`` is set.

    :param wall: the clock of its journal
    """
    session = Session(announcement, port, journal)

    def look() -> tuple[GuestInventory, HostReadings]:
        inventory = running_guests.take_inventory(driver, journal)
        failed = member.agent.failed_builds if member.agent else 0
        facts = running_guests.outside_claims(driver.facts(inventory.guests), journal.live())
        days = 0.0
        if member.agent is not None:
            member.agent.trust.watch(inventory, facts)
            days = member.agent.trust.unchecked_days
        return inventory, with_counters(facts, inventory, failed, days)

    member = HostAgent(session, port, look, settings, rng)
    member.agent = Agent(
        session,
        driver,
        journal,
        on_change=member.changed,
        terms=settings.terms,
        wall=wall,
    )
    return member


def with_counters(
    facts: HostReadings, seen: GuestInventory, failed_builds: int, unchecked_days: float = 0.0
) -> HostReadings:
    """Return the facts with the agent's own counts, where they are not 0."""
    counts = {
        IO_WORKLOAD: len(seen.pending or ()),
        FAILED_BUILDS: failed_builds,
        UNCHECKED_DAYS: unchecked_days,
    }
    counted_metrics = {
        name: ReportedMetric(value=count, source='agent') for name, count in counts.items() if count
    }
    if not counted_metrics:
        return facts
    metrics = {} if facts.metrics is UNSET else facts.metrics
    return msgspec.structs.replace(facts, metrics={**counted_metrics, **metrics})
