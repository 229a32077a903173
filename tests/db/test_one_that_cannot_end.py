# SPDX-License-Identifier: Apache-2.0
"""A claim, a request or a class that is stuck: nothing else waits for it."""

import contextlib
import threading

import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.resource_classes import Inventory
from gantt.db.schema import models
from gantt.stores import stores_for_url
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    claimed,
    new_uuid,
    report_outcome,
    state_of,
)
from tests.conftest import READERS

SERVERS = READERS[1:]
#: A row that takes no more writes, without an error: as of a broken trigger of somebody.
WRITTEN_BY_NOBODY = {
    'sqlite': """
        CREATE TRIGGER stuck BEFORE UPDATE ON claims WHEN OLD.id = '{id}'
        BEGIN SELECT RAISE(IGNORE); END""",
    'postgresql': """
        CREATE FUNCTION stuck() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER stuck BEFORE UPDATE ON claims FOR EACH ROW WHEN (OLD.id = '{id}')
        EXECUTE FUNCTION stuck()""",
}


@contextlib.contextmanager
def stuck(store, kind, claim):
    """Nobody can change this claim meanwhile."""
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql(WRITTEN_BY_NOBODY[kind].format(id=claim.id))
    yield
    with store.database.engine.begin() as connection:
        for word in ('TRIGGER stuck', 'FUNCTION stuck()'):
            if kind == 'postgresql':
                on = ' ON claims' if word.startswith('TRIGGER') else ''
                connection.exec_driver_sql(f'DROP {word}{on}')
        if kind == 'sqlite':
            connection.exec_driver_sql('DROP TRIGGER stuck')


def another(store):
    """The store of another process."""
    return stores_for_url(store.database.engine.url.render_as_string(hide_password=False))


def rename(store, name, new):
    classes = models.resource_classes
    with store.database.engine.begin() as connection:
        connection.execute(classes.update().where(classes.c.name == name).values(name=new))


@pytest.mark.parametrize('kind', READERS[:2])
def test_a_claim_that_nobody_can_write_stops_no_other_from_running_out(make_store, kind):
    store = make_store(kind)
    host = a_host().on(store)
    first = claimed(store, a_draft().leased(-100).taking(host))[0]
    others = [claimed(store, a_draft().leased(-50).taking(host))[0] for _ in range(3)]
    with stuck(store, kind, first):
        result = store.claims.sweep(200)
        assert [outcome.claim_id for outcome in result.outcomes] == [claim.id for claim in others]
        assert [*result.unreadable] == [first.id]
        assert {state_of(store, claim) for claim in others} == {'expired'}
        # It is left out of the next sweep, which is as quick as any other.
        later = claimed(store, a_draft().leased(-50).taking(host))[0]
        assert [outcome.claim_id for outcome in store.claims.sweep(200).outcomes] == [later.id]
    assert state_of(store, first) == 'reserved'


@pytest.mark.parametrize('kind', READERS)
def test_a_claim_of_a_class_that_the_host_has_no_more_ends_like_others(make_store, kind):
    """As a release before may have left it, which renamed a class that had come into use."""
    store = make_store(kind)
    store.vocabulary.create_class('CUSTOM_A')
    having = {'VCPU': Inventory(total=8), 'CUSTOM_A': Inventory(total=8)}
    host = a_host().having(inventories=having).on(store)
    drafts = [a_draft().leased(seconds).taking(host, vcpu=1, CUSTOM_A=1) for seconds in (-9, 99)]
    swept, released = (claimed(store, draft)[0] for draft in drafts)
    plain = claimed(store, a_draft().leased(-5).taking(host, vcpu=1))[0]
    rename(store, 'CUSTOM_A', 'CUSTOM_B')
    assert {outcome.claim_id for outcome in store.claims.sweep(200).outcomes} == {
        swept.id,
        plain.id,
    }
    assert [
        outcome.outcome for outcome in store.claims.force_release(released.id, 'test').outcomes
    ] == ['ok']
    assert {state_of(store, claim) for claim in (swept, plain)} == {'expired'}
    assert host.row.used == {} or not any(host.row.used.get(n, 0) for n in ('VCPU', 'CUSTOM_A'))
    # A request whose first try claimed it is taken over, and gives it back: nobody waits for it.
    assert report_outcome(store, a_draft().taking(host, vcpu=8)).outcome == 'placed'


@pytest.mark.parametrize('kind', SERVERS)
def test_a_class_that_comes_into_use_meanwhile_is_not_renamed(make_store, kind):
    store = make_store(kind)
    store.vocabulary.create_class('CUSTOM_A')
    arrived, go = threading.Event(), threading.Event()
    renaming = another(store)

    def pause(connection, cursor, statement, *rest):
        if statement.lstrip().upper().startswith(('UPDATE RESOURCE_C', 'DELETE FROM RESOURCE_C')):
            arrived.set()
            go.wait(20)

    outcomes = []

    def rename():
        with contextlib.closing(renaming.database):
            try:
                renaming.vocabulary.rename_class('CUSTOM_A', 'CUSTOM_B')
                outcomes.append('renamed')
            except exceptions.InUse:
                outcomes.append('in use')

    sa.event.listen(renaming.database.engine, 'before_cursor_execute', pause)
    thread = threading.Thread(target=rename)
    thread.start()
    assert arrived.wait(20)
    pool = store.providers.create_provider('pool', inventories={'CUSTOM_A': Inventory(total=4)})
    go.set()
    thread.join()
    consumer = new_uuid()
    wish = {pool.uuid: {'CUSTOM_A': 2}}
    store.allocations.write_allocations(
        [WantedAllocations(consumer=consumer, allocations=wish, project_id='p', user_id='u')]
    )
    store.allocations.delete_allocations(consumer)
    assert outcomes == ['in use']
    assert [*store.providers.load_provider(pool.uuid).inventories] == ['CUSTOM_A']
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('kind', SERVERS)
@pytest.mark.parametrize('word', ['rename', 'delete'])
def test_a_class_and_a_trait_that_go_meanwhile_cost_a_report_nothing(make_store, kind, word):
    """A report has looked up the name, and the row goes before it is written."""
    store = make_store(kind)
    store.vocabulary.create_class('CUSTOM_A')
    store.vocabulary.create_trait('CUSTOM_FAST')
    host = a_host().on(store)
    changing = another(store)
    tables = ['INSERT INTO INVENTORIES', 'INSERT INTO PROVIDER_TRAITS']

    def go(connection, cursor, statement, *rest):
        beginning = next((t for t in tables if statement.upper().startswith(t)), None)
        if beginning is None:
            return
        tables.remove(beginning)
        if beginning.endswith('TRAITS'):
            changing.vocabulary.delete_trait('CUSTOM_FAST')
        elif word == 'rename':
            changing.vocabulary.rename_class('CUSTOM_A', 'CUSTOM_B')
        else:
            changing.vocabulary.delete_class('CUSTOM_A')

    sa.event.listen(store.database.engine, 'before_cursor_execute', go)
    having = {'VCPU': Inventory(total=8), 'CUSTOM_A': Inventory(total=8)}
    host.facts = host.facts.having(inventories=having, traits=['CUSTOM_FAST'])
    assert host.report().outcome == 'applied'
    changing.database.close()
    assert tables == []
    sa.event.remove(store.database.engine, 'before_cursor_execute', go)
    assert host.row.facts.inventories['CUSTOM_A'].total == 8
    assert host.row.facts.traits == ['CUSTOM_FAST']
    assert store.claims.audit() == CLEAN
