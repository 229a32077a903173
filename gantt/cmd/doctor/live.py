# SPDX-License-Identifier: Apache-2.0
"""What the servers themselves say: the database, its clock, the broker."""

import os
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.cmd.doctor import database, nova_source
from gantt.cmd.doctor.finding import Broker, Finding, error, note, warning
from gantt.db.engine import retry, session
from gantt.db.schema import migration, models
from gantt.rpc.amqp import driver

#: Clocks that differ by less are taken for the same.
SAME_CLOCK_SECONDS = 1.0
#: A server that ends idle connections sooner makes work of it.
IDLE_SECONDS = 60
#: Alarms that are shown.
ALARMS_MAX = 20

ABOUT_US = """
    SELECT pg_is_in_recovery() AS is_standby, rolsuper AS is_superuser_role
      FROM pg_roles WHERE rolname = current_user
"""


def database_says(conf: Any) -> list[Finding]:
    """Settings of the server that a promise rests on.

    :raises GanttError: it does not answer, or cannot be used
    """
    url = database.url_of(conf)
    if (
        url is not None
        and url.get_backend_name() == 'sqlite'
        and not os.path.exists(url.database or '')
    ):
        return [_unsynced('none', 'there is no such file')]  # to connect would make it
    # Asked once, now: oslo.db would wait for it by its own options.
    conf.set_override('max_retries', 0, 'database')
    engine = session.engine_from_conf(conf)
    try:
        with engine.connect() as connection:
            found = [*_clock(conf, connection), *_server(conf, engine, connection)]
        return [*found, *_schema(conf, engine)]
    except exceptions.GanttError:
        raise
    except Exception as e:
        if retry.signal_of(e) is None and not retry.refusal_of(e):
            raise
        raise retry.unavailable(e) from e
    finally:
        engine.dispose()


def _clock(conf: Any, connection: sa.Connection) -> Iterator[Finding]:
    clock = session.CLOCK[session.family(connection.engine)]
    connection.exec_driver_sql(f'SELECT {clock}')  # the first question takes longer
    before = time.time()
    theirs = float(connection.exec_driver_sql(f'SELECT {clock}').scalar_one())
    ours, slack = (before + time.time()) / 2, (time.time() - before) / 2
    apart = abs(theirs - ours)
    if apart <= max(SAME_CLOCK_SECONDS, slack):
        return
    shown = f'{"ahead of" if ours > theirs else "behind"} the database by {apart:.1f} s'
    if conf.rpc.nova_enabled and apart > conf.rpc.nova_clock_skew_seconds:
        yield error(
            'clock of this machine',
            shown,
            'calls of Nova that came while a scheduler started are judged by it: more than '
            f'[rpc] nova_clock_skew_seconds, {conf.rpc.nova_clock_skew_seconds}, is taken for '
            'their age',
            'Run an NTP client on every machine',
        )
    else:
        yield warning(
            'clock of this machine',
            shown,
            'no claim depends on it, but log lines of different machines cannot be compared',
            'Run an NTP client on every machine',
        )


def _server(conf: Any, engine: sa.Engine, connection: sa.Connection) -> Iterator[Finding]:
    match session.family(engine):
        case 'postgresql':
            rows = connection.exec_driver_sql('SELECT name, setting FROM pg_settings').all()
            said = {str(name): str(setting) for name, setting in rows}
            said |= connection.exec_driver_sql(ABOUT_US).mappings().one()
            yield from judge_postgresql(conf, said)
            yield from shared(engine, connection, 'SELECT pg_backend_pid()')
        case 'mysql':
            rows = connection.exec_driver_sql('SHOW GLOBAL VARIABLES').all()
            yield from judge_mysql(conf, {name.lower(): value for name, value in rows})
            yield from shared(engine, connection, 'SELECT CONNECTION_ID()')


def judge_postgresql(conf: Any, said: dict[str, Any]) -> Iterator[Finding]:
    """What the settings of a PostgreSQL server mean.

    :param said: pg_settings of a session, and ABOUT_US
    """
    yield from _durable(said)
    if said['is_standby']:
        yield _read_only('pg_is_in_recovery()', True)
    elif said['default_transaction_read_only'] == 'on':
        yield _read_only('default_transaction_read_only', 'on')
    if said['server_encoding'] != 'UTF8':
        yield error(
            'server_encoding',
            said['server_encoding'],
            'names that are not of this alphabet cannot be stored: reports of such hosts fail',
            'Make the database anew: createdb --encoding UTF8 --template template0',
        )
    if said['autovacuum'] == 'off':
        yield warning(
            'autovacuum',
            'off',
            'the rows of hosts are written by every claim and report: their table grows until '
            'each statement reads a multiple of what is there',
            'Set it to on',
        )
    idle = int(said.get('idle_session_timeout', 0)) / 1000  # PostgreSQL 14 has it first
    if 0 < idle < IDLE_SECONDS:
        yield _idle('idle_session_timeout', f'{idle:g} s')
    if said['is_superuser_role']:
        yield warning(
            '[database] connection',
            'a superuser',
            'whoever takes over a scheduler has every database of this server',
            'Make a role that owns this database and nothing else',
        )
    reserved = int(said['superuser_reserved_connections'])
    yield from _enough(conf, int(said['max_connections']) - reserved)


def _durable(said: dict[str, Any]) -> Iterator[Finding]:
    lost = 'claims that were acknowledged are lost when the server stops hard'
    for name, why in (
        ('synchronous_commit', lost),
        ('fsync', f'{lost}, and the database may be broken'),
        ('full_page_writes', 'a page that was half written when the server stopped stays broken'),
    ):
        if said[name] == 'off':
            yield error(name, 'off', why, 'Set it to on')
    standbys, mode = said['synchronous_standby_names'], said['synchronous_commit']
    if standbys and mode == 'local':
        yield error(
            'synchronous_commit',
            mode,
            f'the standbys ({standbys}) are not waited for: a fail-over loses claims that were '
            'acknowledged',
            'Set it to on',
        )


def judge_mysql(conf: Any, said: dict[str, str]) -> Iterator[Finding]:
    """What the settings of a MariaDB or MySQL server mean.

    :param said: SHOW GLOBAL VARIABLES
    """
    if said['innodb_flush_log_at_trx_commit'] != '1':
        yield error(
            'innodb_flush_log_at_trx_commit',
            said['innodb_flush_log_at_trx_commit'],
            'claims that were acknowledged are lost when the server stops hard; on Galera, when '
            'several nodes do',
            'Set it to 1',
        )
    if said.get('innodb_doublewrite', 'ON').upper() in ('OFF', '0'):
        yield error(
            'innodb_doublewrite',
            'OFF',
            'a page that was half written when the server stopped stays broken',
            'Set it to ON',
        )
    if said['log_bin'] == 'ON':
        yield from _binary_log(said)
    if said['read_only'] not in ('OFF', '0'):
        yield _read_only('read_only', said['read_only'])
    idle = int(said['wait_timeout'])
    if idle < IDLE_SECONDS:
        yield _idle('wait_timeout', f'{idle} s')
    if said.get('wsrep_on') == 'ON' and not conf.database.mysql_wsrep_sync_wait:
        yield warning(
            '[database] mysql_wsrep_sync_wait',
            conf.database.mysql_wsrep_sync_wait,
            'this is a Galera node: what was just committed on another one may not be seen here, '
            'and a request that was placed is "not known" for a moment',
            'Set it to 1, or send everything to one node',
        )
    yield from _enough(conf, int(said['max_connections']))


def _binary_log(said: dict[str, str]) -> Iterator[Finding]:
    if said['binlog_format'] == 'STATEMENT':
        yield error(
            'binlog_format',
            'STATEMENT',
            'the server refuses every change under READ COMMITTED, which Gantt uses',
            'Set it to ROW or MIXED',
        )
    if said['sync_binlog'] != '1':
        yield warning(
            'sync_binlog',
            said['sync_binlog'],
            'replicas may miss the last claims when this server stops hard, and differ from it '
            'from then on',
            'Set it to 1',
        )


def _read_only(option: str, value: object) -> Finding:
    return error(
        option,
        value,
        'this server takes no changes: nothing can be placed',
        'Name the primary in [database] connection',
    )


def _idle(option: str, value: str) -> Finding:
    return warning(
        option,
        value,
        'connections that rest for a moment are ended by the server: each costs a statement '
        'that fails and is tried again',
        'Set it to 600 s or more, or off',
    )


def _enough(conf: Any, most: int) -> Iterator[Finding]:
    workers = conf.scheduler.workers
    each = database.threads_of_a_scheduler(conf)
    needed = workers * each + database.threads_of_the_api(conf)
    if needed > most:
        yield (error if workers * each > most else warning)(
            'max_connections',
            f'{most} for roles like this one',
            f'this machine alone may want {needed}: {workers} scheduler processes with {each} '
            f'each, and gantt-api with {database.threads_of_the_api(conf)}. One that gets none '
            'cannot place',
            f'Set it to {2 * needed}, or lower [rpc] worker_threads and [api] threads',
        )


def shared(engine: sa.Engine, connection: sa.Connection, question: str) -> Iterator[Finding]:
    """Two sessions that are open at the same time must be two in the server, too."""
    connection.rollback()
    with engine.connect() as other:
        theirs = other.exec_driver_sql(question).scalar_one()
        other.rollback()
        ours = connection.exec_driver_sql(question).scalar_one()
    if ours == theirs:
        yield error(
            'proxy before the database',
            'pools by transaction or statement',
            'sessions share one of the server. Gantt sets isolation and time-outs once for a '
            'session and prepares statements in it: both get lost, or end up with others',
            'Pool by session (pool_mode = session of PgBouncer), or connect past the proxy',
        )


def _schema(conf: Any, engine: sa.Engine) -> Iterator[Finding]:
    try:
        migration.check(engine)
    except exceptions.DatabaseNotSynced as e:
        found = migration.version(engine)
        if found != 'none' and migration.pending(found) is None:
            yield error('schema', found, e.message, 'Correct [database] connection')
        else:
            yield _unsynced(found, e.message)
        return
    hosts = models.providers
    count = sa.select(sa.func.count()).select_from(hosts).where(hosts.c.root_id.is_(None))
    with engine.connect() as connection:
        known = connection.execute(count).scalar_one()
        yield from nova_source.agents(conf, connection)
        yield from _alarms(connection)
    if known > conf.scheduler.report_queue_limit:
        yield warning(
            '[scheduler] report_queue_limit',
            conf.scheduler.report_queue_limit,
            f'{known} hosts are known: after an outage of the broker they report at once, and '
            'those beyond the limit are dropped until their next report',
            f'Set it to {2 * known}',
        )


def _alarms(connection: sa.Connection) -> Iterator[Finding]:
    rows = models.services.c
    raised = sa.select(rows.name, rows.alarm).where(rows.alarm != '').order_by(rows.seen_at.desc())
    for row in connection.execute(raised.limit(ALARMS_MAX)):
        yield warning(
            f'alarm of {row.name}',
            'raised',
            row.alarm,
            'See its log. Somebody else has credentials of the broker, or a host was installed '
            'anew: gantt-manage host key forget NAME',
        )


def _unsynced(found: str, problem: str) -> Finding:
    return error('schema', found, problem, 'Run gantt-manage db sync')


def broker_says(broker: Broker) -> Iterator[Finding]:
    """What depends on the version of the broker.

    :raises Exception: whatever keeps us out
    """
    said = driver.server_version(broker.transport)
    version = tuple(int(part) for part in said.split('.')[:2] if part.isdigit())
    rabbit = broker.rabbit
    classic = not (rabbit.rabbit_quorum_queue and rabbit.rabbit_transient_quorum_queue)
    if version >= (4, 3) and classic:
        yield error(
            '[oslo_messaging_rabbit] rabbit_transient_quorum_queue',
            rabbit.rabbit_transient_quorum_queue,
            f'RabbitMQ {said} refuses classic queues that are not durable',
            'Set rabbit_quorum_queue, rabbit_transient_quorum_queue and use_queue_manager',
        )
    elif version and version < (3, 8) and not classic:
        yield error(
            '[oslo_messaging_rabbit] rabbit_quorum_queue',
            True,
            f'RabbitMQ {said} has no quorum queues',
            'Use RabbitMQ 3.8 or newer',
        )


def refused(what: str, problem: object, correct: str) -> Finding:
    """A server that runs and does not let us in."""
    return error(
        what, 'not looked into', f'it runs and refuses us: {problem}', f'Correct {correct}'
    )


def not_asked(what: str, problem: object) -> Finding:
    """A server that could not be looked into."""
    return note(
        what,
        'not looked into',
        f'it does not answer: {problem}',
        'Run this again where it does',
    )
