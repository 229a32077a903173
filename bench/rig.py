# SPDX-License-Identifier: Apache-2.0
"""Real processes on a virtual host and a database of their own.

Benches and functional tests start ``gantt-scheduler``, ``gantt-compute`` and
``gantt-api`` as an operator would: a configuration file and a command.  Every
process is stopped, and what was created is dropped, when the rig is left.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from urllib.parse import urlsplit, urlunsplit

RABBIT = os.environ.get('GANTT_TEST_RABBIT', 'rabbit://guest:guest@127.0.0.1:5672/')
POSTGRESQL = os.environ.get(
    'GANTT_TEST_POSTGRESQL', 'postgresql+psycopg://root@127.0.0.1:5432/postgres'
)
MYSQL = os.environ.get('GANTT_TEST_MYSQL', 'mysql+pymysql://root@127.0.0.1:3306/test')

#: Entry points by module, so that an editable install is not needed.
COMMANDS = {
    'gantt-scheduler': 'gantt.cmd.scheduler',
    'gantt-planner': 'gantt.cmd.planner',
    'gantt-compute': 'gantt.cmd.compute',
    'gantt-api': 'gantt.cmd.api',
    'gantt-standalone': 'gantt.cmd.standalone',
    'gantt-manage': 'gantt.cmd.manage',
    'gantt-shadow': 'gantt.cmd.shadow',
    'counted-scheduler': 'bench.counted_scheduler',
}


@contextlib.contextmanager
def virtual_host(url: str = RABBIT) -> Iterator[str]:
    """Yield the URL of a RabbitMQ virtual host of its own.

    :raises RuntimeError: rabbitmqctl is missing or refuses
    """
    name = f'gantt-{uuid.uuid4().hex[:10]}'
    parts = urlsplit(url)
    _rabbitmqctl('add_vhost', name)
    try:
        _rabbitmqctl('set_permissions', '-p', name, parts.username or 'guest', '.*', '.*', '.*')
        yield urlunsplit(parts._replace(path=f'/{name}'))
    finally:
        _rabbitmqctl('delete_vhost', name)


def _rabbitmqctl(*words: str) -> None:
    if shutil.which('rabbitmqctl') is None:
        raise RuntimeError('rabbitmqctl is not installed; it makes the virtual host of a bench')
    done = subprocess.run(['rabbitmqctl', '-q', *words], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f'rabbitmqctl {words[0]}: {done.stderr.strip() or done.stdout.strip()}')


def postgresql_database() -> AbstractContextManager[str]:
    """Yield the SQLAlchemy URL of a PostgreSQL database of its own."""
    return _database(POSTGRESQL, ' WITH (FORCE)')


@contextlib.contextmanager
def synced_postgresql() -> Iterator[Callable[[], AbstractContextManager[str]]]:
    """Yield a factory of PostgreSQL databases that are synced already: a copy takes less."""
    with postgresql_database() as url, tempfile.TemporaryDirectory(prefix='gantt-') as folder:
        Rig(url, RABBIT, pathlib.Path(folder)).run('gantt-manage', 'db', 'sync')
        yield lambda: _database(POSTGRESQL, ' WITH (FORCE)', urlsplit(url).path[1:])


def mysql_database() -> AbstractContextManager[str]:
    """Yield the SQLAlchemy URL of a MariaDB database of its own."""
    return _database(MYSQL, '')


@contextlib.contextmanager
def _database(url: str, at_once: str, template: str = '') -> Iterator[str]:
    import sqlalchemy as sa

    name = f'gantt_{uuid.uuid4().hex[:10]}'
    server = sa.create_engine(url, isolation_level='AUTOCOMMIT')
    with server.connect() as connection:
        copied = f' TEMPLATE {template}' if template else ''
        connection.execute(sa.text(f'CREATE DATABASE {name}{copied}'))
    try:
        yield urlunsplit(urlsplit(url)._replace(path=f'/{name}'))
    finally:
        with server.connect() as connection:
            connection.execute(sa.text(f'DROP DATABASE IF EXISTS {name}{at_once}'))
        server.dispose()


def written(groups: Mapping[str, Mapping[str, object]]) -> str:
    """Return options by group, as a configuration file has them."""
    lines = []
    for group, values in groups.items():
        lines.append(f'[{group}]')
        lines += [f'{name} = {value}' for name, value in values.items()]
    return '\n'.join(lines) + '\n'


class Rig:
    """A folder, a configuration file and the processes started from it.

    :param tree: whose code they run, where it is not this one's; None: as this process
    """

    def __init__(
        self,
        database: str,
        broker: str,
        folder: pathlib.Path,
        options: dict[str, dict[str, object]] | None = None,
        tree: pathlib.Path | None = None,
    ) -> None:
        self.tree = tree
        self.database = database
        self.broker = broker
        self.folder = folder
        self.config = folder / 'gantt.conf'
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        groups: dict[str, dict[str, object]] = {
            'DEFAULT': {'transport_url': broker, 'state_path': folder / 'state'},
            'database': {'connection': database},
        }
        for group, values in (options or {}).items():
            groups.setdefault(group, {}).update(values)
        self.config.write_text(written(groups))

    def run(self, command: str, *words: str, seconds: float = 120) -> str:
        """Run a command to its end.

        :returns: its standard output
        :raises RuntimeError: it failed; with what it printed
        """
        done = subprocess.run(
            [sys.executable, '-m', COMMANDS[command], '--config-file', str(self.config), *words],
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=self.tree,
        )
        if done.returncode:
            raise RuntimeError(f'{command} {" ".join(words)}: {done.stdout}{done.stderr}')
        return done.stdout

    def start(self, name: str, command: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a process under a name; its output goes to ``<name>.log`` in the folder.

        It leads a session, as services do: the kernel may share out processors by session.
        """
        log = (self.folder / f'{name}.log').open('ab')
        process = subprocess.Popen(
            [sys.executable, '-m', COMMANDS[command], '--config-file', str(self.config), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.tree,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        """Return the log that a process has written so far."""
        path = self.folder / f'{name}.log'
        return path.read_text(errors='replace') if path.exists() else ''

    def wait_for(self, name: str, text: str, seconds: float = 60) -> None:
        """Wait until a process has written ``text``.

        :raises RuntimeError: it ended, or did not within ``seconds``
        """
        end = time.monotonic() + seconds
        while text not in self.log(name):
            if self.processes[name].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f'{name} did not say {text!r}:\n{self.log(name)[-4000:]}')
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill with -9."""
        self.processes[name].kill()
        self.processes.pop(name).wait(10)

    def stop(self, name: str, seconds: float = 40) -> int:
        """Stop with SIGTERM; return the exit code."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise

    def rss_mb(self, name: str) -> float:
        """Return resident memory of a process, MiB."""
        status = pathlib.Path(f'/proc/{self.processes[name].pid}/status').read_text()
        (line,) = [x for x in status.splitlines() if x.startswith('VmRSS')]
        return int(line.split()[1]) / 1024

    def cpu_seconds(self, name: str) -> float:
        """Return CPU time of a process so far, user and system."""
        stat = pathlib.Path(f'/proc/{self.processes[name].pid}/stat').read_text()
        fields = stat.rsplit(')', 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

    def close(self) -> None:
        """End whatever still runs."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.processes.clear()


@contextlib.contextmanager
def rig(
    options: dict[str, dict[str, object]] | None = None,
    database: Callable[[], AbstractContextManager[str]] = postgresql_database,
    is_synced: bool = False,
    kind: type[Rig] = Rig,
) -> Iterator[Rig]:
    """Yield a rig on RabbitMQ and a database server, its database synced.

    :param is_synced: it is when it is made
    """
    with (
        tempfile.TemporaryDirectory(prefix='gantt-') as folder,
        virtual_host() as broker,
        database() as url,
    ):
        started = kind(url, broker, pathlib.Path(folder), options)
        try:
            if not is_synced:
                started.run('gantt-manage', 'db', 'sync')
            yield started
        finally:
            started.close()
