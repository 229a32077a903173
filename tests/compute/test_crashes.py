# SPDX-License-Identifier: Apache-2.0
"""An agent that ends anywhere, and the next one that takes over its journal.

Whatever the moment: no guest starts without permission, none twice, none runs
without a claim, and no claim is left behind.
"""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gantt.compute.agent.journal import FINISHED, SqliteJournal
from gantt.compute.ports import GuestError
from tests.compute.hosts_in_memory import HostsInMemory, House, a_delete, new_uuid


class Crash(BaseException):
    """The process ends here."""


class Fuse:
    """Ends the process at the n-th effect, before or after it happens."""

    def __init__(self, after: int, *, late: bool) -> None:
        self.left = after
        self.late = late

    def around(self, act):
        def acting(*args, **kwargs):
            if self.left < 0:
                raise Crash  # a process that ended does nothing any more
            self.left -= 1
            if self.left < 0 and not self.late:
                raise Crash
            result = act(*args, **kwargs)
            if self.left < 0:
                raise Crash
            return result

        return acting

    def wire(self, house: House) -> None:
        """Every effect of an agent, and every write to its journal, goes through the fuse."""
        agent = house.agent
        for owner, names in (
            (house.journal, ('add', 'note_query', 'change_state')),
            (_Copy.of(agent, '_driver'), ('start', 'stop')),
            (_Copy.of(agent._session, 'port'), ('confirm', 'refuse', 'release')),
        ):
            for name in names:
                setattr(owner, name, self.around(getattr(owner, name)))


class _Copy:
    """Passes everything on; its methods can be replaced for one agent alone."""

    def __init__(self, real) -> None:
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    @classmethod
    def of(cls, owner, field):
        wrapper = cls(getattr(owner, field))
        setattr(owner, field, wrapper)
        return wrapper


def _after_the_crash(
    memory_hosts: HostsInMemory, house: House, builds, *, lists: bool = True
) -> None:
    """The next agent: recover, report, go on; then the messages come again."""
    house.machine.lists = lists
    house.boot()
    for _ in range(3):
        house.member.turn()
        house.agent.resume()
    for build in builds:
        house.agent.build(build)
    house.member.turn()
    machine = house.machine
    assert machine.without_permission == []
    assert len(machine.starts) == len(set(machine.starts)), 'a claim was started twice'
    assert {g.consumer for g in machine.running.values()} == memory_hosts.live('cmp-1')
    assert memory_hosts.adopted() == []
    # What is neither running nor over would be a leak once its lease is out.
    memory_hosts.clock.advance(200)
    memory_hosts.store.claims.sweep(100)
    house.member.turn()
    for build in builds:
        runs = build.claim_id in machine.running
        assert (memory_hosts.state(build) == 'confirmed') is runs
    memory_hosts.audit()


def _fuses():
    for late in (False, True):
        for after in range(12):
            yield pytest.param(after, late, id=f'{"after" if late else "before"}-effect-{after}')


def test_a_build_that_comes_again_while_its_guest_is_stopped_starts_nothing(memory_hosts, house):
    """Also where the journal that would have known it was lost."""
    assert house.agent.build(build := memory_hosts.claim('cmp-1')).outcome == 'running'
    house.path = house.path.with_name('another.journal')
    house.boot()
    house.member.session.register()
    stop, again = house.machine.stop, []

    def stopping(guest):
        # It waits until this agent knows what runs here.
        again.append(ThreadPoolExecutor(1).submit(house.agent.build, build))
        stop(guest)

    house.machine.stop = stopping
    assert house.agent.delete(a_delete(build)).outcome == 'deleted'
    assert not again[0].done()
    house.member.turn()
    assert again[0].result(10).outcome == 'finished'
    assert not house.machine.running
    assert memory_hosts.state(build) == 'released'
    assert house.agent.build(build).outcome == 'finished'


def test_a_build_that_comes_again_before_the_machine_can_be_asked_starts_nothing(
    memory_hosts, house
):
    """A journal that was lost, and guests that cannot be listed at first."""
    assert house.agent.build(build := memory_hosts.claim('cmp-1')).outcome == 'running'
    house.path = house.path.with_name('another.journal')
    house.boot()
    guests, calls = house.machine.guests, itertools.count()

    def once_not():
        if next(calls) == 0:
            raise GuestError(consumer='-', problem='cannot be listed now')
        return guests()

    house.machine.guests = once_not
    house.member.turn()
    again = ThreadPoolExecutor(1).submit(house.agent.build, build)
    time.sleep(0.2)
    assert not again.done()
    house.member.turn()
    assert again.result(10).outcome == 'running'
    assert list(house.machine.running) == [build.claim_id]


def test_the_rest_of_a_crash_is_given_back_though_its_build_comes_again(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')

    def crash(build):
        raise Crash

    start, house.machine.start = house.machine.start, crash
    with pytest.raises(Crash):
        house.agent.build(build)
    house.machine.start = start
    house.boot()
    # The build is at work on the claim when the journal is put straight.
    with house.agent._exclusively(build.claim_id):
        house.member.turn()
    assert memory_hosts.state(build) == 'released'
    assert house.agent.build(build).outcome == 'finished'


def test_what_is_being_built_now_is_not_taken_for_the_rest_of_a_crash(memory_hosts, house):
    """Builds arrive while the journal is still being put straight."""
    house.member.turn()
    start = house.machine.start

    def starting(build):
        house.agent.recover()
        start(build)

    house.machine.start = starting
    assert house.agent.build(build := memory_hosts.claim('cmp-1')).outcome == 'running'
    assert memory_hosts.state(build) == 'confirmed'
    assert not house.machine.without_permission


@pytest.mark.parametrize('lists', [True, False], ids=['listed', 'unlisted'])
@pytest.mark.parametrize(('after', 'late'), list(_fuses()))
def test_a_build_may_be_cut_off_anywhere(memory_hosts, house, after, late, lists):
    build = memory_hosts.claim('cmp-1')
    house.machine.lists = lists
    Fuse(after, late=late).wire(house)
    with contextlib.suppress(Crash):
        house.agent.build(build)
    _after_the_crash(memory_hosts, house, [build], lists=lists)


@pytest.mark.parametrize('lists', [True, False], ids=['listed', 'unlisted'])
@pytest.mark.parametrize(('after', 'late'), list(_fuses()))
def test_a_delete_may_be_cut_off_anywhere(memory_hosts, house, after, late, lists):
    build = memory_hosts.claim('cmp-1')
    house.machine.lists = lists
    house.agent.build(build)
    Fuse(after, late=late).wire(house)
    with contextlib.suppress(Crash):
        house.agent.delete(a_delete(build))
    _after_the_crash(memory_hosts, house, [build], lists=lists)


@pytest.mark.parametrize(('after', 'late'), list(_fuses()))
def test_a_refusal_may_be_cut_off_anywhere(memory_hosts, house, after, late):
    build = memory_hosts.claim('cmp-1')
    house.machine.foreign = {'VCPU': 8}
    Fuse(after, late=late).wire(house)
    with contextlib.suppress(Crash):
        house.agent.build(build)
    house.machine.foreign = {}
    _after_the_crash(memory_hosts, house, [build])


@pytest.mark.parametrize(('after', 'late'), list(_fuses()))
def test_a_start_that_fails_may_be_cut_off_anywhere(memory_hosts, house, after, late):
    build = memory_hosts.claim('cmp-1')
    house.machine.broken = 'start'
    Fuse(after, late=late).wire(house)
    with contextlib.suppress(Crash):
        house.agent.build(build)
    house.machine.broken = ''
    _after_the_crash(memory_hosts, house, [build])


def test_every_step_of_a_build_is_under_the_fuse(memory_hosts, house):
    """The tests above cut off at every effect only if there are no more than twelve."""
    build = memory_hosts.claim('cmp-1')
    fuse = Fuse(1000, late=False)
    fuse.wire(house)
    house.agent.build(build)
    house.agent.delete(a_delete(build))
    assert 8 <= 1000 - fuse.left <= 2 * 12


def test_a_disk_that_is_lost_while_guests_live_starts_nothing_again(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    house.journal.close()
    house.path.unlink()
    house.journal = None
    _after_the_crash(memory_hosts, house, [build])
    assert house.machine.starts == [build.claim_id]
    assert house.agent.delete(a_delete(build)).outcome == 'deleted'
    assert memory_hosts.state(build) == 'released'


def test_a_machine_that_lost_everything_gives_all_its_claims_back(memory_hosts, house):
    builds = [memory_hosts.claim('cmp-1') for _ in range(3)]
    for build in builds:
        house.agent.build(build)
    house.machine.running.clear()
    house.journal.close()
    house.path.unlink()
    house.journal = None
    house.boot()
    house.member.turn()
    assert [memory_hosts.state(b) for b in builds] == ['released'] * 3
    memory_hosts.audit()


# -- a real process, really killed ------------------------------------------------------

AGENT = """
    import sys, pathlib, random, types
    from gantt.compute.drivers.this_machine import StartLocks
    from gantt.compute.drivers.this_machine import ThisMachine
    from gantt.compute.agent.journal import SqliteJournal
    from gantt.compute.agent.host_agent import HostAgentSettings, with_agent
    from gantt.core.messages.build import Build
    from gantt.core.messages.report import Registered, RegisterHost
    import msgspec
    folder = pathlib.Path(sys.argv[1])
    build = msgspec.json.decode((folder / 'build.json').read_bytes(), type=Build)
    conf = types.SimpleNamespace(**msgspec.json.decode((folder / 'conf.json').read_bytes()))

    class Port:
        def register(self, message):
            return Registered(name=message.name, uuid=build.claim_id, epoch=1, incarnation=1,
                              report_seconds=60)
        def report(self, report):
            return 'applied'
        def confirm(self, words):
            with (folder / 'confirmed').open('a') as f:
                f.write('.')
            return {c: 'ok' for c in words.claim_ids}
        def refuse(self, words):
            return {}
        release = refuse

    journal = SqliteJournal(folder / 'journal')
    driver = ThisMachine(conf, 'cmp-1', StartLocks(folder / 'starts'))
    member = with_agent(RegisterHost(name='cmp-1', boot_nonce='-'), Port(), driver, journal,
                        HostAgentSettings(), random.Random(1))
    member.turn()
    print('recovered', flush=True)
    print(member.agent.build(build).outcome, flush=True)
"""

#: Starts slowly; each start leaves a line, so that two of them would show.
START = """#!/bin/sh
sleep "$2"
echo "$GANTT_CLAIM" >> "$1/started"
printf '{"consumer": "%s", "claim": "%s", "resources": %s}\\n' \\
    "$GANTT_CONSUMER" "$GANTT_CLAIM" "$GANTT_RESOURCES" > "$1/guests/$GANTT_CLAIM"
"""
STOP = """#!/bin/sh
rm -f "$1/guests/$GANTT_CLAIM"
"""
LIST = """#!/bin/sh
cat "$1"/guests/* 2>/dev/null || true
"""


@pytest.fixture
def workshop(tmp_path):
    """A folder with guest commands, a build, and a program that is an agent."""
    (tmp_path / 'guests').mkdir()
    for name, text in (('start', START), ('stop', STOP), ('list', LIST)):
        path = tmp_path / f'{name}.sh'
        path.write_text(text)
        path.chmod(0o755)
    build = {
        'claim_id': new_uuid(),
        'consumer': new_uuid(),
        'host': 'cmp-1',
        'resources': {'VCPU': 1},
        'lease_seconds': 60,
    }
    (tmp_path / 'build.json').write_text(json.dumps(build))
    from gantt.conf import compute

    conf = {option.dest: option.default for option in compute.OPTS}
    conf |= {
        'guest_start_command': f'{tmp_path}/start.sh {tmp_path} 0.6',
        'guest_stop_command': f'{tmp_path}/stop.sh {tmp_path}',
        'guest_list_command': f'{tmp_path}/list.sh {tmp_path}',
    }
    (tmp_path / 'conf.json').write_text(json.dumps(conf))
    (tmp_path / 'agent.py').write_text(textwrap.dedent(AGENT))
    return tmp_path


def _agent(folder: pathlib.Path) -> 'subprocess.Popen[str]':
    root = pathlib.Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, str(folder / 'agent.py'), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {'PYTHONPATH': str(root)},
    )


def _wait_for(seen, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, 'it did not happen'
        time.sleep(0.005)


@pytest.mark.parametrize('delay', [0.0, 0.02, 0.3, 0.8])
def test_kill_9_in_the_middle_of_a_start(workshop, delay):
    """The start command outlives its agent; the next agent waits for its end."""
    first = _agent(workshop)
    _wait_for((workshop / 'confirmed').exists)
    time.sleep(delay)
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    first.stdout.close()
    second = _agent(workshop)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    claim = json.loads((workshop / 'build.json').read_text())['claim_id']
    started = workshop / 'started'
    starts = started.read_text().split() if started.exists() else []
    assert starts in ([], [claim]), 'it was started twice'
    time.sleep(0.7)  # nothing may come up later either
    running = [path.name for path in (workshop / 'guests').iterdir()]
    journal = SqliteJournal(workshop / 'journal')
    entry = journal.get(claim)
    journal.close()
    printed_state = output.split()[-1]
    if running:
        assert (printed_state, entry.state) == ('running', 'running')
        assert starts == [claim]
    else:
        assert (printed_state, entry.state) == ('finished', FINISHED)


def test_two_agents_cannot_share_a_journal(memory_hosts, house, tmp_path):
    from gantt import exceptions

    with pytest.raises(exceptions.Misconfigured, match='another agent is using it'):
        SqliteJournal(house.path)
