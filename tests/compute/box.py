# SPDX-License-Identifier: Apache-2.0
"""A machine made of files, with guests that are processes of QEMU in its /proc."""

import json
import pathlib
import shutil
import types
from typing import Any

from gantt.compute.facts_only import FactsReader
from gantt.conf import compute

#: Of each cell: processors, two to a core, the first core for what is shared.
CPUS = 8
DEDICATED = '2-7,10-15'
PAGES = 1024


def a_conf(**options: Any) -> types.SimpleNamespace:
    """[compute] as it is where nobody says otherwise."""
    values: dict[str, Any] = {option.dest: option.default for option in compute.OPTS}
    return types.SimpleNamespace(**(values | options))


class Box:
    """Two cells of 8 processors and 8 GiB, 2 GiB of it in large pages."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self._pid = 1000
        self._pages = [0, 0]
        self.write('proc/1/cmdline', 'init\0')
        self.write(
            'proc/meminfo',
            'MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nHugepagesize:       2048 kB\n',
        )
        self.write('proc/mounts', 'hugetlbfs /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n')
        self.write('proc/loadavg', '1.50 1.00 0.50 1/100 2000\n')
        self.write('proc/cpuinfo', 'processor : 0\nflags : sse\n')
        self.write('sys/devices/system/cpu/online', f'0-{2 * CPUS - 1}\n')
        for cpu in range(2 * CPUS):
            folder = f'sys/devices/system/cpu/cpu{cpu}/topology'
            self.write(f'{folder}/thread_siblings_list', f'{cpu & ~1}-{cpu | 1}\n')
            self.write(f'{folder}/physical_package_id', f'{cpu // CPUS}\n')
        for cell in range(2):
            folder = f'sys/devices/system/node/node{cell}'
            self.write(f'{folder}/cpulist', f'{cell * CPUS}-{cell * CPUS + CPUS - 1}\n')
            self.write(f'{folder}/meminfo', f'Node {cell} MemTotal: 8388608 kB\n')
            self.write(f'{folder}/hugepages/hugepages-2048kB/nr_hugepages', f'{PAGES}\n')
            self._write_pages(cell)

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def machine(self, **options: Any) -> FactsReader:
        """What an agent reads there."""
        settings = {'dedicated_cpus': DEDICATED, 'disk_path': str(self.root), **options}
        return FactsReader(a_conf(**settings), 'cmp-1', self.root / 'starts', self.root)

    # -- guests --------------------------------------------------------------------------
    def guest(
        self,
        consumer: str,
        pins: dict[int, int] | None = None,
        *,
        cell: int | None = 0,
        floating: int = 0,
        memory_mb: int = 1024,
        large: bool = False,
        emulator: str = '0-1',
        devices: tuple[str, ...] = (),
        as_json: bool = True,
    ) -> int:
        """A process as libvirt starts it; its number.

        :param pins: processor of the guest -> of the host
        :param cell: that its memory is bound to; None: it has no cells
        :param floating: how many more processors it has, on the shared ones
        """
        self._pid += 1
        pins = pins or {}
        count = len(pins) + floating
        words = [
            '/usr/bin/qemu-system-x86_64',
            '-name',
            f'guest=instance-{self._pid}',
            '-smp',
            str(count),
            '-uuid',
            consumer,
        ]
        if cell is not None:
            words += ['-object', _memory(cell, memory_mb, large, as_json)]
            words += ['-numa', f'node,nodeid=0,cpus=0-{count - 1},memdev=ram-node0']
        for number, address in enumerate(devices):
            device = {'driver': 'vfio-pci', 'host': address, 'id': f'hostdev{number}'}
            short = f'vfio-pci,host={address.removeprefix("0000:")},id=hostdev{number}'
            words += ['-device', json.dumps(device) if as_json else short]
        self.process(self._pid, '\0'.join(words) + '\0')
        self._thread(self._pid, 'qemu-system-x86', emulator)
        for vcpu in range(count):
            self._thread(
                self._pid + (vcpu + 1) * 100_000,
                f'CPU {vcpu}/KVM',
                str(pins.get(vcpu, '0-1,8-9')),
            )
        if large and cell is not None:
            self._pages[cell] += memory_mb // 2
            self._write_pages(cell)
        return self._pid

    def process(
        self,
        pid: int,
        command: str,
        executable: str = '/usr/bin/qemu-system-x86_64',
        user: int = 0,
        real: int | None = None,
    ) -> None:
        """Whatever runs here.

        :param executable: '' where it has none, as the kernel's own
        :param user: whose rights it has; ``real``: who started it, where that is another one
        """
        self.write(f'proc/{pid}/cmdline', command)
        self.write(f'proc/{pid}/status', f'Uid:\t{user if real is None else real}\t{user}\t0\t0\n')
        if executable:
            (self.root / f'proc/{pid}/exe').symlink_to(executable)

    def ends(self, pid: int) -> None:
        """A process is there no more; its pages stay used."""
        shutil.rmtree(self.root / f'proc/{pid}')

    def _thread(self, number: int, name: str, allowed: str) -> None:
        folder = f'proc/{self._pid}/task/{number}'
        self.write(f'{folder}/comm', f'{name}\n')
        self.write(f'{folder}/status', f'Name:\t{name}\nCpus_allowed_list:\t{allowed}\n')

    def _write_pages(self, cell: int) -> None:
        folder = f'sys/devices/system/node/node{cell}/hugepages/hugepages-2048kB'
        self.write(f'{folder}/free_hugepages', f'{PAGES - self._pages[cell]}\n')

    # -- devices -------------------------------------------------------------------------
    def device(
        self,
        address: str,
        vendor: str = '10de',
        product: str = '1eb8',
        cell: int = -1,
        virtual: int = 0,
        physical: str = '',
    ) -> None:
        """:param virtual: how many functions it may have; :param physical: it is one of these"""
        folder = f'sys/bus/pci/devices/{address}'
        self.write(f'{folder}/vendor', f'0x{vendor}\n')
        self.write(f'{folder}/device', f'0x{product}\n')
        self.write(f'{folder}/numa_node', f'{cell}\n')
        if virtual:
            self.write(f'{folder}/sriov_totalvfs', f'{virtual}\n')
        if physical:
            (self.root / folder / 'physfn').symlink_to(f'../{physical}')


def _memory(cell: int, size_mb: int, large: bool, as_json: bool) -> str:
    backend: dict[str, Any] = {
        'qom-type': 'memory-backend-file' if large else 'memory-backend-ram',
        'id': 'ram-node0',
        'size': size_mb << 20,
        'host-nodes': [cell],
        'policy': 'bind',
    }
    if large:
        backend['mem-path'] = '/dev/hugepages/libvirt/qemu/1-instance'
    if as_json:
        return json.dumps(backend)
    kind = backend.pop('qom-type')
    backend['host-nodes'] = cell
    return ','.join([kind, *(f'{name}={value}' for name, value in backend.items())])
