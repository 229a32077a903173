# SPDX-License-Identifier: Apache-2.0
"""``/health`` of a scheduler process: on real servers that go away and come back."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from bench.rig import rig
from devel.doubles import MemoryRecorder
from gantt import exceptions, plugin_loader
from gantt.cmd.health import BackgroundProbe, Health
from gantt.cmd.rpc_service import rpc_service
from gantt.db.engine import retry
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import stores_for_url
from gantt.telemetry.listener import ProbeListener
from gantt.telemetry.metrics import MetricRegistry
from tests.rabbit.wire import Proxy
from tests.rpc.bus import a_conf
from tests.rpc.facade import until
from tests.world import Replies, World, a_request


def asked(port: int, path: str = '/health') -> tuple[int, dict[str, Any]]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=15) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


class Served:
    """One scheduler, both its servers behind proxies, and its listener."""

    def __init__(self, rabbit_url: str, database_url: str) -> None:
        self.broker, self.database = Proxy(rabbit_url), Proxy(database_url)
        self.store = stores_for_url(
            self.database.url, policy=retry.RetryPolicy(attempts=2, seconds=1.0)
        )
        settings = SchedulerSettings(unknown_after_seconds=3.0, feed_seconds=0.05)
        self.scheduler = Scheduler(
            self.store, plugin_loader.load_pipeline(), MemoryRecorder(), settings
        )
        conf, metrics = a_conf(self.broker.url, nova_enabled=False), MetricRegistry()
        self.rpc = rpc_service(conf, self.scheduler, count=metrics.count)
        self.health = Health(self.scheduler, self.rpc)
        self.listener = ProbeListener(MetricRegistry(), '127.0.0.1', 0, self.health)

    def start(self) -> None:
        self.scheduler.start()
        self.rpc.start()

    def close(self) -> None:
        self.listener.stop()
        self.rpc.stop(2)
        self.scheduler.stop(5)
        self.store.database.close()
        self.broker.close()
        self.database.close()

    def sick(self) -> dict[str, str]:
        """Reasons by the name of their check; empty where it is well."""
        status, body = asked(self.listener.port)
        assert status == (200 if body['healthy'] else 503)
        assert body['healthy'] == (not body['reasons']) == all(body['checks'].values())
        return dict(reason.split(': ', 1) for reason in body['reasons'])


@pytest.fixture
def served(rabbit_url, store_url) -> Iterator[Served]:
    service = Served(rabbit_url, store_url('postgresql'))
    yield service
    service.close()


@pytest.mark.rabbit
@pytest.mark.postgresql
def test_one_that_has_not_started_says_what_is_missing(served):
    assert set(served.sick()) == {'host_table', 'broker'}
    served.start()
    until(lambda: not served.sick())
    status, body = asked(served.listener.port)
    assert status == 200
    assert body['facts']['requests_waiting'] == 0
    assert body['facts']['loaded'] is True
    assert body['facts']['configuration_refused'] == ''
    assert body['facts']['calls_pending'] == 0


@pytest.mark.rabbit
@pytest.mark.postgresql
def test_a_broker_that_goes_away_and_comes_back(served):
    served.start()
    until(lambda: not served.sick())
    served.broker.cut()
    problems = until(served.sick)
    assert set(problems) == {'broker'}
    until(
        lambda: all(
            f'gantt-{t}' in served.sick().get('broker', '')
            for t in ('scheduler', 'claims', 'stats')
        )
    )
    served.broker.mend()
    until(lambda: not served.sick(), 60)


@pytest.mark.rabbit
@pytest.mark.postgresql
@pytest.mark.leaves_sockets
def test_a_database_that_goes_away_and_comes_back(served):
    served.start()
    until(lambda: not served.sick())
    served.database.cut()
    problems = until(served.sick)
    assert 'database' in problems
    problems = until(lambda: 'host_table' in (sick := served.sick()) and sick)
    # Calls are left to others sooner or later than that.
    assert {'database', 'host_table'} <= set(problems) <= {'database', 'host_table', 'calls'}
    assert problems['host_table'].endswith('3 s is too old to refuse by')
    served.database.mend()
    until(lambda: not served.sick(), 60)


@pytest.mark.rabbit
@pytest.mark.postgresql
def test_one_that_stops_is_taken_out_of_service_first(served):
    served.start()
    until(lambda: not served.sick())
    served.health.note_stopping()
    assert served.sick() == {'process': 'stopping: it takes nothing new'}


class Attached:
    """A broker that is there."""

    paused = ''
    problem = ''

    def health(self) -> dict[str, int]:
        return {}

    def attached(self) -> dict[str, bool]:
        return {'gantt-scheduler': True}


def test_a_process_that_hears_nothing_of_itself_says_so():
    class Stuck(Attached):
        paused = ''
        problem = '3 times in a row no answer to a call of itself: gantt-stats: it hangs'

    is_well, body = Health(World(hosts=1).scheduler, Stuck())()
    assert not is_well
    assert body['reasons'] == [f'broker: {Stuck.problem}']


def test_a_full_queue_is_a_reason_and_one_that_drained_is_none():
    world = World(hosts=1, queue_limit=3)
    health = Health(world.scheduler, Attached())
    replies = Replies()
    for n in range(3):
        world.scheduler.submit(a_request(), n, replies)
        is_well, body = health()
        assert is_well == (n < 2)
    assert body['reasons'] == ['queue: 3 requests wait, 3 may']
    world.turn()
    assert len(replies.answers) == 3
    assert health()[0]


def test_a_database_that_hangs_is_asked_once_and_answers_stay_short():
    hold, asked_times = threading.Event(), []

    def ask() -> None:
        asked_times.append(1)
        hold.wait(30)

    knock = BackgroundProbe(ask, seconds=0.05, stored_seconds=0.0)
    for _ in range(5):
        assert knock.problem() == 'no answer within 0.05 s'
    assert len(asked_times) == 1
    hold.set()
    until(lambda: knock.problem() == '')


def test_what_the_database_says_is_the_reason():
    def ask() -> None:
        raise exceptions.DatabaseUnavailable(problem='it sleeps')

    assert 'it sleeps' in BackgroundProbe(ask).problem()


def test_a_listener_without_a_health_check_still_shows_metrics():
    listener = ProbeListener(MetricRegistry(), '127.0.0.1', 0)
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{listener.port}/metrics') as answer:
            assert b'gantt_queue_depth' in answer.read()
    finally:
        listener.stop()


@pytest.mark.rabbit
@pytest.mark.postgresql
def test_each_worker_of_a_process_answers_on_a_port_of_its_own(rabbit_url, postgresql_url):
    first = _two_free_ports()
    options = {'DEFAULT': {'metrics_port': first}, 'scheduler': {'workers': 2}}
    with rig(options) as scheduler_rig:
        scheduler_rig.start('scheduler', 'gantt-scheduler')
        until(lambda: scheduler_rig.log('scheduler').count('is ready') == 2, 40)
        for port in (first, first + 1):
            status, body = asked(port)
            assert (status, body['reasons']) == (200, [])
        assert scheduler_rig.stop('scheduler') == 0


def _two_free_ports() -> int:
    for _ in range(50):
        with socket.create_server(('127.0.0.1', 0)) as listener:
            port = listener.getsockname()[1]
            try:
                socket.create_server(('127.0.0.1', port + 1)).close()
            except (OSError, OverflowError):
                continue
            return port
    raise AssertionError('no two free ports next to each other')


def test_requests_that_are_stuck_inside_are_told():
    world = World(hosts=1)
    health = Health(world.scheduler, Attached())
    world.scheduler.submit(a_request(budget_ms=1000), object(), Replies())
    world.clock.advance(31.0)
    assert health()[1]['checks']['queue']
    world.clock.advance(31.0)
    is_well, body = health()
    assert not is_well
    assert any('placing is stuck' in reason for reason in body['reasons'])
    world.turn()
    assert health()[1]['checks']['queue']
