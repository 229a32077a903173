# SPDX-License-Identifier: Apache-2.0
"""Checks of options: a row for each finding, with the option, when, why, and what instead."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from oslo_concurrency import lockutils
from oslo_config import cfg
from oslo_db import options as oslo_options

from gantt import exceptions
from gantt.cmd import checks, wiring
from gantt.cmd.checks.results import (
    Finding,
    Result,
    error,
    error_if,
    findings_on_options,
    first_of,
    note_if,
    warning_if,
)
from gantt.conf import clear_text, files, keystone, list_opts, unknown
from gantt.conf.clear_text import is_local
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.candidates.find import QUERY_STEPS_MAX
from gantt.db.engine import engine
from gantt.rpc import wire

OWN_TOPICS = (wire.SCHEDULER_TOPIC, wire.CLAIMS_TOPIC, wire.STATS_TOPIC)
#: The longest budget that a request may have, in seconds.
BUDGET_SECONDS_MAX = 600
#: A host table's log starts anew so often: a replay needs one such start.
CHECKPOINT_INTERVAL_SECONDS = 300
#: A drain is cut after so long by the unit file of the documents.
UNIT_STOP_SECONDS = 90
#: Threads of a scheduler that use the database besides those of its topics: placing,
#: reports, housekeeping, health.
OWN_THREADS = 4
#: Passwords that everybody knows: those of the documents.
KNOWN_PASSWORDS = {'DB_PASS', 'gantt', 'password'}
#: Options of oslo.db that Gantt does not read, with what does their work here.
UNUSED_OPTIONS = {
    'slave_connection': 'everything is read where it is written',
    'asyncio_connection': 'no part of Gantt is asynchronous',
    'asyncio_slave_connection': 'no part of Gantt is asynchronous',
    'use_db_reconnect': 'transactions are run again by [database] transaction_attempts',
    'db_max_retries': 'transactions are run again by [database] transaction_attempts',
    'db_retry_interval': 'the pauses have milliseconds',
    'db_inc_retry_interval': 'the pauses have milliseconds',
    'db_max_retry_interval': 'the pauses have milliseconds',
}
_UNUSED_DEFAULTS = {option.dest: option.default for option in oslo_options.database_opts}
_STRICT_SQL_MODES = {'TRADITIONAL', 'STRICT_TRANS_TABLES', 'STRICT_ALL_TABLES'}
_RAM_DISKS = ('/tmp/', '/run/', '/var/run/', '/dev/shm/')  # nosec B108 # looked for, not written to
_GROUPS = ('api', 'claims', 'compute', 'database', 'rpc', 'scheduler')


def url_of(conf: Any) -> sa.URL | None:
    """Return the database's url; None where there is none, or none that can be read."""
    try:
        return sa.make_url(conf.database.connection) if conf.database.connection else None
    except (sa.exc.ArgumentError, ValueError):
        return None


def has_nova_source(conf: Any) -> bool:
    """Return whether gantt-nova-source is configured: most sites have no such process."""
    keystone.register_opts(conf)
    options = conf.nova_source
    return bool(options.cells_file or options.cell or keystone.has_credentials(conf, 'nova'))


def down_time(conf: Any) -> float:
    """Return [filters] service_down_time; infinite where a plugin does not load."""
    try:
        return wiring.down_time(pipeline_from_conf(conf))
    except exceptions.PluginError:
        return math.inf


def facts_of(conf: Any) -> SimpleNamespace:
    """Return the options of our groups, and what follows from them."""
    rpc, database, scheduler, url = conf.rpc, conf.database, conf.scheduler, url_of(conf)
    down = down_time(conf)
    family = url.get_backend_name() if url is not None else ''
    topics = len(OWN_TOPICS) + rpc.nova_enabled
    is_bounded = database.max_pool_size and database.max_overflow >= 0 and family != 'sqlite'
    drain = 2 * rpc.drain_seconds + 30
    return SimpleNamespace(
        **{name: conf[name] for name in _GROUPS},
        down=down,
        down_third=int(down // 3) if math.isfinite(down) else 0,
        report=scheduler.report_seconds,
        twice=2 * scheduler.report_seconds,
        remembered=max(10.0 * scheduler.report_seconds, conf.claims.lease_seconds_max),
        drain=drain,
        db=family,
        db_shown=url.render_as_string(hide_password=True) if url is not None else '',
        db_password=url.password if url is not None else None,
        # Threads of each topic and its self-ping, the one that places, the timer, health checks.
        senders=topics * (rpc.worker_threads + 1) + 3,
        topics=topics,
        scheduler_threads=topics * rpc.worker_threads + OWN_THREADS,
        api_threads=conf.api.threads + 1,
        pool_most=database.max_pool_size + database.max_overflow
        if url is not None and is_bounded
        else math.inf,
        is_nova_source=has_nova_source(conf),
        last_port=conf.metrics_port + scheduler.workers - 1,
        lock_path=lockutils.get_lock_path(conf),
    )


#: Bounds that cannot hold at the same time.
_CONTRADICTION_ROWS = (
    *(
        error_if(
            f'[claims] {name}',
            lambda v, c, most=f'{name}_max': v > c.claims[most],
            f'{{v}} is more than {name}_max, {{claims.{name}_max:g}}',
            'Lower the one or raise the other',
        )
        for name in ('lease_seconds', 'plan_lease_seconds')
    ),
    error_if(
        '[scheduler] unknown_after_seconds',
        lambda v, c: v < c.report,
        '{v} is less than report_seconds, {report}: hosts count as not known between two reports',
        'Set it to twice report_seconds or more',
    ),
    error_if(
        '[scheduler] feed_seconds',
        lambda v, c: v >= c.scheduler.unknown_after_seconds,
        'the host table is always older than unknown_after_seconds: "no host fits" is never '
        'answered, only "not known"',
        'Set it to 1 or less',
    ),
)

#: Whatever one broker or the other.
_SITE_ROWS = (
    *(
        row
        for name in ('[scheduler] report_seconds', '[compute] report_seconds')
        for row in (
            error_if(
                name,
                lambda v, c: v * 1.1 >= c.down,
                '[filters] service_down_time is {down:g}: hosts count as down between two '
                'reports, which come this often, ± 10 %',
                'Set service_down_time to three times as long, or more',
            ),
            warning_if(
                name,
                lambda v, c: v * 1.1 < c.down < v * 2,
                '[filters] service_down_time is {down:g}, less than two periods: one report '
                'that is lost takes a host out of service',
                'Set service_down_time to three times as long, or more',
            ),
        )
    ),
    warning_if(
        '[scheduler] unknown_after_seconds',
        lambda v, c: c.report <= v < c.twice,
        'it is less than two reports of {report} s: a short outage of the database turns '
        'every "no host fits" into "not known"',
        'Set it to {twice}',
    ),
    error_if(
        '[nova_source] interval_seconds',
        lambda v, c: c.is_nova_source and v >= c.down,
        '[filters] service_down_time is {down:g}: hosts of Nova report once in each pass, and '
        'count as down between two',
        'Set it to {down_third} or less, or service_down_time to three times as long',
    ),
    warning_if(
        '[nova_source] interval_seconds',
        lambda v, c: c.is_nova_source and v < c.down < 2 * v,
        '[filters] service_down_time is {down:g}: hosts of Nova report once in each pass, and '
        'one pass that fails takes all of them out of service',
        'Set it to {down_third} or less, or service_down_time to three times as long',
    ),
    # How long something is valid, or remembered.
    warning_if(
        '[claims] lease_seconds',
        lambda v, c: v < c.twice,
        'it is less than two reports of {report} s. A host without an agent of Gantt is confirmed '
        'by its reports: its claims may end before the first report that shows the guest',
        'Set it to {twice}, or to the longest build plus {twice}',
    ),
    warning_if(
        '[claims] sweep_seconds',
        lambda v, c: v > c.claims.lease_seconds,
        'room of claims that nobody confirmed stays taken for this long beyond their lease',
        'Set it to a tenth of [claims] lease_seconds, {claims.lease_seconds:g}',
    ),
    error_if(
        '[rpc] nova_lease_seconds',
        lambda v, c: c.rpc.nova_enabled and v < c.twice,
        'hosts of Nova confirm no claim before they build: a report has to show the guest within '
        'the lease, and reports come every {report} s',
        'Set it to more than the slowest build takes; 900 is the default',
    ),
    warning_if(
        '[rpc] nova_lease_seconds',
        lambda v, c: c.rpc.nova_enabled and c.twice <= v < BUDGET_SECONDS_MAX,
        'hosts of Nova confirm no claim before they build: room is given away under a build '
        'that takes longer, and its guest is found as over-commit later',
        'Set it to more than the slowest build takes; 900 is the default',
    ),
    warning_if(
        '[claims] tombstone_seconds',
        lambda v, c: v < c.remembered,
        'an ended claim is forgotten while messages about it may still be under way: they are '
        'answered as if it had never been',
        'Set it to {remembered:g} or more; a day is the default',
    ),
    warning_if(
        '[claims] request_seconds',
        lambda v, c: v < BUDGET_SECONDS_MAX,
        f'a caller may repeat a request for {BUDGET_SECONDS_MAX} s: one whose claims have ended '
        'would be placed anew',
        f'Set it to {BUDGET_SECONDS_MAX} or more; a day is the default',
    ),
    error_if(
        '[compute] tombstone_seconds',
        lambda v, c: v < c.claims.tombstone_seconds,
        'a host forgets a finished claim before the scheduler does: a build message that comes '
        'again could start a guest that was deleted',
        'Set it to twice [claims] tombstone_seconds, which is {claims.tombstone_seconds:g}',
    ),
    note_if(
        '[decisions] count_max',
        lambda v, c: not v,
        'decisions go at the next purge: nothing can be explained afterwards',
        'Keep some thousands',
    ),
    warning_if(
        '[decisions] replay_seconds',
        lambda v, c: 0 < v < CHECKPOINT_INTERVAL_SECONDS,
        f'the log of the host table starts anew every {CHECKPOINT_INTERVAL_SECONDS} s, and a '
        'replay needs such a start: most decisions cannot be replayed although the log is written',
        'Set it to 1800, or to 0 to write no log',
    ),
    # Queues, messages, stopping.
    note_if(
        '[rpc] drain_seconds',
        lambda v, c: c.drain > UNIT_STOP_SECONDS,
        'stopping may take {drain} s and more: replies first, then what was accepted. systemd '
        'kills after TimeoutStopSec, and requests end without an answer',
        'Set TimeoutStopSec of the unit to {drain} or more',
    ),
    warning_if(
        '[rpc] reply_backlog',
        lambda v, c: v < c.scheduler.queue_limit,
        '[scheduler] queue_limit is {scheduler.queue_limit}: when the broker is away for a moment '
        'more answers wait than are kept, and their callers have to ask again',
        'Set it to {scheduler.queue_limit}',
    ),
    warning_if(
        '[rpc] reply_retry_seconds',
        lambda v, c: not v,
        'a reply is tried once, and none is kept while the broker is away: every caller that '
        'reconnects just then has to ask again',
        'Set it to 20',
    ),
    warning_if(
        '[rpc] payload_bytes_max',
        lambda v, c: v < 1 << 16,
        'a full report has about 150 bytes for each guest: that of a host with many is refused',
        'Set it to 1048576',
    ),
    # The topic of Nova.
    *(
        note_if(
            f'[rpc] {name}',
            lambda v, c: v and not c.rpc.nova_enabled,
            'nova_enabled is false: it is read by gantt-shadow only',
            'Keep it where gantt-shadow runs; else remove it, or set nova_enabled',
            '(set)',
        )
        for name in ('nova_transport_url', 'nova_rabbit_options')
    ),
    warning_if(
        '[rpc] nova_transport_url',
        lambda v, c: c.rpc.nova_enabled and not v,
        "Nova's topic is listened to on the broker and virtual host of transport_url: calls of "
        'a Nova that has its own never arrive',
        'Set it to transport_url of Nova, also where both are the same',
    ),
    error_if(
        '[rpc] nova_topic',
        lambda v, c: c.rpc.nova_enabled and v in (*OWN_TOPICS, wire.PLANNER_TOPIC),
        'it is a topic of Gantt itself: queues are named by topic alone, and each of the two '
        'would get about half of the messages',
        'Set it to the topic that nova-conductor calls; scheduler is its default',
    ),
    note_if(
        '[rpc] nova_budget_seconds',
        lambda v, c: c.rpc.nova_enabled and v > 45,
        'it is cut to three quarters of the time after which a caller gives up: 45 s with '
        'the rpc_response_timeout that Nova has by default',
        'Raise rpc_response_timeout of Nova with it',
    ),
    # The database.
    error_if(
        '[database] connection',
        lambda v, c: v and not c.db,
        'it is no url: there is no database to keep claims in',
        engine.ENCODING_ADVICE,
        '(unreadable)',
    ),
    error_if(
        '[database] connection',
        lambda v, c: not v,
        'there is no database to keep claims in',
        'Set it to e.g. postgresql+psycopg://gantt:secret@db.example/gantt',
    ),
    warning_if(
        '[database] connection',
        lambda v, c: c.db_password in KNOWN_PASSWORDS,
        'everybody knows this password',
        'Give the role another one',
        '{db_shown}',
    ),
    error_if(
        '[scheduler] workers',
        lambda v, c: c.db == 'sqlite' and v > 1,
        'SQLite has one writer: the workers wait for each other, by polling, and are slower than '
        'one',
        'Set it to 1, or use PostgreSQL or MariaDB',
    ),
    note_if(
        '[database] connection',
        lambda v, c: c.db == 'sqlite' and c.scheduler.workers == 1,
        'SQLite serves one process on one machine and has no fail-over: good for trying out',
        'Use PostgreSQL or MariaDB for a service',
        '{db_shown}',
    ),
    error_if(
        '[database] sqlite_synchronous',
        lambda v, c: c.db == 'sqlite' and not v,
        'claims that were acknowledged are lost when the machine loses power, and the file may be '
        'broken',
        'Remove it',
    ),
    *(
        warning_if(
            '[database] max_overflow',
            lambda v, c, threads=threads: c.pool_most < vars(c)[threads],
            f'max_pool_size and it allow {{pool_most}} connections, and {who} has {{{threads}}} '
            f'threads that use one ({option}): the others wait for pool_timeout and fail',
            f'Set max_pool_size and it to {{{threads}}} together, or more',
        )
        for who, option, threads in (
            ('a scheduler', '[rpc] worker_threads', 'scheduler_threads'),
            ('gantt-api', '[api] threads', 'api_threads'),
        )
    ),
    error_if(
        '[database] statement_seconds',
        lambda v, c: v <= c.database.lock_wait_seconds,
        'a statement is cancelled before it has waited lock_wait_seconds, '
        '{database.lock_wait_seconds:g}, for a row: that is an error, and no conflict which is '
        'tried again',
        'Set it to 60, or to four times lock_wait_seconds where that is more',
    ),
    *(
        warning_if(
            f'[database] {name}',
            lambda v, c: v >= c.database.transaction_seconds,
            f'one wait for {what} uses up transaction_seconds, {{database.transaction_seconds:g}}: '
            'nothing is tried again',
            'Set it to a third of transaction_seconds',
        )
        for name, what in (
            ('lock_wait_seconds', 'a row'),
            ('connect_seconds', 'a server that does not answer'),
        )
    ),
    warning_if(
        '[database] transaction_attempts',
        lambda v, c: v < 2,
        'a lost race or connection is not tried again: it becomes "the database does not answer"',
        'Set it to 8',
    ),
    warning_if(
        '[database] idle_transaction_seconds',
        lambda v, c: v > 300,
        'a process that is stopped in the middle of a transaction keeps its hosts locked for so '
        'long: nobody can place there',
        'Set it to 1.5',
    ),
    error_if(
        '[database] mysql_sql_mode',
        lambda v, c: (
            c.db in ('mysql', 'mariadb')
            and v is not None
            and not _STRICT_SQL_MODES & _mode_words(v)
        ),
        'values that do not fit a column are cut without an error',
        'Set it to TRADITIONAL',
    ),
    *(
        note_if(
            f'[database] {name}',
            lambda v, c, default=_UNUSED_DEFAULTS[name]: v != default,
            f'it has no effect: {what}',
            'Remove it',
            '(set)' if name.endswith('connection') else '{v}',
        )
        for name, what in UNUSED_OPTIONS.items()
    ),
    warning_if(
        '[api] candidate_steps_max',
        lambda v, c: v > 10 * QUERY_STEPS_MAX,
        'one query for allocation candidates may search for minutes, and all others of its process '
        'wait meanwhile',
        f'Set it to {10 * QUERY_STEPS_MAX} or less; {QUERY_STEPS_MAX} is the default',
    ),
    # Listening.
    warning_if(
        '[api] host',
        lambda v, c: c.api.auth_strategy == 'noauth' and not is_local(v),
        'auth_strategy is noauth: whoever reaches this address may place, release and remove',
        'Listen on 127.0.0.1 behind a proxy that knows its callers, or on a management network',
    ),
    warning_if(
        '[api] behind_proxy',
        lambda v, c: v and not is_local(c.api.host),
        '{api.host} can be reached past the proxy: the headers that are believed then are '
        'whatever a caller writes',
        'Listen on 127.0.0.1, or let a firewall admit the proxy alone',
    ),
    error_if(
        '[api] table_age_unhealthy_seconds',
        lambda v, c: c.api.table_age_seconds >= v,
        'the table may be table_age_seconds old, {api.table_age_seconds:g}, before it is read '
        'again: a sound process reports that it is not well',
        'Set it to 60',
    ),
    note_if(
        '[DEFAULT] metrics_port',
        lambda v, c: not v,
        'gantt-scheduler shows neither metrics nor health: nobody hears that it cannot place',
        'Set it to 9790',
    ),
    error_if(
        '[DEFAULT] metrics_port',
        lambda v, c: v and c.last_port > 65_535,
        '{scheduler.workers} workers need the ports up to {last_port}',
        'Set it to 9790',
    ),
    # Filters, and the agent of a host.
    warning_if(
        '[filters] skip_failing_plugins',
        lambda v, c: v,
        'a filter that fails removes nobody: hosts are chosen that its rule forbids',
        'Remove it once the plugin is mended',
    ),
    error_if(
        '[compute] guest_stop_command',
        lambda v, c: c.compute.guest_start_command and not v,
        'this host starts guests and cannot stop them: every delete fails',
        'Name the command that stops a guest',
    ),
    warning_if(
        '[compute] guest_list_command',
        lambda v, c: c.compute.guest_start_command and not v,
        'the journal is believed: a guest that crashed, or was started by hand, is not seen, and '
        'its room is reported wrongly',
        'Name the command that lists what runs',
    ),
    *(
        warning_if(
            option,
            lambda v, c: f'{v.rstrip("/")}/'.startswith(_RAM_DISKS),
            'it may be empty after a restart of the machine: an agent forgets what it was to '
            'build, and SQLite its database',
            'Choose a directory on a disk, such as /var/lib/gantt',
        )
        for option in ('[compute] journal', '[DEFAULT] state_path')
    ),
)


def _mode_words(mode: str) -> set[str]:
    return {word.strip().upper() for word in mode.split(',')}


def check_bounds(conf: Any) -> Iterator[Result]:
    """Check that every option can be read, and none contradicts another.

    :raises Misconfigured: names the option that cannot be read
    """
    read = sum(_is_readable(conf, group, option) for group, of in list_opts() for option in of)
    yield from findings_on_options(_CONTRADICTION_ROWS, conf, facts_of(conf))
    yield f'{read} read, nothing contradicts'


def _is_readable(conf: Any, group: str | None, option: Any) -> bool:
    """Return whether an option is registered; reading its value has oslo.config check it."""
    try:
        holder = conf if group in (None, 'DEFAULT') else conf[group]
        holder[option.dest]
    except cfg.NoSuchOptError:
        return False  # of a plugin that is installed, but not enabled
    except (cfg.Error, ValueError) as e:
        raise exceptions.Misconfigured(
            option=f'[{group or "DEFAULT"}] {option.name}',
            problem=files.error_message(e),
            fix='Correct it',
        ) from None
    return True


def check_understood(conf: Any) -> Iterator[Result]:
    """Check that all of the configuration is understood, and none of it contradicts."""
    for check in (check_bounds, checks.check_plugins, checks.check_names):
        yield from (result for result in check(conf) if isinstance(result, Finding))
    strange = [f'[{group}]' for group in unknown.unknown_groups(conf)]
    besides = f'; not looked into, as others must have them: {first_of(strange)}' if strange else ''
    yield f'none is misspelled, none contradicts{besides}'


def check_site(conf: Any) -> Iterator[Finding]:
    """Check for settings that are dangerous, whatever the broker."""
    yield from findings_on_options(_SITE_ROWS, conf, facts_of(conf))
    if (url := url_of(conf)) is not None:
        exposed = clear_text.database_exposure(url, conf.database.connection_parameters)
        yield from () if exposed is None else [error(*exposed)]
