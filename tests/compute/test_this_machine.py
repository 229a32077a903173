# SPDX-License-Identifier: Apache-2.0
"""This machine's report against what the kernel says, and machines that we are not."""

import json
import os
import pathlib
import re
import time
import types

import pytest

from gantt import exceptions
from gantt.compute.drivers.machine import Machine, parse_cpus
from gantt.compute.drivers.this_machine import StartLocks, ThisMachine
from gantt.compute.ports import GuestError, RunningGuest
from gantt.conf import compute
from gantt.core.messages import report as reports
from gantt.core.messages.build import Build
from gantt.core.messages.report import HostReport
from tests.compute.hosts_in_memory import new_uuid


def a_conf(**options):
    values = {option.dest: option.default for option in compute.OPTS}
    return types.SimpleNamespace(**(values | options))


def a_driver(tmp_path, machine=None, **options) -> ThisMachine:
    return ThisMachine(a_conf(**options), 'cmp-1', StartLocks(tmp_path / 'starts'), machine)


# -- the real machine ----------------------------------------------------------------------


def test_the_report_of_this_machine_says_what_proc_says(tmp_path):
    facts = a_driver(tmp_path, disk_path=str(tmp_path)).facts([])
    (total_kb,) = re.findall(r'^MemTotal:\s+(\d+) kB', pathlib.Path('/proc/meminfo').read_text())
    assert facts.inventories['MEMORY_MB'].total == int(total_kb) // 1024
    processors = re.findall(r'^processor\s*:', pathlib.Path('/proc/cpuinfo').read_text(), re.M)
    assert facts.inventories['VCPU'].total == len(processors) == os.cpu_count()
    disk = os.statvfs(tmp_path)
    assert facts.inventories['DISK_GB'].total == disk.f_blocks * disk.f_frsize // 2**30
    assert sorted(n for cell in facts.numa for n in cell.cpus) == Machine().cpus()
    assert facts.hypervisor.cpu_info['arch'] == os.uname().machine
    assert facts.hypervisor.cpu_info['kernel'] == os.uname().release
    assert facts.metrics['load_1m'].value == pytest.approx(os.getloadavg()[0], abs=1.0)


def test_shared_processors_may_be_counted_in_thousandths(tmp_path):
    options = {'disk_path': str(tmp_path), 'shared_cpu_class': 'CUSTOM_MILLI_VCPU'}
    has = a_driver(tmp_path, reserved_cpus=1, cpu_allocation_ratio=2.0, **options).facts([])
    assert 'VCPU' not in has.inventories
    thousandths = has.inventories['CUSTOM_MILLI_VCPU']
    assert (thousandths.total, thousandths.reserved) == (1000 * os.cpu_count(), 1000)
    assert thousandths.allocation_ratio == 2.0


def test_the_report_of_this_machine_is_a_valid_one(tmp_path):
    facts = a_driver(tmp_path, disk_path=str(tmp_path)).facts([])
    report = HostReport(
        name='cmp-1',
        epoch=1,
        sequence=1,
        full=True,
        running=[],
        pending=[],
        inventories=facts.inventories,
        foreign=facts.foreign,
        traits=facts.traits,
        numa=facts.numa,
        hypervisor=facts.hypervisor,
        metrics=facts.metrics,
    )
    reports.check(report)


def test_disk_that_no_guest_accounts_for_is_foreign(tmp_path):
    driver = a_driver(tmp_path, disk_path=str(tmp_path))
    _, used = Machine().disk_gb(str(tmp_path))
    assert driver.facts([]).foreign.get('DISK_GB', 0) == pytest.approx(used, abs=1)
    guest = RunningGuest(consumer=new_uuid(), resources={'DISK_GB': used + 100})
    assert 'DISK_GB' not in driver.facts([guest]).foreign


# -- a machine with two sockets, made of files -----------------------------------------------


@pytest.fixture
def big(tmp_path):
    root = tmp_path / 'root'
    files = {
        'proc/meminfo': 'MemTotal:       65536000 kB\nMemAvailable:   1048576 kB\n',
        'proc/loadavg': '3.50 2.25 1.00 2/345 6789\n',
        'proc/cpuinfo': 'processor : 0\nmodel name : Test CPU\nflags : sse avx2 unheard_of\n',
        'proc/self/cgroup': '0::/machine/agent\n',
        'sys/fs/cgroup/machine/cpu.max': '200000 100000\n',
        'sys/fs/cgroup/machine/agent/cpu.max': 'max 100000\n',
        'sys/fs/cgroup/machine/agent/memory.max': f'{4 << 30}\n',
        'sys/devices/system/cpu/online': '0-7\n',
    }
    for cpu in range(8):
        topology = f'sys/devices/system/cpu/cpu{cpu}/topology'
        files[f'{topology}/thread_siblings_list'] = f'{cpu // 2 * 2},{cpu // 2 * 2 + 1}\n'
        files[f'{topology}/physical_package_id'] = f'{cpu // 4}\n'
    for node in range(2):
        folder = f'sys/devices/system/node/node{node}'
        files[f'{folder}/cpulist'] = f'{node * 4}-{node * 4 + 3}\n'
        files[f'{folder}/meminfo'] = f'Node {node} MemTotal:  32768000 kB\n'
        for size, total, free in ((2048, 512, 500), (1048576, node, node)):
            pages = f'{folder}/hugepages/hugepages-{size}kB'
            files[f'{pages}/nr_hugepages'] = f'{total}\n'
            files[f'{pages}/free_hugepages'] = f'{free}\n'
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root)


def test_cells_siblings_pages_and_sockets_are_read(tmp_path, big):
    facts = a_driver(tmp_path, big, dedicated_cpus='2-7,^6').facts([])
    assert facts.inventories['VCPU'].total == 3
    assert facts.inventories['PCPU'].total == 5
    first, second = facts.numa
    assert (first.cpus, first.pinned_cpus) == ([0, 1], [2, 3])
    assert (second.cpus, second.pinned_cpus) == ([6], [4, 5, 7])
    assert first.siblings == [[0, 1], [2, 3]]
    assert (first.socket, second.socket) == (0, 1)
    assert first.memory_mb == 32_000
    ordinary, *large = first.pages
    assert (ordinary.used, ordinary.total * ordinary.size_kb >> 10) == (0, first.memory_mb - 1024)
    assert [(p.size_kb, p.total, p.used) for p in large] == [(2048, 512, 12)]
    assert [(p.size_kb, p.total, p.used) for p in second.pages[1:]] == [
        (2048, 512, 12),
        (1048576, 1, 0),
    ]
    assert facts.traits == ['HW_CPU_HYPERTHREADING', 'HW_CPU_X86_AVX2', 'HW_CPU_X86_SSE']


def test_limits_of_control_groups_are_mentioned_where_they_bind(tmp_path, big):
    assert big.limits() == {'cpus': 2.0, 'memory_mb': 4096}
    metrics = a_driver(tmp_path, big).facts([]).metrics
    assert (metrics['limit_cpus'].value, metrics['limit_memory_mb'].value) == (2.0, 4096)


def test_a_kernel_that_shows_no_cells_has_one(tmp_path):
    for name, text in {
        'proc/meminfo': 'MemTotal: 2048000 kB\n',
        'proc/cpuinfo': 'processor : 0\nprocessor : 1\n',
        'proc/loadavg': '0 0 0 1/1 1\n',
    }.items():
        path = tmp_path / 'root' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (cell,) = a_driver(tmp_path, Machine(tmp_path / 'root')).facts([]).numa
    assert (cell.cpus, cell.memory_mb, cell.siblings, cell.socket) == ([0, 1], 2000, [], None)


def test_lists_of_processors():
    assert parse_cpus('0-3,8,^2') == [0, 1, 3, 8]
    assert parse_cpus('') == []
    with pytest.raises(ValueError, match='invalid'):
        parse_cpus('0-x')


@pytest.mark.parametrize('text', ['0-', 'a', '0,99999'])
def test_dedicated_processors_that_are_not_there_are_refused(tmp_path, text):
    with pytest.raises(exceptions.Misconfigured, match=r'\[compute\] dedicated_cpus'):
        a_driver(tmp_path, dedicated_cpus=text)


def test_a_disk_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(exceptions.Misconfigured, match=r'\[compute\] disk_path: .*No such file'):
        a_driver(tmp_path, disk_path=str(tmp_path / 'nowhere'))


# -- guests by commands ---------------------------------------------------------------------


def a_script(tmp_path, text: str) -> str:
    path = tmp_path / f'script-{new_uuid()}'
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    return str(path)


def a_build(**fields) -> Build:
    return Build(
        claim_id=new_uuid(), consumer=new_uuid(), host='cmp-1', resources={'VCPU': 2}, **fields
    )


def test_without_a_start_command_builds_are_refused_naming_the_option(tmp_path):
    driver = a_driver(tmp_path)
    assert '[compute] guest_start_command' in driver.objection(a_build())
    assert 'guest_start_command' in driver.facts([]).disabled
    assert a_driver(tmp_path, guest_start_command='true').facts([]).disabled is None


def test_a_command_gets_the_build_in_its_environment(tmp_path):
    script = a_script(tmp_path, 'env | grep ^GANTT_ > "$1"')
    driver = a_driver(tmp_path, guest_start_command=f"{script} '{tmp_path}/seen here'")
    build = a_build(layout={'cells': [1]}, guest={'image': 'x y'})
    driver.start(build)
    seen = dict(x.split('=', 1) for x in (tmp_path / 'seen here').read_text().splitlines())
    assert seen['GANTT_CLAIM'] == build.claim_id
    assert seen['GANTT_CONSUMER'] == build.consumer
    assert json.loads(seen['GANTT_RESOURCES']) == {'VCPU': 2}
    assert json.loads(seen['GANTT_LAYOUT']) == {'cells': [1]}
    assert json.loads(seen['GANTT_GUEST']) == {'image': 'x y'}


def test_what_is_listed_is_what_runs(tmp_path):
    guest, other = new_uuid(), new_uuid()
    claim = new_uuid()
    script = a_script(
        tmp_path,
        f"""echo '{{"consumer": "{guest}", "claim": "{claim}", "resources": {{"VCPU": 1}}}}'
        echo
        echo '{{"consumer": "{other}"}}'""",
    )
    assert a_driver(tmp_path, guest_list_command=script).guests() == [
        RunningGuest(consumer=guest, claim_id=claim, resources={'VCPU': 1}),
        RunningGuest(consumer=other),
    ]
    assert a_driver(tmp_path).guests() is None


@pytest.mark.parametrize(
    ('output', 'problem'),
    [
        ('not json', 'line 1 of guest_list_command: not valid JSON'),
        ('{"consumer": "x"}', 'line 1 of guest_list_command.consumer'),
        ('{"claim": null}', 'consumer: required field is missing'),
    ],
)
def test_a_list_that_cannot_be_read_is_no_empty_list(tmp_path, output, problem):
    script = a_script(tmp_path, f"echo '{output}'")
    with pytest.raises(GuestError, match=problem):
        a_driver(tmp_path, guest_list_command=script).guests()


def test_a_command_that_fails_says_why(tmp_path):
    script = a_script(tmp_path, 'echo no room on the rack >&2; exit 3')
    with pytest.raises(GuestError, match='ended with 3: no room on the rack'):
        a_driver(tmp_path, guest_start_command=script).start(a_build())
    with pytest.raises(GuestError, match='nowhere: No such file'):
        a_driver(tmp_path, guest_start_command='/nowhere').start(a_build())


def is_running(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().split()[2] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(tmp_path):
    script = a_script(tmp_path, f'sleep 30 & echo $! > {tmp_path}/child; wait')
    driver = a_driver(tmp_path, guest_start_command=script, guest_command_seconds=0.5)
    with pytest.raises(GuestError, match='was not started within'):
        driver.start(a_build())
    child = int((tmp_path / 'child').read_text())
    for _ in range(200):
        # A killed process may be on its way out for a moment yet.
        if not is_running(child):
            return
        time.sleep(0.05)
    pytest.fail('its child still runs')


def test_a_guest_that_stays_in_the_background_does_not_hold_its_start_up(tmp_path):
    script = a_script(tmp_path, f'sleep 5 & echo $! > {tmp_path}/child')
    driver = a_driver(tmp_path, guest_start_command=script, guest_command_seconds=2.0)
    driver.start(a_build())
    os.kill(int((tmp_path / 'child').read_text()), 9)


def test_a_command_line_that_cannot_be_split_is_refused(tmp_path):
    with pytest.raises(exceptions.Misconfigured, match='guest_stop_command: .*No closing quot'):
        a_driver(tmp_path, guest_stop_command="stop 'it")
