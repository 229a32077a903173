# SPDX-License-Identifier: Apache-2.0
"""The jobs of a scheduler: a job that did as much as it may runs again soon."""

import logging

from gantt.scheduler import housekeeping
from tests.world import World


def runs(world: World, name: str, seconds: float) -> int:
    """How often a job runs within so many seconds."""
    keeper = world.scheduler.housekeeping
    (job,) = (job for job in keeper._jobs if job.name == name)
    count, run = 0, job.run

    def counted():
        nonlocal count
        count += 1
        return run()

    job.run, job.due = counted, 0.0
    for _ in range(int(seconds / 0.1)):
        keeper.step()
        world.clock.advance(0.1)
    return count


def test_a_purge_that_is_behind_hurries(monkeypatch):
    world = World(hosts=2)
    monkeypatch.setattr(world.store.retention, 'purge', lambda **bounds: bounds['limit'])
    assert runs(world, 'purge', 3.0) >= 3.0 / housekeeping.RERUN_SECONDS / 2


def test_a_purge_with_little_to_do_waits_its_period(monkeypatch):
    world = World(hosts=2)
    monkeypatch.setattr(world.store.retention, 'purge', lambda **bounds: bounds['limit'] - 1)
    assert runs(world, 'purge', 3.0) == 1


def test_a_sweep_that_is_behind_hurries(monkeypatch):
    world = World(hosts=2, sweep_rows=5)
    monkeypatch.setattr(world.scheduler.claims, 'sweep', lambda: 5)
    (job,) = (job for job in world.scheduler.housekeeping._jobs if job.name == 'sweep')
    job.run = world.scheduler.claims.sweep
    assert runs(world, 'sweep', 3.0) >= 3.0 / housekeeping.RERUN_SECONDS / 2


def test_hosts_that_fall_silent_are_told_once_and_so_is_their_return(caplog):
    caplog.set_level(logging.INFO, 'gantt.scheduler.housekeeping')
    world = World(hosts=5)
    world.turn(10)
    assert caplog.messages == []
    world.clock.advance(175)
    for name in ('cmp-2', 'cmp-4', 'cmp-5'):
        world.hosts[name].report()
    world.turn(10, times=3)
    assert caplog.messages == [
        'Hosts have not reported: count=2 total=5 seconds=180 hosts=cmp-1,cmp-3'
    ]
    for host in world.hosts.values():
        host.report()
    world.turn(10, times=3)
    assert caplog.messages[1:] == ['All hosts report again: hosts=5']
