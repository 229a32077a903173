# SPDX-License-Identifier: Apache-2.0
"""A real service: scheduler processes, each with its own way to broker and database.

They are forked from a warm one, see ``tests/warm.py``, unless they are given variables.

    site = Site(folder, database_url, broker_url)
    site.start('one', 'two', claims={'lease_seconds': 30})
    site.audit()
    site.close()

Databases and virtual hosts are those of ``tests/services.py``.
"""

import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable

from bench.rig import Rig
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.stores import stores_for_url
from tests import warm
from tests.services import UNHURRIED


def until(asked: Callable[[], object], event: str, seconds: float = 30.0) -> object:
    """What ``asked`` says as soon as it is true.

    :raises AssertionError: it never was
    """
    end = time.monotonic() + seconds
    while not (value := asked()):
        assert time.monotonic() < end, f'not within {seconds:.0f} s: {event}'
        time.sleep(0.05)
    return value


class Site:
    """One database, one broker, processes by name.

    :param database: emptied; the store that tests look into goes there directly
    """

    def __init__(self, folder: pathlib.Path, database: str, broker: str) -> None:
        self.folder = folder
        self.database, self.broker = database, broker
        engine = session.build_engine(database, timeouts=UNHURRIED)
        migration.sync(engine)
        migration.empty(engine)
        engine.dispose()
        self.store = stores_for_url(database, timeouts=UNHURRIED)
        self.rigs: dict[str, Rig] = {}
        self._ports: dict[str, int] = {}

    def start(
        self,
        *names: str,
        database: str = '',
        broker: str = '',
        command: str = 'gantt-scheduler',
        words: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        in_database: dict[str, object] | None = None,
        **options: dict[str, object],
    ) -> None:
        """Start processes and wait until they are ready.

        :param database: way of these to it; likewise ``broker``
        :param environment: variables of theirs beside those of this process
        :param in_database: options of that group
        :param options: of the others, by group
        """
        if in_database:
            options['database'] = in_database
        for name in names:
            if name not in self.rigs:
                # What is preloaded, for one, is so in no process that is forked.
                make = Rig if environment else warm.Rig
                self.rigs[name] = self._rig(make, name, database, broker, options)
            with _environment(environment or {}):
                self.rigs[name].start(name, command, *words)
        for name in names:
            self.rigs[name].wait_for(name, 'is ready')

    def _rig(self, make: type[Rig], name: str, database: str, broker: str, options: dict) -> Rig:
        folder = self.folder / name
        folder.mkdir()
        options = {group: dict(values) for group, values in options.items()}
        options.setdefault('DEFAULT', {}).update(host=name)
        options['DEFAULT']['metrics_port'] = self._ports[name] = _free_port()
        return make(database or self.database, broker or self.broker, folder, options)

    def process(self, name: str) -> subprocess.Popen[bytes] | warm.Started:
        """The process of a name."""
        return self.rigs[name].processes[name]

    def log(self, name: str) -> str:
        """What a process has written so far."""
        return self.rigs[name].log(name)

    def kill(self, name: str) -> None:
        """kill -9; ``again`` starts it anew."""
        self.rigs[name].kill(name)

    def again(self, name: str, command: str = 'gantt-scheduler', *words: str) -> None:
        """Start one again that was killed or stopped, and wait until it is ready."""
        (self.rigs[name].folder / f'{name}.log').unlink()
        self.rigs[name].start(name, command, *words)
        self.rigs[name].wait_for(name, 'is ready')

    def stop(self, name: str, seconds: float = 60) -> int:
        """SIGTERM; the exit code."""
        return self.rigs[name].stop(name, seconds)

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self.process(name).send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self.process(name).send_signal(signal.SIGCONT)

    def threads(self, name: str) -> int:
        """Threads of a process."""
        return len(os.listdir(f'/proc/{self.process(name).pid}/task'))

    def rss_mb(self, name: str) -> float:
        """Resident memory of a process, MiB."""
        return self.rigs[name].rss_mb(name)

    def metric(self, name: str, metric: str, worker: int = 0) -> float:
        """A counter of a process or of a worker of it, over all labels that are not named."""
        url = f'http://127.0.0.1:{self._ports[name] + worker}/metrics'
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        samples = [line for line in lines if line.startswith((f'{metric} ', f'{metric}{{'))]
        return sum(float(line.rpartition(' ')[2]) for line in samples)

    def deadlocks(self) -> object:
        """What the server tells of deadlocks in this database; compare it."""
        engine = self.store.database.engine
        is_postgresql = engine.dialect.name == 'postgresql'
        if is_postgresql:
            time.sleep(1.1)  # each connection sends its statistics once a second
        with engine.connect() as connection:
            if is_postgresql:
                connection.exec_driver_sql('SELECT pg_stat_clear_snapshot()')
                return connection.exec_driver_sql(
                    'SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()'
                ).scalar_one()
            status = connection.exec_driver_sql('SHOW ENGINE INNODB STATUS').one()[2]
        last = re.search(r'LATEST DETECTED DEADLOCK\n-+\n(.*?)\n-{8,}\n', status, re.DOTALL)
        name = engine.url.database
        return last.group(1) if last and f'`{name}`' in last.group(1) else ''

    def audit(self, database: str = '') -> None:
        """``gantt-manage audit``, of another node's ``database`` where one is given.

        :raises RuntimeError: it found something; with what it said
        """
        self.manage('audit', database=database)

    def manage(self, *words: str, database: str = '') -> str:
        """``gantt-manage``; what it said.

        :raises RuntimeError: it failed; with what it said
        """
        folder = self.folder / 'manage'
        folder.mkdir(exist_ok=True)
        return warm.Rig(database or self.database, self.broker, folder).run('gantt-manage', *words)

    def close(self) -> None:
        """End all processes, frozen ones too, without ceremony."""
        for own_rig in self.rigs.values():
            for name in list(own_rig.processes):
                own_rig.kill(name)
        self.rigs.clear()
        self.store.database.close()


class _environment:
    """Variables for the processes that are started meanwhile."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._values}
        os.environ.update(self._values)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _free_port() -> int:
    import socket

    with socket.create_server(('127.0.0.1', 0)) as server:
        return server.getsockname()[1]
