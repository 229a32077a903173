# SPDX-License-Identifier: Apache-2.0
"""Checks of the database: its server and clock, its schema, and what its rows say of the site."""

import contextlib
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt import exceptions, stores
from gantt.cmd.checks.options import down_time, facts_of, url_of
from gantt.cmd.checks.results import (
    Finding,
    Result,
    error,
    error_if,
    findings,
    first_of,
    note,
    unreachable,
    warning,
    warning_if,
)
from gantt.core.resources.host import AgentFacts
from gantt.core.resources.provider import SHARES_TRAIT
from gantt.db.engine import retry, session
from gantt.db.hosts.providers import SHOWN_NAME, is_host
from gantt.db.hosts.rows import DECODE_ERRORS
from gantt.db.hosts.trees import ROOT_ID
from gantt.db.schema import migration, models

#: Clocks that differ by less are taken for the same.
CLOCK_DIFFERENCE_MAX_SECONDS = 1.0
#: A server that ends idle connections sooner makes work of it.
IDLE_TIMEOUT_MIN_SECONDS = 60
#: Alarms and pools that are shown, and names that a finding has.
ALARMS_MAX, POOLS_MAX, SHOWN = 20, 20, 5
#: From so many on the table of candidates is worth a note; each takes so many bytes there.
MANY_PROVIDERS, CANDIDATE_BYTES = 100_000, 2_000

SESSION_FACTS = """
    SELECT pg_is_in_recovery() AS is_standby, rolsuper AS is_superuser_role
      FROM pg_roles WHERE rolname = current_user
"""

_LOST_WHY = 'claims that were acknowledged are lost when the server stops hard'
_READ_ONLY_WHY = (
    'this server takes no changes: nothing can be placed',
    'Name the primary in [database] connection',
)
_IDLE_WHY = (
    'connections that rest for a moment are ended by the server: each costs a statement that '
    'fails and is tried again',
    'Set it to 600 s or more, or off',
    '{idle:g} s',
)
_POSTGRESQL_ROWS = (
    *(
        error_if(name, lambda v, c: v == 'off', why, 'Set it to on')
        for name, why in (
            ('synchronous_commit', _LOST_WHY),
            ('fsync', f'{_LOST_WHY}, and the database may be broken'),
            ('full_page_writes', 'a page half written when the server stopped stays broken'),
        )
    ),
    error_if(
        'synchronous_commit',
        lambda v, c: v == 'local' and c.synchronous_standby_names,
        'the standbys ({synchronous_standby_names}) are not waited for: a fail-over loses claims '
        'that were acknowledged',
        'Set it to on',
    ),
    error_if('pg_is_in_recovery()', lambda v, c: v, *_READ_ONLY_WHY, key='is_standby'),
    error_if(
        'default_transaction_read_only',
        lambda v, c: v == 'on' and not c.is_standby,
        *_READ_ONLY_WHY,
    ),
    error_if(
        'server_encoding',
        lambda v, c: v != 'UTF8',
        'names that are not of this alphabet cannot be stored: reports of such hosts fail',
        'Make the database anew: createdb --encoding UTF8 --template template0',
    ),
    warning_if(
        'autovacuum',
        lambda v, c: v == 'off',
        'the rows of hosts are written by every claim and report: their table grows until each '
        'statement reads a multiple of what is there',
        'Set it to on',
    ),
    warning_if(
        'idle_session_timeout', lambda v, c: 0 < c.idle < IDLE_TIMEOUT_MIN_SECONDS, *_IDLE_WHY
    ),
    warning_if(
        '[database] connection',
        lambda v, c: v,
        'whoever takes over a scheduler has every database of this server',
        'Make a role that owns this database and nothing else',
        'a superuser',
        'is_superuser_role',
    ),
)
_MYSQL_ROWS = (
    error_if(
        'innodb_flush_log_at_trx_commit',
        lambda v, c: v != '1',
        f'{_LOST_WHY}; on Galera, when several nodes do',
        'Set it to 1',
    ),
    error_if(
        'innodb_doublewrite',
        lambda v, c: (v or 'ON').upper() in ('OFF', '0'),
        'a page half written when the server stopped stays broken',
        'Set it to ON',
    ),
    error_if(
        'binlog_format',
        lambda v, c: c.log_bin == 'ON' and v == 'STATEMENT',
        'the server refuses every change under READ COMMITTED, which Gantt uses',
        'Set it to ROW or MIXED',
    ),
    warning_if(
        'sync_binlog',
        lambda v, c: c.log_bin == 'ON' and v != '1',
        'replicas may miss the last claims when this server stops hard, and differ from then on',
        'Set it to 1',
    ),
    error_if('read_only', lambda v, c: v not in ('OFF', '0'), *_READ_ONLY_WHY),
    warning_if('wait_timeout', lambda v, c: c.idle < IDLE_TIMEOUT_MIN_SECONDS, *_IDLE_WHY),
    warning_if(
        '[database] mysql_wsrep_sync_wait',
        lambda v, c: v == 'ON' and not c.conf.database.mysql_wsrep_sync_wait,
        'this is a Galera node: what was just committed on another one may not be seen here, and '
        'a request that was placed is "not known" for a moment',
        'Set it to 1, or send everything to one node',
        '{conf.database.mysql_wsrep_sync_wait}',
        'wsrep_on',
    ),
)


@contextlib.contextmanager
def _engine(conf: Any) -> Iterator[sa.Engine]:
    engine = session.engine_from_conf(conf)
    try:
        yield engine
    finally:
        engine.dispose()


def check_server(conf: Any) -> Iterator[Finding]:
    """Check settings of the server that a promise rests on, the schema, and what its rows say.

    :raises Misconfigured: there is no way to it
    """
    url = url_of(conf)
    if url is None:
        return  # it is a finding of the options
    if url.get_backend_name() == 'sqlite' and not os.path.exists(url.database or ''):
        yield _unsynced_finding('none', 'there is no such file')  # to connect would make it
        return
    # Asked once, now: oslo.db would wait for it by its own options.
    conf.set_override('max_retries', 0, 'database')
    try:
        with _engine(conf) as engine:
            with engine.connect() as connection:
                yield from _check_clock(conf, connection)
                yield from _check_server(conf, engine, connection)
            yield from _check_schema(conf, engine)
    except exceptions.Unavailable as e:
        yield _unreachable_finding(e)
    except Exception as e:
        if retry.signal_of(e) is None and not retry.refusal_of(e):
            raise
        yield _unreachable_finding(retry.unavailable(e))


def _unreachable_finding(error: exceptions.Unavailable) -> Finding:
    setting = error.kwargs.get('correct')
    correct = f'in [database] connection {setting}' if setting else ''
    return unreachable('database', error.kwargs.get('problem', error.message), correct)


def _check_clock(conf: Any, connection: sa.Connection) -> Iterator[Finding]:
    clock = session.CLOCK[session.family(connection.engine)]
    connection.exec_driver_sql(f'SELECT {clock}')  # the first question takes longer
    before = time.time()
    database_time = float(connection.exec_driver_sql(f'SELECT {clock}').scalar_one())
    process_time, slack = (before + time.time()) / 2, (time.time() - before) / 2
    apart, skew_max = abs(database_time - process_time), conf.rpc.nova_clock_skew_seconds
    if apart <= max(CLOCK_DIFFERENCE_MAX_SECONDS, slack):
        return
    is_bad = conf.rpc.nova_enabled and apart > skew_max
    yield (error if is_bad else warning)(
        'clock of this machine',
        f'{"ahead of" if process_time > database_time else "behind"} the database by {apart:.1f} s',
        'calls of Nova that came while a scheduler started are judged by it: more than '
        f'[rpc] nova_clock_skew_seconds, {skew_max}, is taken for their age'
        if is_bad
        else 'no claim depends on it, but log lines of different machines cannot be compared',
        'Run an NTP client on every machine',
    )


def _check_server(conf: Any, engine: sa.Engine, connection: sa.Connection) -> Iterator[Finding]:
    match session.family(engine):
        case 'postgresql':
            rows = connection.exec_driver_sql('SELECT name, setting FROM pg_settings').all()
            settings = {str(name): str(setting) for name, setting in rows}
            settings |= connection.exec_driver_sql(SESSION_FACTS).mappings().one()
            yield from check_postgresql(conf, settings)
            yield from check_two_sessions(engine, connection, 'SELECT pg_backend_pid()')
        case 'mysql':
            rows = connection.exec_driver_sql('SHOW GLOBAL VARIABLES').all()
            yield from check_mysql(conf, {name.lower(): value for name, value in rows})
            yield from check_two_sessions(engine, connection, 'SELECT CONNECTION_ID()')


def check_postgresql(conf: Any, settings: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on the settings of a PostgreSQL server.

    :param settings: pg_settings of a session, and ``SESSION_FACTS``
    """
    idle = int(settings.get('idle_session_timeout', 0)) / 1000  # PostgreSQL 14 has it first
    facts = SimpleNamespace(**settings, conf=conf, idle=idle)
    yield from findings(_POSTGRESQL_ROWS, facts, settings.get)
    reserved = int(settings['superuser_reserved_connections'])
    yield from _check_connections(conf, int(settings['max_connections']) - reserved)


def check_mysql(conf: Any, settings: dict[str, str]) -> Iterator[Finding]:
    """Yield findings on the settings of a MariaDB or MySQL server.

    :param settings: SHOW GLOBAL VARIABLES
    """
    facts = SimpleNamespace(**settings, conf=conf, idle=int(settings['wait_timeout']))
    yield from findings(_MYSQL_ROWS, facts, settings.get)
    yield from _check_connections(conf, int(settings['max_connections']))


def _check_connections(conf: Any, most: int) -> Iterator[Finding]:
    facts, workers = facts_of(conf), conf.scheduler.workers
    all_workers = workers * facts.scheduler_threads
    needed = all_workers + facts.api_threads
    if needed > most:
        yield (error if all_workers > most else warning)(
            'max_connections',
            f'{most} for roles like this one',
            f'this machine alone may want {needed}: {workers} scheduler processes with '
            f'{facts.scheduler_threads} each, and gantt-api with {facts.api_threads}. One that '
            'gets none cannot place',
            f'Set it to {2 * needed}, or lower [rpc] worker_threads and [api] threads',
        )


def check_two_sessions(
    engine: sa.Engine, connection: sa.Connection, question: str
) -> Iterator[Finding]:
    """Check that two sessions open at the same time are two in the server, too."""
    connection.rollback()
    with engine.connect() as second:
        second_answer = second.exec_driver_sql(question).scalar_one()
        second.rollback()
        first_answer = connection.exec_driver_sql(question).scalar_one()
    if first_answer == second_answer:
        yield error(
            'proxy before the database',
            'pools by transaction or statement',
            'sessions share one of the server. Gantt sets isolation and time-outs once for a '
            'session and prepares statements in it: both get lost, or end up with others',
            'Pool by session (pool_mode = session of PgBouncer), or connect past the proxy',
        )


def _check_schema(conf: Any, engine: sa.Engine) -> Iterator[Finding]:
    try:
        migration.check(engine)
    except exceptions.DatabaseNotSynced as e:
        at = migration.version(engine)
        with engine.connect() as connection:
            is_foreign = bool(migration.tables_without_revision(connection))
        if is_foreign or (at != 'none' and migration.pending(at) is None):
            fix = 'Correct [database] connection'
            yield error('schema', at, e.message, fix)
        else:
            yield _unsynced_finding(at, e.message)
        return
    hosts = models.providers
    count = sa.select(sa.func.count()).select_from(hosts).where(hosts.c.kind == 'host')
    every = sa.select(sa.func.count()).select_from(hosts)
    with engine.connect() as connection:
        host_count = connection.execute(count).scalar_one()
        providers = connection.execute(every).scalar_one()
        yield from _check_agents(conf, connection)
        yield from _check_alarms(connection)
        yield from _detached_pools(connection)
    if host_count > conf.scheduler.report_queue_limit:
        yield warning(
            '[scheduler] report_queue_limit',
            conf.scheduler.report_queue_limit,
            f'{host_count} hosts are known: after an outage of the broker they report at once, and '
            'those beyond the limit are dropped until their next report',
            f'Set it to {2 * host_count}',
        )
    if providers >= MANY_PROVIDERS:
        size = providers * CANDIDATE_BYTES >> 20
        yield note(
            'gantt-api',
            f'{providers} providers',
            f'each process that is asked for allocation candidates keeps all of them, some {size} '
            'MB: its first query reads them, and its report (SIGUSR2) and '
            'gantt_candidate_table_age_seconds say how far it is',
            'Give its processes that much memory, and no more processes than that allows',
        )


class _Facts(msgspec.Struct):
    agent: AgentFacts | None = None


def _agent_of(facts: str) -> AgentFacts | None:
    try:
        return msgspec.json.decode(facts, type=_Facts).agent
    except DECODE_ERRORS:
        return None  # its host is closed, and says why


def _check_agents(conf: Any, connection: sa.Connection) -> Iterator[Finding]:
    """Check for silent agents on hosts of nova-compute: their facts are believed for ever."""
    facts, hosts, limit = models.provider_facts, models.providers, down_time(conf)
    rows = connection.execute(
        sa.select(hosts.c.name, facts.c.facts, session.Now().label('now'))
        .join(facts, facts.c.provider_id == hosts.c.id)
        .where(facts.c.reporter == 'nova')
        .order_by(hosts.c.name)
    )
    decoded = [(row, _agent_of(row.facts)) for row in rows]
    with_agent = [(row, also) for row, also in decoded if also is not None]
    silent = [row.name for row, also in with_agent if row.now - also.reported_at > limit]
    if silent:
        names = ', '.join(silent[:SHOWN]) + (', ...' if len(silent) > SHOWN else '')
        yield warning(
            'gantt-compute --facts-only',
            f'silent on {len(silent)} of {len(with_agent)} hosts',
            f'for more than [filters] service_down_time, {limit:g}, no report came for {names}: '
            'their cells and devices are taken as they were then',
            'Start it there, or see in its log why it is not received',
        )


def _check_alarms(connection: sa.Connection) -> Iterator[Finding]:
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


def _unsynced_finding(at: str, problem: str) -> Finding:
    return error('schema', at, problem, 'Run gantt-manage db sync')


_providers = models.providers
_HOST_REPORTS = (
    sa.select(_providers.c.name, _providers.c.reported_at)
    .where(_providers.c.kind == 'host')
    .order_by(_providers.c.name)
)
_claims = models.claims
_allocations = models.allocations
_provider_traits = models.provider_traits
_host = _providers.alias('host')
_sharing_providers = (
    sa.select(_provider_traits.c.provider_id)
    .join(models.traits, models.traits.c.id == _provider_traits.c.trait_id)
    .where(models.traits.c.name == SHARES_TRAIT)
)
_in_aggregates = sa.select(models.provider_aggregates.c.provider_id)
_claim_counts = (
    sa.select(
        _allocations.c.provider_id,
        sa.func.count().label('claims'),
        sa.func.count(_claims.c.provider_id.distinct()).label('hosts'),
    )
    .select_from(
        _allocations.join(_claims, _claims.c.id == _allocations.c.claim_id)
        .join(_host, _host.c.id == _claims.c.provider_id)
        .join(_providers, _providers.c.id == _allocations.c.provider_id)
    )
    # What is in the tree of a host is its own.
    .where(_claims.c.live == 1, _host.c.kind == 'host', ~is_host, _host.c.id != ROOT_ID)
    .group_by(_allocations.c.provider_id)
    .subquery('counted')
)
_DETACHED_POOLS = (
    sa.select(
        SHOWN_NAME,
        _providers.c.uuid,
        _claim_counts.c.claims,
        _claim_counts.c.hosts,
        sa.case((_providers.c.id.in_(_sharing_providers), 1), else_=0).label('shares'),
    )
    .join(_claim_counts, _claim_counts.c.provider_id == _providers.c.id)
    .where(
        sa.or_(_providers.c.id.not_in(_sharing_providers), _providers.c.id.not_in(_in_aggregates))
    )
    .order_by(_providers.c.id)
    .limit(POOLS_MAX)
)


def _detached_pools(connection: sa.Connection) -> Iterator[Finding]:
    """Yield a note for each pool that live claims of hosts take from, and that serves no host."""
    for row in connection.execute(_DETACHED_POOLS):
        lacks = 'is in no aggregate' if row.shares else f'has no trait {SHARES_TRAIT}'
        yield note(
            f'pool {row.name}',
            lacks,
            f'{row.claims} live claims on {row.hosts} hosts take from it, and it serves no host: '
            'nothing new that needs it is placed there, and a move of these finds it nowhere',
            'Where that was not meant let it share again: gantt provider set '
            f'{row.uuid} {"--aggregate UUID" if row.shares else f"--trait {SHARES_TRAIT}"}',
        )


def check_usable(conf: Any) -> Iterator[Result]:
    """Check that a service can work with the database.  :raises GanttError: it cannot"""
    with contextlib.closing(stores.connect(conf).database) as database:
        database.check_rights()
        engine = database.engine
        yield f'{session.family(engine)}, schema {migration.version(engine)}'


def check_schema(conf: Any) -> Iterator[Result]:
    """Check that the database has what this release reads and writes."""
    with _engine(conf) as engine:
        current = migration.current(engine)
        if current is None:
            try:
                migration.check(engine)
            except exceptions.DatabaseNotSynced as e:
                yield error(why=e.message)
            return
        pending = migration.pending(current)
        later = migration.added(engine, current) if pending is None else []
    if later:
        yield f'at {current}: {", ".join(later)} of a newer release only add'
    elif pending is None:
        yield error(why=migration.unknown_revision(current))
    elif contracts := [revision for revision in pending if migration.contracts(revision)]:
        yield error(
            why=f'{", ".join(contracts)} takes away what the last release needs; stop all its '
            'processes, and run "gantt-manage db sync"'
        )
    elif pending:
        yield error(
            why=f'{", ".join(pending)} to come, and all of them only add; run "gantt-manage db '
            'sync" while the processes of the last release still run'
        )
    else:
        yield f'at {current}'


def check_hosts(conf: Any) -> Iterator[Result]:
    """Check that all hosts report: a silent one is not upgraded."""
    with _engine(conf) as engine:
        schema = migration.current(engine)
        if schema is None:
            yield 'there are none'
            return
        if migration.pending(schema) is None:
            yield 'skipped: bring the schema up to date first'
            return
        with engine.connect() as connection:
            now = connection.execute(sa.select(session.Now())).scalar_one()
            host_rows = connection.execute(_HOST_REPORTS).all()
    down_after = down_time(conf)
    silent = [row.name for row in host_rows if now - row.reported_at > down_after]
    if silent:
        yield warning(
            why=f'{len(silent)} of {len(host_rows)} hosts have not reported for {down_after:g} s: '
            f'{first_of(silent)}. Start their agents, or "gantt-manage host decommission" them'
        )
    yield f'{len(host_rows)} report'


def check_promises(conf: Any) -> Iterator[Result]:
    """Check by the audit, where the schema is the one that it reads."""
    try:
        connected = stores.connect(conf)
    except exceptions.DatabaseNotSynced:
        yield 'skipped: bring the schema up to date first'
        return
    with contextlib.closing(connected.database):
        violations = connected.claims.audit()
    lines = [f'{kind}: {line}' for kind, of_kind in violations.items() for line in of_kind]
    if lines:
        yield warning(why=f'"gantt-manage audit" finds {len(lines)}: {first_of(lines)}')
    yield 'the audit finds nothing'
