# SPDX-License-Identifier: Apache-2.0
"""Zones as processes of this machine: a configuration, a SQLite file and a log each.

What is typed is the real command in a process of its own; what only a program would call goes
over HTTP as the command does it.
"""

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from devel.demo import say
from gantt import exceptions
from gantt.cli.endpoint import Endpoint
from gantt.compute.shapes import Shape
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.stores import AllStores, sql_stores

START_SECONDS, STOP_SECONDS, COMMAND_SECONDS = 120.0, 20.0, 60.0
#: Of what the commands print, which is indented.
COLUMNS = say.WIDTH - 2
#: Variables that would have a command log in, or query another server.
FOREIGN_PREFIXES = ('OS_', 'GANTT_')

CONFIG = """\
[DEFAULT]
transport_url = kombu+memory:///
state_path = {folder}
host = {name}

[database]
connection = {database}

[api]
port = {port}

[scheduler]
report_seconds = 4
unknown_after_seconds = 60
feed_seconds = 0.2

[filters]
service_down_time = 30

[claims]
lease_seconds = 20
sweep_seconds = 1

[rpc]
drain_seconds = 5

[planner]
solver = false

[compute]
farm_prefix = {name}
"""


class ZoneProcess:
    """One zone, in a folder of its own."""

    def __init__(
        self, above: pathlib.Path, name: str, hosts: int = 0, shapes: Sequence[Shape] = ()
    ) -> None:
        self.name, self.hosts = name, hosts
        self.folder = above / name
        self.folder.mkdir()
        self._database = f'sqlite:///{self.folder}/gantt.db'
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._log = self.folder / 'zone.log'
        self._words: list[str] = []
        if hosts:
            file = self.folder / 'shapes.yaml'
            file.write_text(yaml.safe_dump({'shapes': msgspec.to_builtins(list(shapes))}))
            self._words = ['--fake', str(hosts), '--shapes', str(file)]
        engine = session.build_engine(self._database)
        migration.sync(engine)
        engine.dispose()

    # -- its process -------------------------------------------------------------------
    def start(self) -> None:
        """Start it; it takes a free port the first time, and the same one from then on."""
        config = self.folder / 'gantt.conf'
        config.write_text(
            CONFIG.format(
                folder=self.folder, name=self.name, database=self._database, port=self._port
            )
        )
        command = [sys.executable, '-m', 'gantt.cmd.standalone', '--config-file', str(config)]
        self._log.write_bytes(b'')
        with self._log.open('ab') as log:
            # A session of its own: Ctrl-C is for the viewer, and ends it by what follows.
            self._process = subprocess.Popen(  # nosec B603 # no shell, our own command
                [*command, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it serves.

        :raises Unavailable: it does not, or has ended
        """
        end = time.monotonic() + START_SECONDS
        while not (match := re.search(r'address=http://[^ ]+:(\d+)', self.log())):
            assert self._process is not None, 'it was started'
            if self._process.poll() is not None or time.monotonic() > end:
                raise exceptions.Unavailable(f'zone {self.name} did not start:\n{self.log()}')
            time.sleep(0.05)
        self._port = int(match[1])

    def kill(self) -> int:
        """kill -9; its process id."""
        assert self._process is not None, 'it was started'
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        return self._process.pid

    def ask_to_stop(self) -> None:
        """Send SIGTERM, where it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it, by force where it takes too long."""
        self.ask_to_stop()
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)

    def log(self) -> str:
        """Return its log since it was started last."""
        return self._log.read_text(errors='replace')

    # -- its interfaces ---------------------------------------------------------------------
    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._port}'

    @property
    def api(self) -> Endpoint:
        """Its HTTP interface, as the commands call it."""
        return Endpoint(self.url)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``gantt`` against it."""
        environment = {
            name: v for name, v in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)
        }
        return subprocess.run(  # nosec B603 # no shell, our own command
            [sys.executable, '-m', 'gantt.cli.main', *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            env={**environment, 'GANTT_ENDPOINT': self.url, 'COLUMNS': str(COLUMNS)},
        )

    def command(self, *words: str) -> int:
        """Run ``gantt`` against it, and show what is typed and printed; the exit code."""
        typed = f'{self.name}$ gantt {shlex.join(words)}'
        say.block(textwrap.wrap(typed, COLUMNS, subsequent_indent='    ', break_on_hyphens=False))
        done = self.run(*words)
        say.block((done.stdout + done.stderr).rstrip().splitlines())
        return done.returncode

    def run_checked(self, *words: str) -> None:
        """Run a command that has to work.

        :raises RuntimeError: it does not
        """
        code = self.command(*words)
        if code:
            raise RuntimeError(f'"gantt {words[0]} {words[1]}" ended with {code}')

    @contextlib.contextmanager
    def stores(self) -> Iterator[AllStores]:
        """Open its database."""
        engine = session.build_engine(self._database)
        try:
            yield sql_stores(engine)
        finally:
            engine.dispose()


class FourZones:
    """The four zones; all their processes end with it."""

    def __init__(self, folder: pathlib.Path, shapes: Mapping[str, Sequence[Shape]]) -> None:
        self.top = ZoneProcess(folder, 'top')
        self.east = ZoneProcess(folder, 'east', 60, shapes['east'])
        self.east_gpu = ZoneProcess(folder, 'east-gpu', 20, shapes['east-gpu'])
        self.cloud = ZoneProcess(folder, 'cloud', 20, shapes['cloud'])

    @property
    def zones(self) -> list[ZoneProcess]:
        return [self.top, self.east, self.east_gpu, self.cloud]

    @property
    def edges(self) -> list[tuple[ZoneProcess, ZoneProcess]]:
        """Pairs of a zone and a child zone."""
        return [(self.top, self.east), (self.east, self.east_gpu), (self.top, self.cloud)]

    def start(self) -> None:
        """Start all, until all serve and their hosts are known.

        :raises Unavailable: one does not
        """
        for zone in self.zones:
            zone.start()
        for zone in self.zones:
            zone.wait()

    def stop(self) -> None:
        """End all."""
        for zone in self.zones:
            zone.ask_to_stop()
        for zone in self.zones:
            zone.stop()


def reporting_host_count_of(zone: ZoneProcess) -> int:
    """Return how many hosts of a zone have reported."""
    page: dict[str, Any] = zone.api.get('/v1/hosts', limit=1000)
    return sum(host['condition'] == 'up' for host in page['hosts'])
