# SPDX-License-Identifier: Apache-2.0
"""Servers that tests use: one database and one vhost per test worker.

A server is found by its environment variable, else at its usual local address.
Where there is none the test is skipped, with the tried address as the reason.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from gantt.db.engine import session
from gantt.rpc.amqp import reader

POSTGRESQL = ('GANTT_TEST_POSTGRESQL', 'postgresql+psycopg://root@127.0.0.1:5432/postgres')
MYSQL = ('GANTT_TEST_MYSQL', 'mysql+pymysql://root@127.0.0.1:3306/test')
RABBIT = ('GANTT_TEST_RABBIT', 'rabbit://guest:guest@127.0.0.1:5672/')

#: On a machine that has little time for it a test is cut off in no transaction.
UNHURRIED = session.Timeouts(idle_transaction=60.0)

#: For tests whose threads contend for the same rows without an end: none waits in vain, either.
PATIENT = session.Timeouts(lock=30.0, idle_transaction=30.0)


def unique_name() -> str:
    """Return a name for a database or vhost that no other worker or run uses."""
    worker = os.environ.get('PYTEST_XDIST_WORKER', 'main')
    return f'gantt_test_{worker}_{os.getpid()}_{uuid.uuid4().hex[:6]}'


def _absent(service: str, variable: str, url: str, problem: object) -> None:
    shown = sa.make_url(url).render_as_string(hide_password=True) if '@' in url else url
    pytest.skip(
        f'NO {service}: nothing usable at {shown} ({str(problem).splitlines()[0][:160]}); '
        f'start one there or set {variable}'
    )


@contextlib.contextmanager
def _database(service: str, variable: str, default: str) -> Iterator[str]:
    url = os.environ.get(variable) or default
    try:
        admin = session.build_engine(url, timeouts=session.Timeouts(connect=2))
        connection = admin.connect()
    except Exception as e:
        _absent(service, variable, url, e)
    name = unique_name()
    with connection:
        connection.execution_options(isolation_level='AUTOCOMMIT')
        connection.exec_driver_sql(f'CREATE DATABASE {name}')
        try:
            yield sa.make_url(url).set(database=name).render_as_string(hide_password=False)
        finally:
            force = ' WITH (FORCE)' if service == 'POSTGRESQL' else ''
            connection.exec_driver_sql(f'DROP DATABASE {name}{force}')
    admin.dispose()


@pytest.fixture(scope='session')
def postgresql_url() -> Iterator[str]:
    """Yield the url of an empty PostgreSQL database of this worker."""
    with _database('POSTGRESQL', *POSTGRESQL) as url:
        yield url


@pytest.fixture(scope='session')
def mysql_url() -> Iterator[str]:
    """Yield the url of an empty MariaDB or MySQL database of this worker."""
    with _database('MYSQL', *MYSQL) as url:
        yield url


def rabbitmqctl(*arguments: str) -> bool:
    """Return whether it could be run, and succeeded."""
    if shutil.which('rabbitmqctl') is None:
        return False
    try:
        process = subprocess.run(
            ['rabbitmqctl', '-q', *arguments], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


@pytest.fixture(scope='session')
def rabbit_url() -> Iterator[str]:
    """Yield a transport url with a vhost of this worker.

    Where vhosts cannot be made here, the url is used as it was given.  Readers in this process
    look ten times as often as in service whether they are to end: each test waits for some.
    """
    variable, default = RABBIT
    url = os.environ.get(variable) or default
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port or 5672), 2).close()
    except OSError as e:
        _absent('RABBITMQ', variable, url, e)
    name = unique_name()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, 'UNSHARED_READ_SECONDS', 0.1 * reader.UNSHARED_READ_SECONDS)
        if not rabbitmqctl('add_vhost', name):
            yield url
            return
        rabbitmqctl('set_permissions', '-p', name, parts.username or 'guest', '.*', '.*', '.*')
        try:
            yield parts._replace(path=f'/{name}').geturl()
        finally:
            rabbitmqctl('delete_vhost', name)
