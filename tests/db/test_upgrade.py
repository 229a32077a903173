# SPDX-License-Identifier: Apache-2.0
"""A database that a release left is upgraded, and its rows say what they said."""

import contextlib

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from gantt import exceptions
from gantt.core.records.process import MemoryUse, ServiceNote
from gantt.db.engine import session
from gantt.db.schema import migration, models
from gantt.stores import sql_stores
from tests.builders import CLEAN, a_draft, a_host, claimed
from tests.db import released
from tests.db.conftest import drop_tables
from tests.services import UNHURRIED

#: The last release from which an upgrade is owed.
RELEASE = 'schema_1_0'


@pytest.fixture(
    params=[
        'sqlite',
        pytest.param('postgresql', marks=pytest.mark.postgresql),
        pytest.param('mysql', marks=pytest.mark.mysql),
    ]
)
def engine(request, tmp_path):
    """An engine on a database as the release left it."""
    if request.param == 'sqlite':
        url = f'sqlite:///{tmp_path}/old.db'
    else:
        url = request.getfixturevalue(f'{request.param}_url')
    engine = session.build_engine(url, timeouts=UNHURRIED)
    drop_tables(engine)
    released.Released(RELEASE).restore(engine)
    yield engine
    drop_tables(engine)
    engine.dispose()


def differences(engine):
    """What the models have otherwise."""
    options = {'compare_type': True, 'compare_server_default': True}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, models.metadata)


def says(now, before):
    """Whether all is there that was said before; a later release may say more."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(says(now.get(k), v) for k, v in before.items())
    if isinstance(before, list):
        return len(now) == len(before) and all(map(says, now, before))
    return now == before


def test_it_has_a_row_in_each_table(engine):
    filled = {table for table, _ in released.Released(RELEASE).rows}
    assert filled == set(sa.inspect(engine).get_table_names())


def test_an_upgrade_ends_at_the_schema_of_the_models_and_keeps_what_rows_say(engine):
    before = released.Released(RELEASE).read
    migration.sync(engine)
    migration.check(engine)
    assert differences(engine) == []
    store = sql_stores(engine)
    with contextlib.closing(store.database):
        now = released.read(store)
        for kind, old in before.items():
            assert says(now[kind], old), kind
        # Leases of then have run out, and nobody swept; all else is as it should be.
        assert {**store.claims.audit(), 'leaked': []} == CLEAN
        store.claims.sweep(100)
        (row,) = [row for row in before['hosts'] if row['name'] == 'cmp-1']
        host = a_host('cmp-1').at_work(store, row)
        claims = claimed(store, a_draft().taking(host))
        assert [outcome.outcome for outcome in host.confirm(*claims)] == ['ok']
        assert store.claims.audit() == CLEAN


def test_processes_of_the_release_work_next_to_new_ones(engine, monkeypatch):
    old = sa.Table('services', sa.MetaData(), autoload_with=engine)
    (row,) = [row for table, row in released.Released(RELEASE).rows if table == old.name]
    migration.sync(engine)
    memory = MemoryUse(resident_bytes=9, hosts=1, bytes_per_host=8, claims=1, bytes_per_claim=7)
    words = {'kind': 'planner', 'host': 'b', 'version': '1.1', 'configuration': '02'}
    store = sql_stores(engine)
    with contextlib.closing(store.database):
        store.services.note_service(ServiceNote(name='new', memory=memory, **words))
        with engine.begin() as connection:
            connection.execute(old.insert().values(row | {'name': 'old'}))
            connection.execute(old.update().values(version='1.0').where(old.c.name == 'old'))
            assert {noted.name for noted in connection.execute(sa.select(old))} >= {'new', 'old'}
        noted = {service.name: service.memory for service in store.services.list_services()}
        assert (noted['new'], noted['old']) == (memory, None)
    # The code of the release knows its own steps only, and takes the others for additions.
    steps = {r['revision'] for t, r in released.Released(RELEASE).rows if t == 'schema_steps'}
    monkeypatch.setattr(migration, 'revisions', lambda: tuple(sorted(steps, reverse=True)))
    migration.check(engine)
    assert migration.added(engine, migration.version(engine))


@pytest.mark.parametrize('engine', ['sqlite'], indirect=True)
@pytest.mark.parametrize(
    ('statement', 'kind'),
    [
        ('ALTER TABLE requests DROP COLUMN answer', 'column'),
        ('DROP INDEX ix_claims_consumer', 'index'),
        ("UPDATE claims SET consumer_type = 'OTHER'", 'rows'),
        ('DELETE FROM quotas', 'rows'),
    ],
)
def test_what_is_lost_on_the_way_is_found(engine, statement, kind):
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    migration.sync(engine)
    if kind != 'rows':
        assert differences(engine)
        return
    store = sql_stores(engine)
    with contextlib.closing(store.database):
        assert not says(released.read(store), released.Released(RELEASE).read)


def test_a_database_of_a_version_that_was_never_released_is_left_alone(engine):
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE alembic_version SET version_num = '0029_expand_rule_generations'"
        )
    with pytest.raises(exceptions.DatabaseNotSynced, match='which this release does not know'):
        migration.sync(engine)
