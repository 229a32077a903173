# SPDX-License-Identifier: Apache-2.0
"""Three MariaDB nodes of a test's own with Galera, each of which it may kill or cut off.

    with galera.cluster() as nodes:
        nodes[0].url              # as [database] connection, of one node
        nodes[1].kill()           # -9
        nodes[1].start()          # again; it catches up with the others
        nodes[2].cut_off()        # the others do not reach it any more, clients do
        nodes[2].join()           # and again

The servers run as the system's user ``mysql`` where the test runs as root.
"""

import contextlib
import glob
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

import pymysql
import pytest

PROVIDERS = '/usr/lib/galera/libgalera_smm.so'
START_SECONDS = 90.0
DATABASE = 'gantt'
SIZE = 3
SOURCE = pathlib.Path(__file__).with_name('threads.c')


class Node:
    """One node; ``start`` first.

    :param folder: for its files
    :param number: 0 up
    :param addresses: the port at which each node of the cluster listens to the others
    :param user: whose process it is; empty: of whoever runs this
    :param library: preloaded
    """

    def __init__(
        self,
        folder: pathlib.Path,
        number: int,
        addresses: Sequence[int],
        user: str,
        library: pathlib.Path,
    ) -> None:
        self.folder, self.number = folder, number
        self._data = folder / 'data'
        self._addresses = list(addresses)
        self._user = user
        self._environment = {**os.environ, 'LD_PRELOAD': str(library)}
        self._port, self._transfer = free_port(), free_port()
        self._incremental = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As ``[database] connection``."""
        return f'mysql+pymysql://root@127.0.0.1:{self._port}/{DATABASE}'

    def start(self, *, first: bool = False) -> float:
        """Start it and wait until it takes statements; the seconds that took.

        :param first: it makes the cluster anew from what it has
        :raises AssertionError: it does not
        """
        began = time.monotonic()
        arguments = [*self._arguments(), *self._position()]
        if first:
            arguments.append('--wsrep-new-cluster')
        with (self.folder / 'out').open('ab') as out:
            self._process = subprocess.Popen(
                arguments,
                cwd='/',
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.wait_until_synced()
        return time.monotonic() - began

    def wait_until_synced(self) -> None:
        """Wait until the node is part of a primary component and has caught up."""
        end = time.monotonic() + START_SECONDS
        while self.status('wsrep_local_state_comment') != 'Synced':
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def cut_off(self) -> None:
        """Neither sends to the other nodes nor hears from them; clients are not concerned."""
        self._set_option('gmcast.isolate=1')

    def join(self) -> None:
        """Reaches the others again."""
        self._set_option('gmcast.isolate=0')

    def status(self, name: str) -> str:
        """A variable of its status; empty where it does not answer."""
        with contextlib.suppress(pymysql.MySQLError):
            row = self.statement(f"SHOW STATUS LIKE '{name}'")
            return str(row[1]) if row else ''
        return ''

    def statement(self, text: str) -> tuple[object, ...] | None:
        """Run one statement, which a node without a primary component takes, too; its first row.

        :raises pymysql.MySQLError: it fails
        """
        # By the driver: an engine begins with a ROLLBACK, which such a node refuses.
        connection = pymysql.connect(
            host='127.0.0.1',
            port=self._port,
            user='root',
            connect_timeout=5,
            read_timeout=30,
            autocommit=True,
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchone()

    def log(self) -> str:
        """The end of what it has written."""
        return (self.folder / 'out').read_text(errors='replace')[-3000:]

    # -- how it is run -------------------------------------------------------------------
    def _set_option(self, text: str) -> None:
        self.statement(f"SET GLOBAL wsrep_provider_options='{text}'")

    def _arguments(self) -> list[str]:
        peers = ','.join(f'127.0.0.1:{port}' for port in self._addresses)
        own = self._addresses[self.number]
        options = ';'.join(
            (
                f'gmcast.listen_addr=tcp://127.0.0.1:{own}',
                f'ist.recv_addr=127.0.0.1:{self._incremental}',
                'gcache.size=32M',
                # Half of what it takes by itself: a node that is gone is noticed within 3 s.
                'evs.keepalive_period=PT0.5S',
                'evs.suspect_timeout=PT2S',
                'evs.inactive_timeout=PT5S',
                'pc.recovery=false',
            )
        )
        return [
            str(_program('mariadbd')),
            '--no-defaults',
            *([f'--user={self._user}'] if self._user else []),
            f'--datadir={self._data}',
            f'--socket={self.folder}/sock',
            f'--pid-file={self.folder}/pid',
            f'--port={self._port}',
            '--bind-address=127.0.0.1',
            '--binlog-format=ROW',
            '--default-storage-engine=InnoDB',
            '--innodb-autoinc-lock-mode=2',
            '--innodb-flush-log-at-trx-commit=1',
            '--innodb-buffer-pool-size=128M',
            '--innodb-log-file-size=64M',
            '--max-connections=200',
            '--performance-schema=off',
            '--skip-name-resolve',
            '--wsrep-on=ON',
            f'--wsrep-provider={PROVIDERS}',
            f'--wsrep-cluster-address=gcomm://{peers}',
            '--wsrep-cluster-name=gantt-test',
            f'--wsrep-node-name=node-{self.number}',
            f'--wsrep-node-address=127.0.0.1:{own}',
            '--wsrep-sst-method=rsync',
            f'--wsrep-sst-receive-address=127.0.0.1:{self._transfer}',
            '--wsrep-slave-threads=2',
            f'--wsrep-provider-options={options}',
        ]

    def _position(self) -> list[str]:
        """Where it was when it ended, so that the others send what it missed and not all."""
        log = self.folder / 'recover.log'
        done = subprocess.run(
            [*self._arguments(), '--wsrep-recover', f'--log-error={log}'],
            cwd='/',
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
        )
        assert done.returncode == 0, done.stderr.decode(errors='replace')
        for line in reversed(log.read_text(errors='replace').splitlines()):
            if 'Recovered position' in line:
                return [f'--wsrep-start-position={line.rpartition(" ")[2]}']
        return []


@contextlib.contextmanager
def cluster() -> Iterator[Sequence[Node]]:
    """Three nodes that run and know each other; skips where MariaDB with Galera is not there."""
    if not glob.glob(PROVIDERS) or shutil.which('rsync') is None:
        pytest.skip(f'NO GALERA: no {PROVIDERS} or no rsync; install galera-4 and rsync')
    user = 'mysql' if os.getuid() == 0 else ''
    folder = pathlib.Path(tempfile.mkdtemp(prefix='gantt-galera-'))
    nodes: list[Node] = []
    try:
        _own(folder, user)
        library = _library(folder)
        addresses = [free_port() for _ in range(SIZE)]
        for number in range(SIZE):
            place = folder / str(number)
            place.mkdir()
            _own(place, user)
            nodes.append(Node(place, number, addresses, user, library))
        _install(nodes, user)
        nodes[0].start(first=True)
        nodes[0].statement(f'CREATE DATABASE {DATABASE}')
        for node in nodes[1:]:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _library(folder: pathlib.Path) -> pathlib.Path:
    compiler = shutil.which('cc') or shutil.which('gcc')
    if compiler is None:
        pytest.skip('NO C COMPILER: what Galera is preloaded with is made by cc; install gcc')
    library = folder / 'threads.so'
    command = [compiler, '-shared', '-fPIC', '-O1', '-o', str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return library


def _install(nodes: Sequence[Node], user: str) -> None:
    """System tables, made once and copied."""
    first = nodes[0].folder / 'data'
    done = subprocess.run(
        [
            str(_program('mariadb-install-db')),
            '--no-defaults',
            *([f'--user={user}'] if user else []),
            f'--datadir={first}',
            '--auth-root-authentication-method=normal',
            '--skip-test-db',
        ],
        cwd='/',
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 0, done.stderr.decode(errors='replace')
    for node in nodes[1:]:
        copy = node.folder / 'data'
        shutil.copytree(first, copy)
        for path in (copy, *copy.rglob('*')):
            _own(path, user)


def _program(name: str) -> pathlib.Path:
    path = shutil.which(name) or shutil.which(name, path='/usr/sbin:/usr/local/sbin')
    if path is None:
        pytest.skip(f'NO MYSQL: {name} is not installed; install mariadb-server')
    return pathlib.Path(path)


def _own(path: pathlib.Path, user: str) -> None:
    if user:
        owner = pwd.getpwnam(user)
        os.chown(path, owner.pw_uid, owner.pw_gid)


def free_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as server:
        return server.getsockname()[1]
