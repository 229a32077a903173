# SPDX-License-Identifier: Apache-2.0
"""What an agent next to nova-compute reads: cells with what guests have, devices, metrics."""

import json
import os
import subprocess
import sys

import pytest
from msgspec import UNSET

from gantt import exceptions
from gantt.compute.drivers.machine import Machine
from gantt.compute.drivers.qemu import Qemu
from gantt.core.messages import report as reports
from gantt.core.messages.report import NumaCell
from tests.compute.box import DEDICATED, Box
from tests.compute.hosts_in_memory import new_uuid


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path / 'root')


def used(seen):
    """By cell: pinned processors, shared ones, MiB, large pages."""
    return [
        (cell.used_pinned_cpus, cell.cpu_used, cell.memory_used_mb, large_pages_used(cell))
        for cell in seen.numa
    ]


def large_pages_used(cell):
    return next(pages.used for pages in cell.pages if pages.size_kb == 2048)


EMPTY = ([], 0, 0, 0)


# -- guests by their processes ---------------------------------------------------------------
@pytest.mark.parametrize('as_json', [True, False], ids=['json', 'plain'])
def test_pinned_processors_and_bound_memory_are_seen(box, as_json):
    guests = sorted(new_uuid() for _ in range(3))
    box.guest(guests[0], {0: 2, 1: 3}, as_json=as_json)
    box.guest(guests[1], {0: 10}, cell=1, floating=2, memory_mb=512, as_json=as_json)
    box.guest(guests[2], {0: 4}, cell=0, memory_mb=256, large=True, as_json=as_json)
    seen = box.machine().read()
    assert seen.guests == guests
    assert used(seen) == [([2, 3, 4], 0, 1024, 128), ([10], 2, 512, 0)]
    assert [cell.pinned_cpus for cell in seen.numa] == [[2, 3, 4, 5, 6, 7], [*range(10, 16)]]
    reports.check_topology_report(seen.numa, seen.devices, 'told')


def test_a_guest_without_cells_of_its_own_is_on_none(box):
    guest = new_uuid()
    box.guest(guest, cell=None, floating=4)
    seen = box.machine().read()
    assert seen.guests == [guest]
    assert used(seen) == [EMPTY, EMPTY]


def test_threads_of_the_emulator_that_have_a_processor_of_their_own_count(box):
    box.guest(new_uuid(), {0: 2, 1: 3}, emulator='2-3')  # where the guest is: none beside it
    assert used(box.machine().read())[0][0] == [2, 3]
    box.guest(new_uuid(), {0: 4}, emulator='5')
    assert used(box.machine().read())[0][0] == [2, 3, 4, 5]


def test_a_guest_that_is_just_being_started_is_not_seen_before_it_is_pinned(box):
    guest = new_uuid()
    box.guest(guest, {0: 2, 1: 3})
    second = next(box.root.glob('proc/1001/task/201001'))
    status = (second / 'status').read_text()
    (second / 'status').write_text('Cpus_allowed_list:\t0-15\n')
    assert (seen := box.machine().read()).guests == []
    assert used(seen) == [EMPTY, EMPTY]
    (second / 'status').write_text(status)
    assert box.machine().read().guests == [guest]


def test_who_has_ended_and_what_is_no_guest_is_not_seen(box):
    pid = box.guest(new_uuid(), {0: 2})
    box.write('proc/4000/cmdline', 'vim\0-uuid\0x\0')
    box.write('proc/4001/cmdline', '/usr/bin/qemu-img\0convert\0')
    box.write('proc/4002/cmdline', f'/usr/bin/qemu-system-x86_64\0-uuid\0{new_uuid()}\0')
    box.ends(pid)
    seen = box.machine().read()
    assert (seen.guests, used(seen)) == ([], [EMPTY, EMPTY])


def test_where_processes_are_hidden_no_cell_is_said_to_be_empty(box, caplog):
    box.guest(new_uuid(), {0: 2})
    (box.root / 'proc/1/cmdline').unlink()
    (box.root / 'proc/1').rmdir()
    machine = box.machine()
    seen = machine.read()
    assert (seen.guests, seen.numa, seen.devices) == (None, UNSET, UNSET)
    assert seen.metrics['load_1m'].value == 1.5
    machine.read()
    assert caplog.text.count('processes of others cannot be seen') == 1


GUEST = """
import os, sys, threading, time
def vcpu(number, cpu):
    tid = threading.get_native_id()
    open(f'/proc/self/task/{tid}/comm', 'w').write(f'CPU {number}/KVM')
    os.sched_setaffinity(tid, {cpu})
    ready.release()
    time.sleep(60)
ready = threading.Semaphore(0)
for number, cpu in enumerate(sorted(os.sched_getaffinity(0))[:2]):
    threading.Thread(target=vcpu, args=(number, cpu), daemon=True).start()
    ready.acquire()
print('ready', flush=True)
time.sleep(60)
"""


def test_a_process_of_this_very_machine_is_seen_as_it_runs():
    cpus = sorted(os.sched_getaffinity(0))[:2]
    guest = new_uuid()
    process = subprocess.Popen(
        ['qemu-system-x86_64', '-c', GUEST, '-uuid', guest],
        executable=sys.executable,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b'ready\n'
        (cell,) = Machine().cells()[:1]
        numa = [NumaCell(id=cell.id, pinned_cpus=cpus)]
        qemu = Qemu(executables=[os.path.realpath(sys.executable)], users=[str(os.getuid())])
        (guest_seen,) = [seen for seen in qemu.guests(numa) if seen.consumer == guest]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert [pin for cell in guest_seen.cells for pin in cell.pins] == list(enumerate(cpus))


# -- guests by a command -----------------------------------------------------------------------
def test_a_command_tells_of_guests_that_are_shut_off_too(box, tmp_path):
    guest = new_uuid()
    description = {
        'consumer': guest,
        'devices': ['0000:3b:00.0'],
        'cells': [
            {
                'cell': 1,
                'memory_mb': 512,
                'page_kb': 2048,
                'vcpus': [0, 1, 2],
                'pins': [[0, 10], [1, 12]],
                'blocked': [11, 13],
            }
        ],
    }
    script = tmp_path / 'list.sh'
    script.write_text(f"#!/bin/sh\necho '{json.dumps(description)}'\n")
    script.chmod(0o755)
    box.device('0000:3b:00.0')
    spec = ['{"vendor_id": "10de"}']
    machine = box.machine(guest_list_command=str(script), device_spec=spec)
    seen = machine.read()
    assert seen.guests == [guest]
    assert used(seen) == [EMPTY, ([10, 11, 12, 13], 1, 0, 256)]
    assert [(pool.count, pool.free) for pool in seen.devices] == [(1, 0)]
    script.write_text('#!/bin/sh\nexit 3\n')
    assert machine.read().numa is UNSET


# -- devices -------------------------------------------------------------------------------------
NIC = {'vendor': '8086', 'cell': 1}
SPECS = [
    '{"vendor_id": "10DE", "product_id": "1eb8"}',
    '[{"address": "*:05:*.*", "physical_network": "net1", "trusted": true}]',
]


@pytest.fixture
def devices(box):
    box.device('0000:3b:00.0', cell=0)
    box.device('0000:3c:00.0', cell=0)
    box.device('0000:02:00.0', vendor='1234')
    box.device('0000:05:00.0', product='1572', virtual=4, **NIC)
    for number in range(2):
        box.device(f'0000:05:02.{number}', product='154c', physical='0000:05:00.0', **NIC)
    return box


def pools_of(seen):
    return {(pool.tags['dev_type'], pool.address): (pool.count, pool.free) for pool in seen.devices}


def test_devices_for_guests_are_in_pools_as_those_of_nova(devices):
    seen = devices.machine(device_spec=SPECS).read()
    assert pools_of(seen) == {
        ('type-PCI', '0000:3b:00.0'): (1, 1),
        ('type-PCI', '0000:3c:00.0'): (1, 1),
        ('type-PF', '0000:05:00.0'): (1, 1),
        ('type-VF', '0000:05:00.0'): (2, 2),
    }
    (virtual,) = [pool for pool in seen.devices if pool.tags['dev_type'] == 'type-VF']
    assert (virtual.vendor_id, virtual.product_id, virtual.numa_node) == ('8086', '154c', 1)
    assert virtual.tags == {
        'dev_type': 'type-VF',
        'physical_network': 'net1',
        'trusted': 'true',
        'remote_managed': 'false',
    }


@pytest.mark.parametrize(
    ('taken', 'free'),
    [
        pytest.param('0000:3b:00.0', {'0000:3b:00.0': 0, 'type-PF': 1, 'type-VF': 2}, id='plain'),
        pytest.param('0000:05:02.1', {'0000:3b:00.0': 1, 'type-PF': 0, 'type-VF': 1}, id='virtual'),
        pytest.param(
            '0000:05:00.0', {'0000:3b:00.0': 1, 'type-PF': 0, 'type-VF': 0}, id='physical'
        ),
    ],
)
@pytest.mark.parametrize('as_json', [True, False], ids=['json', 'plain'])
def test_a_device_that_a_guest_has_is_not_free(devices, taken, free, as_json):
    devices.guest(new_uuid(), {0: 2}, devices=(taken,), as_json=as_json)
    pools = pools_of(devices.machine(device_spec=SPECS).read())
    assert pools['type-PCI', '0000:3b:00.0'][1] == free['0000:3b:00.0']
    for kind in ('type-PF', 'type-VF'):
        assert pools[kind, '0000:05:00.0'][1] == free[kind]


def test_an_interface_with_a_macvtap_on_it_is_not_free(devices):
    devices.write('sys/bus/pci/devices/0000:05:02.0/net/eth7/upper_macvtap0', '')
    pools = pools_of(devices.machine(device_spec=SPECS).read())
    assert (pools['type-VF', '0000:05:00.0'], pools['type-PF', '0000:05:00.0']) == ((2, 1), (1, 0))


@pytest.mark.parametrize(
    ('spec', 'expected'),
    [
        pytest.param('{', 'no JSON', id='no-json'),
        pytest.param('3', 'expected an object', id='number'),
        pytest.param('{"devname": "eth0"}', 'devname', id='devname'),
        pytest.param('{"address": "05:00"}', 'no address', id='address'),
        pytest.param('{"address": {"bus": "5"}}', 'address: expected text', id='regex'),
    ],
)
def test_a_device_spec_that_is_not_understood_is_refused(box, spec, expected):
    with pytest.raises(exceptions.Misconfigured, match=r'\[compute\] device_spec') as caught:
        box.machine(device_spec=[spec])
    assert expected in str(caught.value)


# -- options -------------------------------------------------------------------------------------
def test_shared_processors_are_those_that_are_named(box):
    seen = box.machine(shared_cpus='1,8-9').read()
    assert [cell.cpus for cell in seen.numa] == [[1], [8, 9]]
    with pytest.raises(exceptions.Misconfigured, match='processor 2 is in dedicated_cpus'):
        box.machine(shared_cpus='1-2', dedicated_cpus=DEDICATED)
    with pytest.raises(exceptions.Misconfigured, match=r'\[compute\] shared_cpus'):
        box.machine(shared_cpus='99')
