# SPDX-License-Identifier: Apache-2.0
"""The migrations make exactly the tables that the code works with."""

import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa
from alembic import script
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from gantt import exceptions
from gantt.db.engine import session
from gantt.db.schema import migration, models
from gantt.stores import sql_stores
from tests.db.conftest import drop_tables

KINDS = [
    'sqlite',
    pytest.param('postgresql', marks=pytest.mark.postgresql),
    pytest.param('mysql', marks=pytest.mark.mysql),
]


@pytest.fixture(params=KINDS)
def engine(request, tmp_path):
    """An engine on a database without any table; others find it so again."""
    if request.param == 'sqlite':
        url = f'sqlite:///{tmp_path}/empty.db'
    else:
        url = request.getfixturevalue(f'{request.param}_url')
    built = session.build_engine(url)
    drop_tables(built)
    yield built
    drop_tables(built)
    built.dispose()


def test_an_empty_database_has_no_version(engine):
    assert migration.current(engine) is None
    assert migration.version(engine) == 'none'
    with pytest.raises(exceptions.DatabaseNotSynced, match='has no schema'):
        migration.check(engine)


def test_sync_makes_the_tables_of_the_models(engine):
    assert migration.sync(engine) == migration.expected()
    migration.check(engine)
    options = {'compare_type': True, 'compare_server_default': True}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, models.metadata) == []


def test_a_missing_table_is_named_and_not_taken_for_a_silent_database(engine):
    migration.sync(engine)
    store = sql_stores(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql('DROP TABLE declared_metrics')
    missing = 'a table is missing.*declared_metrics.*gantt-manage db sync'
    with pytest.raises(exceptions.DatabaseNotSynced, match=missing):
        store.feed.load_everything()
    store.database.close()


def test_sync_again_changes_nothing(engine):
    migration.sync(engine)
    store = sql_stores(engine)
    before = store.feed.load_everything()
    assert migration.sync(engine) == migration.expected()
    assert store.feed.load_everything().incarnation == before.incarnation
    store.database.close()


def test_the_steps_are_read_as_alembic_reads_them():
    scripts = script.ScriptDirectory.from_config(migration._config())
    assert [step.revision for step in scripts.walk_revisions()] == list(migration.revisions())
    assert scripts.get_heads() == [migration.expected()]


def test_a_process_that_serves_imports_no_alembic():
    program = "import sys, gantt.cmd.standalone; print([n for n in sys.modules if 'alembic' in n])"
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=True
    )
    assert done.stdout == '[]\n'


def test_step_by_step_ends_at_the_same_version(engine):
    for revision in reversed(migration.revisions()):
        assert migration.sync(engine, revision) == revision
    migration.check(engine)


@pytest.mark.parametrize('engine', ['postgresql', 'mysql'], indirect=True)  # SQLite: one process
def test_processes_that_sync_at_the_same_time_queue_for_it(engine):
    failures = []

    def sync():
        try:
            migration.sync(engine)
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=sync) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    migration.check(engine)


def test_a_schema_of_a_later_version_is_refused_too(engine):
    migration.sync(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_future'")
    with pytest.raises(exceptions.DatabaseNotSynced, match='9999_future.*newer release'):
        migration.check(engine)


@pytest.mark.parametrize('step', ['0099_expand_future', '0099_contract_future'])
def test_a_step_of_a_later_version_is_worked_with_where_it_only_adds(engine, step):
    migration.sync(engine)
    with engine.begin() as connection:
        connection.execute(models.schema_steps.insert().values(revision=step))
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{step}'")
    if migration.contracts(step):
        with pytest.raises(exceptions.DatabaseNotSynced, match=f'{step}.*newer release'):
            migration.check(engine)
        return
    migration.check(engine)
    assert migration.added(engine, step) == [step]
    assert migration.sync(engine) == step


@pytest.mark.parametrize('act', [migration.check, migration.sync, migration.bump_incarnation])
def test_a_database_of_another_service_is_left_alone(engine, act):
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE TABLE alembic_version (version_num VARCHAR(32))')
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('abc123'), ('def456')")
    with pytest.raises(exceptions.DatabaseNotSynced, match="def456.*another service's"):
        act(engine)
    assert sa.inspect(engine).get_table_names() == ['alembic_version']


@pytest.mark.parametrize('act', [migration.check, migration.sync, migration.bump_incarnation])
@pytest.mark.parametrize('statement', ['DROP TABLE alembic_version', 'DELETE FROM alembic_version'])
def test_tables_without_a_revision_are_left_alone(engine, act, statement):
    """They belong to another service or to a partial restore, which no sync can complete."""
    migration.sync(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    with pytest.raises(exceptions.DatabaseNotSynced, match='aggregates.*no revision.*restore'):
        act(engine)


@pytest.mark.parametrize('act', [migration.check, migration.sync, migration.bump_incarnation])
def test_an_empty_revision_is_one_that_is_not_known(engine, act):
    migration.sync(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = ''")
    with pytest.raises(exceptions.DatabaseNotSynced, match='at an empty revision, which this'):
        act(engine)


def test_tables_of_others_beside_ours_are_no_problem(engine):
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE TABLE some_other_table (id INTEGER)')
    migration.sync(engine)
    migration.check(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql('DROP TABLE some_other_table')


def test_an_empty_database_has_no_incarnation(engine):
    with pytest.raises(exceptions.DatabaseNotSynced, match='gantt-manage db sync'):
        migration.bump_incarnation(engine)


def test_another_incarnation_after_a_restore(engine):
    migration.sync(engine)
    store = sql_stores(engine)
    before = store.feed.load_everything().incarnation
    assert migration.bump_incarnation(engine) > before
    assert store.feed.poll(0, {}).incarnation > before
    store.database.close()


def test_a_database_that_is_away_is_unavailable():
    engine = session.build_engine('postgresql+psycopg://nobody@127.0.0.1:1/none')
    with pytest.raises(exceptions.DatabaseUnavailable):
        migration.sync(engine)
    with pytest.raises(exceptions.DatabaseUnavailable):
        migration.current(engine)
