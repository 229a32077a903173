# SPDX-License-Identifier: Apache-2.0
"""Description of a Linux machine from /proc and /sys.

Read anew each time; nothing is guessed.  Anything that a kernel does not show (siblings
in some containers, NUMA on small machines) is left out or taken as one cell.
"""

import os
import pathlib
import re

import msgspec

from gantt.core.messages.report import NumaPages

#: CPU flag as the kernel names it -> trait.
TRAIT_BY_CPU_FLAG = {
    'sse': 'HW_CPU_X86_SSE',
    'sse2': 'HW_CPU_X86_SSE2',
    'pni': 'HW_CPU_X86_SSE3',
    'ssse3': 'HW_CPU_X86_SSSE3',
    'sse4_1': 'HW_CPU_X86_SSE41',
    'sse4_2': 'HW_CPU_X86_SSE42',
    'sse4a': 'HW_CPU_X86_SSE4A',
    'avx': 'HW_CPU_X86_AVX',
    'avx2': 'HW_CPU_X86_AVX2',
    'avx512f': 'HW_CPU_X86_AVX512F',
    'aes': 'HW_CPU_X86_AESNI',
    'sha_ni': 'HW_CPU_X86_SHA',
    'fma': 'HW_CPU_X86_FMA3',
    'f16c': 'HW_CPU_X86_F16C',
    'bmi1': 'HW_CPU_X86_BMI',
    'bmi2': 'HW_CPU_X86_BMI2',
    'pclmulqdq': 'HW_CPU_X86_CLMUL',
    'vmx': 'HW_CPU_X86_VMX',
    'svm': 'HW_CPU_X86_SVM',
}

#: A memory limit of a control group at or above this is no limit.
_NO_MEMORY_LIMIT = 1 << 60
#: Largest number of a processor or cell in a list, and most numbers that a list may have.
CPU_NUMBER_MAX, CPUS_LISTED_MAX = 65_535, 4 * 65_536


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """NUMA cell: logical processors, memory and huge pages.

    ``memory_kb`` is None where the kernel does not show it per cell.
    """

    id: int
    cpus: list[int]
    memory_kb: int | None
    pages: list[NumaPages]


class Machine:
    """Readings of this machine, below ``root``.

    :param root: '/' but in tests
    """

    def __init__(self, root: pathlib.Path = pathlib.Path('/')) -> None:
        self._root = root

    # -- processors -----------------------------------------------------------
    def cpus(self) -> list[int]:
        """Return numbers of the logical processors that are online."""
        text = self._text('sys/devices/system/cpu/online')
        if text:
            return parse_cpus(text)
        numbers = re.findall(r'^processor\s*:\s*(\d+)', self._text('proc/cpuinfo'), re.MULTILINE)
        return sorted(int(n) for n in numbers)

    def siblings(self) -> list[list[int]]:
        """Return groups of logical processors that share a core; only groups of several."""
        groups = set()
        for cpu in self.cpus():
            text = self._text(f'sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list')
            if text:
                groups.add(tuple(parse_cpus(text)))
        return sorted(list(group) for group in groups if len(group) > 1)

    def socket_of(self, cpu: int) -> int | None:
        """Return the socket of a logical processor, where the kernel shows it."""
        text = self._text(f'sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id')
        return int(text) if text.isdigit() else None

    def cpu_flags(self) -> list[str]:
        """Return features of the first processor, as the kernel names them."""
        match = re.search(r'^(?:flags|Features)\s*:\s*(.*)$', self._text('proc/cpuinfo'), re.M)
        return sorted(set(match[1].split())) if match else []

    def cpu_model(self) -> str:
        """Return the model name of the first processor; '' where it has none."""
        match = re.search(r'^model name\s*:\s*(.*)$', self._text('proc/cpuinfo'), re.M)
        return match[1].strip() if match else ''

    # -- memory -------------------------------------------------------------------
    def memory_kb(self, field: str) -> int:
        """Return a field of /proc/meminfo in KiB, e.g. MemTotal; 0 where it is missing."""
        return _meminfo(self._text('proc/meminfo'), field)

    def cells(self) -> list[Cell]:
        """Return NUMA cells with processors or memory; one cell where the kernel shows none."""
        online = set(self.cpus())
        cells = []
        for folder in sorted(
            (self._root / 'sys/devices/system/node').glob('node[0-9]*'), key=_number
        ):
            cell = f'sys/devices/system/node/{folder.name}'
            memory = _meminfo(self._text(f'{cell}/meminfo'), 'MemTotal')
            cpus = [n for n in parse_cpus(self._text(f'{cell}/cpulist')) if n in online]
            if cpus or memory:
                cells.append(
                    Cell(
                        id=_number(folder),
                        cpus=cpus,
                        memory_kb=memory or None,
                        pages=self._pages(f'{cell}/hugepages'),
                    )
                )
        if cells:
            return cells
        pages = self._pages('sys/kernel/mm/hugepages')
        return [Cell(id=0, cpus=self.cpus(), memory_kb=self.memory_kb('MemTotal'), pages=pages)]

    def _pages(self, folder: str) -> list[NumaPages]:
        pages = []
        for path in sorted((self._root / folder).glob('hugepages-*kB'), key=_number):
            total = self._count(f'{folder}/{path.name}/nr_hugepages')
            free = self._count(f'{folder}/{path.name}/free_hugepages')
            if total:
                pages.append(
                    NumaPages(size_kb=_number(path), total=total, used=max(0, total - free))
                )
        return pages

    def page_kb(self) -> int:
        """Return the size in KiB of the pages of ordinary memory."""
        return os.sysconf('SC_PAGE_SIZE') >> 10

    # -- the rest ---------------------------------------------------------------------
    def disk_gb(self, path: str) -> tuple[int, int]:
        """Return (total, used) GiB of the file system of ``path``; used is rounded up.

        :raises OSError: there is no such path
        """
        disk = os.statvfs(path)
        total = disk.f_blocks * disk.f_frsize
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return total >> 30, -(-used >> 30)

    def load(self) -> tuple[float, float, float]:
        """Return load averages over 1, 5 and 15 minutes."""
        load_1m, load_5m, load_15m = self._text('proc/loadavg').split()[:3]
        return float(load_1m), float(load_5m), float(load_15m)

    def has_kvm(self) -> bool:
        """Return whether guests can run on the processor itself."""
        return (self._root / 'dev/kvm').exists()

    def kernel(self) -> tuple[str, str]:
        """Return (release, architecture) of the running kernel."""
        uname = os.uname()
        return uname.release, uname.machine

    def limits(self) -> dict[str, float]:
        """Return limits of this process, by control groups and affinity, where they bind.

        ``cpus`` where it may use fewer than are online, ``memory_mb`` where
        less than the machine has.
        """
        limits: dict[str, float] = {}
        online = len(self.cpus())
        quotas = [q for q in (self._cpu_quota(), self._allowed_cpus()) if q is not None]
        if quotas and min(quotas) < online:
            limits['cpus'] = min(quotas)
        memory = self._memory_limit()
        if memory is not None and memory < self.memory_kb('MemTotal') * 1024:
            limits['memory_mb'] = memory >> 20
        return limits

    def _allowed_cpus(self) -> float | None:
        """Return how many processors this process may run on."""
        match = re.search(r'^Cpus_allowed_list:\s*(\S+)', self._text('proc/self/status'), re.M)
        return float(len(parse_cpus(match[1]))) if match else None

    def _cpu_quota(self) -> float | None:
        """Return the number of processors that the tightest control group of us allows."""
        quotas = []
        for folder in self._cgroup_folders('', 'unified'):
            words = self._text(f'{folder}/cpu.max').split()
            if len(words) == 2 and words[0].isdigit():
                quotas.append(int(words[0]) / int(words[1]))
        for folder in self._cgroup_folders('cpu', 'cpu'):
            quota = self._text(f'{folder}/cpu.cfs_quota_us')
            period = self._count(f'{folder}/cpu.cfs_period_us')
            if quota.isdigit() and period:
                quotas.append(int(quota) / period)
        return min(quotas, default=None)

    def _memory_limit(self) -> int | None:
        """Return the memory limit, in bytes, of the tightest control group of this process."""
        limits = []
        for name, mount, file in (
            ('', 'unified', 'memory.max'),
            ('memory', 'memory', 'memory.limit_in_bytes'),
        ):
            for folder in self._cgroup_folders(name, mount):
                text = self._text(f'{folder}/{file}')
                if text.isdigit() and int(text) < _NO_MEMORY_LIMIT:
                    limits.append(int(text))
        return min(limits, default=None)

    def _cgroup_folders(self, controller: str, mount: str) -> list[str]:
        """Return the folders of this process's control group and all its parents."""
        path = None
        for line in self._text('proc/self/cgroup').splitlines():
            _, names, group_path = line.split(':', 2)
            if controller in names.split(','):
                path = group_path.strip('/')
        if path is None:
            return []
        base = f'sys/fs/cgroup/{mount}'
        if not controller and not (self._root / base).is_dir():
            base = 'sys/fs/cgroup'  # nothing but the unified hierarchy
        parts = path.split('/') if path else []
        return ['/'.join([base, *parts[:n]]) for n in range(len(parts) + 1)]

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text(errors='replace').strip()
        except OSError:
            return ''

    def _count(self, path: str) -> int:
        text = self._text(path)
        return int(text) if text.isdigit() else 0


def parse_cpus(text: str) -> list[int]:
    """Return ``0-3,8,^2`` as [0, 1, 3, 8].

    :raises ValueError: it is no such list, or has more numbers than any machine
    """
    numbers: set[int] = set()
    without: set[int] = set()
    count = 0
    for part in filter(None, (p.strip() for p in text.split(','))):
        into, part = (without, part[1:]) if part.startswith('^') else (numbers, part)
        first, dash, last = part.partition('-')
        part_numbers = range(_cpu(first), _cpu(last if dash else first) + 1)
        count += len(part_numbers) + 1
        if count > CPUS_LISTED_MAX:
            raise ValueError(f'expected at most {CPUS_LISTED_MAX} numbers')
        into.update(part_numbers)
    return sorted(numbers - without)


def _cpu(text: str) -> int:
    text = text.strip()
    if len(text) > len(str(CPU_NUMBER_MAX)) or int(text) > CPU_NUMBER_MAX:
        raise ValueError(f'expected numbers of 0 to {CPU_NUMBER_MAX}')
    return int(text)


def _meminfo(text: str, field: str) -> int:
    match = re.search(rf'(?:^|\s){re.escape(field)}:\s+(\d+) kB', text)
    return int(match[1]) if match else 0


def _number(path: pathlib.Path) -> int:
    match = re.search(r'\d+', path.name)
    return int(match[0]) if match else 0
