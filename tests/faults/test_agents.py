# SPDX-License-Identifier: Apache-2.0
"""Compute agents that are cut off, doubled, forgotten by the database, or all there at once.

F11 a partition between computes and broker, F15 two computes with one name, F21
a herd that starts at once, F16 a database that is put back to an older state.
"""

import subprocess
import threading
import time

import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.compute.agent.session import Fenced
from gantt.db.schema import models
from tests.faults.partitioned_site import SLOTS, PartitionedSite, SmallFarm, seconds_until
from tests.nemesis import hosts
from tests.nemesis.proxy import Proxy

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql, pytest.mark.timeout(300)]

#: Of a report; so that a test need not wait for a minute.
PERIOD = 1
NAME = 'scheduler'
#: Until a herd is registered and has reported.
HERD_SECONDS = 60.0


@pytest.fixture(scope='module')
def partitioned(a_site, closing, rabbit_url):
    site = a_site('postgresql')
    hosts.add(site.store, ['beside'], PCPU=1_000_000)
    site.start(
        NAME,
        # Of some hosts of these tests nobody reports any more.
        filters={'service_down_time': 36_000},
        scheduler={'report_seconds': PERIOD, 'feed_seconds': 0.1, 'unknown_after_seconds': 3600},
        claims={'lease_seconds': 10, 'sweep_seconds': 0.5},
    )
    new_site = PartitionedSite(site, rabbit_url)
    yield new_site
    new_site.close()
    site.audit()
    site.close()


@pytest.fixture
def way(partitioned):
    """To the broker, for computes."""
    proxy = Proxy.of(partitioned.broker)
    yield proxy
    proxy.close()


@pytest.fixture
def a_small_farm(partitioned, way):
    """``a_hamlet('name', 4)``: a farm whose hosts have all reported."""
    farms = []

    def make(name, count, machines=None):
        farms.append(
            SmallFarm(way.url(partitioned.broker), name, count, partitioned.wrong, machines)
        )
        farms[-1].start()
        reporting = lambda: farms[-1].farm.status()['reporting'] == count  # noqa: E731
        seconds_until(reporting, f'the hosts of {name} report')
        return farms[-1]

    yield make
    for farm in farms:
        farm.close()


def running(partitioned, small_farm, count):
    """Guests that were asked for, built and run."""
    builds = partitioned.builds(partitioned.ask(small_farm.name, count))
    assert len(builds) == count
    partitioned.send(small_farm, builds)
    consumers = {build.consumer for build in builds}
    seconds_until(lambda: consumers <= everybody(small_farm), 'the guests run')
    return builds


def everybody(small_farm):
    """Consumers that run somewhere in a farm."""
    return set().union(*small_farm.guests().values())


def fits(small_farm):
    assert all(len(guests) <= SLOTS for guests in small_farm.guests().values()), small_farm.guests()


# -- F11 ---------------------------------------------------------------------------------
def partition(partitioned, way, a_small_farm, name, close, seconds):
    """Cut the computes off while places are asked for, sold again, and guests deleted.

    :param close: what is done to the way between computes and broker
    """
    small_farm = a_small_farm(name, 4)
    first = running(partitioned, small_farm, 8)
    seconds_until(lambda: partitioned.agree(small_farm), 'the views are equal')
    close(way)
    ends = time.monotonic() + seconds
    partitioned.send(small_farm, partitioned.builds(partitioned.ask(name, 6, lease=5)))
    partitioned.delete(small_farm, first[:4])
    while time.monotonic() < ends:
        # What nobody confirmed in time is free again, and sold again.
        partitioned.send(small_farm, partitioned.builds(partitioned.ask(name, 2, lease=5)))
        time.sleep(0.5)
    partitioned.send(small_farm, partitioned.builds(partitioned.ask(name, 4, lease=60)))
    partitioned.site.audit()
    way.mend()
    took = seconds_until(lambda: partitioned.agree(small_farm), 'the views are equal again', 90)
    print(f'{name}: views equal {took / PERIOD:.1f} report periods after the partition')
    fits(small_farm)
    # Deletes wait in the broker for computes, who find their way back in their own time.
    deleted = {build.consumer for build in first[:4]}
    seconds_until(
        lambda: not deleted & set().union(*small_farm.guests().values()), 'they are deleted', 90
    )
    seconds_until(lambda: partitioned.agree(small_farm), 'the views are equal for good', 90)
    assert partitioned.wrong.lines == []
    partitioned.site.audit()


def test_computes_are_cut_off_from_the_broker(partitioned, way, a_small_farm):
    partition(partitioned, way, a_small_farm, 'island', Proxy.hold, seconds=6)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(('name', 'close'), [('silent', Proxy.hold), ('refused', Proxy.refuse)])
def test_computes_are_cut_off_from_the_broker_for_two_minutes(
    partitioned, way, a_small_farm, name, close
):
    partition(partitioned, way, a_small_farm, name, close, seconds=120)


# -- F15 ---------------------------------------------------------------------------------
def test_of_two_computes_with_one_name_the_older_one_is_fenced(partitioned, a_small_farm):
    """On the same machines, with journals of their own, and builds for either of them."""
    name = 'twin'
    older = a_small_farm(name, 3)
    by_report, by_confirm, by_both = sorted(older.farm.hosts)
    waiting = partitioned.builds(partitioned.ask(name, 2, force_hosts=[by_confirm], lease=8), 8.0)
    guests = running(partitioned, older, 6)
    older.farm._runner.stop(10)  # it says only what the test makes it say

    newer = a_small_farm(name, 3, machines=older)
    before = len(older.port.said)
    # A report is told the reason at once; a question about a claim is told that it is gone, and
    # the full report that follows is told the reason.
    for host_name in (by_report, by_confirm):
        host = older.farm.hosts[host_name].host_agent
        if host_name == by_confirm:
            assert older.farm.build(waiting[0]).outcome == 'gone'
        else:
            host.changed(True)
        host.turn()
        assert host.session.is_fenced
        host.turn()
    with pytest.raises(Fenced):
        older.farm.build(waiting[1])
    entries = [entry[1:] for entry in older.port.said[before:]]
    assert entries == [
        (by_report, 'StaleEpoch'),
        (by_confirm, 'gone'),
        (by_confirm, 'StaleEpoch'),
    ]
    # A delta is cast: nobody tells its sender, and it changes nothing.
    older.farm.hosts[by_both].host_agent.turn()
    assert not older.farm.hosts[by_both].host_agent.session.is_fenced

    # Some of these reach the older one, which starts nothing, or the newer one, which does.
    partitioned.send(newer, waiting)
    builds = partitioned.builds(partitioned.ask(name, 6, lease=5))
    partitioned.send(newer, builds)
    seconds_until(lambda: partitioned.agree(newer), 'every claim runs, or its lease is over')
    accepted = [entry for entry in older.port.said[before:] if entry[2] in ('ok', 'applied')]
    assert accepted == []
    assert {guest.consumer for guest in guests} <= everybody(newer)
    assert partitioned.wrong.lines == []
    fits(newer)
    partitioned.site.audit()


# -- F21 ---------------------------------------------------------------------------------
class BesideRun:
    """Somebody who asks all the time, and how long each answer took."""

    def __init__(self, partitioned):
        self.times, self.errors = [], []
        self._village, self._on = partitioned, True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while self._on:
            request = self._village.a_request('beside', lease=600)
            began = time.monotonic()
            call = self._village.callers.ask(request)
            self.times.append(time.monotonic() - began)
            if call.error:
                self.errors.append(call.error)
            time.sleep(0.02)

    def end(self):
        self._on = False
        self._thread.join(60)
        assert self.errors == []
        return sorted(self.times)


def herd(partitioned, count):
    """So many hosts start, are killed, and all start again."""
    name, site = f'herd{count}', partitioned.site
    p = models.providers

    def reporting(epoch):
        rows = sa.select(sa.func.count()).where(
            p.c.name.like(f'{name}-%'), p.c.epoch == epoch, p.c.sequence > 0
        )
        with partitioned.store.database.engine.connect() as connection:
            return connection.execute(rows).scalar_one() == count

    calm = BesideRun(partitioned)
    time.sleep(1.5)
    usual = calm.end()
    words = ('--fake', str(count), '--name', name)
    site.start(
        name,
        command='gantt-compute',
        words=words,
        compute={'farm_prefix': name, 'farm_threads': 64},
        DEFAULT={'default_log_levels': 'gantt.compute.agent.agent=WARNING'},
    )
    try:
        seconds_until(lambda: reporting(1), 'the herd is there', 300)
        site.kill(name)
        asking = BesideRun(partitioned)
        began = time.monotonic()
        site.again(name, 'gantt-compute', *words)
        ready = time.monotonic() - began
        took = ready + seconds_until(lambda: reporting(2), 'the herd is there again', 300)
        meanwhile = asking.end()
    finally:
        site.kill(name)
    for phase, times in (('before', usual), ('meanwhile', meanwhile)):
        print(
            f'{phase}: {len(times)} placed, p50 {times[len(times) // 2] * 1000:.0f} ms, '
            f'p99 {times[int(len(times) * 0.99)] * 1000:.0f} ms'
        )
    print(
        f'{count} hosts registered and reported {took:.1f} s after their start, '
        f'{ready:.1f} s of them until the process was ready'
    )
    site.audit()
    assert len(meanwhile) >= 10, 'claims go on'
    assert took <= HERD_SECONDS


def test_five_hundred_computes_restart_at_once(partitioned):
    herd(partitioned, 500)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_computes_restart_at_once(partitioned):
    herd(partitioned, 10_000)


# -- F16 ---------------------------------------------------------------------------------
class Backup:
    """A backup of a PostgreSQL database, and its way back."""

    def __init__(self, url):
        url = sa.make_url(url)
        self._where = ['-h', url.host, '-p', str(url.port or 5432), '-U', url.username]
        self._name = url.database
        self._dump = self._run('pg_dump', self._name)

    def _run(self, *words, said=None):
        command = [words[0], *self._where, *words[1:]]
        for _ in range(10):
            done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=60)
            # With those who read meanwhile.
            if 'deadlock detected' not in done.stderr and 'lock timeout' not in done.stderr:
                break
        assert done.returncode == 0, done.stderr
        return done.stdout

    def put_back(self):
        """In one transaction, so that nobody sees half of it."""
        whole = "SET lock_timeout = '2s'; "
        whole += 'DROP SCHEMA public CASCADE; CREATE SCHEMA public; '
        whole += 'GRANT USAGE ON SCHEMA public TO PUBLIC;\n' + self._dump
        self._run('psql', '-q', '-1', '-v', 'ON_ERROR_STOP=1', self._name, said=whole)


def test_a_database_is_put_back_to_an_older_state(partitioned, way, a_small_farm):
    """Guests that it never heard of are adopted; what was sold twice meanwhile is seen."""
    small_farm = a_small_farm('past', 4)
    before = running(partitioned, small_farm, 8)
    seconds_until(lambda: partitioned.agree(small_farm), 'the views are equal')
    backup = Backup(partitioned.site.database)
    since = running(partitioned, small_farm, 10)
    partitioned.delete(small_farm, before[:3])
    gone = {build.consumer for build in before[:3]}
    seconds_until(lambda: not gone & everybody(small_farm), 'three are gone')
    guests = small_farm.guests()
    way.hold()
    # A report that is past the proxy would be adopted at once.
    time.sleep(PERIOD)

    backup.put_back()
    partitioned.site.manage('db', 'incarnation')
    assert not partitioned.agree(small_farm)
    # Until they read the feed schedulers know what was there before.
    time.sleep(PERIOD)
    # For all that the database knows twelve places are free; there are five.
    sold = partitioned.ask('past', 12, lease=90)
    assert sum(call.answer is not None for call in sold) > 5
    way.mend()

    def adopted():
        live = partitioned.live(small_farm)
        return all(guests[name] <= live[name] for name in guests)

    took = seconds_until(adopted, 'all that runs is adopted')
    print(f'all adopted {took / PERIOD:.1f} report periods after')
    live = partitioned.live(small_farm)
    seconds_until(lambda: not gone & set().union(*partitioned.live(small_farm).values()), 'gone')
    over = {name for name in live if len(partitioned.live(small_farm)[name]) > SLOTS}
    assert over
    assert {n for n, row in partitioned.rows(small_farm).items() if row.over_committed} == over
    for name in over:
        seconds_until(lambda name=name: _refused(partitioned, name), f'nothing new on {name}')
    partitioned.site.audit()

    # The hosts themselves know what fits.
    partitioned.send(small_farm, partitioned.builds(sold, lease=90))
    seconds_until(lambda: partitioned.agree(small_farm), 'the views are equal again', 90)
    fits(small_farm)
    assert all(guests[name] <= small_farm.guests()[name] for name in guests), 'nothing is killed'
    # The flag goes with the next report.
    seconds_until(
        lambda: not any(row.over_committed for row in partitioned.rows(small_farm).values()),
        'no flag',
    )
    assert {build.consumer for build in since} <= everybody(small_farm)
    assert partitioned.wrong.lines == []


def _refused(partitioned, host):
    """Whether there is no room for another one there."""
    (call,) = partitioned.ask('past', 1, force_hosts=[host], lease=5)
    return isinstance(call.error, exceptions.NoValidHost)
