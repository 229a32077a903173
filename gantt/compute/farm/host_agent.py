# SPDX-License-Identifier: Apache-2.0
"""Agent of a host as a row of due times: register, settle, report, report again.

It has no thread and no clock of its own: ``turn`` does what is due and returns
when to call it again, so that one thread can serve one host or ten thousand.
"""

import logging
import random
import time
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from gantt import exceptions
from gantt.compute.agent import layouts, running_guests
from gantt.compute.agent.agent import Agent, AgentSettings, Halted
from gantt.compute.agent.journal import Journal
from gantt.compute.agent.reporter import Reporter, jittered
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Fenced, Session
from gantt.compute.farm.runner import PeriodicTasks
from gantt.compute.ports import GuestDriver, HostReadings, SchedulerPort
from gantt.core.messages.report import (
    FAILED_BUILDS,
    IO_WORKLOAD,
    UNCHECKED_DAYS,
    RegisterHost,
    ReportedMetric,
)

LOG = logging.getLogger(__name__)

RETRY_FIRST, RETRY_MOST = 1.0, 30.0


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
        self._wait = RETRY_FIRST
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
            return self._later()
        except exceptions.Unavailable as e:
            self.failures += 1
            LOG.log(
                logging.WARNING if self._wait <= RETRY_FIRST else logging.INFO,
                'Registration or report failed and is repeated: host=%s error=%s',
                self.name,
                e,
            )
            return self._later()
        self._wait = RETRY_FIRST
        if soon:
            return self._settings.change_seconds
        # Hosts that started together must not report together ever after.
        spread = self._rng.uniform(0.1, 1.0) if self.reports == 1 else 1.0
        return self._interval() * spread

    def changed(self, doubt: bool) -> None:
        """Report a change soon; with ``doubt``, everything."""
        if doubt:
            self._reporter.report_all()
        self.hurry(self._settings.change_seconds)

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
            self.agent.tidy()
            if self.agent.has_pending:
                self.aside(self.agent.resume)
        return soon

    def _interval(self) -> float:
        return jittered(self._settings.report_seconds or self.session.report_seconds, self._rng)

    def _later(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, RETRY_MOST)
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
    """Return a host that builds, with ``agent`` set.

    :param wall: the clock of its journal
    """
    session = Session(announcement, port, journal)

    def look() -> tuple[GuestInventory, HostReadings]:
        inventory = running_guests.take(driver, journal)
        failed = member.agent.failed_builds if member.agent else 0
        facts = layouts.outside(driver.facts(inventory.guests), journal.live())
        days = 0.0
        if member.agent is not None:
            member.agent.trust.watch(inventory, facts)
            days = member.agent.trust.unchecked_days
        return inventory, counted(facts, inventory, failed, days)

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


def counted(
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
