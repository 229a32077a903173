# SPDX-License-Identifier: Apache-2.0
"""Parts that the benches over RPC share: hosts that report, callers with a clock, promises.

A promise is an answer that a caller got: this consumer has its place on this
host.  Every one of them must be there afterwards, and nothing else.
"""

import contextlib
import pathlib
import random
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg

from bench import conditions
from bench.rig import Rig, written
from gantt import client
from gantt import conf as gantt_conf
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Answer
from gantt.stores import stores_for_url

#: Ample room: no request of a bench is refused for the lack of it.
AMPLE = {
    'VCPU': Inventory(total=100_000),
    'MEMORY_MB': Inventory(total=100_000_000),
    'DISK_GB': Inventory(total=1_000_000),
}
#: Resources that an instance takes, where the bench does not state otherwise.
TAKES = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
#: Longer than any run: no claim expires under the bench.
LEASE_SECONDS = 7200

#: Hosts stay fresh although they report once, leases outlast the run, and the
#: connections suffice for all callers.
OPTIONS: dict[str, dict[str, object]] = {
    'filters': {'service_down_time': 36_000},
    'scheduler': {'unknown_after_seconds': 3600},
    'claims': {'lease_seconds_max': LEASE_SECONDS},
    'oslo_messaging_rabbit': {'rpc_conn_pool_size': 100},
}


def options(**more: dict[str, object]) -> dict[str, dict[str, object]]:
    """Return ``OPTIONS`` with those of a bench added, by group."""
    groups = {group: dict(values) for group, values in OPTIONS.items()}
    for group, values in more.items():
        groups.setdefault(group, {}).update(values)
    return groups


@contextlib.contextmanager
def connected(made: Rig, broker: str = '') -> Iterator[Any]:
    """Yield a transport for callers, by the options of a rig.

    :param broker: another one than the rig's
    """
    gantt_conf.register_opts(cfg.CONF, ('rpc',))
    cfg.CONF(['--config-file', str(made.config)], project='gantt')
    transport = client.get_transport(cfg.CONF, broker or made.broker)
    try:
        yield transport
    finally:
        transport.cleanup()


def report_hosts(
    made: Rig,
    transport: Any,
    hosts: int,
    inventories: dict[str, Inventory] | None = None,
    used_mb: int = 0,
) -> None:
    """Register hosts and report each once; returns when the scheduler knows them.

    Their memory use beside claims differs, so that scores do.

    :param used_mb: use of each beside that
    """
    given = inventories or AMPLE
    spread = 1024 if inventories is None else 0
    facts = {
        f'cmp-{number:05}': {
            'inventories': given,
            'foreign': {'MEMORY_MB': spread * (number % 97) + used_mb},
        }
        for number in range(hosts)
    }
    report_facts(made, transport, facts)


def report_facts(made: Rig, transport: Any, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Register hosts, anew where they are there, and report each of them once, whole.

    :param facts: name -> fields of its report
    """
    claims, stats = client.ClaimsClient(transport), client.StatsClient(transport)

    def report(name: str) -> int:
        registered = claims.register_host(
            RegisterHost(name=name, boot_nonce=str(uuid.uuid4()), cell=str(uuid.UUID(int=7)))
        )
        report = HostReport(
            name=name,
            epoch=registered.epoch,
            sequence=1,
            full=True,
            running=[],
            pending=[],
            **facts[name],
        )
        stats.update_resource_stats(report, wait=False)
        return registered.epoch

    with ThreadPoolExecutor(8) as pool:
        epochs = dict(zip(facts, pool.map(report, facts), strict=True))
    engine = sa.create_engine(made.database)
    seconds = 120 + len(facts) / 20
    until(lambda: _reported(engine, epochs), seconds, f'{len(facts)} hosts have reported')
    engine.dispose()
    time.sleep(0.6)  # the scheduler's own table follows its feed


def _reported(engine: sa.Engine, epochs: Mapping[str, int]) -> bool:
    """Return whether all hosts have reported in these epochs."""
    query = 'SELECT name, epoch FROM providers WHERE full_sequence > 0'
    with engine.connect() as connection:
        epoch_by_host = {row.name: row.epoch for row in connection.execute(sa.text(query))}
    return all(epoch_by_host.get(name, 0) >= epoch for name, epoch in epochs.items())


def end(made: Rig) -> None:
    """Kill all processes: their promises are checked already, and a clean exit takes long."""
    for name in list(made.processes):
        made.kill(name)


def until(what: Callable[[], object], seconds: float, text: str) -> None:
    """Wait until ``what`` returns something true.

    :raises RuntimeError: it never did in that time
    """
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise RuntimeError(f'not within {seconds:.0f} s: {text}')
        time.sleep(0.1)


def count(engine: sa.Engine, query: str, **values: object) -> int:
    """Return the one number that a query returns."""
    with engine.connect() as connection:
        return int(connection.execute(sa.text(query), values).scalar_one() or 0)


# -- callers ------------------------------------------------------------------------
def window(
    call: Callable[[], object], callers: int, seconds: float, most: int = 0
) -> tuple[float, list[float]]:
    """Return (calls/s, sorted milliseconds of each call) of ``callers`` threads.

    :param most: end after so many calls, however long they take
    """
    times: list[list[float]] = [[] for _ in range(callers)]
    errors: list[BaseException] = []
    begin = threading.Barrier(callers + 1)
    numbers = iter(range(most or 1 << 62))  # next() on it is atomic

    def caller(mine: list[float]) -> None:
        begin.wait()
        end = time.perf_counter() + seconds
        try:
            while (started := time.perf_counter()) < end and next(numbers, None) is not None:
                call()
                mine.append((time.perf_counter() - started) * 1000)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=caller, args=(t,)) for t in times]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    if errors:
        raise RuntimeError(f'{len(errors)} callers met an error: {errors[0]}') from errors[0]
    every = sorted(t for mine in times for t in mine)
    return len(every) / took, every


#: Threads that call in an open loop: more than ever wait at half of a rate.
OPEN_THREADS = 64


def open_loop(
    pool: ThreadPoolExecutor, call: Callable[[], object], rate: float, seconds: float, *, seed: int
) -> list[float]:
    """Make calls at random moments, whether or not those before them are answered.

    :param rate: calls a second
    :returns: milliseconds of each, from when it was due
    """
    rng = random.Random(seed)

    def timed(due: float) -> float:
        call()
        return (time.perf_counter() - due) * 1000

    began = due = time.perf_counter()
    calls = []
    while due < began + seconds:
        due += rng.expovariate(rate)
        time.sleep(max(0.0, due - time.perf_counter()))
        calls.append(pool.submit(timed, due))
    return [future.result() for future in calls]


def percentile(times: list[float], share: float) -> float:
    """Return a percentile of sorted milliseconds; 0 where there are none."""
    return round(times[min(len(times) - 1, int(len(times) * share))], 2) if times else 0.0


class Placer:
    """A client that requests places on our own topic, and records its promises.

    :ivar promised: consumer -> host
    :ivar requests: how many were answered
    """

    def __init__(
        self, transport: Any, takes: dict[str, int] | None = None, lease: int = LEASE_SECONDS
    ) -> None:
        self.client = client.SchedulerClient(transport, attempt_seconds=30.0)
        self.promised: dict[str, str] = {}
        self.requests = 0
        self._spec = RequestSpec(resources=takes or TAKES)
        self._lease = lease
        self._lock = threading.Lock()

    def place(self, instances: int = 1, spec: RequestSpec | None = None) -> str:
        """Place the instances of one request; return its id."""
        request = SelectDestinations(
            request_id=str(uuid.uuid4()),
            spec=spec or self._spec,
            consumers=[str(uuid.uuid4()) for _ in range(instances)],
            budget_ms=60_000,
            lease_seconds=self._lease,
        )
        self.note(self.client.select_destinations(request))
        return request.request_id

    def note(self, answer: Answer) -> None:
        """Record the first selection of each consumer as promised."""
        with self._lock:
            self.requests += 1
            self.promised.update((s[0].consumer, s[0].host) for s in answer.selections)


# -- promises ------------------------------------------------------------------------
LIVE = """
    SELECT c.consumer, p.name FROM claims c JOIN providers p ON p.id = c.provider_id
     WHERE c.live = 1
"""


def broken(
    database: str, promised: dict[str, str], *, only: bool = True, query: str = LIVE
) -> list[str]:
    """Return the promises that are not kept, a line each.

    :param only: no consumer has a place that was not promised one
    :param query: selects each consumer and its host
    """
    problems: list[str] = []
    seen: set[str] = set()
    engine = sa.create_engine(database)
    with engine.connect().execution_options(stream_results=True) as connection:
        for consumer, host in connection.execute(sa.text(query)):
            if consumer in seen:
                problems.append(f'consumer {consumer} has two places')
            seen.add(consumer)
            promised_host = promised.get(consumer)
            if promised_host is None and only:
                problems.append(f'consumer {consumer} has a place that nobody was promised')
            elif promised_host is not None and promised_host != host:
                problems.append(
                    f'consumer {consumer} was promised {promised_host} and is on {host}'
                )
    engine.dispose()
    problems += [f'consumer {c} was promised a place and has none' for c in promised.keys() - seen]
    return problems


def violations(database: str) -> list[str]:
    """Return the violations that the audit reports, a line each."""
    store = stores_for_url(database)
    lines = [f'{kind}: {line}' for kind, lines in store.claims.audit().items() for line in lines]
    store.database.close()
    return lines


def unrecorded(database: str, requests: int) -> list[str]:
    """Return a line where fewer decisions are recorded than there were requests."""
    engine = sa.create_engine(database)
    recorded = count(engine, "SELECT count(*) FROM decisions WHERE outcome = 'placed'")
    engine.dispose()
    return [] if recorded >= requests else [f'{requests} requests, {recorded} decisions recorded']


# -- what a run states ---------------------------------------------------------------
#: By dialect: name of the server, query of its version, settings, and where its files are.
STATED = {
    'postgresql': (
        'PostgreSQL',
        'SHOW {}',
        ('server_version', 'fsync', 'synchronous_commit'),
        'data_directory',
    ),
    'mysql': (
        'MariaDB',
        'SELECT @@{}',
        ('version', 'innodb_flush_log_at_trx_commit', 'log_bin', 'innodb_buffer_pool_size'),
        'datadir',
    ),
}


def servers(made: Rig) -> dict[str, object]:
    """Return the versions and settings that the servers report."""
    engine = sa.create_engine(made.database)
    database, ask, names, files = STATED[engine.dialect.name]
    with engine.connect() as connection:
        stated = {
            name: connection.execute(sa.text(ask.format(name))).scalar_one()
            for name in (*names, files)
        }
    engine.dispose()
    folder = pathlib.Path(str(stated.pop(files)))
    try:
        stated['fdatasync_ms_of_database'] = conditions.fdatasync_ms(str(folder))
    except OSError:
        stated['fdatasync_ms_of_database'] = None
    done = subprocess.run(
        ['rabbitmqctl', '-q', 'version'], capture_output=True, text=True, timeout=60, check=False
    )
    stated['broker'] = f'RabbitMQ {done.stdout.strip() or "of unknown version"}'
    return {'database': database, **stated, 'queues': 'classic'}


def free_port() -> int:
    """Return a TCP port that no process listens on now."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Several:
    """Scheduler processes of one rig, each with its own name and metrics.

    :param options: more options for all of them, by group
    """

    def __init__(self, made: Rig, options: dict[str, dict[str, object]] | None = None) -> None:
        self._made = made
        self._ports: dict[str, int] = {}
        self._options = options or {}

    @property
    def names(self) -> list[str]:
        """Names of the processes that run."""
        return list(self._ports)

    def start(
        self,
        *names: str,
        seconds: float = 60,
        options: dict[str, dict[str, object]] | None = None,
        command: str = 'gantt-scheduler',
    ) -> None:
        """Start processes and wait until they are ready, each ``seconds`` at most.

        :param options: more options of these, by group
        :param command: one of ``rig.COMMANDS``
        """
        common = self._options | (options or {})
        for name in names:
            self._ports[name] = free_port()
            more = self._made.folder / f'{name}.conf'
            process_options = {'host': name, 'metrics_port': self._ports[name]}
            groups = common | {'DEFAULT': common.get('DEFAULT', {}) | process_options}
            more.write_text(written(groups))
            (self._made.folder / f'{name}.log').unlink(missing_ok=True)
            self._made.start(name, command, '--config-file', str(more))
        for name in names:
            self._made.wait_for(name, 'is ready', seconds)

    def stop(self, *names: str) -> None:
        """Stop with SIGTERM."""
        for name in names:
            del self._ports[name]
            self._made.stop(name)

    def kill(self, name: str) -> None:
        """Kill with -9."""
        del self._ports[name]
        self._made.kill(name)

    def metric(self, metric: str, names: Iterable[str] = ()) -> float:
        """Return a counter, over all labels and processes."""
        return sum((self._metric(name, metric) for name in list(names) or self.names), 0.0)

    def _metric(self, name: str, metric: str) -> float:
        url = f'http://127.0.0.1:{self._ports[name]}/metrics'
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        samples = [line for line in lines if line.startswith((f'{metric} ', f'{metric}{{'))]
        return sum(float(line.rpartition(' ')[2]) for line in samples)
