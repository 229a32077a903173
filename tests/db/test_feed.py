# SPDX-License-Identifier: Apache-2.0
"""News that appear out of order, and what a poll costs where there are none."""

import pytest
import sqlalchemy as sa

from gantt.db import feed, models
from tests.builders import a_draft, a_host, commit
from tests.db.conftest import SERVERS


@pytest.fixture(params=SERVERS)
def store(request, open_store):
    return open_store(request.param)


def versions(found):
    return {change.provider_id: change.row.version for change in found.hosts}


def test_a_number_drawn_early_and_committed_late_is_still_news(store):
    slow, quick = a_host('slow').on(store), a_host('quick').on(store)
    start = store.load_everything()
    known = versions(start)
    p, x = models.providers, models.changes
    with store.engine.connect() as late:
        late.execute(x.insert().values(kind='host', ref=str(slow.id)))
        late.execute(p.update().where(p.c.id == slow.id).values(version=p.c.version + 1))
        commit(store, a_draft().taking(quick))
        found = store.poll(start.position, known)
        assert set(versions(found)) == {quick.id}
        known.update(versions(found))
        late.commit()
    again = store.poll(found.position, known)
    assert set(versions(again)) == {slow.id}
    known.update(versions(again))
    assert store.poll(again.position, known).hosts == []


def test_a_late_number_is_found_while_the_window_holds_it(store):
    slow, quick = a_host('slow').on(store), a_host('quick').on(store)
    start = store.load_everything()
    known, position = versions(start), start.position
    p, x = models.providers, models.changes
    with store.engine.connect() as late:
        late.execute(x.insert().values(kind='host', ref=str(slow.id)))
        late.execute(p.update().where(p.c.id == slow.id).values(version=p.c.version + 1))
        for _ in range(feed.WINDOW // 2 // 10):
            commit(store, *(a_draft().taking(quick, ram=1) for _ in range(10)))
            found = store.poll(position, known)
            position = found.position
            known.update(versions(found))
        late.commit()
    assert slow.id in versions(store.poll(position, known))


def test_a_poll_without_news_reads_no_host(store):
    a_host().on(store)
    position, known = 0, {}
    for _ in range(2):
        found = store.poll(position, known)
        position = found.position
        known.update(versions(found))
    statements = []

    def note(connection, cursor, statement, *rest):
        statements.append(statement)

    sa.event.listen(store.engine, 'before_cursor_execute', note)
    assert store.poll(position, known).hosts == []
    assert len(statements) <= 3
    assert not any('provider_facts' in statement for statement in statements)


def test_a_new_incarnation_is_told(store):
    before = store.poll(0, {}).incarnation
    with store.engine.begin() as connection:
        connection.execute(models.meta.update().values(incarnation=before + 5))
    assert store.poll(0, {}).incarnation == before + 5
