# SPDX-License-Identifier: Apache-2.0
"""The schema's version: make it, ask for it, insist on it."""

import contextlib
import os

import sqlalchemy as sa
from alembic import command, config, script
from alembic.runtime import migration

from gantt import exceptions
from gantt.db import models, retry, session

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'alembic')


def _config() -> config.Config:
    settings = config.Config()
    settings.set_main_option('script_location', HERE.replace('%', '%%'))
    return settings


def expected() -> str:
    """The revision that this version of Gantt needs."""
    head = script.ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise exceptions.Bug(invariant='there is one head of the migrations')
    return head


def current(engine: sa.Engine) -> str | None:
    """The revision that the database is at, None where it has no schema.

    :raises DatabaseUnavailable: it does not answer
    """
    try:
        with engine.connect() as connection:
            heads = migration.MigrationContext.configure(connection).get_current_heads()
    except Exception as e:
        if retry.signal_of(e) is None:
            raise
        raise retry.unavailable(e) from e
    return ', '.join(heads) or None


def version(engine: sa.Engine) -> str:
    """The current revision in words."""
    return current(engine) or 'none'


def sync(engine: sa.Engine, revision: str = 'head') -> str:
    """Bring the schema to ``revision`` (a later one only); the revision it is at then.

    Several processes may do so at the same time: they queue for it.

    :raises DatabaseUnavailable: it does not answer
    :raises DatabaseNotSynced: it is not this release's to change
    """
    found = current(engine)
    if found is not None:
        _must_be_known(found)
    settings = _config()
    try:
        with engine.connect() as connection, _turn(connection):
            settings.attributes['connection'] = connection
            command.upgrade(settings, revision)
    except Exception as e:
        if retry.signal_of(e) is None:
            raise
        raise retry.unavailable(e) from e
    return version(engine)


@contextlib.contextmanager
def _turn(connection: sa.Connection):
    """One process at a time, where the server can say so."""
    name = connection.dialect.name
    if name == 'postgresql':
        connection.exec_driver_sql('SELECT pg_advisory_lock(4711001)')
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
    """:raises DatabaseNotSynced: the schema is older or newer than the code"""
    found, wanted = current(engine), expected()
    if found is not None:
        _must_be_known(found)
    if found != wanted:
        raise exceptions.DatabaseNotSynced(current=found or 'nothing', expected=wanted)


def strange(found: str) -> str:
    """What a revision means that this code does not know, and what to do."""
    return (
        f'the database is at {found}, which this release does not know: it is another '
        "service's, or of a newer release of Gantt. Correct [database] connection, or run the "
        'newer release'
    )


def _must_be_known(found: str) -> None:
    if pending(found) is None:
        raise exceptions.DatabaseNotSynced(strange(found), current=found, expected=expected())


def pending(found: str) -> list[str] | None:
    """Revisions that come after ``found``, in order; None: this code does not know it."""
    known = revisions()[::-1]
    return known[known.index(found) + 1 :] if found in known else None


def contracts(revision: str) -> bool:
    """Whether a revision takes away what the code before it needs.

    Its name says so; one that only adds is called ``NNNN_expand_...``.
    """
    return '_contract_' in revision


def bump_incarnation(engine: sa.Engine) -> int:
    """Another incarnation, after the database was put back to an older state.

    Every host registers again then, and what it runs is adopted.

    :raises DatabaseNotSynced: there is no schema, or none that this code knows
    """
    found = current(engine)
    if found is None:
        check(engine)
    else:
        _must_be_known(found)
    with engine.begin() as connection:
        now = connection.exec_driver_sql(f'SELECT {session.CLOCK[session.family(engine)]}')
        before = connection.execute(sa.select(models.meta.c.incarnation)).scalar_one()
        number = max(before + 1, int(now.scalar_one()))
        connection.execute(models.meta.update().values(incarnation=number))
    return number


def empty(engine: sa.Engine) -> None:
    """Delete every row but what the migrations themselves put there."""
    with engine.begin() as connection:
        keep = ('meta', 'resource_classes')
        for table in reversed(models.metadata.sorted_tables):
            if table.name not in keep:
                connection.execute(table.delete())
        custom = models.resource_classes.c.name.like('CUSTOM%')
        connection.execute(models.resource_classes.delete().where(custom))


def revisions() -> list[str]:
    """All revisions, newest first."""
    found = script.ScriptDirectory.from_config(_config())
    return [step.revision for step in found.walk_revisions()]
