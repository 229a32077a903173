# SPDX-License-Identifier: Apache-2.0
"""Readings of this machine for an agent beside nova-compute: cells, devices, metrics.

The guests whose use is in the figures are reported with them.  Guests come from
guest_list_command, which may list those that are shut off too, or else from QEMU's processes.
"""

import logging
import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.compute.drivers import pci
from gantt.compute.drivers.machine import Machine
from gantt.compute.drivers.qemu import Qemu
from gantt.compute.drivers.start_locks import StartLocks
from gantt.compute.drivers.this_machine import ThisMachine
from gantt.compute.ports import GuestError, RunningGuest
from gantt.core.messages.report import DevicePool, NumaCell, ReportedMetric
from gantt.core.topology.free import BASE_KB_MAX

LOG = logging.getLogger(__name__)

POOLS_MAX = 1000


class SeenGuests(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one time.

    :ivar guests: those whose use is in the figures; None: unknown, and cells and devices are not
        reported
    """

    guests: list[str] | None
    numa: list[NumaCell] | UnsetType
    devices: list[DevicePool] | UnsetType
    metrics: dict[str, ReportedMetric]


class NovaCompanion:
    """A reader of this machine, which starts and stops nothing on it.

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
                problem=f'it makes more than {POOLS_MAX} pools',
                fix='Name fewer devices: one of many functions is one pool',
            )
        self._problem = ''

    def look(self) -> SeenGuests:
        """Return current readings."""
        metrics = self._driver.metrics()
        numa = self._driver.numa()
        try:
            guests = self._guests(numa)
        except GuestError as e:
            self._complain(str(e))
            return SeenGuests(guests=None, numa=UNSET, devices=UNSET, metrics=metrics)
        self._problem = ''
        return SeenGuests(
            guests=sorted({guest.consumer for guest in guests}),
            numa=with_use(numa, guests),
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


def with_use(numa: Iterable[NumaCell], guests: Sequence[RunningGuest]) -> list[NumaCell]:
    """Return cells with the use of guests; memory in large pages is counted in pages only."""
    pinned_cpus: set[int] = set()
    shared: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    pages: Counter[tuple[int, int]] = Counter()
    for cell in (cell for guest in guests for cell in guest.cells):
        pinned_cpus.update((cpu for _, cpu in cell.pins), cell.emulator, cell.blocked)
        shared[cell.cell] += cell.shared
        if cell.page_kb > BASE_KB_MAX:
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
