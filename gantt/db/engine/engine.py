# SPDX-License-Identifier: Apache-2.0
"""The engine, what every connection is told, and the types of columns.

The engine comes from oslo.db's enginefacade, configured from the options that
are passed in.  What oslo.db leaves to its users is set here: the isolation
level, the bounds of waiting, and how SQLite begins.
"""

import contextlib
import math
import os
import socket
import weakref
from typing import Any

import msgspec
import sqlalchemy as sa
from oslo_db import exception as oslo_exception
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy.dialects import mysql

from gantt import exceptions
from gantt.conf import clear_text
from gantt.db.engine import retry, watch

#: The database's clock in seconds since the epoch, by dialect.
CLOCK = {
    'postgresql': 'CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)',
    'mysql': 'CAST(UNIX_TIMESTAMP(SYSDATE(6)) AS DOUBLE)',
    'sqlite': "((julianday('now') - 2440587.5) * 86400.0)",
}


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one connection, in seconds."""

    lock: float = 0.5
    idle_transaction: float = 1.5
    statement: int = 60
    connect: int = 5
    answer: float = 10.0

    @property
    def patient(self) -> float:
        """How long the answer to a long statement is waited for: the server ends it before."""
        return self.statement + 10.0


def family(engine: sa.Engine) -> str:
    """``sqlite``, ``postgresql`` or ``mysql`` (MariaDB too)."""
    name = engine.dialect.name
    return 'mysql' if name == 'mariadb' else name


#: Of engines with a pool: how many connections each has at most.
_MOST: 'weakref.WeakKeyDictionary[sa.Engine, int]' = weakref.WeakKeyDictionary()

#: What who waits for no locks waits for one: PostgreSQL takes 0 for "for ever".
GLANCE_MS = 20

#: Longer names of connections are cut by PostgreSQL, at their end.
PG_NAME_MAX = 63

#: What is meant where a url breaks in the middle of a password.
ENCODE = (
    'Percent-encode "@", "/" and ":" in the password, as %40, %2F and %3A, "%" as %25; the port '
    'is a number'
)


def engine_from_conf(conf: Any) -> sa.Engine:
    """The engine that ``[database]`` describes.

    :raises Misconfigured: no connection url, or one that is not understood, or the way there is
        refused
    :raises DatabaseUnavailable: it does not answer
    """
    options = conf.database
    if not options.connection:
        raise exceptions.Misconfigured(
            option='[database] connection',
            problem='no database is configured',
            fix='Set it to a url such as postgresql+psycopg://gantt:secret@db.example/gantt, '
            'mysql+pymysql://… or sqlite:////var/lib/gantt/gantt.db',
        )
    with contextlib.suppress(sa.exc.ArgumentError, ValueError):  # it is said below
        url = sa.make_url(options.connection)
        clear_text.guard(conf, clear_text.of_database(url, options.connection_parameters))
    return build_engine(
        options.connection,
        waits=Waits(
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
    """Program and worker, or machine, as far as they are known."""
    of = getattr(conf, 'worker', None) or getattr(conf, 'host', None) or socket.gethostname()
    return ' '.join(filter(None, (conf.prog, of)))


def build_engine(
    url: str, *, waits: Waits | None = None, name: str = 'gantt', **options: Any
) -> sa.Engine:
    """An engine for ``url``.

    :param name: what the server calls its connections, to which the process id is added
    :param options: as enginefacade's ``configure`` takes them
    :raises Misconfigured: the url is not understood
    :raises DatabaseUnavailable: the database does not answer
    """
    manager = enginefacade.transaction_context()
    settings: dict[str, Any] = {
        'connection': _complete(url),
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
    tries = settings.pop('max_retries')
    manager.configure(max_retries=0, **settings)
    engine = manager.writer.get_engine()
    if 'pool_timeout' in settings and settings['max_overflow'] >= 0:
        _MOST[engine] = settings['max_pool_size'] + settings['max_overflow']
    _install(engine, waits or Waits(), name)
    if tries:
        _wait_for(engine, tries, settings['retry_interval'])
    return engine


def connections_most(engine: sa.Engine) -> int | None:
    """How many connections an engine has at once; None: nothing bounds them."""
    return _MOST.get(engine)


def _complete(url: str) -> str:
    """The url with the driver and character set that Gantt is tested with."""
    try:
        parsed = sa.make_url(url)
        backend, plain = parsed.get_backend_name(), '+' not in parsed.drivername
    except sa.exc.ArgumentError:
        backend, plain, parsed = '', False, sa.URL.create('sqlite')
    except ValueError:  # of its port; the text of that may be a part of the password
        raise exceptions.Misconfigured(
            option='[database] connection', problem='the port of the url is no number', fix=ENCODE
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
    if backend == 'postgresql' and plain:
        parsed = parsed.set(drivername='postgresql+psycopg')
    if backend in ('mysql', 'mariadb'):
        if plain:
            parsed = parsed.set(drivername=f'{backend}+pymysql')
        parsed = parsed.update_query_dict({'charset': parsed.query.get('charset', 'utf8mb4')})
    return parsed.render_as_string(hide_password=False)


def _wait_for(engine: sa.Engine, tries: int, interval: float) -> None:
    """The first connection, tried as often as oslo.db's options say."""
    policy = retry.RetryPolicy(
        attempts=tries if tries > 0 else 10**6, seconds=3600.0, lost_max=max(0.01, interval)
    )
    for attempt in policy.rounds():
        try:
            with engine.connect():
                return
        except (sa.exc.DBAPIError, oslo_exception.DBError) as e:
            attempt.failed(retry.RetrySignal.LOST, e)


# -- what every connection is told -----------------------------------------------
def _install(engine: sa.Engine, waits: Waits, name: str) -> None:
    """Listeners on ``engine``; it has no connection yet."""
    kind = family(engine)
    if kind == 'sqlite':
        sa.event.listen(engine, 'connect', _sqlite_settings)
        sa.event.listen(engine, 'begin', _begin_sqlite)
        return

    watched = watch.install(engine, waits.answer, waits.patient)

    def on_connect(connection: Any, record: Any) -> None:
        settings = _settings(kind, waits)
        before = connection.autocommit if kind == 'postgresql' else None
        if before is not None:
            connection.autocommit = True
        cursor = connection.cursor()
        for statement, optional in settings:
            with contextlib.suppress(Exception) if optional else contextlib.nullcontext():
                cursor.execute(statement)
        cursor.close()
        if before is not None:
            connection.autocommit = before

    def on_dial(dialect: Any, record: Any, args: Any, parameters: dict[str, Any]) -> Any:
        parameters.setdefault('connect_timeout', waits.connect)
        shown = f'{name}:{os.getpid()}'
        if kind == 'postgresql':
            parameters.setdefault('application_name', shown[-PG_NAME_MAX:])
            # A partition must not hold a thread for the hours that TCP would take.
            parameters.setdefault('tcp_user_timeout', waits.statement * 1000)
            parameters.setdefault('keepalives_idle', 30)
        else:
            if dialect.driver == 'pymysql':
                parameters.setdefault('program_name', shown)
            # Besides what is watched: one read of a part of an answer.
            parameters.setdefault('read_timeout', waits.patient)
            parameters.setdefault('write_timeout', waits.patient)
        with watched.dialing():
            made = _dial(dialect, args, parameters)
        if made is not None:
            made.exchange = watched.add(made.fileno)
        return made

    sa.event.listen(engine, 'do_connect', on_dial)
    sa.event.listen(engine, 'connect', on_connect)


def _dial(dialect: Any, args: Any, parameters: dict[str, Any]) -> Any:
    """A connection whose waits can be seen; None of a driver that we do not know."""
    if dialect.driver == 'psycopg':
        from gantt.db.engine import pipelines  # a driver is there only where it is used

        return pipelines.PipelinedConnection.connect(*args, **parameters)
    if dialect.driver == 'pymysql':
        from gantt.db.engine import packets

        # Its connect_timeout ends where the port is open, whoever is behind it.
        later = parameters['read_timeout']
        parameters['read_timeout'] = min(later, parameters['connect_timeout'])
        made = packets.PacketConnection(*args, **parameters)
        made._read_timeout = later  # it is looked at before each answer is read
        return made
    return None


def _settings(kind: str, waits: Waits) -> list[tuple[str, bool]]:
    """Statements for a new connection; True: not every server knows it."""
    idle = waits.idle_transaction
    if kind == 'postgresql':
        return [
            ('SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED', False),
            (f'SET lock_timeout = {max(1, round(waits.lock * 1000))}', False),
            (f'SET statement_timeout = {waits.statement * 1000}', False),
            (f'SET idle_in_transaction_session_timeout = {round(idle * 1000)}', False),
            ('SET jit = off', True),
        ]
    return [
        ('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED', False),
        # Whole seconds, of which 0 is not to wait at all.
        (f'SET SESSION innodb_lock_wait_timeout = {max(1, math.ceil(waits.lock))}', False),
        (f'SET SESSION idle_transaction_timeout = {math.ceil(idle)}', True),
        (f'SET SESSION max_statement_time = {waits.statement}', True),
    ]


#: For connections that only read, or migrate: others do not wait for what they have locked,
#: and a process may well look for seconds at what it read.
UNHURRIED_SECONDS = 60


def unhurried(kind: str, lock_seconds: int | None = None) -> list[str]:
    """Statements for a connection whose transactions may be idle for longer.

    :param lock_seconds: what it waits for a lock; None: as it does
    """
    problems_found = []
    if kind == 'postgresql':
        problems_found.append(
            f'SET idle_in_transaction_session_timeout = {UNHURRIED_SECONDS * 1000}'
        )
        if lock_seconds is not None:
            problems_found.append(f'SET lock_timeout = {lock_seconds * 1000}')
    elif kind == 'mysql':
        problems_found.append(_of_mariadb(f'idle_transaction_timeout = {UNHURRIED_SECONDS}'))
        if lock_seconds is not None:
            problems_found.append(f'SET SESSION innodb_lock_wait_timeout = {lock_seconds}')
    return problems_found


def unwaiting(kind: str) -> list[str]:
    """Statements for a connection that waits for no locks."""
    if kind == 'postgresql':
        return [f'SET lock_timeout = {GLANCE_MS}']
    if kind == 'mysql':
        # MySQL knows no 0.
        return [
            'SET SESSION innodb_lock_wait_timeout = 1',
            _of_mariadb('innodb_lock_wait_timeout = 0'),
        ]
    return []


def _of_mariadb(setting: str) -> str:
    """Hidden from MySQL, which takes the text for a comment and does not have the setting."""
    return f'SET @gantt = 1 /*M!, SESSION {setting} */'


def _sqlite_settings(connection: Any, record: Any) -> None:
    connection.execute('PRAGMA journal_mode = WAL')
    connection.execute('PRAGMA busy_timeout = 5000')
    connection.execute('PRAGMA foreign_keys = ON')


def _begin_sqlite(connection: sa.Connection) -> None:
    """Take the write lock at once, unless the transaction only reads.

    A transaction that reads and then writes fails with BUSY whatever the
    timeout.  oslo.db's own listener comes first, whatever is asked of
    SQLAlchemy, and has emitted a plain BEGIN.
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


# -- types of columns that are the same on every database --------------------------------

# SQLite counts up only in a column that is exactly INTEGER PRIMARY KEY.
Serial = sa.BigInteger().with_variant(sa.Integer, 'sqlite')


def storable(text: str) -> str:
    """Text without what a database cannot keep: NUL, and halves of characters."""
    if '\x00' in text:
        text = text.replace('\x00', '\ufffd')
    if text.isascii():
        return text
    return text.encode('utf-8', 'replace').decode()


class CollatedType(sa.TypeDecorator):
    """Text that somebody outside chose.

    :param length: None: long
    :param collated: compared byte by byte, so that what is sorted here is
        sorted the same way there

    MariaDB's ``_bin`` alone would compare without spaces at the end.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, length: int | None = None, collated: bool = True) -> None:
        super().__init__()
        self.length = length
        self.collated = collated

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        """The type of the column."""
        if dialect.name in ('mysql', 'mariadb'):
            words = {'charset': 'utf8mb4', 'collation': 'utf8mb4_nopad_bin'}
            return mysql.VARCHAR(self.length, **words) if self.length else mysql.MEDIUMTEXT(**words)
        if self.length is None:
            return sa.Text()
        exact = self.collated and dialect.name == 'postgresql'
        return sa.String(self.length, collation='C' if exact else None)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        """What is stored."""
        return None if value is None else storable(value)


def ascii_of(length: int) -> sa.String:
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
