# SPDX-License-Identifier: Apache-2.0
"""F16: the database goes back under schedulers and agents that live, and nobody says so.

A backup is put back, or an asynchronous standby takes over that is 500 transactions
behind.  Nobody runs ``db incarnation``: schedulers notice by themselves, agents are told
that their epoch is gone, or that a claim is, and what runs is adopted.
"""

import contextlib

import pytest

from gantt.stores import SqlStores
from tests.faults.partitioned_site import SLOTS, PartitionedSite, SmallFarm, seconds_until
from tests.nemesis import postgres
from tests.nemesis.backup import Backup
from tests.nemesis.site import Site

pytestmark = [pytest.mark.rabbit, pytest.mark.timeout(600)]

NAMES = ('one', 'two')
PERIOD = 1
BEHIND = 500


@pytest.fixture
def closing():
    """Whatever is closed after each test: two towns on one broker would take each other's calls."""
    with contextlib.ExitStack() as stack:
        yield stack


class FaultySite:
    """Two schedulers, a farm of agents, and what has to hold once the database went back."""

    def __init__(self, site: Site, broker: str, closing, count: int) -> None:
        self.site = site
        closing.callback(site.close)
        site.start(
            *NAMES,
            filters={'service_down_time': 36_000},
            scheduler={
                'report_seconds': PERIOD,
                'feed_seconds': 0.1,
                'unknown_after_seconds': 3600,
            },
            claims={'lease_seconds': 20, 'sweep_seconds': 0.5},
        )
        self.village = PartitionedSite(site, broker)
        closing.callback(self.village.close)
        self.hamlet = SmallFarm(broker, 'past', count, self.village.wrong)
        closing.callback(self.hamlet.close)
        self.hamlet.start()
        farm = self.hamlet.farm
        seconds_until(lambda: farm.status()['reporting'] == count, 'all hosts report', 120)

    def running(self, count):
        """So many more guests that were asked for, built, and run."""
        builds = self.village.builds(self.village.ask('past', count, lease=60), 60.0)
        assert len(builds) == count
        self.village.send(self.hamlet, builds)
        consumers = {build.consumer for build in builds}
        seconds_until(lambda: consumers <= self.everybody(), 'the guests run', 90)
        return builds

    def everybody(self):
        return set().union(*self.hamlet.guests().values())

    def agree(self, event):
        return seconds_until(lambda: self.village.agree(self.hamlet), event, 120)

    def register_anew(self):
        """One agent is given another epoch, as by a restart; its name and that epoch."""
        name, host = next(iter(self.hamlet.farm.hosts.items()))
        session = host.host_agent.session
        before = session.epoch
        session._epoch = 0
        host.host_agent.changed(True)
        seconds_until(lambda: session.epoch > before, 'it is registered again')
        return name, session.epoch

    def story(self, go_back, before):
        """Guests come and go, one agent registers anew; then the database goes back.

        :param before: called when the state is reached that is gone back to
        """
        first = self.running(len(self.hamlet.farm.hosts))
        self.agree('the views are equal')
        before()
        name, epoch = self.register_anew()
        since = self.running(10)
        gone = first[:5]
        self.village.delete(self.hamlet, gone)
        deleted = {build.consumer for build in gone}
        seconds_until(lambda: not deleted & self.everybody(), 'five are gone', 90)
        self.agree('the views are equal before')
        guests = self.everybody()
        go_back()

        took = self.agree('all that runs has its claim again, and nothing else')
        print(f'views equal {took:.1f} s after')
        session = self.hamlet.farm.hosts[name].host_agent.session
        seconds_until(
            lambda: self.village.rows(self.hamlet)[name].epoch > epoch, 'another epoch', 90
        )
        assert session.epoch > epoch
        assert {build.consumer for build in since} <= self.everybody()
        assert guests <= self.everybody(), 'nothing is killed'
        for process in NAMES:
            assert self.site.process(process).poll() is None
            assert self.site.metric(process, 'gantt_database_restores_total') >= 1
        self.running(10)
        self.agree('the views are equal for good')
        assert all(len(on_host) <= SLOTS for on_host in self.hamlet.guests().values())
        assert self.village.wrong.lines == []
        self.site.audit()


def put_back(request, rabbit_url, closing, tmp_path, kind, count):
    faulty_site = FaultySite(
        Site(tmp_path, request.getfixturevalue(f'{kind}_url'), rabbit_url),
        rabbit_url,
        closing,
        count,
    )
    backups = []
    faulty_site.story(
        go_back=lambda: backups[0].put_back(),
        before=lambda: backups.append(Backup(faulty_site.site.store)),
    )


KINDS = [
    pytest.param('postgresql', marks=pytest.mark.postgresql),
    pytest.param('mysql', marks=pytest.mark.mysql),
]


@pytest.mark.parametrize('kind', KINDS)
def test_a_backup_is_put_back_and_nobody_says_so(request, rabbit_url, closing, tmp_path, kind):
    put_back(request, rabbit_url, closing, tmp_path, kind, 12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize('kind', KINDS)
def test_a_backup_is_put_back_under_a_hundred_agents(request, rabbit_url, closing, tmp_path, kind):
    put_back(request, rabbit_url, closing, tmp_path, kind, 100)


def take_over(rabbit_url, closing, tmp_path, count):
    pair = closing.enter_context(postgres.pair(synchronous=False))
    faulty_site = FaultySite(Site(tmp_path, pair.url, rabbit_url), rabbit_url, closing, count)
    numbers = []

    def fall_behind():
        pair.fall_behind()
        numbers.append(pair.transactions())

    def go_back():
        store: SqlStores = faulty_site.site.store
        for _ in range(BEHIND // 2):
            store.hosts.disable_host(name, 'fan swap', 'ops')
            store.hosts.enable_host(name)
        assert pair.transactions() - numbers[0] >= BEHIND
        pair.fail()
        pair.promote()

    name = next(iter(faulty_site.hamlet.farm.hosts))
    faulty_site.story(go_back, fall_behind)


@pytest.mark.postgresql
def test_a_standby_takes_over_that_is_500_transactions_behind(rabbit_url, closing, tmp_path):
    take_over(rabbit_url, closing, tmp_path, 12)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.timeout(1200)
def test_such_a_standby_takes_over_under_a_hundred_agents(rabbit_url, closing, tmp_path):
    take_over(rabbit_url, closing, tmp_path, 100)
