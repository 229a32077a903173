# SPDX-License-Identifier: Apache-2.0
"""A compute host with hostile users on it: what they start, and what they may read."""

import json
import logging
import os
import pathlib
import stat
import subprocess
import sys
import threading
import time

import pytest
from msgspec import UNSET

from devel.doubles import ManualClock
from gantt.compute.agent.agent import AgentSettings, Trust
from gantt.compute.agent.journal import PENDING, Journal, JournalEntry, SqliteJournal
from gantt.compute.drivers.machine import parse_cpus
from gantt.compute.drivers.qemu import Qemu
from gantt.core.messages.build import Build
from tests.compute.box import Box
from tests.compute.hosts_in_memory import HostsInMemory, House, new_uuid

QEMU = '/usr/bin/qemu-system-x86_64'


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path / 'root')


# -- M6 ----------------------------------------------------------------------------------
STRANGERS = {
    'another-user': {'user': 1000},
    'another-executable': {'executable': '/tmp/qemu-system-x86_64'},
    'not-even-a-name': {'executable': '/usr/bin/sleep'},
    'with-the-rights-of-root': {'user': 0, 'real': 1000},
}


@pytest.mark.finding('M6', 'guests are what the hypervisor runs, by executable and owner')
@pytest.mark.parametrize('stranger', STRANGERS)
def test_what_a_local_user_starts_is_no_guest(box, stranger):
    guest = new_uuid()
    box.guest(guest, {0: 2})
    box.device('0000:3b:00.0')
    forged = box.guest(new_uuid(), {0: 3}, devices=('0000:3b:00.0',))
    command = (box.root / f'proc/{forged}/cmdline').read_text()
    (box.root / f'proc/{forged}/exe').unlink()
    box.process(forged, command, **STRANGERS[stranger])
    machine = box.machine(device_spec=['{"vendor_id": "10de"}'])
    for _ in range(2):
        seen = machine.read()
        assert seen.guests == [guest]
        assert [cell.used_pinned_cpus for cell in seen.numa] == [[2], []]
        assert seen.devices[0].free == 1


def denied(path):
    """As the kernel answers who is neither root nor traces others: these tests may be root."""
    raise PermissionError(13, 'Permission denied', str(path))


@pytest.mark.finding('M6', 'guests are what the hypervisor runs, by executable and owner')
def test_an_agent_that_may_not_see_executables_goes_by_owner_and_name(box):
    guest = new_uuid()
    box.guest(guest, {0: 2})
    box.process(4000, f'qemu-system-x86_64\0-uuid\0{new_uuid()}\0', user=1000)
    box.process(4001, f'qemu-system-x86_64\0-uuid\0{new_uuid()}\0', user=0, real=1000)
    box.process(4002, f'sleep\0-uuid\0{new_uuid()}\0')
    seen = Qemu(box.root, readlink=denied).guests(())
    assert [running.consumer for running in seen] == [guest]


@pytest.mark.finding('M6', 'guests are what the hypervisor runs, by executable and owner')
def test_others_may_be_named_and_who_looks_like_one_is_logged(box, caplog):
    guest = new_uuid()
    pid = box.guest(guest, {0: 2})
    (box.root / f'proc/{pid}/exe').unlink()
    command = (box.root / f'proc/{pid}/cmdline').read_text()
    box.process(pid, command, '/opt/hv/bin/hypervisor (deleted)', 4711)
    options = {'hypervisor_executables': ['/opt/hv/*'], 'hypervisor_users': ['4711', 'nobody-here']}
    assert box.machine(**options).read().guests == [guest]
    (box.root / f'proc/{pid}/exe').unlink()
    (box.root / f'proc/{pid}/exe').symlink_to(QEMU)
    machine = box.machine()
    assert [machine.read().guests for _ in range(2)] == [[], []]
    assert caplog.text.count('looks like a guest') == 1


NESTED = '{"a":' * 100_000 + '1' + '}' * 100_000
HOSTILE = {
    'nested': ('-object', NESTED),
    'not-json': ('-object', '{"qom-type": '),
    'huge-size': ('-object', f'memory-backend-ram,id=r,host-nodes=0,size={"9" * 5000}'),
    'huge-json': ('-object', '{"qom-type": "memory-backend-ram", "size": ' + '9' * 5000 + '}'),
    'huge-range': ('-object', 'memory-backend-ram,id=r,size=1024,host-nodes=0-3000000000'),
    'many-ranges': (
        '-object',
        json.dumps({'qom-type': 'memory-backend-ram', 'host-nodes': ['0-65535'] * 90}),
    ),
    'too-long': ('-name', 'x' * (1 << 21)),
}


@pytest.mark.finding('M6', 'a guest that cannot be read is named, and nothing is freed by it')
@pytest.mark.parametrize('words', HOSTILE)
def test_a_guest_that_cannot_be_read_ends_no_report(box, words, caplog):
    box.guest(new_uuid(), {0: 2})
    bad = new_uuid()
    box.process(4000, '\0'.join([QEMU, '-uuid', bad, *HOSTILE[words]]) + '\0')
    box.write('proc/4000/task/4000/comm', 'qemu-system-x86\n')
    box.write('proc/4000/task/4000/status', 'Cpus_allowed_list:\t0-1\n')
    with caplog.at_level(logging.ERROR):
        seen = box.machine().read()
    assert (seen.guests, seen.numa, seen.devices) == (None, UNSET, UNSET)  # the list is not whole
    assert seen.metrics
    assert 'process 4000' in caplog.text and len(caplog.text) < 2000


@pytest.mark.finding('M6', 'a guest that cannot be read is named, and nothing is freed by it')
def test_lists_of_processors_have_a_bound():
    assert parse_cpus('0-65535')[-1] == 65_535
    for text in ('0-65536', f'0-{10**30}', '9' * 5000, ','.join(['0-65535'] * 5)):
        with pytest.raises(ValueError):
            parse_cpus(text)


# -- M7 ----------------------------------------------------------------------------------
def rights(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def a_secret_entry():
    build = Build(
        claim_id=new_uuid(),
        consumer=new_uuid(),
        host='cmp-1',
        resources={'VCPU': 1},
        guest={'password': 'secret'},
    )
    return JournalEntry(build=build, state=PENDING)


@pytest.mark.finding('M7', 'journals and logs are private from their first byte')
def test_a_journal_is_private(tmp_path, usual_umask):
    path = tmp_path / 'compute' / 'cmp-1.journal'
    journal = SqliteJournal(path)
    journal.add(a_secret_entry())
    modes = {file.name: rights(file) for file in path.parent.iterdir()}
    assert {f'cmp-1.journal{end}' for end in ('', '-wal', '-shm', '.lock')} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert rights(path.parent) == 0o700
    journal.close()


@pytest.mark.finding('M7', 'journals and logs are private from their first byte')
def test_a_journal_of_before_is_made_private(tmp_path, usual_umask):
    path = tmp_path / 'cmp-1.journal'
    SqliteJournal(path).close()
    for end in ('', '-wal', '-shm', '.lock'):
        beside = path.with_name(f'{path.name}{end}')
        beside.touch()
        beside.chmod(0o644)
    journal = SqliteJournal(path)
    journal.add(a_secret_entry())
    assert {rights(file) for file in tmp_path.iterdir()} == {0o600}
    journal.close()


LOGS = """
import os, logging
import gantt.cmd
from oslo_config import cfg
from gantt.telemetry import log
os.umask(0o022)
conf = cfg.ConfigOpts()
log.register_opts(conf)
conf(['--log-file', {path!r}], project='gantt')
log.setup(conf, 'gantt')
logging.getLogger('x').error('one')
os.rename({path!r}, {path!r} + '.1')
(handler,) = [h for h in logging.getLogger().handlers if isinstance(h, logging.FileHandler)]
handler.stream.close()
handler.stream = handler._open()
logging.getLogger('x').error('two')
open({path!r} + '.other', 'w').close()
"""


@pytest.mark.finding('M7', 'journals and logs are private from their first byte')
def test_a_log_is_private_also_once_it_was_rotated(tmp_path):
    path = tmp_path / 'gantt.log'
    script = LOGS.format(path=str(path))
    subprocess.run([sys.executable, '-c', script], check=True, timeout=120)
    assert [rights(tmp_path / name) for name in ('gantt.log', 'gantt.log.1')] == [0o600, 0o600]
    assert rights(tmp_path / 'gantt.log.other') == 0o644  # nothing else is changed by it
    assert json.dumps(path.read_text()).count('two') == 1


OWN_LOGS = """
import os, logging
import gantt.cmd
from oslo_config import cfg
from gantt.telemetry import log
os.umask(0o022)
conf = cfg.ConfigOpts()
log.register_opts(conf)
conf(['--log-config-append', {path!r}], project='gantt')
log.setup(conf, 'gantt')
for _ in range(4):
    logging.getLogger('gantt').error('x' * 90)
"""
OWN_LOGGERS = """
[loggers]
keys = root, gantt
[handlers]
keys = file
[formatters]
keys =
[logger_root]
handlers =
[logger_gantt]
qualname = gantt
handlers = file
[handler_file]
class = handlers.RotatingFileHandler
args = ('{path}', 'a', 100, 2)
"""


@pytest.mark.finding('M7', 'journals and logs are private from their first byte')
def test_the_log_of_a_logger_of_its_own_is_private_once_it_was_rotated(tmp_path):
    path, loggers = tmp_path / 'gantt.log', tmp_path / 'logging.ini'
    loggers.write_text(OWN_LOGGERS.format(path=path))
    script = OWN_LOGS.format(path=str(loggers))
    subprocess.run([sys.executable, '-c', script], check=True, timeout=120)
    modes = {file.name: rights(file) for file in tmp_path.glob('gantt.log*')}
    assert modes == dict.fromkeys(('gantt.log', 'gantt.log.1', 'gantt.log.2'), 0o600)


AS_ROOT = """
from oslo_config import cfg
from gantt.telemetry import log
conf = cfg.ConfigOpts()
log.register_opts(conf)
conf(['--log-dir', {folder!r}, '--log-file', {name!r}], project='gantt')
log.setup(conf)
"""


@pytest.mark.finding('M7', 'a log that root begins keeps nobody out')
def test_a_log_that_root_begins_belongs_to_the_owner_of_its_directory(tmp_path):
    if os.geteuid() != 0:
        pytest.skip('NOT ROOT: only root gives a file to another user')
    os.chown(tmp_path, 65534, 65534)
    mine = tmp_path / 'mine'
    mine.touch()
    (tmp_path / 'link.log').symlink_to(mine)
    for name in ('new.log', 'link.log'):
        script = AS_ROOT.format(folder=str(tmp_path), name=name)
        subprocess.run([sys.executable, '-c', script], check=True, timeout=120)
    status = (tmp_path / 'new.log').stat()
    assert (status.st_uid, status.st_gid, rights(tmp_path / 'new.log')) == (65534, 65534, 0o600)
    assert mine.stat().st_uid == 0  # what a link names is never given away


UNITS = pathlib.Path(__file__).parents[2] / 'doc/source/install'


@pytest.mark.finding('M7', 'journals and logs are private from their first byte')
def test_units_make_private_files():
    units = sorted(UNITS.glob('*.service'))
    assert len(units) >= 5
    for unit in units:
        assert 'UMask=0077' in unit.read_text().splitlines()


# -- A5 ----------------------------------------------------------------------------------
@pytest.fixture
def memory_hosts():
    return HostsInMemory()


def build_in_thread(house, build, outcomes):
    thread = threading.Thread(target=lambda: outcomes.append(house.agent.build(build)))
    thread.start()
    return thread


def until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.finding(
    'A5', 'what became of a pending build is known before another is refused for it'
)
@pytest.mark.parametrize('cancelled', [True, False])
def test_a_build_waits_for_what_becomes_of_a_pending_one(memory_hosts, tmp_path, cancelled):
    house = House(memory_hosts, tmp_path, terms=AgentSettings(pending_seconds=20.0))
    house.member.turn()
    first = memory_hosts.claim('cmp-1', VCPU=6)
    queried, answer = threading.Event(), threading.Event()

    def hold(word, message):
        if word == 'confirm' and first.claim_id in message.claim_ids:
            queried.set()
            assert answer.wait(30)

    memory_hosts.port.before = hold
    firsts, seconds = [], []
    threads = [build_in_thread(house, first, firsts)]
    assert queried.wait(20)
    memory_hosts.cancel(first)  # its place is promised to somebody else
    second = memory_hosts.claim('cmp-1', VCPU=6)
    if not cancelled:
        # As seen from here: the first one is to start all the same.
        house.machine.foreign = {'VCPU': 2}
        second = Build(
            claim_id=second.claim_id,
            consumer=second.consumer,
            host='cmp-1',
            resources={'VCPU': 7},
            lease_seconds=120.0,
        )
    threads.append(build_in_thread(house, second, seconds))
    if cancelled:
        until(lambda: threads[1].is_alive() or seconds)
        time.sleep(0.1)
        assert not seconds  # it asks what became of the first
    answer.set()
    for thread in threads:
        thread.join(30)
    assert firsts[0].outcome == 'gone'
    assert seconds[0].outcome == ('running' if cancelled else 'refused')
    assert house.agent.disagreements == int(not cancelled)
    house.close()


@pytest.mark.finding(
    'A5', 'what became of a pending build is known before another is refused for it'
)
def test_nobody_waits_for_ever_for_a_pending_build(memory_hosts, tmp_path):
    house = House(memory_hosts, tmp_path, terms=AgentSettings(pending_seconds=0.2))
    house.member.turn()
    first = memory_hosts.claim('cmp-1', VCPU=6)
    house.journal.add(JournalEntry(build=first, state=PENDING))  # nobody works on it
    memory_hosts.cancel(first)
    second = memory_hosts.claim('cmp-1', VCPU=6)
    assert house.agent.build(second).outcome == 'refused'
    house.close()


# -- S4.15 -------------------------------------------------------------------------------
TRUSTED = AgentSettings(trusted_seconds=30 * 86_400.0, pending_seconds=0.1)


@pytest.mark.finding(
    'S4.15', 'a check that has not disagreed for long can be left out, until it does'
)
def test_a_check_is_off_once_it_has_not_disagreed_and_on_at_the_next_sign(
    memory_hosts, tmp_path, caplog
):
    caplog.set_level('INFO')
    house = House(memory_hosts, tmp_path, terms=TRUSTED)
    house.member.turn()
    assert house.agent.build(memory_hosts.claim('cmp-1')).outcome == 'running'
    memory_hosts.clock.advance(31 * 86_400.0)
    house.boot()  # the journal knows since when
    house.member.turn()
    assert memory_hosts.port.reports[-1].metrics['stats.unchecked_days'].value == 1.0
    assert 'agreed_since=2023-11-1' in caplog.text
    house.machine.foreign = {'VCPU': 5}
    assert (
        house.agent.build(memory_hosts.claim('cmp-1')).outcome == 'running'
    )  # not looked at: 9 of 8
    house.member.turn()
    assert 'Host checks builds itself again' in caplog.text
    assert 'stats.unchecked_days' not in memory_hosts.port.reports[-1].metrics
    house.machine.foreign = {}
    house.member.turn()
    build = memory_hosts.claim('cmp-1', VCPU=1)
    house.machine.foreign = {'VCPU': 6}
    assert house.agent.build(build).outcome == 'refused'
    memory_hosts.clock.advance(29 * 86_400.0)
    house.boot()
    assert not house.agent.trust.check_is_off
    house.close()


@pytest.mark.finding(
    'S4.15', 'a check that has not disagreed for long can be left out, until it does'
)
def test_a_disagreement_begins_the_time_anew_and_nothing_is_left_out_unasked(
    memory_hosts, tmp_path
):
    house = House(memory_hosts, tmp_path, terms=TRUSTED)
    house.member.turn()
    memory_hosts.clock.advance(29 * 86_400.0)
    house.machine.foreign = {'VCPU': 7}
    assert house.agent.build(memory_hosts.claim('cmp-1')).outcome == 'refused'
    memory_hosts.clock.advance(2 * 86_400.0)
    assert not house.agent.trust.check_is_off
    memory_hosts.clock.advance(29 * 86_400.0)
    assert house.agent.trust.check_is_off
    house.terms = None  # as it comes: always
    house.boot()
    assert not house.agent.trust.check_is_off
    house.close()


@pytest.mark.finding(
    'S4.15', 'a check that has not disagreed for long can be left out, until it does'
)
def test_the_time_begins_once_the_clock_is_set():
    clock = ManualClock(1000.0)  # a machine that forgets the time starts in 1970
    journal = Journal(wall=clock.wall)
    trust = Trust('cmp-1', journal, 30 * 86_400.0, clock.wall)
    assert not trust.check_is_off
    clock.advance(1_790_000_000.0)
    assert not trust.check_is_off
    assert trust.unchecked_days == 0
    clock.advance(29 * 86_400.0)
    assert not trust.check_is_off
    clock.advance(2 * 86_400.0)
    assert trust.check_is_off
