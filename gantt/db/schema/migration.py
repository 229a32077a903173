# SPDX-License-Identifier: Apache-2.0
"""The schema's version: make it, ask for it, insist on it.

Only taking steps needs Alembic.  Importing it is a tenth of the start of a process, which asks
for the version alone: that is read here, as Alembic reads it.
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

#: What a migration waits for a table that others use, or for another migration.
LOCK_SECONDS = 5
#: What a process waits for another one that changes the schema.
TURN_SECONDS = 60.0
#: How often a step is begun that the server ends, to let others go on.
TRIES = 5

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'alembic')
#: Where Alembic notes what the database is at.
_VERSIONS = sa.table('alembic_version', sa.column('version_num', sa.String))


def _config() -> 'config.Config':
    from alembic import config

    settings = config.Config()
    settings.set_main_option('script_location', HERE.replace('%', '%%'))
    return settings


@functools.cache
def expected() -> str:
    """The revision that this version of Gantt needs; read once, as the steps come with the code."""
    return revisions()[0]


def current(engine: sa.Engine) -> str | None:
    """The revision that the database is at, None where it has no schema.

    :raises DatabaseUnavailable: it does not answer, or refuses us
    """
    with _logged_steps(), engine.connect() as connection:
        heads = _heads(connection)
        if not heads and connection.dialect.name == 'postgresql':
            _must_see(connection)
    return ', '.join(heads) or None


def _heads(connection: sa.Connection) -> list[str]:
    if not sa.inspect(connection).has_table(_VERSIONS.name):
        return []
    return list(connection.execute(sa.select(_VERSIONS.c.version_num)).scalars())


def _must_see(connection: sa.Connection) -> None:
    """Tables that a user may not see are none for it.

    :raises DatabaseUnavailable: it may use no schema of those it looks in
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
    """The current revision in words."""
    return current(engine) or 'none'


def sync(engine: sa.Engine, revision: str = 'head') -> str:
    """Bring the schema to ``revision`` (a later one only); the revision it is at then.

    Several processes may do so at the same time: they queue for it.

    :raises DatabaseUnavailable: it does not answer, or refuses us
    :raises DatabaseNotSynced: it is not this release's to change
    """
    found = current(engine)
    if found is not None:
        _must_be_known(engine, found)
        if not pending(found):
            return found  # nothing to do, or a later release was here, and took nothing away
    settings = _config()
    with _logged_steps(), engine.connect() as connection, _turn(connection):
        settings.attributes['connection'] = connection
        _upgrade(connection, settings, revision)
    return version(engine)


def _upgrade(connection: sa.Connection, settings: 'config.Config', revision: str) -> None:
    """Take the steps; one that meets the writers of other processes in a circle is begun anew."""
    from alembic import command

    for left in range(TRIES - 1, -1, -1):
        try:
            command.upgrade(settings, revision)
            return
        except Exception as e:
            connection.rollback()
            if not left or retry.signal_of(e) is not retry.RetrySignal.CONFLICT:
                raise


@contextlib.contextmanager
def _logged_steps() -> Iterator[None]:
    """Say what is wrong with the database.

    :raises DatabaseUnavailable: it does not answer, or refuses us
    """
    try:
        yield
    except Exception as e:
        if retry.signal_of(e) is None and not retry.refusal_of(e):
            raise
        raise retry.unavailable(e) from e


@contextlib.contextmanager
def _with_time(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection whose bounds are those of a migration; it is closed afterwards."""
    kind = session.family(engine)
    with engine.connect() as connection:
        if kind != 'sqlite':
            connection.detach()
            for statement in session.unhurried(kind, LOCK_SECONDS):
                connection.exec_driver_sql(statement)
            connection.commit()
        yield connection


@contextlib.contextmanager
def _turn(connection: sa.Connection):
    """One process at a time, where the server can say so."""
    name = connection.dialect.name
    if name == 'postgresql':
        # Asked again and again: an index that is made beside writers waits for who waits here.
        until = time.monotonic() + TURN_SECONDS
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
    """Whether this code can work with the schema.

    :raises DatabaseNotSynced: it is older than the code, or so much newer that something that
        the code needs may be gone
    """
    found, wanted = current(engine), expected()
    if found is None:
        raise exceptions.DatabaseNotSynced(
            f'the database has no schema, this version of Gantt needs {wanted}; '
            'run "gantt-manage db sync"',
            current='none',
            expected=wanted,
        )
    _must_be_known(engine, found)
    if pending(found):
        raise exceptions.DatabaseNotSynced(current=found, expected=wanted)


def strange(found: str) -> str:
    """What a revision means that this code does not know, and what to do."""
    return (
        f'the database is at {found}, which this release does not know; it needs {expected()}. '
        "The database is another service's, of a newer release of Gantt, or of a version that was "
        'never released. Correct [database] connection, run the newer release, or begin with an '
        'empty database'
    )


def _must_be_known(engine: sa.Engine, found: str) -> None:
    if pending(found) is None and not added(engine, found):
        raise exceptions.DatabaseNotSynced(strange(found), current=found, expected=expected())


def pending(found: str) -> list[str] | None:
    """Revisions that come after ``found``, in order; None: this code does not know it."""
    known = revisions()[::-1]
    return list(known[known.index(found) + 1 :]) if found in known else None


def added(engine: sa.Engine, found: str) -> list[str]:
    """Steps of later releases, where our own are all taken and those only add; else [].

    Each step is noted by its name as it is taken, by the release that brings it.

    :param found: what the database is at, a revision that this code does not know
    """
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table(models.schema_steps.name):
            return []
        taken = set(connection.execute(sa.select(models.schema_steps.c.revision)).scalars())
    known = set(revisions())
    later = sorted(taken - known)
    complete = known <= taken and found in taken
    return later if complete and not any(map(contracts, later)) else []


def contracts(revision: str) -> bool:
    """Whether a revision takes away what the code before it needs.

    Its name says so; one that only adds is called ``NNNN_expand_...``.
    """
    return '_expand_' not in revision


def bump_incarnation(engine: sa.Engine) -> int:
    """Another incarnation, after the database was put back to an older state.

    Every host registers again then, and what it runs is adopted.

    :raises DatabaseNotSynced: there is no schema, or none that this code knows
    """
    found = current(engine)
    if found is None:
        check(engine)
    else:
        _must_be_known(engine, found)
    with engine.begin() as connection:
        now = connection.exec_driver_sql(f'SELECT {session.CLOCK[session.family(engine)]}')
        before = connection.execute(sa.select(models.meta.c.incarnation)).scalar_one()
        number = max(before + 1, int(now.scalar_one()))
        connection.execute(models.meta.update().values(incarnation=number))
    return number


#: Numbers of changes begin anew.
_BEGIN = {
    'postgresql': "SELECT setval(pg_get_serial_sequence('changes', 'id'), 1, false)",
    'mysql': 'ALTER TABLE changes AUTO_INCREMENT = 1',
}


def empty(engine: sa.Engine) -> None:
    """Delete every row but what the migrations themselves put there."""
    with _with_time(engine) as connection, connection.begin():
        keep = ('meta', 'resource_classes', 'schema_steps')
        tables = [one for one in models.metadata.sorted_tables if one.name not in keep]
        # One trip tells which have rows: of most of them there is nothing to delete.
        filled = connection.execute(
            sa.select(*(sa.exists(sa.select(1).select_from(one)) for one in tables))
        ).one()
        for table, has_rows in reversed([*zip(tables, filled, strict=True)]):
            if has_rows:
                connection.execute(table.delete())
        custom = models.resource_classes.c.name.like('CUSTOM%')
        connection.execute(models.resource_classes.delete().where(custom))
        # Else who reads the feed from its beginning is far behind the first change.
        begin = _BEGIN.get(engine.dialect.name)
        if begin is not None:
            connection.execute(sa.text(begin))


@functools.cache
def revisions() -> tuple[str, ...]:
    """All revisions, newest first; read once.

    Each step is a file of the same name, and their numbers say their order.
    """
    names = (os.path.splitext(one) for one in os.listdir(os.path.join(HERE, 'versions')))
    return tuple(sorted((n for n, kind in names if kind == '.py' and n[0].isdigit()), reverse=True))
