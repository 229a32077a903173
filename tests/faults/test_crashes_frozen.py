# SPDX-License-Identifier: Apache-2.0
"""F14 and F13: a scheduler that stands still in a transaction, and clocks that are wrong.

The scheduler is stopped with SIGSTOP while its transaction holds the row of a
host, so that nobody else can place anything there until the database ends that
transaction.  What it says when it goes on comes too late.
"""

import contextlib
import random
import threading
import time

import pytest
import sqlalchemy as sa

from gantt.client.hosts import ComputeClient, topic_of
from gantt.db.schema import models
from tests.nemesis import commits, hosts, load
from tests.nemesis.clock import Clock
from tests.nemesis.site import until

pytestmark = [pytest.mark.rabbit, pytest.mark.timeout(240)]
LOCKS_GONE = 60.0


# -- F14 ----------------------------------------------------------------------------------
class Frozen:
    """A site of two; one of them stands still once it has written and not committed."""

    def __init__(self, site, closing, idle):
        self.site = site
        self.proxy, self.commits = commits.proxy(site.database)
        closing.callback(self.proxy.close)
        hosts.add(site.store, ['only'], VCPU=100_000)
        self.frozen, self.thawed = threading.Event(), threading.Event()
        closing.callback(self.thawed.set)
        # Nothing is written but claims, so that its next write is one.
        site.start(
            'still',
            database=self.proxy.url(site.database),
            in_database={'idle_transaction_seconds': idle},
            claims={'sweep_seconds': 3600},
            decisions={'replay_seconds': 0, 'purge_seconds': 3600},
            **hosts.SILENT,
        )
        site.start('awake', **hosts.SILENT)

    def freeze_in_transaction(self):
        """In the next one that writes; the other one stands by, to leave it the work."""

        def stand_still():
            self.site.freeze('still')
            self.frozen.set()
            self.thawed.wait(600)

        self.site.freeze('awake')
        self.commits.between = stand_still

    def thaw(self):
        self.site.thaw('still')
        self.thawed.set()

    def is_locked(self):
        """Whether somebody holds the row of the host."""
        row = sa.select(models.providers.c.id).with_for_update(nowait=True)
        with self.site.store.database.engine.connect() as connection:
            try:
                connection.execute(row)
            except Exception as e:
                assert 'lock' in str(e).lower(), e
                return True
        return False


def frozen_in_mid_transaction(scene, conductors, idle, still):
    """
    :param idle: seconds that the database allows a transaction to say nothing
    :param still: seconds that the scheduler stands still, at least
    """

    def ask(count, threads=8):
        requests = [load.a_request(rng, 2, budget_ms=300_000) for _ in range(count)]
        return conductors.start(requests, threads)

    rng = random.Random(14)
    calls = ask(10).wait()
    scene.freeze_in_transaction()
    asking = ask(40)
    until(scene.frozen.is_set, 'a scheduler is frozen in a transaction', 60)
    began = time.monotonic()
    assert scene.is_locked()
    scene.site.thaw('awake')
    until(lambda: not scene.is_locked(), 'its locks are gone', LOCKS_GONE)
    gone = time.monotonic() - began
    until(lambda: len(asking.records) >= 10, 'the other one goes on', 60)
    while time.monotonic() - began < still:
        calls += ask(20).wait(60)
        time.sleep(2)
    scene.thaw()
    calls += asking.wait(200) + ask(20).wait(200)
    assert scene.site.stop('still') == 0, 'it goes on, and ends as any other'
    assert [call.error for call in calls if call.error] == []
    assert load.broken_promises(scene.site.store, calls) == []
    scene.site.audit()
    print(f'locks gone after {gone:.1f} s, {idle} s allowed; {len(calls)} requests, each once')


@pytest.fixture(
    params=[
        pytest.param('postgresql', marks=pytest.mark.postgresql),
        pytest.param('mysql', marks=pytest.mark.mysql),
    ]
)
def frozen(request, a_site):
    with contextlib.ExitStack() as closing:

        def make(idle):
            site = a_site(request.param)
            closing.callback(site.close)
            return Frozen(site, closing, idle)

        yield make


@pytest.fixture(scope='module')
def quick(closing, rabbit_url):
    quick_conductors = load.Conductors(rabbit_url, attempt_seconds=1.0)
    closing.callback(quick_conductors.close)
    return quick_conductors


def test_frozen_in_a_transaction(frozen, quick):
    frozen_in_mid_transaction(frozen(idle=1), quick, idle=1, still=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_frozen_in_a_transaction_for_two_minutes(frozen, quick):
    """With the waits that a site has."""
    frozen_in_mid_transaction(frozen(idle=30), quick, idle=30, still=120)


# -- F13 ----------------------------------------------------------------------------------
HOUR = 3600
LEASE = 5
#: What its clock shows, one after the other; the last step is one back to the right time.
STEPS = (-12 * HOUR, 12 * HOUR, -HOUR, 0)
FARM = 4


class Skewed:
    """Two schedulers and two farms of hosts; the clock of one of each is wrong."""

    def __init__(self, site, folder, broker, closing):
        self.store = site.store
        self.clock = Clock(folder)
        self.conductors = load.Conductors(broker, attempt_seconds=20.0)
        closing.callback(self.conductors.close)
        self.computes = ComputeClient(self.conductors.carrier, timeout=30.0)
        self.rng = random.Random(13)
        self.clock.set(STEPS[0])
        for name, environment in (('right', None), ('wrong', self.clock.environment)):
            site.start(
                name,
                environment=environment,
                claims={'sweep_seconds': 0.3},
                scheduler={'report_seconds': 1},
            )
        for name, environment in (('right', None), ('wrong', self.clock.environment)):
            site.start(
                f'farm-{name}',
                command='gantt-compute',
                environment=environment,
                words=('--fake', str(FARM), '--name', f'farm-{name}'),
                compute={'farm_prefix': name},
            )
        until(lambda: len(self.reporting()) == 2 * FARM, 'all hosts have reported', 60)
        time.sleep(1.0)  # the tables of both schedulers follow the feed
        assert 'is ready' in site.log('wrong')
        shown = time.strptime(site.log('wrong')[:19], '%Y-%m-%d %H:%M:%S')
        assert abs(time.time() + STEPS[0] - time.mktime(shown)) < HOUR, 'its clock is wrong'

    def reporting(self):
        changes = self.store.feed.load_everything().hosts
        return [change.row for change in changes if change.row and change.row.full_sequence]

    def ask(self, hosts, lease):
        """A request for one member on each of these hosts; all are placed."""
        calls = self.conductors.ask_all(
            [
                load.a_request(self.rng, force_hosts=[host], budget_ms=15_000, lease=lease)
                for host in hosts
            ],
            threads=4,
        )
        assert [call.error for call in calls if call.error] == []
        return calls

    def build(self, told):
        for chosen in (selection[0] for call in told for selection in call.answer.selections):
            topic = chosen.build_topic or topic_of(chosen.host)
            assert self.computes.build(topic, chosen.build(), wait=True)['outcome'] == 'running'

    def claims(self, told):
        return [self.store.claims.load_claim(key) for call in told for key in call.claims]

    def late(self, told):
        """By how many seconds these claims outlived their leases; all of them ended."""
        until(lambda: {c.state for c in self.claims(told)} == {'expired'}, 'leases end', 30)
        return [claim.updated_at - claim.lease_until for claim in self.claims(told)]


def wrong_clocks(scene, seconds):
    """:param seconds: from one step to the next"""
    built, reserved, late = [], [], []
    for step in STEPS:
        scene.clock.set(step)
        names = [row.name for row in scene.reporting()]
        short = scene.ask(names, LEASE)
        reserved += scene.ask(names, 600)
        built += scene.ask(names, 60)
        scene.build(built[-len(names) :])
        late.append((scene.late, short))
        time.sleep(seconds)
    late = [moment for find, calls in late for moment in find(calls)]
    assert min(late) >= 0, 'no lease ended early'
    states = {claim.state for claim in scene.claims(built)}
    assert states == {'confirmed'}, 'what runs stays, whatever the clock says'
    assert {claim.state for claim in scene.claims(reserved)} == {'reserved'}
    before = {row.name: row.sequence for row in scene.reporting()}
    until(
        lambda: all(row.sequence > before[row.name] for row in scene.reporting()),
        'all hosts report',
        30,
    )
    assert {row.epoch for row in scene.reporting()} == {1}, 'nobody had to register again'
    print(
        f'{len(built)} built, {len(reserved)} kept, {len(late)} leases ended, '
        f'{max(late):.1f} s late at most'
    )


@pytest.fixture
def skewed(a_site, rabbit_url, tmp_path, postgresql_url):
    with contextlib.ExitStack() as closing:
        site = a_site('postgresql')
        closing.callback(site.close)
        yield Skewed(site, tmp_path, rabbit_url, closing)
        site.audit()


@pytest.mark.postgresql
def test_clocks_are_wrong_and_step(skewed):
    wrong_clocks(skewed, seconds=0)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.timeout(900)
def test_clocks_are_wrong_and_step_for_two_minutes(skewed):
    wrong_clocks(skewed, seconds=30)
