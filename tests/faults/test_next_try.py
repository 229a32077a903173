# SPDX-License-Identifier: Apache-2.0
"""The next try of a call goes where its last did not; a call waits for who is started again."""

import logging
import random
import re
import threading

import kombu
import pytest

from gantt.groups.client import PlannerClient
from gantt.rpc import wire
from tests import warm
from tests.nemesis import hosts, load
from tests.nemesis.proxy import Proxy
from tests.nemesis.site import _free_port, until
from tests.planner import a_plan_request

pytestmark = [
    pytest.mark.rabbit,
    pytest.mark.postgresql,
    pytest.mark.timeout(300),
    pytest.mark.leaves_sockets,
]

BUDGET_MS = 10_000
FAILED = re.compile(r'call=select_destinations (\S+) try=(\d+) ')


@pytest.fixture(scope='module')
def site(a_site, closing):
    new_site = a_site('postgresql')
    closing.callback(new_site.close)
    hosts.add(new_site.store, [f'room-{n}' for n in range(8)], VCPU=1_000, MEMORY_MB=1_000_000)
    new_site.start('one', 'two', **hosts.SILENT)
    return new_site


@pytest.fixture
def callers(rabbit_url):
    new_callers = load.Conductors(rabbit_url, attempt_seconds=None)
    yield new_callers
    new_callers.close()


def test_one_that_is_stopped_has_each_call_once_at_most(site, callers, caplog):
    """Of two schedulers, whichever of them: the second try is answered by the other one."""
    rng = random.Random(7)

    def ask(count):
        return [callers.select(load.a_request(rng, 1, budget_ms=BUDGET_MS)) for _ in range(count)]

    servers = callers.scheduler._caller._servers
    until(lambda: ask(2) and len(servers.latest()) == 2, 'both have answered')
    with caplog.at_level(logging.INFO, logger='gantt.client.calls'):
        for name in ('one', 'two'):
            site.freeze(name)
            try:
                placed = ask(4)
            finally:
                site.thaw(name)
            assert {answer.outcome for answer in placed} == {'placed'}
    failed = [FAILED.search(record.getMessage()) for record in caplog.records]
    tries = [(match[1], int(match[2])) for match in failed if match is not None]
    assert tries, 'none of the calls came to the one that was stopped'
    assert {number for _, number in tries} == {1}
    site.audit()


def test_a_plan_is_made_by_a_planner_that_is_started_within_the_budget(site, callers):
    site.start('planner', command='gantt-planner', **hosts.SILENT)
    planner = PlannerClient(callers.carrier, attempt_seconds=0.2)
    timing = {'budget_ms': 60_000, 'plan_ms': 1}
    assert planner.place_group(a_plan_request(**timing)).plan.members
    site.kill('planner')
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(planner.place_group(a_plan_request(**timing)))
    )
    asking.start()
    until(lambda: not planner._caller.is_unheard() or asking.is_alive(), 'it asks')
    asking.join(2.0)  # more than two tries
    site.again('planner', 'gantt-planner')
    asking.join(60.0)
    assert answers and answers[0].plan.members


def test_a_plan_is_made_where_the_queue_of_planners_is_lost(site, callers, rabbit_url):
    """As by a restart of the broker; for a client that knows a planner and one that does not."""
    if 'planner' not in site.rigs:
        site.start('planner', command='gantt-planner', **hosts.SILENT)
    timing = {'budget_ms': 60_000, 'plan_ms': 1}
    knows = PlannerClient(callers.carrier)
    assert knows.place_group(a_plan_request(**timing)).plan.members
    for planner in (knows, PlannerClient(callers.carrier)):
        with kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1)) as connection:
            connection.channel().queue_delete(wire.PLANNER_TOPIC)
        assert planner.place_group(a_plan_request(**timing)).plan.members


@pytest.mark.parametrize(
    'command',
    [
        pytest.param('gantt-scheduler', marks=pytest.mark.slow),
        pytest.param('gantt-standalone', marks=pytest.mark.slow),
        'gantt-planner',
        'gantt-api',
        pytest.param('gantt-shadow', marks=pytest.mark.slow),
    ],
)
def test_a_process_waits_at_its_start_for_a_database_that_is_away(site, closing, command):
    way = Proxy.of(site.database)
    closing.callback(way.close)
    way.refuse()
    name = f'late-{command}'
    starting = threading.Thread(
        target=lambda: site.start(
            name,
            database=way.url(site.database),
            command=command,
            api={'port': _free_port()},
            **hosts.SILENT,
        )
    )
    starting.start()
    tries = 'The database does not answer; the start waits'
    until(lambda: name in site.rigs and re.search(tries, site.log(name)), 'it tries', 100)
    way.mend()
    starting.join(100)
    assert not starting.is_alive()
    assert site.stop(name) == 0


def test_one_that_waits_for_its_database_hears_sigterm(site, closing):
    way = Proxy.of(site.database)
    closing.callback(way.close)
    way.refuse()
    rig = site._rig(warm.Rig, 'stopped', way.url(site.database), '', dict(hosts.SILENT))
    site.rigs['stopped'] = rig
    rig.start('stopped', 'gantt-planner')
    rig.wait_for('stopped', 'the start waits for it')
    assert site.stop('stopped') == 0


@pytest.mark.slow
def test_the_wait_for_a_database_ends_with_what_to_do(site, closing):
    rig = site._rig(
        warm.Rig,
        'without',
        'postgresql+psycopg://nobody@127.0.0.1:1/none',
        '',
        {'rpc': {'start_wait_seconds': 0}, **hosts.SILENT},
    )
    rig.start('without', 'gantt-planner')
    assert rig.processes['without'].wait(60) == 1
    output = rig.log('without')
    assert 'tried for 0 s' in output and 'correct [database] connection' in output
