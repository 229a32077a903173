# SPDX-License-Identifier: Apache-2.0
"""Findings from the servers themselves: the database, its clock, the broker."""

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.cmd import wiring
from gantt.cmd.doctor import pools, table
from gantt.cmd.doctor.finding import Finding, Severity, error, findings, found, warning
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.resources.host import AgentFacts
from gantt.db.engine import retry, session
from gantt.db.hosts.rows import UNREADABLE
from gantt.db.schema import migration, models
from gantt.rpc.amqp import driver

#: Clocks that differ by less are taken for the same.
SAME_CLOCK_SECONDS = 1.0
#: A server that ends idle connections sooner makes work of it.
IDLE_SECONDS = 60
#: Alarms that are shown, and names that a finding has.
ALARMS_MAX, SHOWN = 20, 5
#: From so many on the table of candidates is worth a note; each takes so many bytes there.
MANY_PROVIDERS, CANDIDATE_BYTES = 100_000, 2_000

ABOUT_US = """
    SELECT pg_is_in_recovery() AS is_standby, rolsuper AS is_superuser_role
      FROM pg_roles WHERE rolname = current_user
"""

_LOST = 'claims that were acknowledged are lost when the server stops hard'
_READ_ONLY = (
    'this server takes no changes: nothing can be placed',
    'Name the primary in [database] connection',
)
_IDLE = (
    'connections that rest for a moment are ended by the server: each costs a statement that '
    'fails and is tried again',
    'Set it to 600 s or more, or off',
    '{idle:g} s',
)
_POSTGRESQL = (
    *(
        error(name, lambda v, c: v == 'off', why, 'Set it to on')
        for name, why in (
            ('synchronous_commit', _LOST),
            ('fsync', f'{_LOST}, and the database may be broken'),
            ('full_page_writes', 'a page half written when the server stopped stays broken'),
        )
    ),
    error(
        'synchronous_commit',
        lambda v, c: v == 'local' and c.synchronous_standby_names,
        'the standbys ({synchronous_standby_names}) are not waited for: a fail-over loses claims '
        'that were acknowledged',
        'Set it to on',
    ),
    error('pg_is_in_recovery()', lambda v, c: v, *_READ_ONLY, key='is_standby'),
    error(
        'default_transaction_read_only',
        lambda v, c: v == 'on' and not c.is_standby,
        *_READ_ONLY,
    ),
    error(
        'server_encoding',
        lambda v, c: v != 'UTF8',
        'names that are not of this alphabet cannot be stored: reports of such hosts fail',
        'Make the database anew: createdb --encoding UTF8 --template template0',
    ),
    warning(
        'autovacuum',
        lambda v, c: v == 'off',
        'the rows of hosts are written by every claim and report: their table grows until each '
        'statement reads a multiple of what is there',
        'Set it to on',
    ),
    warning('idle_session_timeout', lambda v, c: 0 < c.idle < IDLE_SECONDS, *_IDLE),
    warning(
        '[database] connection',
        lambda v, c: v,
        'whoever takes over a scheduler has every database of this server',
        'Make a role that owns this database and nothing else',
        'a superuser',
        'is_superuser_role',
    ),
)
_MYSQL = (
    error(
        'innodb_flush_log_at_trx_commit',
        lambda v, c: v != '1',
        f'{_LOST}; on Galera, when several nodes do',
        'Set it to 1',
    ),
    error(
        'innodb_doublewrite',
        lambda v, c: (v or 'ON').upper() in ('OFF', '0'),
        'a page half written when the server stopped stays broken',
        'Set it to ON',
    ),
    error(
        'binlog_format',
        lambda v, c: c.log_bin == 'ON' and v == 'STATEMENT',
        'the server refuses every change under READ COMMITTED, which Gantt uses',
        'Set it to ROW or MIXED',
    ),
    warning(
        'sync_binlog',
        lambda v, c: c.log_bin == 'ON' and v != '1',
        'replicas may miss the last claims when this server stops hard, and differ from then on',
        'Set it to 1',
    ),
    error('read_only', lambda v, c: v not in ('OFF', '0'), *_READ_ONLY),
    warning('wait_timeout', lambda v, c: c.idle < IDLE_SECONDS, *_IDLE),
    warning(
        '[database] mysql_wsrep_sync_wait',
        lambda v, c: v == 'ON' and not c.conf.database.mysql_wsrep_sync_wait,
        'this is a Galera node: what was just committed on another one may not be seen here, and '
        'a request that was placed is "not known" for a moment',
        'Set it to 1, or send everything to one node',
        '{conf.database.mysql_wsrep_sync_wait}',
        'wsrep_on',
    ),
)


def database_says(conf: Any) -> list[Finding]:
    """Return findings on settings of the server that a promise rests on.

    :raises GanttError: it does not answer, or cannot be used
    """
    url = table.url_of(conf)
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
            of_server = [*_clock(conf, connection), *_server(conf, engine, connection)]
        return [*of_server, *_schema(conf, engine)]
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
    database_time = float(connection.exec_driver_sql(f'SELECT {clock}').scalar_one())
    process_time, slack = (before + time.time()) / 2, (time.time() - before) / 2
    apart, skew_max = abs(database_time - process_time), conf.rpc.nova_clock_skew_seconds
    if apart <= max(SAME_CLOCK_SECONDS, slack):
        return
    is_bad = conf.rpc.nova_enabled and apart > skew_max
    yield found(
        Severity.ERROR if is_bad else Severity.WARNING,
        'clock of this machine',
        f'{"ahead of" if process_time > database_time else "behind"} the database by {apart:.1f} s',
        'calls of Nova that came while a scheduler started are judged by it: more than '
        f'[rpc] nova_clock_skew_seconds, {skew_max}, is taken for their age'
        if is_bad
        else 'no claim depends on it, but log lines of different machines cannot be compared',
        'Run an NTP client on every machine',
    )


def _server(conf: Any, engine: sa.Engine, connection: sa.Connection) -> Iterator[Finding]:
    match session.family(engine):
        case 'postgresql':
            rows = connection.exec_driver_sql('SELECT name, setting FROM pg_settings').all()
            settings = {str(name): str(setting) for name, setting in rows}
            settings |= connection.exec_driver_sql(ABOUT_US).mappings().one()
            yield from judge_postgresql(conf, settings)
            yield from shared(engine, connection, 'SELECT pg_backend_pid()')
        case 'mysql':
            rows = connection.exec_driver_sql('SHOW GLOBAL VARIABLES').all()
            yield from judge_mysql(conf, {name.lower(): value for name, value in rows})
            yield from shared(engine, connection, 'SELECT CONNECTION_ID()')


def judge_postgresql(conf: Any, settings: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on the settings of a PostgreSQL server.

    :param settings: pg_settings of a session, and ABOUT_US
    """
    idle = int(settings.get('idle_session_timeout', 0)) / 1000  # PostgreSQL 14 has it first
    facts = SimpleNamespace(**settings, conf=conf, idle=idle)
    yield from findings(_POSTGRESQL, facts, settings.get)
    reserved = int(settings['superuser_reserved_connections'])
    yield from _enough(conf, int(settings['max_connections']) - reserved)


def judge_mysql(conf: Any, settings: dict[str, str]) -> Iterator[Finding]:
    """Yield findings on the settings of a MariaDB or MySQL server.

    :param settings: SHOW GLOBAL VARIABLES
    """
    facts = SimpleNamespace(**settings, conf=conf, idle=int(settings['wait_timeout']))
    yield from findings(_MYSQL, facts, settings.get)
    yield from _enough(conf, int(settings['max_connections']))


def _enough(conf: Any, most: int) -> Iterator[Finding]:
    facts, workers = table.facts_of(conf, 0), conf.scheduler.workers
    all_workers = workers * facts.scheduler_threads
    needed = all_workers + facts.api_threads
    if needed > most:
        yield found(
            Severity.ERROR if all_workers > most else Severity.WARNING,
            'max_connections',
            f'{most} for roles like this one',
            f'this machine alone may want {needed}: {workers} scheduler processes with '
            f'{facts.scheduler_threads} each, and gantt-api with {facts.api_threads}. One that '
            'gets none cannot place',
            f'Set it to {2 * needed}, or lower [rpc] worker_threads and [api] threads',
        )


def shared(engine: sa.Engine, connection: sa.Connection, question: str) -> Iterator[Finding]:
    """Check that two sessions open at the same time are two in the server, too."""
    connection.rollback()
    with engine.connect() as second:
        second_answer = second.exec_driver_sql(question).scalar_one()
        second.rollback()
        first_answer = connection.exec_driver_sql(question).scalar_one()
    if first_answer == second_answer:
        yield found(
            Severity.ERROR,
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
        at = migration.version(engine)
        if at != 'none' and migration.pending(at) is None:
            fix = 'Correct [database] connection'
            yield found(Severity.ERROR, 'schema', at, e.message, fix)
        else:
            yield _unsynced(at, e.message)
        return
    hosts = models.providers
    count = sa.select(sa.func.count()).select_from(hosts).where(hosts.c.kind == 'host')
    every = sa.select(sa.func.count()).select_from(hosts)
    with engine.connect() as connection:
        host_count = connection.execute(count).scalar_one()
        providers = connection.execute(every).scalar_one()
        yield from _agents(conf, connection)
        yield from _alarms(connection)
        yield from pools.detached(connection)
    if host_count > conf.scheduler.report_queue_limit:
        yield found(
            Severity.WARNING,
            '[scheduler] report_queue_limit',
            conf.scheduler.report_queue_limit,
            f'{host_count} hosts are known: after an outage of the broker they report at once, and '
            'those beyond the limit are dropped until their next report',
            f'Set it to {2 * host_count}',
        )
    if providers >= MANY_PROVIDERS:
        size = providers * CANDIDATE_BYTES >> 20
        yield found(
            Severity.NOTE,
            'gantt-api',
            f'{providers} providers',
            f'each process that is asked for allocation candidates keeps all of them, some {size} '
            'MB: its first query reads them, and its report (SIGUSR2) and '
            'gantt_candidates_age_seconds say how far it is',
            'Give its processes that much memory, and no more processes than that allows',
        )


class _Facts(msgspec.Struct):
    beside: AgentFacts | None = None


def _agent_of(facts: str) -> AgentFacts | None:
    try:
        return msgspec.json.decode(facts, type=_Facts).beside
    except UNREADABLE:
        return None  # its host is closed, and says why


def _agents(conf: Any, connection: sa.Connection) -> Iterator[Finding]:
    """Check for agents beside nova-compute that fell silent: their facts are believed for ever."""
    try:
        limit = wiring.down_time(pipeline_from_conf(conf))
    except exceptions.PluginError:
        return  # it is a finding of its own
    facts, hosts = models.provider_facts, models.providers
    rows = connection.execute(
        sa.select(hosts.c.name, facts.c.facts, session.Now().label('now'))
        .join(facts, facts.c.provider_id == hosts.c.id)
        .where(facts.c.speaks_for == 'nova')
        .order_by(hosts.c.name)
    )
    decoded = [(row, _agent_of(row.facts)) for row in rows]
    with_agent = [(row, also) for row, also in decoded if also is not None]
    silent = [row.name for row, also in with_agent if row.now - also.reported_at > limit]
    if silent:
        names = ', '.join(silent[:SHOWN]) + (', ...' if len(silent) > SHOWN else '')
        yield found(
            Severity.WARNING,
            'gantt-compute --facts-only',
            f'silent on {len(silent)} of {len(with_agent)} hosts',
            f'for more than [filters] service_down_time, {limit:g}, no report came for {names}: '
            'their cells and devices are taken as they were then',
            'Start it there, or see in its log why it is not received',
        )


def _alarms(connection: sa.Connection) -> Iterator[Finding]:
    rows = models.services.c
    raised = sa.select(rows.name, rows.alarm).where(rows.alarm != '').order_by(rows.seen_at.desc())
    for row in connection.execute(raised.limit(ALARMS_MAX)):
        yield found(
            Severity.WARNING,
            f'alarm of {row.name}',
            'raised',
            row.alarm,
            'See its log. Somebody else has credentials of the broker, or a host was installed '
            'anew: gantt-manage host key forget NAME',
        )


def _unsynced(at: str, problem: str) -> Finding:
    return found(Severity.ERROR, 'schema', at, problem, 'Run gantt-manage db sync')


def broker_says(carrier: Any, rabbit: Any) -> Iterator[Finding]:
    """Yield the findings that depend on the version of the broker.

    :raises Exception: whatever keeps us out
    """
    settings_found = driver.server_version(carrier)
    version = tuple(int(part) for part in settings_found.split('.')[:2] if part.isdigit())
    classic = not (rabbit.rabbit_quorum_queue and rabbit.rabbit_transient_quorum_queue)
    if version >= (4, 3) and classic:
        yield found(
            Severity.ERROR,
            '[oslo_messaging_rabbit] rabbit_transient_quorum_queue',
            rabbit.rabbit_transient_quorum_queue,
            f'RabbitMQ {settings_found} refuses classic queues that are not durable',
            'Set rabbit_quorum_queue, rabbit_transient_quorum_queue and use_queue_manager',
        )
    elif version and version < (3, 8) and not classic:
        yield found(
            Severity.ERROR,
            '[oslo_messaging_rabbit] rabbit_quorum_queue',
            True,
            f'RabbitMQ {settings_found} has no quorum queues',
            'Use RabbitMQ 3.8 or newer',
        )
