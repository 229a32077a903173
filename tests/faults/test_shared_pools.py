# SPDX-License-Identifier: Apache-2.0
"""Schedulers that all take from one pool which their hosts share: processes, threads, a frozen one.

What the hosts have themselves is plenty; what they share is filled to the last unit, and no
further, whoever asks and whoever stands still meanwhile.
"""

import collections
import random

import pytest

from devel.doubles import MemoryRecorder
from gantt import exceptions, plugin_loader
from gantt.client.calls import NoAnswer
from gantt.core.messages.base import derived_id
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import stores_for_url
from tests.builders import CLEAN
from tests.nemesis import hosts, load
from tests.nemesis.site import until
from tests.services import UNHURRIED
from tests.shared_pools import a_shared_pool

pytestmark = [pytest.mark.timeout(300)]

NAMES = ('one', 'two', 'three')
RACK = derived_id('aggregate', 'rack')
UNITS = 90
POSTGRESQL = pytest.param('postgresql', marks=pytest.mark.postgresql)
MYSQL = pytest.param('mysql', marks=pytest.mark.mysql)
#: Processes on MariaDB are for the night: a minute.
KINDS = [POSTGRESQL, pytest.param('mysql', marks=[pytest.mark.mysql, pytest.mark.slow])]


def asking(rng, count, most=3, budget_ms=60_000):
    """Requests whose members take one unit of the pool each."""
    resources = {'VCPU': 1, 'DISK_GB': 1}
    return [
        load.a_request(rng, rng.randint(1, most), resources=resources, budget_ms=budget_ms)
        for _ in range(count)
    ]


def placed(calls):
    return sum(len(call.request.consumers) for call in calls if call.answer and not call.cancelled)


def check(store, pool, calls):
    """Every unit that was promised is there, and is promised once."""
    assert store.claims.audit() == CLEAN
    used = store.providers.load_provider(pool.uuid).used.get('DISK_GB', 0)
    assert used <= UNITS
    named = collections.Counter(
        part.uuid
        for call in calls
        if call.answer is not None
        for places in call.answer.selections
        for part in places[0].allocations[1:]
    )
    assert set(named) == {pool.uuid}
    return used


@pytest.fixture
def site(kind, a_site, closing):
    new_site = a_site(kind)
    closing.callback(new_site.close)
    return new_site


@pytest.fixture
def pool(site):
    hosts.add(site.store, [f'room-{n}' for n in range(10)], ['rack'], VCPU=10_000)
    return a_shared_pool(site.store, 'ceph', [RACK], DISK_GB=UNITS)


@pytest.mark.rabbit
@pytest.mark.leaves_sockets
@pytest.mark.parametrize('kind', KINDS)
def test_processes_fill_a_pool_and_no_more(site, pool, closing, rabbit_url):
    site.start(*NAMES, **hosts.SILENT)
    callers = load.Conductors(rabbit_url, attempt_seconds=None)
    closing.callback(callers.close)
    rng = random.Random(1)

    def give_some_back(call):
        if call.answer is not None and int(call.request.request_id[:2], 16) % 2:
            callers.cancel(call)

    calls = callers.ask_all(asking(rng, 100), 12, give_some_back)
    calls += callers.ask_all(asking(rng, 60, most=1), 12)
    assert {type(call.error) for call in calls if call.error} <= {exceptions.NoValidHost}
    assert check(site.store, pool, calls) == placed(calls) == UNITS

    # A frozen one has picks on the table, or a commit under way; it wakes to what others did.
    for call in calls[::2]:
        if call.answer is not None and not call.cancelled:
            callers.cancel(call)
    begun = callers.start(asking(rng, 60, budget_ms=10_000), 12)
    site.freeze('one')
    calls += begun.wait(250)
    site.thaw('one')
    calls += callers.ask_all(asking(rng, 60, most=1, budget_ms=10_000), 12)
    errors = {type(call.error) for call in calls if call.error}
    # Busy: the frozen one has the request open, and another one waits for its deadline.
    assert errors <= {exceptions.NoValidHost, exceptions.Busy, NoAnswer}
    # Of one that nobody answered, claims may be there: until their lease is over.
    assert placed(calls) <= check(site.store, pool, calls)
    site.audit()
    for name in NAMES:
        assert site.stop(name) == 0


@pytest.mark.parametrize('kind', [POSTGRESQL, MYSQL])
def test_threads_fill_a_pool_and_no_more(site, pool, closing):
    url = site.database
    schedulers = []
    for name in NAMES:
        store = stores_for_url(url, timeouts=UNHURRIED)
        closing.callback(store.database.close)
        settings = SchedulerSettings(
            worker=name, stale_after_seconds=86_400, **hosts.SILENT['scheduler']
        )
        pipeline = plugin_loader.load_pipeline(options=hosts.SILENT['filters'])
        scheduler = Scheduler(store, pipeline, MemoryRecorder(), settings)
        closing.callback(scheduler.stop, 30)
        scheduler.start()
        schedulers.append(scheduler)
    callers = [load.InProcess(scheduler) for scheduler in schedulers]
    rng = random.Random(2)
    begun = [caller.start(asking(rng, 40), 6) for caller in callers]
    calls = [call for run in begun for call in run.wait(250)]
    calls += callers[0].ask_all(asking(rng, 20, most=1), 4)
    assert {type(call.error) for call in calls if call.error} <= {exceptions.NoValidHost}
    assert check(site.store, pool, calls) == placed(calls) == UNITS
    until(
        lambda: all(_knows(scheduler, pool) for scheduler in schedulers),
        'every table knows what is left',
    )


def _knows(scheduler, pool):
    pools = scheduler.cache.working.pools
    return pool.id in pools.by_id and pools.free(pool.id, 'DISK_GB') == 0
