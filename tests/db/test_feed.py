# SPDX-License-Identifier: Apache-2.0
"""News that appear out of order, and what a poll costs where there are none."""

import pytest
import sqlalchemy as sa

from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from tests.builders import a_draft, a_host, commit, uuid_of
from tests.db.conftest import SERVERS
from tests.world import Replies, World, a_group, a_request


@pytest.fixture(params=SERVERS)
def store(request, open_store):
    return open_store(request.param)


def versions(news):
    return {change.provider_id: change.row.version for change in news.hosts}


def test_a_number_drawn_early_and_committed_late_is_still_news(store):
    slow, quick = a_host('slow').on(store), a_host('quick').on(store)
    start = store.feed.load_everything()
    known_versions = versions(start)
    p, x = models.providers, models.changes
    with store.database.engine.connect() as late:
        late.execute(x.insert().values(kind='host', ref=str(slow.id)))
        late.execute(p.update().where(p.c.id == slow.id).values(version=p.c.version + 1))
        commit(store, a_draft().taking(quick))
        news = store.feed.poll(start.position, known_versions)
        assert set(versions(news)) == {quick.id}
        known_versions.update(versions(news))
        late.commit()
    again = store.feed.poll(news.position, known_versions, news.gaps)
    assert set(versions(again)) == {slow.id}
    known_versions.update(versions(again))
    assert store.feed.poll(again.position, known_versions, again.gaps).hosts == []


def test_a_number_is_asked_for_as_long_as_its_transaction_lives(store):
    slow, quick = a_host('slow').on(store), a_host('quick').on(store)
    start = store.feed.load_everything()
    known_versions, position, gaps = versions(start), start.position, start.gaps
    p, x = models.providers, models.changes
    with store.database.engine.connect() as late:
        if store.database.engine.dialect.name == 'postgresql':  # however slow the machine is
            late.exec_driver_sql('SET LOCAL idle_in_transaction_session_timeout = 0')
        late.execute(x.insert().values(kind='host', ref=str(slow.id)))
        late.execute(p.update().where(p.c.id == slow.id).values(version=p.c.version + 1))
        for _ in range(10):
            commit(store, *(a_draft().taking(quick, ram=1) for _ in range(10)))
            news = store.feed.poll(position, known_versions, gaps)
            position, gaps = news.position, news.gaps
            known_versions.update(versions(news))
        late.commit()
    assert slow.id in versions(store.feed.poll(position, known_versions, gaps))


def test_a_poll_without_news_reads_no_host(store):
    a_host().on(store)
    start = store.feed.load_everything()
    position, known_versions = start.position, versions(start)
    statements = []

    def note(connection, cursor, statement, *rest):
        statements.append(statement)

    sa.event.listen(store.database.engine, 'before_cursor_execute', note)
    assert store.feed.poll(position, known_versions).hosts == []
    assert len(statements) == 1
    assert not any('provider_facts' in statement for statement in statements)


def test_a_new_incarnation_is_told(store):
    before = store.feed.poll(0, {}).incarnation
    with store.database.engine.begin() as connection:
        connection.execute(models.meta.update().values(incarnation=before + 5))
    assert store.feed.poll(0, {}).incarnation == before + 5


class Meanwhile:
    """Does something before the statement of a number, once."""

    def __init__(self, store, number, act):
        self.store, self.left, self.act = store, number, act

    def __enter__(self):
        sa.event.listen(self.store.database.engine, 'before_cursor_execute', self._before)
        return self

    def __exit__(self, *error):
        sa.event.remove(self.store.database.engine, 'before_cursor_execute', self._before)

    def _before(self, *statement):
        self.left -= 1
        if self.left == 0:
            self.act()


def test_the_generation_of_a_group_is_never_newer_than_its_members(store, open_store):
    """Whoever plans on a generation has to know everybody who was placed up to it."""
    other = open_store(like=store)
    group = uuid_of('group')
    for number in range(1, 12):
        host = a_host(f'cmp-{number}').on(store)
        start = store.feed.load_everything()
        generation = start.groups.get(group, 0)
        commit(store, a_draft().taking(host))  # so that there are news at all
        draft = a_draft().planned_at(generation, group).taking(host)
        with Meanwhile(store, number, lambda draft=draft: commit(other, draft)) as meanwhile:
            news = store.feed.poll(start.position, versions(start))
        placed = {p.group for change in news.hosts for p in change.placed}
        if news.groups.get(group, 0) > generation:
            assert group in placed, f'before statement {number}'
    assert meanwhile.left > 0, 'a poll has more statements than were tried'


def test_a_member_whose_number_was_given_up_is_known_when_the_precondition_fails(store, open_store):
    """A scheduler that stands still before its COMMIT, for longer than anybody asks."""
    a_host('cmp-1').on(store)
    other = a_host('cmp-2').on(store)
    away, group = open_store(like=store, fast=False), a_group('anti-affinity')
    scheduler = World(store=store).scheduler
    (taken,) = [c.row for c in store.feed.load_everything().hosts if c.row.name == 'cmp-1']
    commit_now = away.database.writes.commit

    def commit_late(transaction):
        numbers = [{'kind': 'host', 'ref': str(other.id)}] * 10
        with store.database.engine.begin() as connection:
            connection.execute(models.changes.insert(), numbers)
        scheduler.cache.fetch()
        scheduler.cache._gaps = []
        commit_now(transaction)

    away.database.writes.commit = commit_late
    commit(away, a_draft().planned_at(0, group.uuid).taking(taken.id))
    scheduler.cache.fetch()
    assert scheduler.cache.fold().group_generation(group.uuid) == 0, 'it was news'
    request = a_request(group=group, force_hosts=['cmp-1'])
    scheduler.submit(request, 1, replies := Replies())
    for _ in range(3):
        scheduler.placing.step()
    assert replies.answers[1].outcome is Outcome.NO_VALID_HOST
