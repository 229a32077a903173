# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL servers of a test's own: one, or two of which the test may fail the first.

    with postgres.pair() as pair:
        pair.url              # of both: connects to whoever takes writes
        pair.fail()           # the primary ends as in a crash
        pair.promote()        # the standby takes its place

``pair(synchronous=False)``: nobody waits for the standby, and it can be let ``fall_behind``.
``single()``: one server, which can ``fail`` and be started again.

The servers run as the system's user ``postgres`` where the test runs as root,
which they refuse to be.
"""

import contextlib
import glob
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest
import sqlalchemy as sa

PROGRAMS = '/usr/lib/postgresql/*/bin'
START_SECONDS = 60
DATABASE = 'gantt'


class Servers:
    """Servers of one folder, by name.

    :param folder: for their files; theirs
    :param programs: where initdb and the others are
    :param user: whose processes they are; empty: of whoever runs this
    """

    def __init__(
        self, folder: pathlib.Path, programs: pathlib.Path, user: str, names: Sequence[str]
    ) -> None:
        self._folder, self._programs = folder, programs
        self._as = ['runuser', '-u', user, '--'] if user else []
        self._ports = {name: _free_port() for name in names}

    def close(self) -> None:
        """End what runs."""
        for name in self._ports:
            if (self._folder / name / 'postmaster.pid').exists():
                with contextlib.suppress(AssertionError):
                    self._control(name, 'stop', '-m', 'immediate')

    def _make(self, name: str) -> None:
        """A server with an empty database, running."""
        self._run(
            'initdb',
            *('-D', self._folder / name),
            *('-U', DATABASE, '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync'),
        )
        self._start(name)
        self._sql(name, f'CREATE DATABASE {DATABASE}', database='postgres')

    # -- programs ------------------------------------------------------------------------
    def _start(self, name: str) -> None:
        options = (
            f'-c port={self._ports[name]} -c listen_addresses=127.0.0.1 '
            f'-c unix_socket_directories={self._folder} -c max_connections=60 '
            '-c shared_buffers=64MB'
        )
        log = self._folder / f'{name}.log'
        self._control(name, 'start', '-w', '-t', str(START_SECONDS), '-l', str(log), '-o', options)

    def _control(self, name: str, *words: str) -> None:
        self._run('pg_ctl', '-D', self._folder / name, '-s', *words)

    def _run(self, program: str, *words: object) -> None:
        command = [*self._as, str(self._programs / program), *map(str, words)]
        # To a file: what runs on would keep a pipe open.
        with open(self._folder.parent / f'{self._folder.name}.said', 'w+') as output:
            done = subprocess.run(
                command,
                cwd='/',
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
                timeout=2 * START_SECONDS,
            )
            output.seek(0)
            assert done.returncode == 0, f'{program}: {output.read()}'

    def _sql(self, name: str, statement: str, database: str = DATABASE) -> object:
        url = f'postgresql+psycopg://{DATABASE}@127.0.0.1:{self._ports[name]}/{database}'
        engine = sa.create_engine(url, isolation_level='AUTOCOMMIT')
        try:
            with engine.connect() as connection:
                result = connection.exec_driver_sql(statement)
                return result.scalar() if result.returns_rows else None
        finally:
            engine.dispose()


class Pair(Servers):
    """Primary and standby; every commit waits for both.

    :param synchronous: whether commits wait for the standby
    """

    def __init__(
        self, folder: pathlib.Path, programs: pathlib.Path, user: str, synchronous: bool = True
    ) -> None:
        super().__init__(folder, programs, user, ['first', 'second'])
        self._make('first')
        source = f'host=127.0.0.1 port={self._ports["first"]} user={DATABASE}'
        self._run(
            'pg_basebackup',
            '-D',
            folder / 'second',
            '-d',
            source,
            '-c',
            'fast',
            '-X',
            'stream',
            '-R',
            '--no-sync',
        )
        self._start('second')
        if synchronous:
            self._sql('first', "ALTER SYSTEM SET synchronous_standby_names = '*'")
            self._sql('first', 'SELECT pg_reload_conf()')
        self._wait_for_standby('sync' if synchronous else 'async')

    @property
    def url(self) -> str:
        """Whichever of the two takes writes."""
        hosts = '&'.join(f'host=127.0.0.1:{port}' for port in self._ports.values())
        user = f'postgresql+psycopg://{DATABASE}@/{DATABASE}'
        return f'{user}?{hosts}&target_session_attrs=read-write'

    def fail(self) -> None:
        """The primary ends at once, and has written nothing more."""
        self._control('first', 'stop', '-m', 'immediate')

    def transactions(self) -> int:
        """The number of the next transaction that writes to the primary."""
        number = self._sql('first', 'SELECT txid_snapshot_xmax(txid_current_snapshot())')
        return int(str(number))

    def fall_behind(self) -> None:
        """Nothing that is committed from here on reaches the standby.

        Replay that is only paused would catch up at the promotion: what was received is used.
        """
        self._sql('second', "ALTER SYSTEM SET primary_conninfo = ''")
        self._sql('second', 'SELECT pg_reload_conf()')
        end = time.monotonic() + START_SECONDS
        while self._sql('first', 'SELECT count(*) FROM pg_stat_replication'):
            assert time.monotonic() < end, 'the standby follows still'
            time.sleep(0.1)

    def promote(self) -> None:
        """The standby takes writes; returns when it does."""
        self._control('second', 'promote', '-w', '-t', str(START_SECONDS))

    def _wait_for_standby(self, state: str) -> None:
        end = time.monotonic() + START_SECONDS
        question = f"SELECT count(*) FROM pg_stat_replication WHERE sync_state = '{state}'"
        while self._sql('first', question) != 1:
            assert time.monotonic() < end, 'the standby does not follow'
            time.sleep(0.1)


class Single(Servers):
    """One server."""

    def __init__(self, folder: pathlib.Path, programs: pathlib.Path, user: str) -> None:
        super().__init__(folder, programs, user, ['only'])
        self._make('only')

    @property
    def url(self) -> str:
        """As ``[database] connection``."""
        return f'postgresql+psycopg://{DATABASE}@127.0.0.1:{self._ports["only"]}/{DATABASE}'

    def fail(self) -> None:
        """It ends at once, and has written nothing more."""
        self._control('only', 'stop', '-m', 'immediate')

    def start(self) -> None:
        """Start it again; returns when it has recovered what was committed."""
        self._start('only')


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return int(probe.getsockname()[1])


def pair(synchronous: bool = True) -> contextlib.AbstractContextManager[Pair]:
    """Both, running, until the end of the block; skips where PostgreSQL is not installed."""
    return _running(lambda folder, programs, user: Pair(folder, programs, user, synchronous))


def single() -> contextlib.AbstractContextManager[Single]:
    """One server, running, until the end of the block; skips where there are no programs of it."""
    return _running(Single)


S = TypeVar('S', bound=Servers)


@contextlib.contextmanager
def _running(make: Callable[[pathlib.Path, pathlib.Path, str], S]) -> Iterator[S]:
    programs = sorted(glob.glob(PROGRAMS))
    user = 'postgres' if os.getuid() == 0 else ''
    if not programs:
        pytest.skip(f'NO POSTGRESQL: no programs of it in {PROGRAMS}; install postgresql')
    folder = pathlib.Path(tempfile.mkdtemp(prefix='gantt-pg-'))
    try:
        if user:
            owner = pwd.getpwnam(user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        server = make(folder, pathlib.Path(programs[-1]), user)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f'{folder.name}.said').unlink(missing_ok=True)
