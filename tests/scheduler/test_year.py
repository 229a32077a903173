# SPDX-License-Identifier: Apache-2.0
"""A year of claims and decisions: what is kept has its bounds, and so has each purge.

The production scheduler and its housekeeping on a SQLite file whose clock is the test's.
"""

import collections
import shutil

import pytest
import sqlalchemy as sa

from gantt.core.messages.request import CancelClaims
from gantt.db.engine import session
from gantt.db.records import purge
from gantt.db.schema import models
from gantt.scheduler import housekeeping
from gantt.stores import sql_stores
from tests.builders import CLEAN
from tests.world import World, a_group, a_request

DAY = 86_400.0
YEAR = 365
#: Kept, in days; the defaults.
RETENTION = 1
DECISIONS, CHANGES, ROWS = 40, 500, 100
#: Guests that run at a time; who comes later takes the place of the oldest.
GUESTS = 24
MEMBERS = 4
#: Of groups that requests bring, each with one of its own.
POLICIES = (None, 'affinity', 'soft-anti-affinity', 'soft-affinity')


class Year:
    """A site, day by day."""

    def __init__(self, path, monkeypatch):
        monkeypatch.setattr(purge, 'CHANGES_STORED', CHANGES)
        monkeypatch.setattr(housekeeping, 'PURGE_ROWS', ROWS)
        monkeypatch.setitem(session.CLOCK, 'sqlite', 'gantt_test_now()')
        engine = session.build_engine(f'sqlite:///{path}')
        engine.dispose()
        self._start = 1_700_000_000.0
        sa.event.listen(engine, 'connect', self._teach)
        self.store = sql_stores(engine)
        self.passes = []
        self._purge = self.store.retention.purge
        self.store.retention.purge = self._counted
        self.world = World(self.store, hosts=3, decisions_stored=DECISIONS)
        self.guests = collections.deque()
        self.made = collections.Counter()

    def _teach(self, connection, _):
        connection.create_function('gantt_test_now', 0, self._now)
        connection.execute('PRAGMA synchronous = OFF')  # of no use to anybody here

    def _now(self):
        world = getattr(self, 'world', None)
        return world.clock.wall() if world is not None else self._start

    def _counted(self, **bounds):
        gone = self._purge(**bounds)
        self.passes.append(gone)
        return gone

    def work(self, requests):
        """Guests come, some that do not fit and some that are taken back; the oldest end."""
        world = self.world
        for number in range(requests):
            policy = POLICIES[number % len(POLICIES)]
            answer = world.select(a_request(MEMBERS, ram=64, group=policy and a_group(policy)))
            self.made['members'] += len(answer.selections)
            if number % 4 == 3:
                world.scheduler.cancel(CancelClaims(request_id=answer.request_id, reason='no'))
                continue
            for chosen, *_ in answer.selections:
                world.hosts[chosen.host].confirm(chosen.claim_id)
                self.guests.append(chosen)
        assert world.select(a_request(1, vcpu=1000)).outcome == 'no_valid_host'
        while len(self.guests) > GUESTS:
            gone = self.guests.popleft()
            world.scheduler.release(world.hosts[gone.host].words(gone.claim_id))

    def pass_days(self, days):
        """The hosts report, since they are there; housekeeping comes by as long as it wants to."""
        self.world.clock.advance(days * DAY)
        for host in self.world.hosts.values():
            host.report(running=None, pending=None)
        first = len(self.passes)
        self.world.turn(60)
        while self.passes[-1] >= ROWS:
            self.world.turn(1)
            assert len(self.passes) - first < 200, 'the purge never comes to an end'

    def rows(self):
        with self.store.database.engine.connect() as connection:
            return {
                table.name: connection.execute(
                    sa.select(sa.func.count()).select_from(table)
                ).scalar_one()
                for table in models.metadata.sorted_tables
            }

    def pages(self):
        with self.store.database.engine.connect() as connection:
            return connection.exec_driver_sql('PRAGMA page_count').scalar_one()


@pytest.mark.parametrize(
    ('days', 'requests'),
    [
        pytest.param(15, 5, id='short'),
        pytest.param(0.25, 5, id='long', marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_a_year_leaves_no_more_than_a_day(days, requests, sqlite_template, tmp_path, monkeypatch):
    shutil.copy(sqlite_template, tmp_path / 'year.db')
    year = Year(tmp_path / 'year.db', monkeypatch)
    steps = int(YEAR / days)
    # What a day makes, and what the step in which it ends has made beside.
    claims = (RETENTION / days + 2) * requests * MEMBERS + GUESTS + MEMBERS
    bounds = {
        'claims': claims,
        'allocations': claims,
        'requests': claims,
        'decisions': DECISIONS + requests + 1,
        'changes': CHANGES + claims * 4,
        'host_sets': 2,
        'providers': 3,
        'provider_facts': 3,
        'group_rules': claims,
    }
    quarter = 0
    for step in range(steps):
        year.work(requests)
        year.pass_days(days)
        rows = year.rows()
        too_many = {name: rows[name] for name, most in bounds.items() if rows[name] > most}
        assert not too_many, f'after {step * days:g} days: {too_many}'
        assert len(year.world.scheduler.cache.working.generations()) <= claims
        assert len(year.world.scheduler.cache.rules) <= claims
        if step == steps // 4:
            quarter = year.pages()
    assert year.made['members'] == steps * requests * MEMBERS
    assert max(year.passes) <= 5 * ROWS + ROWS * MEMBERS
    assert year.pages() <= 1.2 * quarter
    assert year.store.claims.audit() == CLEAN
    live = {claim.id for claim in year.store.claims.list_claims(limit=1000) if claim.is_live}
    assert live == {guest.claim_id for guest in year.guests}
    year.store.database.close()
