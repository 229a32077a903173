# SPDX-License-Identifier: Apache-2.0
"""The engine, the settings of its connections, and the types of columns.

The engine comes from oslo.db's enginefacade, configured from the options that are passed in.
Settings that oslo.db leaves to its users are here: the isolation level, the bounds of waiting, and
the way that SQLite begins a transaction.
"""

import contextlib
import math
import os
import socket
import time
import weakref
from typing import Any

import msgspec
import sqlalchemy as sa
from oslo_db import exception as oslo_exception
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy.dialects import mysql

from gantt import exceptions, private_names
from gantt.conf import clear_text
from gantt.db.engine import retry, watch

#: The database's clock in seconds since the epoch, by dialect.  SQLite's own counts milliseconds,
#: and two transactions fit in one, so each of its connections gets a function.
CLOCK = {
    'postgresql': 'CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)',
    'mysql': 'CAST(UNIX_TIMESTAMP(SYSDATE(6)) AS DOUBLE)',
    'sqlite': 'gantt_clock()',
}


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of one connection, in seconds."""

    lock: float = 0.5
    idle_transaction: float = 1.5
    statement: int = 60
    connect: int = 5
    answer: float = 10.0

    @property
    def patient(self) -> float:
        """Seconds to wait for the answer to a long statement: the server ends it before."""
        return self.statement + 10.0


def family(engine: sa.Engine) -> str:
    """Return ``sqlite``, ``postgresql`` or ``mysql`` (MariaDB too)."""
    name = engine.dialect.name
    return 'mysql' if name == 'mariadb' else name


#: Driver of SQLAlchemy -> the library whose private names we use.
_LIBRARIES = {'psycopg': 'psycopg', 'pymysql': 'PyMySQL'}
#: Most connections of each engine with a pool.
_CONNECTIONS_MOST: 'weakref.WeakKeyDictionary[sa.Engine, int]' = weakref.WeakKeyDictionary()

#: Lock timeout of connections that wait for no locks: PostgreSQL takes 0 for "for ever".
NO_WAIT_LOCK_TIMEOUT_MS = 20

#: Longer names of connections are truncated by PostgreSQL, at their end.
PG_NAME_MAX = 63

#: Advice for a url that breaks in the middle of a password.
ENCODING_ADVICE = (
    'Percent-encode "@", "/" and ":" in the password, as %40, %2F and %3A, "%" as %25; the port '
    'is a number'
)


def engine_from_conf(conf: Any) -> sa.Engine:
    """Return the engine that ``[database]`` describes.

    :raises Misconfigured: no connection url, or an invalid one, or its transport is refused
    :raises DatabaseUnavailable: the database does not answer
    """
    options = conf.database
    if not options.connection:
        raise exceptions.Misconfigured(
            option='[database] connection',
            problem='no database is configured',
            fix='Set it to a url such as postgresql+psycopg://gantt:secret@db.example/gantt, '
            'mysql+pymysql://… or sqlite:////var/lib/gantt/gantt.db',
        )
    with contextlib.suppress(sa.exc.ArgumentError, ValueError):  # it is reported below
        url = sa.make_url(options.connection)
        clear_text.warn_of_exposures(
            conf, clear_text.database_exposure(url, options.connection_parameters)
        )
    return build_engine(
        options.connection,
        timeouts=Timeouts(
            lock=options.lock_wait_seconds,
            idle_transaction=options.idle_transaction_seconds,
            statement=options.statement_seconds,
            connect=options.connect_seconds,
            answer=options.answer_seconds,
        ),
        sqlite_synchronous=options.sqlite_synchronous,
        mysql_wsrep_sync_wait=options.mysql_wsrep_sync_wait,
        mysql_sql_mode=options.mysql_sql_mode,
        connection_recycle_time=options.connection_recycle_time,
        connection_debug=options.connection_debug,
        connection_trace=options.connection_trace,
        connection_parameters=options.connection_parameters,
        name=_name(conf),
        max_pool_size=options.max_pool_size,
        max_overflow=options.max_overflow,
        pool_timeout=options.pool_timeout,
        max_retries=options.max_retries,
        retry_interval=options.retry_interval,
    )


def _name(conf: Any) -> str:
    """Return the name for connections: program and worker, or machine, as far as known."""
    worker = getattr(conf, 'worker', None) or getattr(conf, 'host', None) or socket.gethostname()
    return ' '.join(filter(None, (conf.prog, worker)))


def build_engine(
    url: str, *, timeouts: Timeouts | None = None, name: str = 'gantt', **options: Any
) -> sa.Engine:
    """Return an engine for ``url``.

    :param name: name of its connections on the server, to which the process id is added
    :param options: as enginefacade's ``configure`` takes them
    :raises Misconfigured: the url is invalid, or Gantt does not support the installed release of
        the driver
    :raises DatabaseUnavailable: the database does not answer
    """
    manager = enginefacade.transaction_context()
    settings: dict[str, Any] = {
        'connection': _complete_url(url),
        'slave_connection': None,
        'sqlite_fk': True,
        'max_retries': 0,
        'retry_interval': 1,
        'max_pool_size': 5,
        'max_overflow': 50,
        'pool_timeout': 30,
        'connection_recycle_time': 3600,
        'connection_debug': 0,
        'connection_trace': False,
        'connection_parameters': '',
        'mysql_sql_mode': 'TRADITIONAL',
        'mysql_wsrep_sync_wait': None,
        'sqlite_synchronous': True,
        'synchronous_reader': True,
        'thread_checkin': False,
    }
    settings.update(options)
    if settings['connection'].startswith('sqlite'):
        settings.pop('pool_timeout')  # oslo.db opens SQLite without a pool
    attempts = settings.pop('max_retries')
    manager.configure(max_retries=0, **settings)
    engine = manager.writer.get_engine()
    library = _LIBRARIES.get(engine.dialect.driver)
    if library is not None:
        private_names.check(library)
    if 'pool_timeout' in settings and settings['max_overflow'] >= 0:
        _CONNECTIONS_MOST[engine] = settings['max_pool_size'] + settings['max_overflow']
    _install(engine, timeouts or Timeouts(), name)
    if attempts:
        _wait_for(engine, attempts, settings['retry_interval'])
    return engine


def connections_most(engine: sa.Engine) -> int | None:
    """Return the most connections that an engine has at once; None: unbounded."""
    return _CONNECTIONS_MOST.get(engine)


def _complete_url(url: str) -> str:
    """Return the url with the driver and character set that Gantt is tested with."""
    try:
        parsed = sa.make_url(url)
        backend, has_no_driver = parsed.get_backend_name(), '+' not in parsed.drivername
    except sa.exc.ArgumentError:
        backend, has_no_driver, parsed = '', False, sa.URL.create('sqlite')
    except ValueError:  # the port is invalid; its text may be a part of the password
        raise exceptions.Misconfigured(
            option='[database] connection',
            problem='the port of the url is no number',
            fix=ENCODING_ADVICE,
        ) from None
    if backend not in ('sqlite', 'postgresql', 'mysql', 'mariadb'):
        raise exceptions.Misconfigured(
            option='[database] connection',
            problem='expected the url of an SQLite, PostgreSQL or MariaDB database',
            fix='Use sqlite:////path, postgresql+psycopg://… or mysql+pymysql://…',
        )
    if backend == 'sqlite' and parsed.database in (None, '', ':memory:'):
        raise exceptions.Misconfigured(
            option='[database] connection',
            problem='SQLite in memory is one database for each connection',
            fix='Name a file: sqlite:////path/to/gantt.db',
        )
    if backend == 'sqlite' and not os.path.isdir(os.path.dirname(parsed.database or '') or '.'):
        raise exceptions.Misconfigured(
            option='[database] connection',
            problem=f'the folder of {parsed.database} does not exist',
            fix='Make it, or correct the path: an absolute one has four slashes, sqlite:////path',
        )
    if backend == 'postgresql' and has_no_driver:
        parsed = parsed.set(drivername='postgresql+psycopg')
    if backend in ('mysql', 'mariadb'):
        if has_no_driver:
            parsed = parsed.set(drivername=f'{backend}+pymysql')
        parsed = parsed.update_query_dict({'charset': parsed.query.get('charset', 'utf8mb4')})
    return parsed.render_as_string(hide_password=False)


def _wait_for(engine: sa.Engine, tries: int, interval: float) -> None:
    """Open the first connection, with as many tries as oslo.db's options set."""
    policy = retry.RetryPolicy(
        attempts=tries if tries > 0 else 10**6, seconds=3600.0, lost_max=max(0.01, interval)
    )
    for attempt in policy.rounds():
        try:
            with engine.connect():
                return
        except (sa.exc.DBAPIError, oslo_exception.DBError) as e:
            attempt.failed(retry.RetrySignal.LOST, e)


# -- settings of connections -----------------------------------------------------
def _install(engine: sa.Engine, timeouts: Timeouts, name: str) -> None:
    """Install listeners on ``engine``, which has no connection yet."""
    kind = family(engine)
    if kind == 'sqlite':
        sa.event.listen(engine, 'connect', _sqlite_settings)
        sa.event.listen(engine, 'begin', _begin_sqlite)
        return

    watched = watch.install(engine, timeouts.answer, timeouts.patient)

    def on_connect(connection: Any, record: Any) -> None:
        settings = _settings(kind, timeouts)
        autocommit_before = connection.autocommit if kind == 'postgresql' else None
        if autocommit_before is not None:
            connection.autocommit = True
        cursor = connection.cursor()
        for statement, optional in settings:
            with contextlib.suppress(Exception) if optional else contextlib.nullcontext():
                cursor.execute(statement)
        cursor.close()
        if autocommit_before is not None:
            connection.autocommit = autocommit_before

    def on_dial(dialect: Any, record: Any, args: Any, parameters: dict[str, Any]) -> Any:
        parameters.setdefault('connect_timeout', timeouts.connect)
        connection_name = f'{name}:{os.getpid()}'
        if kind == 'postgresql':
            parameters.setdefault('application_name', connection_name[-PG_NAME_MAX:])
            # A partition must not hold a thread for the hours that TCP would take.
            parameters.setdefault('tcp_user_timeout', timeouts.statement * 1000)
            parameters.setdefault('keepalives_idle', 30)
        else:
            if dialect.driver == 'pymysql':
                parameters.setdefault('program_name', connection_name)
            # Beside the watched waits: one read of a part of an answer.
            parameters.setdefault('read_timeout', timeouts.patient)
            parameters.setdefault('write_timeout', timeouts.patient)
        with watched.dialing():
            connection = _connect(dialect, args, parameters)
        if connection is not None:
            connection.exchange = watched.add(connection.fileno)
        return connection

    sa.event.listen(engine, 'do_connect', on_dial)
    sa.event.listen(engine, 'connect', on_connect)


def _connect(dialect: Any, args: Any, parameters: dict[str, Any]) -> Any:
    """Open a connection whose waits can be watched; return None for an unknown driver."""
    if dialect.driver == 'psycopg':
        from gantt.db.engine import pipelines  # a driver is there only where it is used

        return pipelines.PipelinedConnection.connect(*args, **parameters)
    if dialect.driver == 'pymysql':
        from gantt.db.engine import packets

        # Its connect_timeout ends once the port is open, even if no database answers there.
        read_timeout = parameters['read_timeout']
        parameters['read_timeout'] = min(read_timeout, parameters['connect_timeout'])
        connection = packets.PacketConnection(*args, **parameters)
        connection._read_timeout = read_timeout  # read before each answer
        return connection
    return None


def _settings(kind: str, timeouts: Timeouts) -> list[tuple[str, bool]]:
    """Return (statement, is optional) for a new connection; some servers lack the optional ones."""
    idle = timeouts.idle_transaction
    if kind == 'postgresql':
        return [
            ('SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED', False),
            (f'SET lock_timeout = {max(1, round(timeouts.lock * 1000))}', False),
            (f'SET statement_timeout = {timeouts.statement * 1000}', False),
            (f'SET idle_in_transaction_session_timeout = {round(idle * 1000)}', False),
            ('SET jit = off', True),
        ]
    return [
        ('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED', False),
        # Whole seconds; 0 means no wait at all.
        (f'SET SESSION innodb_lock_wait_timeout = {max(1, math.ceil(timeouts.lock))}', False),
        (f'SET SESSION idle_transaction_timeout = {math.ceil(idle)}', True),
        (f'SET SESSION max_statement_time = {timeouts.statement}', True),
    ]


#: For connections that only read, or migrate: no transaction waits for their locks, and a process
#: may take seconds to evaluate the rows that it read.
NO_DEADLINE_SECONDS = 60


def without_deadlines(kind: str, lock_seconds: int | None = None) -> list[str]:
    """Return statements for a connection whose transactions may be idle for longer.

    :param lock_seconds: its lock timeout; None: unchanged
    """
    statements = []
    if kind == 'postgresql':
        statements.append(f'SET idle_in_transaction_session_timeout = {NO_DEADLINE_SECONDS * 1000}')
        if lock_seconds is not None:
            statements.append(f'SET lock_timeout = {lock_seconds * 1000}')
    elif kind == 'mysql':
        statements.append(_mariadb_setting(f'idle_transaction_timeout = {NO_DEADLINE_SECONDS}'))
        if lock_seconds is not None:
            statements.append(f'SET SESSION innodb_lock_wait_timeout = {lock_seconds}')
    return statements


def without_lock_waits(kind: str) -> list[str]:
    """Return statements for a connection that waits for no locks."""
    if kind == 'postgresql':
        return [f'SET lock_timeout = {NO_WAIT_LOCK_TIMEOUT_MS}']
    if kind == 'mysql':
        # MySQL does not accept 0.
        return [
            'SET SESSION innodb_lock_wait_timeout = 1',
            _mariadb_setting('innodb_lock_wait_timeout = 0'),
        ]
    return []


def _mariadb_setting(setting: str) -> str:
    """Return a setting of MariaDB in the form of a comment, which MySQL skips."""
    return f'SET @gantt = 1 /*M!, SESSION {setting} */'


def _sqlite_settings(connection: Any, record: Any) -> None:
    connection.create_function('gantt_clock', 0, time.time)
    connection.execute('PRAGMA journal_mode = WAL')
    connection.execute('PRAGMA busy_timeout = 5000')
    connection.execute('PRAGMA foreign_keys = ON')


def _begin_sqlite(connection: sa.Connection) -> None:
    """Take the write lock at once, unless the transaction only reads.

    A transaction that reads and then writes fails with BUSY whatever the timeout.  oslo.db's own
    listener always comes first, and has emitted a plain BEGIN.
    """
    if connection.info.get('gantt_reads', False):
        return
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        driver.execute('ROLLBACK')
    try:
        driver.execute('BEGIN IMMEDIATE')
    except Exception:
        connection.info.pop('in_transaction', None)
        raise


# -- types of columns, the same on every database ----------------------------------------

# SQLite counts up only in a column that is exactly INTEGER PRIMARY KEY.
Serial = sa.BigInteger().with_variant(sa.Integer, 'sqlite')


def storable(text: str) -> str:
    """Return text without characters that a database cannot store: NUL, and lone surrogates."""
    if '\x00' in text:
        text = text.replace('\x00', '\ufffd')
    if text.isascii():
        return text
    return text.encode('utf-8', 'replace').decode()


def is_id(text: str) -> bool:
    """Return whether an id can be stored at all: ids are ASCII, of bounded length."""
    return text.isascii() and 0 < len(text) <= 64 and '\x00' not in text


class CollatedType(sa.TypeDecorator):
    """Text from outside of Gantt.

    :param length: None: long
    :param collated: compared byte by byte, so that the database sorts like Python

    MariaDB's ``_bin`` by itself would compare without spaces at the end.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, length: int | None = None, collated: bool = True) -> None:
        super().__init__()
        self.length = length
        self.collated = collated

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        """Return the type of the column."""
        if dialect.name in ('mysql', 'mariadb'):
            charset = {'charset': 'utf8mb4', 'collation': 'utf8mb4_nopad_bin'}
            return (
                mysql.VARCHAR(self.length, **charset)
                if self.length
                else mysql.MEDIUMTEXT(**charset)
            )
        if self.length is None:
            return sa.Text()
        is_exact = self.collated and dialect.name == 'postgresql'
        return sa.String(self.length, collation='C' if is_exact else None)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        """Return the stored value."""
        return None if value is None else storable(value)


def ascii_of(length: int) -> sa.String:
    """Return a type for ASCII texts, compared byte by byte on all databases."""
    on_mysql = mysql.VARCHAR(length, charset='ascii', collation='ascii_nopad_bin')
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation='C'), 'postgresql')
        .with_variant(on_mysql, 'mysql', 'mariadb')
    )


Id = ascii_of(64)
Word = ascii_of(32)
Name = CollatedType(255)
Note = CollatedType(1024, collated=False)
LongText = CollatedType()
Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), 'mysql', 'mariadb')
Amount = sa.BigInteger
Seconds: sa.Double[float] = sa.Double()
