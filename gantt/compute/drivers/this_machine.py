# SPDX-License-Identifier: Apache-2.0
"""Driver for this machine: facts from the kernel, guests by the operator's commands."""

import contextlib
import fcntl
import json
import logging
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Annotated, Any

import msgspec
from msgspec import UNSET

from gantt import exceptions
from gantt.compute.drivers.machine import TRAIT_BY_CPU_FLAG, Cell, Machine, parse_cpus
from gantt.compute.ports import GuestError, HostReadings, RunningGuest
from gantt.core.messages import base
from gantt.core.messages.base import Amount, Message, Name, Text, Uuid
from gantt.core.messages.build import Build
from gantt.core.messages.layout import CellLayout
from gantt.core.messages.report import Hypervisor, NumaCell, NumaPages, ReportedMetric
from gantt.core.messages.resource_classes import MILLI_VCPU, MILLIS_PER_UNIT, Inventory

LOG = logging.getLogger(__name__)

#: Limit of a command's output, and bytes of its errors that are kept.
OUTPUT_BYTES_MAX = 64 << 20
OUTPUT_TAIL_BYTES = 500


class ListedGuest(Message, frozen=True, kw_only=True):
    """One line of what guest_list_command writes."""

    consumer: Uuid
    claim: Uuid | None = None
    resources: Annotated[dict[Name, Amount], msgspec.Meta(max_length=64)] = {}
    cells: Annotated[list[CellLayout], msgspec.Meta(max_length=256)] = []
    devices: Annotated[list[Text], msgspec.Meta(max_length=1000)] = []


class StartLocks:
    """A lock per claim that is being started.

    :param folder: folder of the locks; next to the journal
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def held(self, claim_id: str) -> Iterator[int]:
        """Hold the lock of a claim; yield a descriptor for the command to inherit."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / claim_id
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield lock
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def wait(self, claim_id: str, seconds: float, longest: float) -> bool:
        """Wait up to ``seconds`` for a claim's start to end; return whether none is under way now.

        :param longest: the longest that a start may take; a lock that is held for
            longer is held by the guest itself
        """
        path = self._folder / claim_id
        end = time.monotonic() + seconds
        while not self._is_over(path, longest):
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    @staticmethod
    def _is_over(path: pathlib.Path, longest: float) -> bool:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.time() - os.fstat(lock).st_mtime < longest:
                return False
        finally:
            os.close(lock)
        path.unlink(missing_ok=True)
        return True


class ThisMachine:
    """Driver of a real host.

    :param conf: the options of [compute]
    :param locks: locks of starts that may outlive this process
    :raises Misconfigured: an option names something that does not exist
    """

    def __init__(
        self, conf: Any, name: str, locks: StartLocks, machine: Machine | None = None
    ) -> None:
        self._conf = conf
        self._name = name
        self._locks = locks
        self._machine = machine or Machine()
        self._start = _words('guest_start_command', conf.guest_start_command)
        self._stop = _words('guest_stop_command', conf.guest_stop_command)
        self._list = _words('guest_list_command', conf.guest_list_command)
        self._dedicated = self._cpus_named('dedicated_cpus')
        self._shared = self._shared_cpus()
        self._disk()
        limits = self._machine.limits()
        if limits:
            LOG.warning(
                'This process has resource limits that the inventories do not include; guests '
                'that it starts share them: limits=%s',
                limits,
            )

    # -- facts of the machine ---------------------------------------------------------
    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        conf = self._conf
        total, used = self._disk()
        claimed = sum(guest.resources.get('DISK_GB', 0) for guest in guests)
        foreign = max(0, min(used, total) - claimed)
        return HostReadings(
            inventories=self._inventories(total),
            # Use that guests do not account for is foreign.
            foreign={'DISK_GB': foreign} if foreign else {},
            node=conf.node or self._name,
            cell=conf.cell or None,
            zone=conf.zone or None,
            location=conf.location,
            traits=sorted({*self._traits(), *conf.traits}),
            aggregates=UNSET if conf.aggregates is None else list(conf.aggregates),
            numa=self.numa(),
            hypervisor=self._hypervisor(),
            metrics=self._metrics(total - used),
            disabled=self._disabled(),
        )

    def _inventories(self, disk_gb: int) -> dict[str, Inventory]:
        conf = self._conf
        inventories = {
            'MEMORY_MB': _inventory(
                self._machine.memory_kb('MemTotal') >> 10,
                conf.reserved_memory_mb,
                conf.ram_allocation_ratio,
            ),
            'DISK_GB': _inventory(disk_gb, conf.reserved_disk_gb, conf.disk_allocation_ratio),
        }
        if self._shared:
            units = MILLIS_PER_UNIT if conf.shared_cpu_class == MILLI_VCPU else 1
            inventories[conf.shared_cpu_class] = _inventory(
                len(self._shared) * units,
                conf.reserved_cpus * units,
                conf.cpu_allocation_ratio,
            )
        if self._dedicated:
            inventories['PCPU'] = Inventory(total=len(self._dedicated))
        return inventories

    def numa(self) -> list[NumaCell]:
        """Return the machine's NUMA cells, without use but that of pages, our guests' included."""
        siblings = self._machine.siblings()
        return [self._cell(cell, siblings) for cell in self._machine.cells()]

    def _cell(self, cell: Cell, siblings: list[list[int]]) -> NumaCell:
        cell_cpus = set(cell.cpus)
        kb = self._machine.memory_kb('MemTotal') if cell.memory_kb is None else cell.memory_kb
        return NumaCell(
            id=cell.id,
            cpus=[n for n in cell.cpus if n in self._shared],
            pinned_cpus=[n for n in cell.cpus if n in self._dedicated],
            siblings=[group for group in siblings if cell_cpus.issuperset(group)],
            memory_mb=kb >> 10,
            pages=[*self._ordinary_pages(cell, kb), *cell.pages],
            socket=self._machine.socket_of(cell.cpus[0]) if cell.cpus else None,
        )

    def _ordinary_pages(self, cell: Cell, kb: int) -> list[NumaPages]:
        """Return a cell's memory outside of large pages, without its use, which claims count."""
        size = self._machine.page_kb()
        ordinary_kb = kb - sum(pages.size_kb * pages.total for pages in cell.pages)
        return [NumaPages(size_kb=size, total=ordinary_kb // size)] if ordinary_kb >= size else []

    def _hypervisor(self) -> Hypervisor:
        release, architecture = self._machine.kernel()
        kvm = self._machine.has_kvm()
        return Hypervisor(
            type=self._conf.hypervisor_type or ('QEMU' if kvm else ''),
            hostname=self._conf.node or self._name,
            cpu_info={
                'arch': architecture,
                'model': self._machine.cpu_model(),
                'kernel': release,
                'topology': {
                    'cells': len(self._machine.cells()),
                    'cpus': len(self._machine.cpus()),
                },
            },
            supported=[[architecture, 'kvm', 'hvm']] if kvm else [],
        )

    def _traits(self) -> list[str]:
        traits = [
            TRAIT_BY_CPU_FLAG[flag]
            for flag in self._machine.cpu_flags()
            if flag in TRAIT_BY_CPU_FLAG
        ]
        if self._machine.siblings():
            traits.append('HW_CPU_HYPERTHREADING')
        return traits

    def metrics(self) -> dict[str, ReportedMetric]:
        """Return current measurements of the machine."""
        total, used = self._disk()
        return self._metrics(total - used)

    def _metrics(self, disk_free_gb: int) -> dict[str, ReportedMetric]:
        load_1, load_5, load_15 = self._machine.load()
        available = self._machine.memory_kb('MemAvailable') >> 10
        measured = {
            'load_1m': ReportedMetric(value=load_1, source='/proc/loadavg'),
            'load_5m': ReportedMetric(value=load_5, source='/proc/loadavg'),
            'load_15m': ReportedMetric(value=load_15, source='/proc/loadavg'),
            'memory_available_mb': ReportedMetric(value=available, source='/proc/meminfo'),
            'disk_free_gb': ReportedMetric(value=disk_free_gb, source=self._conf.disk_path),
        }
        for name, limit in self._machine.limits().items():
            measured[f'limit_{name}'] = ReportedMetric(value=limit, source='control group')
        return measured

    def _disabled(self) -> str | None:
        if self._conf.disabled_reason:
            return self._conf.disabled_reason
        return None if self._start else 'no [compute] guest_start_command is set on the host'

    def _disk(self) -> tuple[int, int]:
        try:
            return self._machine.disk_gb(self._conf.disk_path)
        except OSError as e:
            raise exceptions.Misconfigured(
                option='[compute] disk_path',
                problem=f'{self._conf.disk_path}: {e.strerror}',
                fix='Name a directory that exists',
            ) from None

    def _cpus_named(self, option: str) -> frozenset[int]:
        text = getattr(self._conf, option)
        try:
            named = parse_cpus(text)
        except ValueError:
            named = [-1]
        unknown = sorted(set(named) - set(self._machine.cpus()))
        if unknown:
            online = ','.join(map(str, self._machine.cpus()))
            raise exceptions.Misconfigured(
                option=f'[compute] {option}',
                problem=f'{text!r} is no list of processors of this machine',
                fix=f'Expected e.g. 4-15,^8; online are {online}',
            )
        return frozenset(named)

    def _shared_cpus(self) -> frozenset[int]:
        if not self._conf.shared_cpus:
            return frozenset(self._machine.cpus()) - self._dedicated
        named = self._cpus_named('shared_cpus')
        overlap = sorted(named & self._dedicated)
        if overlap:
            raise exceptions.Misconfigured(
                option='[compute] shared_cpus',
                problem=f'processor {overlap[0]} is in dedicated_cpus as well',
                fix='Name each processor in one of them',
            )
        return named

    # -- its guests -------------------------------------------------------------------
    def guests(self) -> list[RunningGuest] | None:
        if not self._list:
            return None
        output = self._run(self._list, 'listed', '-', {})
        guests = []
        for number, line in enumerate(filter(bytes.strip, output.splitlines()), 1):
            try:
                entry = base.decode_json(
                    line, ListedGuest, inside=f'line {number} of guest_list_command'
                )
            except exceptions.Refused as e:
                raise GuestError(consumer='-', problem=str(e)) from None
            guests.append(
                RunningGuest(
                    consumer=entry.consumer,
                    claim_id=entry.claim,
                    resources=entry.resources,
                    cells=entry.cells,
                    devices=entry.devices,
                )
            )
        return guests

    def objection(self, build: Build) -> str:
        if self._start:
            return ''
        return 'this host starts no guests: set [compute] guest_start_command'

    def start(self, build: Build) -> None:
        environment = _environment(RunningGuest.of(build)) | {
            'GANTT_LAYOUT': json.dumps(build.layout),
            'GANTT_GUEST': json.dumps(build.guest),
        }
        with self._locks.held(build.claim_id) as lock:
            self._run(self._start, 'started', build.consumer, environment, lock)

    def stop(self, guest: RunningGuest) -> None:
        if not self._stop:
            raise GuestError(
                consumer=guest.consumer,
                problem='this host stops no guests: set [compute] guest_stop_command',
            )
        self._run(self._stop, 'stopped', guest.consumer, _environment(guest))

    def await_start(self, claim_id: str, seconds: float) -> bool:
        return self._locks.wait(claim_id, seconds, self._conf.guest_command_seconds)

    def _run(
        self,
        words: list[str],
        done: str,
        consumer: str,
        environment: dict[str, str],
        lock: int | None = None,
    ) -> bytes:
        """Run a command to its end; return its output.

        :param lock: a descriptor that the command keeps open as long as it runs
        :raises GuestError: the command could not run, took too long or did not end with 0
        """
        seconds = self._conf.guest_command_seconds
        # Files, not pipes: a guest that keeps a pipe open must not keep us waiting.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(  # nosec B603 # no shell, the operator's command
                    words,
                    env=os.environ | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                    pass_fds=() if lock is None else (lock,),
                )
            except OSError as e:
                raise GuestError(
                    consumer=consumer, problem=f'cannot be {done}: {words[0]}: {e.strerror}'
                ) from None
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                _kill_group(process)
                raise GuestError(
                    consumer=consumer, problem=f'was not {done} within {seconds:.0f} s: {words[0]}'
                ) from None
            if code:
                raise GuestError(
                    consumer=consumer,
                    problem=f'cannot be {done}: {words[0]} ended with {code}: {_tail(errors)}',
                )
            if output.seek(0, os.SEEK_END) > OUTPUT_BYTES_MAX:
                raise GuestError(consumer=consumer, problem=f'{words[0]} wrote too much')
            output.seek(0)
            return output.read()


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - OUTPUT_TAIL_BYTES))
    return file.read().decode(errors='replace').strip()


def _environment(guest: RunningGuest) -> dict[str, str]:
    return {
        'GANTT_CLAIM': guest.claim_id or '',
        'GANTT_CONSUMER': guest.consumer,
        'GANTT_RESOURCES': json.dumps(guest.resources),
    }


def _inventory(total: int, reserved: int, ratio: float) -> Inventory:
    return Inventory(total=total, reserved=min(reserved, total), allocation_ratio=ratio)


def _words(option: str, command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as e:
        raise exceptions.Misconfigured(
            option=f'[compute] {option}',
            problem=f'{command!r} cannot be split into words: {e}',
            fix='Close every quote; no shell is involved',
        ) from None


def _kill_group(process: 'subprocess.Popen[bytes]') -> None:
    """End a command and its child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


POLL_SECONDS = 0.1
