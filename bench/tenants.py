# SPDX-License-Identifier: Apache-2.0
"""Waiting time of a project for its places while another floods the service.

Schedulers and ``gantt-api`` over RabbitMQ and PostgreSQL.  One project asks over HTTP ten times a
second, whatever becomes of it; the value is its p99 in milliseconds while the callers of another
project, thousands of connections with bodies as large as they may be, ask as fast as they are
answered.  The yardstick is the same without the flood, in turn with it.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import contextlib
import http.client
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bench import Result, callers, conditions
from bench.rig import Rig, rig
from gantt.core.messages import base

QUIET, GREEDY = 'quiet', 'greedy'
#: Requests of the quiet project that may be under way at once.
AT_ONCE = 32
ANSWERED_SECONDS = 60.0
#: Bytes of a body: the bound of the message to a scheduler, less its envelope and escapes.
FULL_BYTES = base.REQUEST_BYTES_MAX * 9 // 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--hosts', type=int, default=1000)
    parser.add_argument('--schedulers', type=int, default=2)
    parser.add_argument('--callers', type=int, default=2000, help='of the project that floods')
    parser.add_argument('--bytes', type=int, default=FULL_BYTES)
    parser.add_argument('--rate', type=float, default=10.0, help='requests a second of the other')
    parser.add_argument('--seconds', type=float, default=30.0, help='of each phase')
    parser.add_argument('--ramp', type=float, default=10.0, help='seconds before one is measured')
    parser.add_argument('--repeats', type=int, default=3)


class Quiet:
    """A project that sends few requests.

    :ivar promised: consumer -> host
    :ivar refused: answers to the requests that were not placed
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._own = threading.local()
        self._lock = threading.Lock()
        self.promised: dict[str, str] = {}
        self.refused: list[str] = []

    def phase(self, seconds: float, rate: float) -> list[float]:
        """Return sorted milliseconds from when each request was due to its answer."""
        times: list[float] = []
        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for number in range(max(1, int(seconds * rate))):
                due = began + number / rate
                time.sleep(max(0.0, due - time.perf_counter()))
                pool.submit(self._ask, due, times)
        return sorted(times)

    def _ask(self, due: float, times: list[float]) -> None:
        try:
            problem = self._asked()
        except (OSError, http.client.HTTPException, ValueError) as e:
            self._own.connection = None
            problem = repr(e)
        took = (time.perf_counter() - due) * 1000
        with self._lock:
            times.append(took)
            if problem:
                self.refused.append(problem)

    def _asked(self) -> str:
        connection = getattr(self._own, 'connection', None)
        if connection is None:
            connection = self._own.connection = http.client.HTTPConnection(
                '127.0.0.1', self._port, timeout=ANSWERED_SECONDS
            )
        consumer = str(uuid.uuid4())
        body = {
            'request_id': str(uuid.uuid4()),
            'consumers': [consumer],
            'budget_ms': 30_000,
            'lease_seconds': callers.LEASE_SECONDS,
            'spec': {'resources': callers.TAKES, 'project_id': QUIET},
        }
        headers = {'Content-Type': 'application/json', 'X-Project-Id': QUIET}
        connection.request('POST', '/v1/requests', json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201):
            return f'{answer.status} {text[:300]!r}'
        chosen = json.loads(text)['answer']['selections'][0][0]
        with self._lock:
            self.promised[chosen['consumer']] = chosen['host']
        return ''


class Memory:
    """The resident memory of processes, sampled now and then.

    :ivar before: name -> MiB
    :ivar most: name -> MiB, the most since
    """

    def __init__(self, made: Rig, names: list[str]) -> None:
        self._made = made
        self.before = {name: made.rss_mb(name) for name in names}
        self.most = dict(self.before)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._end.wait(0.25):
            for name in self.before:
                self.most[name] = max(self.most[name], self._made.rss_mb(name))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look meanwhile."""
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join(10)

    @property
    def growth(self) -> dict[str, float]:
        """Name -> MiB more than before, at most."""
        return {name: round(self.most[name] - self.before[name], 1) for name in self.before}


@contextlib.contextmanager
def flooded(port: int, args: argparse.Namespace, answered: dict[str, int]) -> Iterator[None]:
    """Flood with another project meanwhile; ``answered`` counts its answers by outcome."""
    process = subprocess.Popen(
        [
            sys.executable,
            '-m',
            'bench.flood',
            f'http://127.0.0.1:{port}',
            GREEDY,
            str(args.callers),
            str(args.bytes),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != 'floods':
            raise RuntimeError('the flood did not begin')
        time.sleep(args.ramp)
        yield
        process.terminate()
        for name, count in json.loads(process.stdout.readline()).items():
            answered[name] = answered.get(name, 0) + count
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stdout.close()


def run(args: argparse.Namespace) -> Result:
    """Run phases without the flood and with it, in turn."""
    _allow_files()
    port = callers.free_port()
    options = callers.options(
        api={'host': '127.0.0.1', 'port': port, 'connections_max': args.callers + 200},
        DEFAULT={
            'default_log_levels': 'gantt.rpc=WARNING,gantt.decisions=WARNING,gantt.http=ERROR'
        },
    )
    calm: list[list[float]] = []
    flood: list[list[float]] = []
    answered: dict[str, int] = {}
    with rig(options) as testbed:
        several = callers.Several(testbed)
        names = [f'scheduler-{number + 1}' for number in range(args.schedulers)]
        several.start(*names)
        with callers.connected(testbed) as transport:
            callers.report_hosts(testbed, transport, args.hosts)
        testbed.start('api', 'gantt-api')
        testbed.wait_for('api', 'is ready')
        quiet = Quiet(port)
        quiet.phase(min(5.0, args.seconds), args.rate)  # the first ones find everything cold
        refused_before = list(quiet.refused)
        memory = Memory(testbed, [*names, 'api'])
        with memory.watched():
            for _ in range(args.repeats):
                calm.append(quiet.phase(args.seconds, args.rate))
                with flooded(port, args, answered):
                    flood.append(quiet.phase(args.seconds, args.rate))
        problems = [f'refused before the flood: {problem}' for problem in refused_before]
        problems += callers.broken(testbed.database, quiet.promised, only=False)
        problems += callers.violations(testbed.database)
        stated = callers.servers(testbed)
        callers.end(testbed)
    every, stick = sorted(sum(flood, [])), sorted(sum(calm, []))
    value, yardstick = callers.percentile(every, 0.99), callers.percentile(stick, 0.99)
    return Result(
        bench='tenants',
        value=value,
        unit='ms, p99',
        yardstick={'name': 'the same project without the flood', 'value': yardstick},
        ratio=round(value / yardstick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'schedulers': args.schedulers,
            'callers': args.callers,
            'bytes': args.bytes,
            'rate': args.rate,
            'seconds': args.seconds,
            'repeats': args.repeats,
            'asked': len(every),
            'refused': len(quiet.refused) - len(refused_before),
            'first_refusals': quiet.refused[len(refused_before) :][:3],
            'rss_growth_mb': max(memory.growth.values()),
            'rss_growth_mb_by_process': memory.growth,
            'rss_mb': {name: round(peak, 1) for name, peak in memory.most.items()},
            'flood_answered': answered,
            'p50_ms': round(statistics.median(every), 2),
            'p50_ms_without': round(statistics.median(stick), 2),
            'p99_ms_by_repeat': [callers.percentile(times, 0.99) for times in flood],
            'p99_ms_without_by_repeat': [callers.percentile(times, 0.99) for times in calm],
            'maximum': round(every[-1], 2),
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _allow_files() -> None:
    """Raise the limit of open files: the flood has a connection for each caller."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
