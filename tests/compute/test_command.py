# SPDX-License-Identifier: Apache-2.0
"""gantt-compute as a process: what it refuses, how it ends, and a host for real."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from devel.doubles import MemoryRecorder
from gantt import client, exceptions, plugin_loader
from gantt.client.hosts import topic_of
from gantt.scheduler import settings as scheduler_settings
from gantt.scheduler.service import Scheduler
from tests.compute.hosts_in_memory import HostsInMemory, a_delete
from tests.compute.test_crashes import LIST, START, STOP
from tests.compute.test_farm import until
from tests.rpc.bus import Bus

ROOT = pathlib.Path(__file__).parents[2]
NOWHERE = 'rabbit://guest:guest@127.0.0.1:1/'


class Command:
    """gantt-compute with a configuration file of its own."""

    def __init__(self, folder: pathlib.Path, url: str, **options: object) -> None:
        self.log = folder / 'log'
        self.config = folder / 'gantt.conf'
        lines = [
            '[DEFAULT]',
            f'transport_url = {url}',
            f'state_path = {folder}/state',
            'host = cmp-1',
            '[rpc]',
            'start_wait_seconds = 0',
            '[compute]',
            f'disk_path = {folder}',
            'change_report_seconds = 0.1',
        ]
        lines += [f'{name} = {value}' for name, value in options.items()]
        self.config.write_text('\n'.join(lines) + '\n')

    def start(self, *words: str) -> 'subprocess.Popen[bytes]':
        with self.log.open('ab') as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    '-m',
                    'gantt.cmd.compute',
                    '--config-file',
                    str(self.config),
                    *words,
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {'PYTHONWARNINGS': 'ignore'},
            )

    def fails(self, *words: str, code: int = 1) -> str:
        """Run it to its end, which must be this exit code; what it said last."""
        assert self.start(*words).wait(60) == code, self.log.read_text()
        return self.log.read_text().strip().splitlines()[-1]

    def says(self, text: str) -> bool:
        return text in self.log.read_text()


def test_a_broker_that_is_away_is_named(tmp_path):
    problem = Command(tmp_path, NOWHERE).fails()
    assert problem.startswith(
        'gantt-compute: the message broker at rabbit://guest:***@127.0.0.1:1/'
    )


def test_a_wrong_file_or_option_is_named_before_anything_starts(tmp_path):
    shapes = tmp_path / 'shapes.yaml'
    shapes.write_text('shapes: [{vcpu: 1}]')
    problem = Command(tmp_path, NOWHERE).fails('--fake', '3', '--shapes', str(shapes))
    assert (
        problem == f"gantt-compute: {shapes}.shapes[0].vcpu: unknown field; did you mean 'vcpus'?"
    )
    problem = Command(tmp_path, NOWHERE).fails('--report-only', str(tmp_path / 'none'))
    assert '--report-only: ' in problem
    problem = Command(tmp_path, NOWHERE).fails('--fake', '3', '--report-only', 'x')
    assert 'a farm speaks for its own hosts only' in problem
    problem = Command(tmp_path, NOWHERE, dedicated_cpus='9999').fails()
    assert '[compute] dedicated_cpus' in problem
    assert '--fake' in Command(tmp_path, NOWHERE).fails('--fake', '0', code=64)


@pytest.fixture
def bus(rabbit_url):
    """A scheduler over RabbitMQ, and what it knows."""
    memory_hosts = HostsInMemory()
    scheduler = Scheduler(
        memory_hosts.store,
        plugin_loader.load_pipeline(),
        MemoryRecorder(),
        scheduler_settings.SchedulerSettings(worker='worker-1', report_seconds=5),
    )
    scheduler.start()
    new_bus = Bus(rabbit_url, facade=scheduler)
    new_bus.town = memory_hosts
    yield new_bus
    new_bus.stop()
    scheduler.stop(5)
    new_bus.close()


@pytest.mark.rabbit
def test_a_real_host_builds_survives_kill_9_and_deletes(bus, rabbit_url, tmp_path):
    memory_hosts = bus.town
    (tmp_path / 'guests').mkdir()
    options = {}
    for name, text in (('start', START), ('stop', STOP), ('list', LIST)):
        path = tmp_path / f'{name}.sh'
        path.write_text(text)
        path.chmod(0o755)
        options[f'guest_{name}_command'] = f'{path} {tmp_path} 0'
    command = Command(tmp_path, rabbit_url, **options)
    conductor = client.ComputeClient(bus.carrier(), timeout=20.0)

    def reported(epoch):
        rows = [c.row for c in memory_hosts.store.feed.load_everything().hosts]
        return rows and rows[0].epoch == epoch and rows[0].full_sequence

    first = command.start()
    until(lambda: reported(1), 60)
    build = memory_hosts.claim('cmp-1', VCPU=1, MEMORY_MB=64)
    topic = topic_of('cmp-1')
    assert conductor.build(topic, build, wait=True)['outcome'] == 'running'
    assert memory_hosts.state(build) == 'confirmed'
    guest = json.loads((tmp_path / 'guests' / build.claim_id).read_text())
    assert guest['consumer'] == build.consumer

    first.send_signal(signal.SIGKILL)
    first.wait(10)
    second = command.start()
    until(lambda: reported(2), 60)
    assert memory_hosts.state(build) == 'confirmed'
    assert conductor.build(topic, build, wait=True)['outcome'] == 'running'
    assert (tmp_path / 'started').read_text().split() == [build.claim_id]

    assert conductor.delete(topic, a_delete(build), wait=True)['outcome'] == 'deleted'
    assert memory_hosts.state(build) == 'released'
    assert not list((tmp_path / 'guests').iterdir())

    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 0, command.log.read_text()
    with pytest.raises(exceptions.Unavailable):
        client.ComputeClient(bus.carrier(), timeout=2.0).build(topic, build, wait=True)
    memory_hosts.audit()
    assert memory_hosts.adopted() == []


@pytest.mark.rabbit
def test_a_farm_obeys_signals_and_drains(bus, rabbit_url, tmp_path):
    command = Command(tmp_path, rabbit_url)
    farm = command.start('--fake', '20', '--seed', '3', '--name', 'farm-of-signals')
    until(lambda: command.says('is ready'), 60)
    until(lambda: len(bus.town.store.feed.load_everything().hosts) == 20, 60)
    farm.send_signal(signal.SIGUSR1)
    until(lambda: command.says("'do': 'die', 'count': 2"), 20)
    farm.send_signal(signal.SIGUSR2)
    until(lambda: command.says("'do': 'revive', 'count': 2"), 20)
    until(lambda: sum(c.row.epoch for c in bus.town.store.feed.load_everything().hosts) == 22, 60)
    farm.send_signal(signal.SIGTERM)
    assert farm.wait(60) == 0, command.log.read_text()
