# SPDX-License-Identifier: Apache-2.0
"""Facts of a host of Nova that its report source does not have: cells, devices, metrics.

The guests whose use is in the figures are reported with them.  Guests come from
guest_list_command, which may list those that are shut off too, or else from QEMU's processes.

The agent registers nothing, has no epoch and ends none: the host stays the source's.  Its messages
are put in order by their own sequence, which begins with the clock, so that those of the next start
come after those of this one.
"""

import logging
import pathlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.client import StatsClient
from gantt.compute.agent.host_agent import (
    OVERTAKEN_REPORTS_MAX,
    RETRY_SECONDS_FIRST,
    RETRY_SECONDS_MAX,
    jittered,
)
from gantt.compute.agent.runner import PeriodicTasks
from gantt.compute.drivers import pci
from gantt.compute.drivers.machine import Machine
from gantt.compute.drivers.qemu import Qemu
from gantt.compute.drivers.this_machine import StartLocks, ThisMachine
from gantt.compute.ports import GuestError, RunningGuest
from gantt.core.claims.host_facts import UpdateHostFacts, UpdateHostFactsResult
from gantt.core.messages.report import DevicePool, NumaCell, ReportedMetric
from gantt.core.topology.free import BASE_PAGE_KB_MAX

LOG = logging.getLogger(__name__)

POOLS_MAX = 1000


class FactsReading(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one time.

    :ivar guests: guests whose use is in the figures; None: unknown, so cells and devices are not
        reported
    """

    guests: list[str] | None
    numa: list[NumaCell] | UnsetType
    devices: list[DevicePool] | UnsetType
    metrics: dict[str, ReportedMetric]


class FactsReader:
    """A reader of this machine's facts; it starts and stops no guest.

    :param conf: the options of [compute]
    :param root: '/' but in tests
    :raises Misconfigured: an option names something that does not exist
    """

    def __init__(
        self, conf: Any, name: str, folder: pathlib.Path, root: pathlib.Path = pathlib.Path('/')
    ) -> None:
        self._root = root
        self._driver = ThisMachine(conf, name, StartLocks(folder), Machine(root))
        self._is_listed = bool(conf.guest_list_command)
        self._qemu = Qemu(root, conf.hypervisor_executables, conf.hypervisor_users)
        self._specs = pci.parse(conf.device_spec)
        if len(self._pools(())) > POOLS_MAX:
            raise exceptions.Misconfigured(
                option='[compute] device_spec',
                problem=f'its devices form more than {POOLS_MAX} pools',
                fix='Name fewer devices: one of many functions is one pool',
            )
        self._problem = ''

    def read(self) -> FactsReading:
        """Return current readings."""
        metrics = self._driver.metrics()
        numa = self._driver.numa()
        try:
            guests = self._guests(numa)
        except GuestError as e:
            self._complain(str(e))
            return FactsReading(guests=None, numa=UNSET, devices=UNSET, metrics=metrics)
        self._problem = ''
        return FactsReading(
            guests=sorted({guest.consumer for guest in guests}),
            numa=with_guest_use(numa, guests),
            devices=self._pools([address for guest in guests for address in guest.devices]),
            metrics=metrics,
        )

    def _guests(self, numa: Sequence[NumaCell]) -> list[RunningGuest]:
        if self._is_listed:
            return self._driver.guests() or []
        return self._qemu.guests(numa)

    def _pools(self, used: Sequence[str]) -> list[DevicePool]:
        return pci.pools(pci.devices(self._root), self._specs, used) if self._specs else []

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            LOG.error('Usage of guests cannot be reported: problem=%s', problem)


def with_guest_use(numa: Iterable[NumaCell], guests: Sequence[RunningGuest]) -> list[NumaCell]:
    """Return NUMA cells with the guests' use added; memory in large pages counts in pages only."""
    pinned_cpus: set[int] = set()
    shared: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    pages: Counter[tuple[int, int]] = Counter()
    for cell in (cell for guest in guests for cell in guest.cells):
        pinned_cpus.update((cpu for _, cpu in cell.pins), cell.emulator, cell.blocked)
        shared[cell.cell] += cell.shared
        if cell.page_kb > BASE_PAGE_KB_MAX:
            pages[cell.cell, cell.page_kb] += -(-cell.memory_mb * 1024 // cell.page_kb)
        else:
            memory[cell.cell] += cell.memory_mb
    return [
        msgspec.structs.replace(
            cell,
            used_pinned_cpus=sorted(pinned_cpus & set(cell.pinned_cpus)),
            cpu_used=max(0, shared[cell.id]),
            memory_used_mb=memory[cell.id],
            # The kernel counts the pages of running guests, a list also those of others.
            pages=[
                msgspec.structs.replace(
                    page, used=min(page.total, max(page.used, pages[cell.id, page.size_kb]))
                )
                for page in cell.pages
            ],
        )
        for cell in numa
    ]


#: Seconds between messages until a scheduler has set them.
FIRST_REPORT_SECONDS = 60


class FactsReporter(PeriodicTasks):
    """Sender of facts for one host; ``turn`` is called by one thread at a time.

    :param look: reads the machine
    :param report_seconds: 0: as the scheduler sets it
    :param wall: seconds since 1970
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], FactsReading],
        port: StatsClient,
        report_seconds: float,
        rng: random.Random,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.updates_sent = 0
        self.failures = 0
        self.problem = ''
        self._look = look
        self._port = port
        self._report_seconds = report_seconds
        self._answered_seconds = FIRST_REPORT_SECONDS
        self._rng = rng
        self._wall = wall
        self._sequence = 0
        self._overtaken = 0
        self._wait = RETRY_SECONDS_FIRST

    def turn(self) -> float:
        """Read and send; return the seconds until the next turn."""
        update = self.make()
        try:
            answer = self._port.update_host_facts(update)
        except exceptions.NotFound:
            self._note(
                logging.WARNING,
                f'the scheduler does not know host {self.name} yet: does gantt-nova-source run, '
                'and is this its name in Nova?',
            )
            return self._interval()
        except exceptions.Refused as e:
            self._note(logging.ERROR, str(e))
            return self._interval()
        except exceptions.Unavailable as e:
            self.failures += 1
            self._note(logging.WARNING, str(e))
            return self._later()
        self._wait = RETRY_SECONDS_FIRST
        self._answered_seconds = max(1, answer.report_seconds)
        if answer.outcome == 'stale':
            return self._catch_up(answer)
        self._overtaken = 0
        self.updates_sent += 1
        self._note(logging.INFO, '')
        return self._interval()

    def make(self) -> UpdateHostFacts:
        """Return the message to be sent now."""
        # The clock may go back, between two starts too: an answer has our last sequence.
        self._sequence = max(self._sequence + 1, int(self._wall() * 1_000_000))
        sequence, readings = self._sequence, self._look()
        return UpdateHostFacts(
            host=self.name,
            sequence=sequence,
            guests=readings.guests,
            numa=readings.numa,
            devices=readings.devices,
            metrics=readings.metrics,
        )

    def status(self) -> dict[str, object]:
        """Return the state, for the log."""
        return {
            'host': self.name,
            'updates_sent': self.updates_sent,
            'failures': self.failures,
            'problem': self.problem,
        }

    def _catch_up(self, answer: UpdateHostFactsResult) -> float:
        self._sequence = max(self._sequence, answer.sequence)
        self._overtaken += 1
        self._note(
            logging.WARNING,
            f'host {self.name}: a report with a later sequence was stored before this one. '
            'Sequences continue after it; if this is logged again, another agent uses the name',
        )
        return RETRY_SECONDS_FIRST if self._overtaken <= OVERTAKEN_REPORTS_MAX else self._interval()

    def _note(self, level: int, problem: str) -> None:
        """Log a problem once when it begins, and once when it has ended (``problem`` is '')."""
        if problem != self.problem:
            LOG.log(
                level,
                'State of the facts agent has changed: host=%s problem=%s',
                self.name,
                problem or 'none',
            )
        self.problem = problem

    def _interval(self) -> float:
        return jittered(self._report_seconds or self._answered_seconds, self._rng)

    def _later(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, RETRY_SECONDS_MAX)
        return jittered(wait, self._rng)
