# SPDX-License-Identifier: Apache-2.0
"""The schema's version: upgrade, read and check it.

Only migrations need Alembic.  Importing it takes a tenth of the start of a process, which needs
only the version: that is read here as Alembic reads it.
"""

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gantt import exceptions
from gantt.db.engine import retry, session
from gantt.db.schema import models

if TYPE_CHECKING:
    from alembic import config

#: Seconds that a migration waits for a table that others use, or for another migration.
LOCK_TIMEOUT_SECONDS = 5
#: Seconds that a process waits for another one that changes the schema.
OTHER_MIGRATION_SECONDS = 60.0
#: Tries of a migration that the server ends to let others go on.
MIGRATION_TRIES = 5

ALEMBIC_DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'alembic')
#: Table of Alembic with the revision of the database.
_alembic_version = sa.table('alembic_version', sa.column('version_num', sa.String))


def _config() -> 'config.Config':
    from alembic import config

    settings = config.Config()
    settings.set_main_option('script_location', ALEMBIC_DIRECTORY.replace('%', '%%'))
    return settings


@functools.cache
def expected() -> str:
    """Return the revision that this version of Gantt needs; cached, as the code ships it."""
    return revisions()[0]


def current(engine: sa.Engine) -> str | None:
    """Return the revision of the database, None if it has no schema.

    :raises DatabaseUnavailable: the database does not answer, or refuses us
    """
    with _logged_steps(), engine.connect() as connection:
        heads = _heads(connection)
        if not heads and connection.dialect.name == 'postgresql':
            _check_visible(connection)
    return ', '.join(heads) if heads else None


def _heads(connection: sa.Connection) -> list[str]:
    if not sa.inspect(connection).has_table(_alembic_version.name):
        return []
    return list(connection.execute(sa.select(_alembic_version.c.version_num)).scalars())


def _check_visible(connection: sa.Connection) -> None:
    """Check that the user may see tables; otherwise they seem not to exist.

    :raises DatabaseUnavailable: the user may use no schema of its search path
    """
    if connection.exec_driver_sql('SELECT current_schema()').scalar() is None:
        path = connection.exec_driver_sql('SHOW search_path').scalar()
        problem, correct = f'no schema of {path} is there for this user', 'the user'
        raise exceptions.DatabaseUnavailable(
            f'the database runs and refuses us: {problem}; grant it USAGE, or correct in '
            f'[database] connection {correct}',
            problem=problem,
            correct=correct,
        )


def version(engine: sa.Engine) -> str:
    """Return the current revision as a text."""
    revision = current(engine)
    return 'none' if revision is None else revision


def sync(engine: sa.Engine, revision: str = 'head') -> str:
    """Bring the schema to ``revision`` (a later one only); return its revision then.

    Several processes may do so at the same time: they wait for each other.

    :raises DatabaseUnavailable: the database does not answer, or refuses us
    :raises DatabaseNotSynced: the schema is not this release's to change
    """
    revision_found = current(engine)
    if revision_found is not None:
        _check_known(engine, revision_found)
        if not pending(revision_found):
            return revision_found  # nothing to do, or a later release has only added to it
    settings = _config()
    with _logged_steps(), engine.connect() as connection, _migration_lock(connection):
        settings.attributes['connection'] = connection
        if tables := tables_without_revision(connection):
            raise exceptions.DatabaseNotSynced(
                unversioned(tables), current='none', expected=expected()
            )
        _upgrade(connection, settings, revision)
    return version(engine)


def tables_without_revision(connection: sa.Connection) -> list[str]:
    """Return tables with names of ours in a database without a revision."""
    # In this order: another process that makes them now writes the revision with them.
    names = models.metadata.tables.keys() & sa.inspect(connection).get_table_names()
    return [] if _heads(connection) else sorted(names)


def unversioned(tables: list[str]) -> str:
    """Return a sentence on a database with tables and no revision: its meaning, and what to do."""
    return (
        f'the database has tables {", ".join(tables[:3])}{" and more" if len(tables) > 3 else ""}, '
        "and no revision. They are another service's, of a restore that left out the table "
        f'{_alembic_version.name}, or of a "db sync" that was cut off. Correct [database] '
        'connection, restore that table too, or begin with an empty database'
    )


def _upgrade(connection: sa.Connection, settings: 'config.Config', revision: str) -> None:
    """Run the migrations; one that ends in a deadlock with other processes is begun anew."""
    from alembic import command

    for tries_left in range(MIGRATION_TRIES - 1, -1, -1):
        try:
            command.upgrade(settings, revision)
            return
        except Exception as e:
            connection.rollback()
            if not tries_left or retry.signal_of(e) is not retry.RetrySignal.CONFLICT:
                raise


@contextlib.contextmanager
def _logged_steps() -> Iterator[None]:
    """Turn errors of the database inside into ``DatabaseUnavailable``.

    :raises DatabaseUnavailable: the database does not answer, or refuses us
    """
    try:
        yield
    except Exception as e:
        if retry.signal_of(e) is None and not retry.refusal_of(e):
            raise
        raise retry.unavailable(e) from e


@contextlib.contextmanager
def _with_time(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Provide a connection with the timeouts of a migration; it is closed afterwards."""
    kind = session.family(engine)
    with engine.connect() as connection:
        if kind != 'sqlite':
            connection.detach()
            for statement in session.without_deadlines(kind, LOCK_TIMEOUT_SECONDS):
                connection.exec_driver_sql(statement)
            connection.commit()
        yield connection


@contextlib.contextmanager
def _migration_lock(connection: sa.Connection):
    """Take the server's lock of migrations, if it has such locks, so that others wait."""
    name = connection.dialect.name
    if name == 'postgresql':
        # Polled: a concurrent index build waits for transactions that wait here.
        until = time.monotonic() + OTHER_MIGRATION_SECONDS
        while not connection.exec_driver_sql('SELECT pg_try_advisory_lock(4711001)').scalar_one():
            connection.commit()
            if time.monotonic() > until:
                raise exceptions.Busy(
                    reason='another process changes the schema', retry_after_ms=1000
                )
            time.sleep(0.1)
        connection.commit()
        try:
            yield
        finally:
            connection.exec_driver_sql('SELECT pg_advisory_unlock(4711001)')
            connection.commit()
    elif name in ('mysql', 'mariadb'):
        connection.exec_driver_sql("SELECT GET_LOCK('gantt_schema', 60)")
        connection.commit()
        try:
            yield
        finally:
            connection.exec_driver_sql("SELECT RELEASE_LOCK('gantt_schema')")
            connection.commit()
    else:
        yield


def check(engine: sa.Engine) -> None:
    """Check that this code can work with the schema.

    :raises DatabaseNotSynced: the schema is older than the code, or so much newer that it may lack
        what the code needs
    """
    revision, needed = current(engine), expected()
    if revision is None:
        with _logged_steps(), engine.connect() as connection:
            tables = tables_without_revision(connection)
        if tables:
            raise exceptions.DatabaseNotSynced(unversioned(tables), current='none', expected=needed)
        raise exceptions.DatabaseNotSynced(
            f'the database has no schema, this version of Gantt needs {needed}; '
            'run "gantt-manage db sync"',
            current='none',
            expected=needed,
        )
    _check_known(engine, revision)
    if pending(revision):
        raise exceptions.DatabaseNotSynced(current=revision, expected=needed)


def unknown_revision(revision: str) -> str:
    """Return a sentence on a revision that this code does not know: its meaning, and what to do."""
    return (
        f'the database is at {revision or "an empty revision"}, which this release does not know; '
        f'it needs {expected()}. '
        "The database is another service's, of a newer release of Gantt, or of a version that was "
        'never released. Correct [database] connection, run the newer release, or begin with an '
        'empty database'
    )


def _check_known(engine: sa.Engine, revision: str) -> None:
    if pending(revision) is None and not added(engine, revision):
        raise exceptions.DatabaseNotSynced(
            unknown_revision(revision), current=revision, expected=expected()
        )


def pending(revision: str) -> list[str] | None:
    """Return revisions that come after ``revision``, in order; None: this code does not know it."""
    ascending = revisions()[::-1]
    return list(ascending[ascending.index(revision) + 1 :]) if revision in ascending else None


def added(engine: sa.Engine, revision: str) -> list[str]:
    """Return later releases' steps, if all of ours are taken and those only add; else [].

    Each step is recorded by its name as it is taken, by the release that brings it.

    :param revision: the revision of the database, which this code does not know
    """
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table(models.schema_steps.name):
            return []
        taken_steps = set(connection.execute(sa.select(models.schema_steps.c.revision)).scalars())
    own_steps = set(revisions())
    later_steps = sorted(taken_steps - own_steps)
    is_complete = own_steps <= taken_steps and revision in taken_steps
    return later_steps if is_complete and not any(map(contracts, later_steps)) else []


def contracts(revision: str) -> bool:
    """Return whether a revision removes something that the code before it needs.

    Its name shows it: one that only adds is called ``NNNN_expand_...``.
    """
    return '_expand_' not in revision


def bump_incarnation(engine: sa.Engine) -> int:
    """Set and return a new incarnation, after the database was restored to an older state.

    Then every host registers again, and its running guests are adopted.

    :raises DatabaseNotSynced: there is no schema, or none that this code knows
    """
    revision = current(engine)
    if revision is None:
        check(engine)
    else:
        _check_known(engine, revision)
    with engine.begin() as connection:
        now = connection.exec_driver_sql(f'SELECT {session.CLOCK[session.family(engine)]}')
        incarnation_before = connection.execute(sa.select(models.meta.c.incarnation)).scalar_one()
        number = max(incarnation_before + 1, int(now.scalar_one()))
        connection.execute(models.meta.update().values(incarnation=number))
    return number


#: Statements that restart the numbers of changes.
_RESTART_CHANGES = {
    'postgresql': "SELECT setval(pg_get_serial_sequence('changes', 'id'), 1, false)",
    'mysql': 'ALTER TABLE changes AUTO_INCREMENT = 1',
}


def empty(engine: sa.Engine) -> None:
    """Delete every row except those that the migrations insert."""
    with _with_time(engine) as connection, connection.begin():
        keep = ('meta', 'resource_classes', 'schema_steps')
        tables = [
            table_of_rows
            for table_of_rows in models.metadata.sorted_tables
            if table_of_rows.name not in keep
        ]
        # One query finds the tables with rows: most of them have none to delete.
        filled = connection.execute(
            sa.select(
                *(sa.exists(sa.select(1).select_from(table_of_rows)) for table_of_rows in tables)
            )
        ).one()
        for table, has_rows in reversed([*zip(tables, filled, strict=True)]):
            if has_rows:
                connection.execute(table.delete())
        custom = models.resource_classes.c.name.like('CUSTOM%')
        connection.execute(models.resource_classes.delete().where(custom))
        # Else a reader from the beginning of the feed is far behind the first change.
        begin = _RESTART_CHANGES.get(engine.dialect.name)
        if begin is not None:
            connection.execute(sa.text(begin))


@functools.cache
def revisions() -> tuple[str, ...]:
    """Return all revisions, newest first; cached.

    Each step is a file of the same name, and their numbers give their order.
    """
    names = (
        os.path.splitext(file_name)
        for file_name in os.listdir(os.path.join(ALEMBIC_DIRECTORY, 'versions'))
    )
    return tuple(
        sorted(
            (name for name, suffix in names if suffix == '.py' and name[0].isdigit()), reverse=True
        )
    )
