# SPDX-License-Identifier: Apache-2.0
"""Guests that another program runs, as seen from the processes of QEMU.

Processors that their threads may run on, memory bound to a cell, and devices are read from /proc,
anew each time.  A guest that is shut off has no process and is not seen; nor are siblings that must
stay free beside it, and devices that it got while it ran.

Any user can start a process under any name.  A guest is a process whose executable and owner
are those of the hypervisor.
"""

import fnmatch
import itertools
import json
import logging
import os
import pathlib
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from gantt.compute.drivers.machine import parse_cpus
from gantt.compute.ports import GuestError, RunningGuest
from gantt.core.messages.base import UUID_PATTERN
from gantt.core.messages.layout import CellLayout
from gantt.core.messages.report import NumaCell

LOG = logging.getLogger(__name__)

#: Most that is read; a machine that has more is not described in part.
PROCESSES_MAX = 200_000
GUESTS_MAX = 10_000
THREADS_MAX = 8192
COMMAND_BYTES_MAX = 1 << 20
#: Guests that one error names, and owners of guest-like processes that the log names.
NAMED_PROCESSES_MAX = 5
IGNORED_PROCESSES_MAX = 100
#: Executables that run guests, and their users, where nothing else is configured.
EXECUTABLES = (
    '/usr/bin/qemu-system-*',
    '/usr/bin/qemu-kvm',
    '/usr/libexec/qemu-kvm',
    '/usr/bin/kvm',
)
USERS = ('libvirt-qemu', 'qemu', 'root')

_PROCESS_NAMES = ('qemu', 'kvm')
_READ_OPTIONS = ('-uuid', '-object', '-numa', '-device')
_VCPU_THREAD_NAME = re.compile(r'CPU (\d{1,5})/')
_SIZE_TEXT = re.compile(r'(\d{1,18})([KMGT]?)[a-z]*\Z', re.IGNORECASE)
_UID_LINE = re.compile(r'^Uid:\s*(\d+)\s+(\d+)', re.M)
_UNIT_SHIFTS = {'': 0, 'k': 10, 'm': 20, 'g': 30, 't': 40}
_PCI_ADDRESS = re.compile(r'(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\Z')


class _Cell(msgspec.Struct):
    """Resources that one guest has of one cell of the host, while they are gathered."""

    memory_mb: int = 0
    page_kb: int = 0
    vcpus: set[int] = msgspec.field(default_factory=set)
    pins: list[tuple[int, int]] = []
    emulator: set[int] = msgspec.field(default_factory=set)


class _BoundMemory(msgspec.Struct, frozen=True):
    """Memory of a guest that is bound to one cell of the host."""

    cell: int
    size_mb: int
    page_kb: int


class Qemu:
    """Guests of this machine.

    :param root: '/' but in tests
    :param executables: patterns of paths of the hypervisor's executables
    :param users: names or numbers of the users it runs as; unknown names are left out
    :param readlink: returns the executable of a process
    """

    def __init__(
        self,
        root: pathlib.Path = pathlib.Path('/'),
        executables: Iterable[str] = EXECUTABLES,
        users: Iterable[str] = USERS,
        readlink: Callable[[pathlib.Path], str] = os.readlink,
    ) -> None:
        self._root = root
        self._executables = tuple(executables)
        self._users = frozenset(itertools.chain.from_iterable(map(_uid, users)))
        self._readlink = readlink
        self._ignored_processes: set[tuple[int, ...]] = set()

    def guests(self, numa: Sequence[NumaCell]) -> list[RunningGuest]:
        """Return every guest that has a process, with its resources on the NUMA cells ``numa``.

        :raises GuestError: processes cannot be seen from here, or some guests cannot be read; names
            these guests
        """
        if not (self._root / 'proc/1').is_dir():
            raise GuestError(
                consumer='-',
                problem='processes of others cannot be seen: /proc is mounted with hidepid, or '
                'not that of the host',
            )
        guests: dict[str, RunningGuest] = {}
        unread: list[str] = []
        huge = self._huge()
        for folder in self._processes():
            try:
                words = self._words(folder)
                guest = self._guest(folder, words, numa, huge) if words else None
            except (ValueError, RecursionError) as e:
                unread.append(f'process {folder.name}: {str(e)[:200]}')
                continue
            if guest is not None:
                guests[guest.consumer] = guest
            if len(guests) > GUESTS_MAX:
                raise GuestError(consumer='-', problem=f'more than {GUESTS_MAX} guests run here')
        if unread:
            # Its resources may seem free: without it, cells and devices are not reported.
            ellipsis = '; ...' if len(unread) > NAMED_PROCESSES_MAX else ''
            raise GuestError(
                consumer='-',
                problem=f'{len(unread)} guests cannot be read: '
                + '; '.join(unread[:NAMED_PROCESSES_MAX])
                + ellipsis,
            )
        return [guests[consumer] for consumer in sorted(guests)]

    def _processes(self) -> Iterator[pathlib.Path]:
        folders = (entry for entry in (self._root / 'proc').iterdir() if entry.name.isdigit())
        for number, folder in enumerate(folders):
            if number >= PROCESSES_MAX:
                raise GuestError(
                    consumer='-', problem=f'more than {PROCESSES_MAX} processes run here'
                )
            yield folder

    def _words(self, folder: pathlib.Path) -> list[str]:
        """Return the command line of a guest's process; [] where it is no guest.

        :raises ValueError: the process is a guest, and its command line cannot be read
        """
        try:
            executable = self._readlink(folder / 'exe').removesuffix(' (deleted)')
        except PermissionError:
            executable = ''  # neither root nor with CAP_SYS_PTRACE: its owner has to decide
        except OSError:
            return []  # it has ended, or is the kernel's own
        is_known = any(fnmatch.fnmatchcase(executable, pattern) for pattern in self._executables)
        if executable and not is_known and not _is_running_like_us(executable):
            return []
        command = _read(folder / 'cmdline')
        words = (command or b'').decode(errors='replace').split('\0')
        if command is not None and not executable and not _is_running_like_us(words[0]):
            return []
        owners = self._owners(folder)
        if not owners <= self._users or (executable and not is_known):
            if '-uuid' in words:
                self._log_ignored_process(folder, executable or words[0], owners)
            return []
        if command is None or len(command) > COMMAND_BYTES_MAX:
            raise ValueError('its command line may not be read, or is too long')
        return words if owners else []

    @staticmethod
    def _owners(folder: pathlib.Path) -> set[int]:
        """Return the real and effective user of a process; empty where it has ended.

        Both count: a process with the rights of another user still has its caller's arguments.

        :raises ValueError: the users may not be read
        """
        status = _read(folder / 'status')
        if status is None:
            raise ValueError('its owner may not be read')
        uids = _UID_LINE.search(status.decode(errors='replace'))
        return {int(uids[1]), int(uids[2])} if uids else set()

    def _log_ignored_process(self, folder: pathlib.Path, executable: str, owners: set[int]) -> None:
        """Log, once for each owner, a process that resembles a guest and counts as none."""
        key = tuple(sorted(owners))
        if key in self._ignored_processes or len(self._ignored_processes) >= IGNORED_PROCESSES_MAX:
            return
        self._ignored_processes.add(key)
        LOG.warning(
            'Process looks like a guest and is not counted; see [compute] hypervisor_executables '
            'and hypervisor_users: pid=%s uid=%s executable=%.200r',
            folder.name,
            max(owners),
            executable,
        )

    def _guest(
        self,
        folder: pathlib.Path,
        words: list[str],
        numa: Sequence[NumaCell],
        huge: Mapping[str, int],
    ) -> RunningGuest | None:
        options: dict[str, list[str]] = {name: [] for name in _READ_OPTIONS}
        for name, value in itertools.pairwise(words):
            if name in options:
                options[name].append(value)
        consumer = options['-uuid'][-1].lower() if options['-uuid'] else ''
        threads = self._threads(folder)
        if not re.fullmatch(UUID_PATTERN, consumer) or not threads:
            return None  # one without a uuid, or it has just ended
        bound = self._bound(map(_option_fields, options['-object']), huge)
        homes = [
            (bound[node['memdev']], parse_cpus(node.get('cpus', '')))
            for node in map(_option_fields, options['-numa'])
            if node.get('') == 'node' and node.get('memdev') in bound
        ]
        dedicated = {cpu for cell in numa for cpu in cell.pinned_cpus}
        if not _is_placed(homes, threads, dedicated):
            return None
        return RunningGuest(
            consumer=consumer,
            cells=_guest_cells(numa, homes, threads),
            devices=list(_devices(map(_option_fields, options['-device']))),
        )

    def _threads(self, folder: pathlib.Path) -> dict[int, set[int]]:
        """Return processor of the guest -> host's processors it may run on; -1: the emulator."""
        allowed_cpus: dict[int, set[int]] = {}
        try:
            tasks = list(itertools.islice((folder / 'task').iterdir(), THREADS_MAX + 1))
        except OSError:
            return {}
        if len(tasks) > THREADS_MAX:
            raise ValueError(f'it has more than {THREADS_MAX} threads')
        for task in tasks:
            named = _VCPU_THREAD_NAME.match(_text(task / 'comm'))
            if named is None and task.name != folder.name:
                continue
            allowed = re.search(r'^Cpus_allowed_list:\s*(\S+)', _text(task / 'status'), re.M)
            if allowed is not None:
                allowed_cpus[int(named[1]) if named else -1] = set(parse_cpus(allowed[1]))
        return allowed_cpus

    def _bound(
        self, objects: Iterable[dict[str, str]], huge: Mapping[str, int]
    ) -> dict[str, _BoundMemory]:
        bound = {}
        for memory_object in objects:
            kind = memory_object.get('qom-type') or memory_object.get('', '')
            nodes = parse_cpus(memory_object.get('host-nodes', ''))
            if kind.startswith('memory-backend-') and len(nodes) == 1:
                size = _parse_bytes(memory_object.get('size', '')) >> 20
                bound[memory_object.get('id', '')] = _BoundMemory(
                    nodes[0], size, self._page_kb(memory_object, huge)
                )
        return bound

    def _page_kb(self, memory: Mapping[str, str], huge: Mapping[str, int]) -> int:
        """Return the size of the large pages that back memory; 0: it has none."""
        path = memory.get('mem-path', '')
        for mount, size in huge.items():
            if path == mount or path.startswith(f'{mount}/'):
                return size
        if memory.get('hugetlb') in ('on', 'yes', 'true'):
            return (_parse_bytes(memory.get('hugetlbsize', '')) >> 10) or self._usual_page_kb()
        return 0

    def _huge(self) -> dict[str, int]:
        """Return mount points of large pages, with their size in KiB."""
        sizes = {}
        for line in _text(self._root / 'proc/mounts').splitlines():
            words = line.split()
            if len(words) > 3 and words[2] == 'hugetlbfs':
                size = re.search(r'pagesize=(\w+)', words[3])
                sizes[words[1]] = (
                    _parse_bytes(size[1]) >> 10 if size else 0
                ) or self._usual_page_kb()
        return sizes

    def _usual_page_kb(self) -> int:
        match = re.search(r'^Hugepagesize:\s*(\d+) kB', _text(self._root / 'proc/meminfo'), re.M)
        return int(match[1]) if match else 2048


def _is_placed(
    homes: Sequence[tuple[_BoundMemory, list[int]]],
    threads: Mapping[int, set[int]],
    dedicated: set[int],
) -> bool:
    """Return whether each virtual processor of a guest has a thread that is placed already."""
    return all(
        vcpu in threads and (threads[vcpu] <= dedicated or not threads[vcpu] & dedicated)
        for _, vcpus in homes
        for vcpu in vcpus
    )


def _guest_cells(
    numa: Sequence[NumaCell],
    homes: Sequence[tuple[_BoundMemory, list[int]]],
    threads: Mapping[int, set[int]],
) -> list[CellLayout]:
    """Return the resources of a guest, cell by cell.

    :param homes: memory of each cell of the guest, and its processors
    """
    cell_of = {cpu: cell.id for cell in numa for cpu in cell.pinned_cpus}
    cells: dict[int, _Cell] = {}
    cell_of_vcpu: dict[int, int] = {}
    for memory, vcpus in homes:
        cell = cells.setdefault(memory.cell, _Cell())
        cell.memory_mb += memory.size_mb
        cell.page_kb = memory.page_kb
        cell_of_vcpu.update(dict.fromkeys(vcpus, memory.cell))
    for vcpu, allowed in sorted(threads.items(), reverse=True):
        if allowed and allowed <= cell_of.keys():
            _add_dedicated_cpus(cells, cell_of, vcpu, sorted(allowed))
        elif vcpu in cell_of_vcpu:
            cells[cell_of_vcpu[vcpu]].vcpus.add(vcpu)  # it floats over the shared ones
    return [
        CellLayout(
            cell=number,
            memory_mb=cell.memory_mb,
            page_kb=cell.page_kb,
            vcpus=sorted(cell.vcpus),
            pins=sorted(cell.pins),
            emulator=sorted(cell.emulator),
        )
        for number, cell in sorted(cells.items())
    ]


def _add_dedicated_cpus(
    cells: dict[int, _Cell], cell_of: Mapping[int, int], vcpu: int, allowed: list[int]
) -> None:
    """Add dedicated processors that a thread has; the emulator's own come last."""
    if vcpu >= 0 and len(allowed) == 1:
        cell = cells.setdefault(cell_of[allowed[0]], _Cell())
        cell.vcpus.add(vcpu)
        cell.pins.append((vcpu, allowed[0]))
        return
    pinned = {cpu for cell in cells.values() for _, cpu in cell.pins}
    for cpu in allowed:
        if cpu not in pinned:
            cells.setdefault(cell_of[cpu], _Cell()).emulator.add(cpu)


def _devices(devices: Iterable[dict[str, str]]) -> Iterator[str]:
    for device in devices:
        if (device.get('driver') or device.get('', '')).startswith('vfio-pci') and 'host' in device:
            yield address_of(device['host'])


def address_of(text: str) -> str:
    """Return the PCI address with its domain, in lower case; unchanged where it is none."""
    match = _PCI_ADDRESS.match(text.strip().lower())
    return f'{match[1] or "0000"}:{match[2]}' if match else text


def _option_fields(value: str) -> dict[str, str]:
    """Return the fields of ``kind,key=value`` (``kind`` under the key ''), or of JSON."""
    if value.startswith('{'):
        try:
            body = json.loads(value)
        except RecursionError:
            raise ValueError('JSON that is nested too deeply') from None
        return {str(key): _decimal_number(field_value) for key, field_value in body.items()}
    fields: dict[str, str] = {}
    for part in value.split(','):
        key, equals, field_value = part.partition('=')
        key, field_value = (key, field_value) if equals else ('', key)
        fields[key] = f'{fields[key]},{field_value}' if key in fields else field_value
    return fields


def _decimal_number(plain: object) -> str:
    if isinstance(plain, list):
        return ','.join(map(str, plain))
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _parse_bytes(text: str) -> int:
    """Return a size of memory in bytes.

    :raises ValueError: it is no size that memory may have
    """
    if not text:
        return 0
    match = _SIZE_TEXT.match(text)
    if match is None:
        raise ValueError(f'{text[:40]!r} is no size of memory')
    return int(match[1]) << _UNIT_SHIFTS[match[2].lower()]


def _is_running_like_us(path: str) -> bool:
    return path.rpartition('/')[2].startswith(_PROCESS_NAMES)


def _uid(user: str) -> list[int]:
    if user.isdigit():
        return [int(user)]
    try:
        return [pwd.getpwnam(user).pw_uid]
    except KeyError:
        return []


def _read(path: pathlib.Path) -> bytes | None:
    """Return the content of a process's file; b'' if it has ended, None if it is unreadable."""
    try:
        with path.open('rb') as file:
            return file.read(COMMAND_BYTES_MAX + 1)
    except PermissionError:
        return None
    except OSError:
        return b''


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''
