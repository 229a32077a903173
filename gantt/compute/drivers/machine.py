# SPDX-License-Identifier: Apache-2.0
"""What a Linux machine says about itself in /proc and /sys.

Read anew each time; nothing is guessed.  What a kernel does not show (siblings
in some containers, NUMA on small machines) is left out or taken as one cell.
"""

import os
import pathlib
import re

import msgspec

from gantt.core.messages.report import NumaPages

#: CPU flag as the kernel names it -> trait.
TRAITS = {
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
_NO_LIMIT = 1 << 60
#: The largest number of a processor or cell in a list, and how many numbers one may name.
CPU_MAX, CPUS_LISTED_MAX = 65_535, 4 * 65_536


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA cell: logical processors, memory and huge pages.

    ``memory_kb`` is None where the kernel does not say it per cell.
    """

    id: int
    cpus: list[int]
    memory_kb: int | None
    pages: list[NumaPages]


class Machine:
    """This machine, below ``root``.

    :param root: '/' but in tests
    """

    def __init__(self, root: pathlib.Path = pathlib.Path('/')) -> None:
        self._root = root

    # -- processors -----------------------------------------------------------
    def cpus(self) -> list[int]:
        """Numbers of the logical processors that are online."""
        text = self._text('sys/devices/system/cpu/online')
        if text:
            return parse_cpus(text)
        found = re.findall(r'^processor\s*:\s*(\d+)', self._text('proc/cpuinfo'), re.MULTILINE)
        return sorted(int(n) for n in found)

    def siblings(self) -> list[list[int]]:
        """Groups of logical processors that share a core; only groups of several."""
        groups = set()
        for cpu in self.cpus():
            text = self._text(f'sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list')
            if text:
                groups.add(tuple(parse_cpus(text)))
        return sorted(list(group) for group in groups if len(group) > 1)

    def socket_of(self, cpu: int) -> int | None:
        """The socket that a logical processor is in, where the kernel says it."""
        text = self._text(f'sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id')
        return int(text) if text.isdigit() else None

    def cpu_flags(self) -> list[str]:
        """Features of the first processor, as the kernel names them."""
        found = re.search(r'^(?:flags|Features)\s*:\s*(.*)$', self._text('proc/cpuinfo'), re.M)
        return sorted(set(found[1].split())) if found else []

    def cpu_model(self) -> str:
        """Model name of the first processor; '' where it has none."""
        found = re.search(r'^model name\s*:\s*(.*)$', self._text('proc/cpuinfo'), re.M)
        return found[1].strip() if found else ''

    # -- memory -------------------------------------------------------------------
    def memory_kb(self, field: str) -> int:
        """A field of /proc/meminfo in KiB, e.g. MemTotal; 0 where it is not there."""
        return _meminfo(self._text('proc/meminfo'), field)

    def cells(self) -> list[Cell]:
        """NUMA cells with processors or memory; one cell where the kernel shows none."""
        online = set(self.cpus())
        found = []
        for folder in sorted(
            (self._root / 'sys/devices/system/node').glob('node[0-9]*'), key=_number
        ):
            cell = f'sys/devices/system/node/{folder.name}'
            memory = _meminfo(self._text(f'{cell}/meminfo'), 'MemTotal')
            cpus = [n for n in parse_cpus(self._text(f'{cell}/cpulist')) if n in online]
            if cpus or memory:
                found.append(
                    Cell(
                        id=_number(folder),
                        cpus=cpus,
                        memory_kb=memory or None,
                        pages=self._pages(f'{cell}/hugepages'),
                    )
                )
        if found:
            return found
        pages = self._pages('sys/kernel/mm/hugepages')
        return [Cell(id=0, cpus=self.cpus(), memory_kb=self.memory_kb('MemTotal'), pages=pages)]

    def _pages(self, folder: str) -> list[NumaPages]:
        found = []
        for path in sorted((self._root / folder).glob('hugepages-*kB'), key=_number):
            total = self._count(f'{folder}/{path.name}/nr_hugepages')
            free = self._count(f'{folder}/{path.name}/free_hugepages')
            if total:
                found.append(
                    NumaPages(size_kb=_number(path), total=total, used=max(0, total - free))
                )
        return found

    def page_kb(self) -> int:
        """Size in KiB of the pages that ordinary memory is made of."""
        return os.sysconf('SC_PAGE_SIZE') >> 10

    # -- the rest ---------------------------------------------------------------------
    def disk_gb(self, path: str) -> tuple[int, int]:
        """(total, used) GiB of the file system that ``path`` is on; used is rounded up.

        :raises OSError: there is no such path
        """
        disk = os.statvfs(path)
        total = disk.f_blocks * disk.f_frsize
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return total >> 30, -(-used >> 30)

    def load(self) -> tuple[float, float, float]:
        """Load averages over 1, 5 and 15 minutes."""
        one, five, fifteen = self._text('proc/loadavg').split()[:3]
        return float(one), float(five), float(fifteen)

    def has_kvm(self) -> bool:
        """Whether guests can run on the processor itself."""
        return (self._root / 'dev/kvm').exists()

    def kernel(self) -> tuple[str, str]:
        """(release, architecture) of the running kernel."""
        uname = os.uname()
        return uname.release, uname.machine

    def limits(self) -> dict[str, float]:
        """Limits that this process is under, by control groups and affinity, where they bind.

        ``cpus`` where it may use fewer than are online, ``memory_mb`` where
        less than the machine has.
        """
        found: dict[str, float] = {}
        online = len(self.cpus())
        quotas = [q for q in (self._cpu_quota(), self._allowed_cpus()) if q is not None]
        if quotas and min(quotas) < online:
            found['cpus'] = min(quotas)
        memory = self._memory_limit()
        if memory is not None and memory < self.memory_kb('MemTotal') * 1024:
            found['memory_mb'] = memory >> 20
        return found

    def _allowed_cpus(self) -> float | None:
        """How many processors this process may run on."""
        found = re.search(r'^Cpus_allowed_list:\s*(\S+)', self._text('proc/self/status'), re.M)
        return float(len(parse_cpus(found[1]))) if found else None

    def _cpu_quota(self) -> float | None:
        """Processors per second of the tightest group above us."""
        quotas = []
        for folder in self._groups('', 'unified'):
            words = self._text(f'{folder}/cpu.max').split()
            if len(words) == 2 and words[0].isdigit():
                quotas.append(int(words[0]) / int(words[1]))
        for folder in self._groups('cpu', 'cpu'):
            quota = self._text(f'{folder}/cpu.cfs_quota_us')
            period = self._count(f'{folder}/cpu.cfs_period_us')
            if quota.isdigit() and period:
                quotas.append(int(quota) / period)
        return min(quotas, default=None)

    def _memory_limit(self) -> int | None:
        """Bytes of the tightest group above us."""
        limits = []
        for name, mount, file in (
            ('', 'unified', 'memory.max'),
            ('memory', 'memory', 'memory.limit_in_bytes'),
        ):
            for folder in self._groups(name, mount):
                text = self._text(f'{folder}/{file}')
                if text.isdigit() and int(text) < _NO_LIMIT:
                    limits.append(int(text))
        return min(limits, default=None)

    def _groups(self, controller: str, mount: str) -> list[str]:
        """Folders of our control group and all above it ('' is the unified hierarchy)."""
        path = None
        for line in self._text('proc/self/cgroup').splitlines():
            _, names, where = line.split(':', 2)
            if controller in names.split(','):
                path = where.strip('/')
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
    """``0-3,8,^2`` as [0, 1, 3, 8].

    :raises ValueError: it is no such list, or of more than there are in any machine
    """
    numbers: set[int] = set()
    without: set[int] = set()
    count = 0
    for part in filter(None, (p.strip() for p in text.split(','))):
        into, part = (without, part[1:]) if part.startswith('^') else (numbers, part)
        first, dash, last = part.partition('-')
        some = range(_cpu(first), _cpu(last if dash else first) + 1)
        count += len(some) + 1
        if count > CPUS_LISTED_MAX:
            raise ValueError(f'expected at most {CPUS_LISTED_MAX} numbers')
        into.update(some)
    return sorted(numbers - without)


def _cpu(text: str) -> int:
    text = text.strip()
    if len(text) > len(str(CPU_MAX)) or int(text) > CPU_MAX:
        raise ValueError(f'expected numbers of 0 to {CPU_MAX}')
    return int(text)


def _meminfo(text: str, field: str) -> int:
    found = re.search(rf'(?:^|\s){re.escape(field)}:\s+(\d+) kB', text)
    return int(found[1]) if found else 0


def _number(path: pathlib.Path) -> int:
    found = re.search(r'\d+', path.name)
    return int(found[0]) if found else 0
