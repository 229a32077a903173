# SPDX-License-Identifier: Apache-2.0
"""What the configuration says about the database."""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from oslo_db import options as oslo_options

from gantt.cmd.doctor.broker import OWN_TOPICS
from gantt.cmd.doctor.finding import Finding, error, exposed, note, warning
from gantt.conf import clear_text
from gantt.db.engine import engine

#: Threads of a scheduler that use the database beside those of its topics: placing,
#: reports, housekeeping, health.
OWN_THREADS = 4
#: Options of oslo.db that Gantt does not read, with what does their work here.
UNUSED = {
    'slave_connection': 'everything is read where it is written',
    'asyncio_connection': 'no part of Gantt is asynchronous',
    'asyncio_slave_connection': 'no part of Gantt is asynchronous',
    'use_db_reconnect': 'transactions are run again by [database] transaction_attempts',
    'db_max_retries': 'transactions are run again by [database] transaction_attempts',
    'db_retry_interval': 'the pauses have milliseconds',
    'db_inc_retry_interval': 'the pauses have milliseconds',
    'db_max_retry_interval': 'the pauses have milliseconds',
}
_NAMES = {'connection', 'asyncio_connection', 'slave_connection', 'asyncio_slave_connection'}
KNOWN_PASSWORDS = {'DB_PASS', 'gantt', 'password'}
_STRICT = {'TRADITIONAL', 'STRICT_TRANS_TABLES', 'STRICT_ALL_TABLES'}


def url_of(conf: Any) -> sa.URL | None:
    """The database's url; None where there is none, or none that can be read."""
    try:
        return sa.make_url(conf.database.connection) if conf.database.connection else None
    except (sa.exc.ArgumentError, ValueError):
        return None


def threads_of_a_scheduler(conf: Any) -> int:
    """How many connections one scheduler process may have at a time."""
    topics = len(OWN_TOPICS) + conf.rpc.nova_enabled
    return topics * conf.rpc.worker_threads + OWN_THREADS


def threads_of_the_api(conf: Any) -> int:
    """The same of gantt-api."""
    return conf.api.threads + 1


def connection(conf: Any) -> Iterator[Finding]:
    """The url."""
    url = url_of(conf)
    if url is None and conf.database.connection:
        yield error(
            '[database] connection',
            '(unreadable)',
            'it is no url: there is no database to keep claims in',
            engine.ENCODE,
        )
        return
    if url is None:
        yield error(
            '[database] connection',
            '(none)',
            'there is no database to keep claims in',
            'Set it to e.g. postgresql+psycopg://gantt:secret@db.example/gantt',
        )
        return
    shown = url.render_as_string(hide_password=True)
    if url.password in KNOWN_PASSWORDS:
        yield warning(
            '[database] connection',
            shown,
            'everybody knows this password',
            'Give the role another one',
        )
    yield from exposed(clear_text.of_database(url, conf.database.connection_parameters))


def sqlite(conf: Any) -> Iterator[Finding]:
    """One file, one writer."""
    url = url_of(conf)
    if url is None or url.get_backend_name() != 'sqlite':
        return
    if conf.scheduler.workers > 1:
        yield error(
            '[scheduler] workers',
            conf.scheduler.workers,
            'SQLite has one writer: the workers wait for each other, by polling, and are slower '
            'than one',
            'Set it to 1, or use PostgreSQL or MariaDB',
        )
    else:
        yield note(
            '[database] connection',
            url.render_as_string(),
            'SQLite serves one process on one machine and has no fail-over: good for trying out',
            'Use PostgreSQL or MariaDB for a service',
        )
    if not conf.database.sqlite_synchronous:
        yield error(
            '[database] sqlite_synchronous',
            False,
            'claims that were acknowledged are lost when the machine loses power, and the file '
            'may be broken',
            'Remove it',
        )


def pool(conf: Any) -> Iterator[Finding]:
    """Connections, against the threads that use them."""
    options = conf.database
    url = url_of(conf)
    if url is None or url.get_backend_name() == 'sqlite':
        return
    if not options.max_pool_size or options.max_overflow < 0:
        return  # no limit
    most = options.max_pool_size + options.max_overflow
    for who, option, needed in (
        ('a scheduler', '[rpc] worker_threads', threads_of_a_scheduler(conf)),
        ('gantt-api', '[api] threads', threads_of_the_api(conf)),
    ):
        if most < needed:
            yield warning(
                '[database] max_overflow',
                options.max_overflow,
                f'max_pool_size and it allow {most} connections, and {who} has {needed} threads '
                f'that use one ({option}): the others wait {options.pool_timeout or 30} s and fail',
                f'Set it to {needed - options.max_pool_size} or more',
            )


def waits(conf: Any) -> Iterator[Finding]:
    """Bounds of waiting that contradict each other."""
    o = conf.database
    if o.statement_seconds <= o.lock_wait_seconds:
        yield error(
            '[database] statement_seconds',
            o.statement_seconds,
            f'a statement is cancelled before it has waited lock_wait_seconds, '
            f'{o.lock_wait_seconds:g}, for a row: that is no conflict which is tried again, but '
            'an error',
            f'Set it to {max(60, round(4 * o.lock_wait_seconds))}',
        )
    if o.lock_wait_seconds >= o.transaction_seconds:
        yield warning(
            '[database] lock_wait_seconds',
            o.lock_wait_seconds,
            f'one wait for a row uses up transaction_seconds, {o.transaction_seconds:g}: nothing '
            'is tried again',
            f'Set it to a third of transaction_seconds: {o.transaction_seconds / 3:g}',
        )
    if o.connect_seconds >= o.transaction_seconds:
        yield warning(
            '[database] connect_seconds',
            o.connect_seconds,
            'one attempt to connect to a server that does not answer uses up '
            f'transaction_seconds, {o.transaction_seconds:g}',
            f'Set it to a third of transaction_seconds: {max(1, round(o.transaction_seconds / 3))}',
        )
    if o.transaction_attempts < 2:
        yield warning(
            '[database] transaction_attempts',
            o.transaction_attempts,
            'a lost race or connection is not tried again: it becomes "the database does not '
            'answer"',
            'Set it to 8',
        )
    if o.idle_transaction_seconds > 300:
        yield warning(
            '[database] idle_transaction_seconds',
            o.idle_transaction_seconds,
            'a process that is stopped in the middle of a transaction keeps its hosts locked for '
            'so long: nobody can place there',
            'Set it to 1.5',
        )


def modes(conf: Any) -> Iterator[Finding]:
    """What oslo.db passes on to the server, or would if Gantt read it."""
    options, url = conf.database, url_of(conf)
    mode = options.mysql_sql_mode
    is_mysql = url is not None and url.get_backend_name() in ('mysql', 'mariadb')
    words = {word.strip().upper() for word in (mode or '').split(',')}
    if is_mysql and mode is not None and not _STRICT & words:
        yield error(
            '[database] mysql_sql_mode',
            mode or '(empty)',
            'values that do not fit a column are cut without an error',
            'Set it to TRADITIONAL',
        )
    defaults = {option.dest: option.default for option in oslo_options.database_opts}
    for name, instead in UNUSED.items():
        if options[name] != defaults[name]:
            yield note(
                f'[database] {name}',
                '(set)' if name in _NAMES else options[name],
                f'it has no effect: {instead}',
                'Remove it',
            )
