# SPDX-License-Identifier: Apache-2.0
"""Several scheduler processes under one supervisor, and options read again while they run."""

import os
import pathlib
import signal
import time

import pytest

from bench.rig import rig
from tests import warm

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]


def children(pid: int) -> set[int]:
    """Process ids of the children of a process."""
    tasks = pathlib.Path(f'/proc/{pid}/task').iterdir()
    return {int(pid) for task in tasks for pid in (task / 'children').read_text().split()}


def until(asked, event: str, seconds: float = 40.0):
    """What ``asked`` says as soon as it says something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := asked():
            return value
        time.sleep(0.1)
    raise AssertionError(f'{event} did not happen within {seconds:.0f} s')


@pytest.fixture
def two(rabbit_url, postgresql_url):
    """A ``gantt-scheduler`` of two workers."""
    with rig({'scheduler': {'workers': 2}}, kind=warm.Rig) as own_rig:
        own_rig.start('scheduler', 'gantt-scheduler')
        until(lambda: own_rig.log('scheduler').count('is ready') == 2, 'two workers are ready')
        yield own_rig


def test_a_worker_that_dies_is_started_again_and_sigterm_ends_all(two):
    parent = two.processes['scheduler']
    before = children(parent.pid)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    until(lambda: two.log('scheduler').count('is ready') == 3, 'the third start')
    after = children(parent.pid)
    assert len(after) == 2 and len(after & before) == 1
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 0
    assert not any(pathlib.Path(f'/proc/{pid}').exists() for pid in after)


def test_workers_end_where_their_supervisor_is_killed(two):
    workers = children(two.processes['scheduler'].pid)
    two.processes['scheduler'].kill()
    two.processes['scheduler'].wait(10)
    until(
        lambda: not any(pathlib.Path(f'/proc/{pid}/fd').exists() for pid in workers),
        'the end of the workers',
    )


@pytest.mark.parametrize('workers', [1, 2])
def test_options_are_read_again_at_sighup(rabbit_url, postgresql_url, workers):
    with rig({'scheduler': {'workers': workers, 'queue_limit': 99}}, kind=warm.Rig) as own_rig:
        own_rig.start('scheduler', 'gantt-scheduler')
        until(lambda: own_rig.log('scheduler').count('is ready') == workers, 'ready')
        text = own_rig.config.read_text()
        changed = text.replace('queue_limit = 99', 'queue_limit = 77')
        changed += '\n[filters]\nenabled_filters = ComputeFilter, ResourcesFilter\n'
        own_rig.config.write_text(changed)
        process = own_rig.processes['scheduler']
        process.send_signal(signal.SIGHUP)
        until(
            lambda: own_rig.log('scheduler').count('changed=queue_limit') == workers,
            'reload',
        )
        assert own_rig.log('scheduler').count('filters=ComputeFilter,ResourcesFilter') == workers
        if workers > 1:
            os.kill(min(children(process.pid)), signal.SIGKILL)
            until(lambda: own_rig.log('scheduler').count('is ready') == 3, 'the third start')
            log = own_rig.log('scheduler')
            assert log.count('filters=ComputeFilter,ResourcesFilter') == workers + 1, (
                'one that is started later begins with the options that were read last'
            )
        own_rig.config.write_text(changed.replace('ComputeFilter,', 'CompuetFilter,'))
        process.send_signal(signal.SIGHUP)
        until(
            lambda: own_rig.log('scheduler').count('Configuration is refused') == workers,
            'the refusal',
        )
        assert "did you mean 'ComputeFilter'" in own_rig.log('scheduler')
        if workers > 1:
            os.kill(max(children(process.pid)), signal.SIGKILL)
            until(lambda: own_rig.log('scheduler').count('is ready') == 4, 'the fourth start')
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
