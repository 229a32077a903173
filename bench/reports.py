# SPDX-License-Identifier: Apache-2.0
"""Cost of the reports of its hosts for a scheduler.

A farm in this process plays the hosts with the code of real ones: registered,
each with its guests under confirmed claims, each report changing the use and
listing every guest, a tenth of them full and answered.  Over RabbitMQ into one
``gantt-scheduler`` that persists to PostgreSQL.  The value is the share of one
core that this process uses; the yardstick is that of a stock oslo.messaging
server that takes the same messages at the same rate and does nothing.  ``--minutes``
looks at the scheduler's memory for so long before that.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import contextlib
import math
import os
import random
import re
import resource
import socket
import statistics
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import oslo_messaging as om
import sqlalchemy as sa
from oslo_config import cfg

from bench import Result, conditions, empty_server
from bench.rig import Rig, rig
from gantt import client
from gantt import conf as options
from gantt.client.signing import Signer
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.farm import FakeDriver, Farm, FarmPlan
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.compute.ports import HostReadings, RunningGuest
from gantt.compute.shapes import Shape
from gantt.core.claims.claim import Claim, claim_id
from gantt.core.claims.commit import ClaimColumns, ClaimDraft, RequestDraft
from gantt.core.messages import base as message
from gantt.core.messages.report import HostReport
from gantt.ed25519 import PrivateKey
from gantt.stores import SqlStores, stores_for_url

SHAPE = Shape(vcpus=64, memory_mb=262_144, disk_gb=4000, cpu_allocation_ratio=4.0, numa_cells=2)
TAKES = {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 40}
HOSTS_PER_COMMIT = 7
CONFIRM_ROUNDS_MAX = 30
KEEPS_UP = 0.97
#: Between two looks at the scheduler's memory.
MEMORY_SECONDS = 2.0
RATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def _minutes(text: str) -> float:
    """:raises ArgumentTypeError: it is no positive number"""
    with contextlib.suppress(ValueError):
        if 0 < (minutes := float(text)) < math.inf:
            return minutes
    raise argparse.ArgumentTypeError(f'expected a number of minutes above 0, not {text!r}')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--consumers', type=int, default=20, help='guests on each host')
    parser.add_argument('--period', type=float, default=60.0, help='seconds between two reports')
    parser.add_argument('--seconds', type=float, default=60.0, help='length of one measurement')
    parser.add_argument('--repeats', type=int, default=2)
    parser.add_argument('--signed', action='store_true', help='each host signs its words')
    parser.add_argument('--no-search', action='store_true', help='leave out the highest rate')
    parser.add_argument(
        '--minutes',
        type=_minutes,
        default=0.0,
        help='of reports while memory is looked at; no search',
    )


class Restless(FakeDriver):
    """A fake machine on which something else uses a little more or less each time."""

    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        facts = super().facts(guests)
        use = {'MEMORY_MB': self._rng.randrange(1, 1024), 'VCPU': self._rng.randrange(1, 8)}
        return msgspec.structs.replace(facts, foreign=use)


def run(args: argparse.Namespace) -> Result:
    """Bring the hosts to life, measure in turn, look for the highest rate."""
    options: dict[str, dict[str, object]] = {
        'scheduler': {'report_seconds': max(1, round(args.period))},
        'DEFAULT': {'metrics_port': _free_port()},
    }
    with rig(options) as bed, contextlib.ExitStack() as stack:
        bed.start('scheduler', 'gantt-scheduler')
        bed.wait_for('scheduler', 'is ready')
        carrier = connected_transport(bed)
        stack.callback(carrier.cleanup)
        store = stores_for_url(bed.database)
        stack.callback(store.database.close)
        signer = Signer(PrivateKey()) if args.signed else None
        counting_port = CountingPort(RpcSchedulerPort(carrier, 30.0, signer))
        # As often as the scheduler requests, so that it can be more often later on.
        farm = _farm(args.hosts, counting_port, HostAgentSettings(level=10))
        stack.callback(farm.stop)
        stack.enter_context(stock(bed))
        _come_to_life(farm, store, args)
        memory = _memory(bed, args.minutes) if args.minutes else {}
        measured = [
            _measure(bed, farm, counting_port, carrier, args.seconds) for _ in range(args.repeats)
        ]
        fresh = reported_in_time(store, args.period)
        is_searched = not args.no_search and not args.minutes
        highest = _search(bed, farm, counting_port, args) if is_searched else {}
        shares = [m['share'] for m in measured]
        stock_shares = [m['stock_share'] for m in measured]
        value, yardstick = sum(shares) / len(shares), sum(stock_shares) / len(stock_shares)
        broken = store.claims.audit()
        return Result(
            bench='reports',
            value=round(value, 4),
            unit='share of one core',
            yardstick={
                'name': 'a stock server taking the same casts and doing nothing',
                'value': round(yardstick, 4),
            },
            ratio=round(value / yardstick, 2),
            conditions={
                **conditions.here(),
                'hosts': args.hosts,
                'signed': args.signed,
                'consumers_per_host': args.consumers,
                'period_seconds': args.period,
                'reports_per_second': measured[-1]['rate'],
                'repeats': args.repeats,
                'seconds': args.seconds,
                'minimum': min(shares),
                'maximum': max(shares),
                'scheduler_rss_mb': round(bed.rss_mb('scheduler'), 1),
                'farm_share': [m['farm_share'] for m in measured],
                'hosts_reported_within_a_period_and_a_half': fresh,
                'late_seconds': farm.status()['late_seconds'],
                'database': database_settings(store),
                'queues': 'classic',
                'processes': 'scheduler, farm, broker, database on one machine',
                **highest,
                **memory,
            },
            audit=sum(len(lines) for lines in broken.values()) + (args.hosts - fresh),
        )


class CountingPort(RpcSchedulerPort):
    """A counter of sent reports, which keeps the last delta for the yardstick."""

    def __init__(self, port: RpcSchedulerPort) -> None:
        self.__dict__.update(port.__dict__)
        self.sent = 0
        self.last: HostReport | None = None
        self._counting = threading.Lock()

    def report(self, report: HostReport) -> str | None:
        outcome = super().report(report)
        with self._counting:
            self.sent += 1
            if not report.full:
                self.last = report
        return outcome


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return int(s.getsockname()[1])


def connected_transport(made: Rig) -> Any:
    conf = cfg.CONF
    options.register_opts(conf, ('base', 'rpc'))
    conf(['--config-file', str(made.config)], project='gantt')
    return client.get_transport(conf)


@contextlib.contextmanager
def stock(made: Rig) -> Iterator[None]:
    """Run a stock server until the end."""
    empty_server.start(made)
    yield
    made.kill(empty_server.NAME)


def _farm(hosts: int, port: RpcSchedulerPort, settings: HostAgentSettings) -> Farm:
    farm = Farm(FarmPlan(count=hosts, shapes=[SHAPE], threads=8), port, settings)
    for host in farm.hosts.values():
        host.driver = Restless(host.name, SHAPE, None, random.Random(host.name))
    return farm


def _come_to_life(farm: Farm, store: SqlStores, args: argparse.Namespace) -> None:
    """Register, claim, confirm by report."""
    began = time.monotonic()
    farm.start()
    wait_until(lambda: farm.status()['reporting'] == args.hosts, 1800, 'every host has reported')
    note(f'{args.hosts} hosts registered and reported in {time.monotonic() - began:.0f} s')
    began = time.monotonic()
    _claim(farm, store, args.consumers)
    expected = args.hosts * args.consumers
    note(f'{expected} claims made in {time.monotonic() - began:.0f} s')
    for _ in range(CONFIRM_ROUNDS_MAX):
        _spread(farm, args.period)
        time.sleep(args.period + min(3.0, args.seconds))
        confirmed = _count(store, "SELECT count(*) FROM claims WHERE state = 'confirmed'")
        note(f'{confirmed} of {expected} claims confirmed by reports')
        if confirmed == expected:
            return
    raise RuntimeError(f'{confirmed} of {expected} claims were confirmed by reports')


def _claim(farm: Farm, store: SqlStores, consumers: int) -> None:
    """Claim by the group commit itself; return the guests that belong to the claims."""
    batch: list[RequestDraft] = []
    guests: dict[str, list[RunningGuest]] = {}
    rows = [c.row for c in store.feed.load_everything().hosts if c.row is not None]
    for row in rows:
        request = str(uuid.uuid4())
        drafts = [
            ClaimDraft(
                claim=Claim(
                    id=claim_id(request, 1, member),
                    request_id=request,
                    member=member,
                    consumer=message.derived_id('bench', row.name, member),
                    provider_id=row.id,
                    host=row.name,
                    allocations={row.id: TAKES},
                )
            )
            for member in range(consumers)
        ]
        guests[row.name] = [
            RunningGuest(consumer=d.claim.consumer, claim_id=d.claim.id, resources=TAKES)
            for d in drafts
        ]
        batch.append(
            RequestDraft(
                id=request,
                fingerprint='bench',
                owner='bench',
                lease_seconds=86_400.0,
                claims=ClaimColumns.of(drafts),
            )
        )
        if len(batch) == HOSTS_PER_COMMIT or row is rows[-1]:
            fates = store.requests.commit(batch).outcomes
            short = [f for f in fates if len(f.accepted) != consumers]
            if short:
                raise RuntimeError(f'claims were not accepted: {short[0]}')
            batch = []
    for name, placed in guests.items():
        farm.hosts[name].driver.put(placed)


def _memory(made: Rig, minutes: float) -> dict[str, object]:
    """Sample the scheduler's resident memory for so long, while every host reports as it does."""
    sizes = []
    end = time.monotonic() + minutes * 60
    while not sizes or time.monotonic() < end:
        sizes.append(made.rss_mb('scheduler'))
        time.sleep(min(MEMORY_SECONDS, max(0.0, end - time.monotonic())))
    quarter = max(1, len(sizes) // 4)
    figures = {
        'minutes': minutes,
        'scheduler_rss_mb': round(max(sizes), 1),
        'scheduler_rss_mb_first_quarter': round(statistics.mean(sizes[:quarter]), 1),
        'scheduler_rss_mb_last_quarter': round(statistics.mean(sizes[-quarter:]), 1),
    }
    note(f'memory: {figures}')
    return figures


def _measure(
    made: Rig, farm: Farm, counting_port: CountingPort, carrier: Any, seconds: float
) -> dict[str, float]:
    """Measure one stretch of reports, then the same messages to the stock server."""
    cpu, own_cpu, sent, began = (
        made.cpu_seconds('scheduler'),
        _own(),
        counting_port.sent,
        time.monotonic(),
    )
    time.sleep(seconds)
    took = time.monotonic() - began
    rate = (counting_port.sent - sent) / took
    share = (made.cpu_seconds('scheduler') - cpu) / took
    farm_share = (_own() - own_cpu) / took
    stock_share = _stock_share(made, counting_port, carrier, rate, seconds / 2)
    note(f'{rate:.1f} reports/s: scheduler {share:.3f}, stock {stock_share:.3f} of a core')
    return {
        'rate': round(rate, 1),
        'share': round(share, 4),
        'farm_share': round(farm_share, 4),
        'stock_share': round(stock_share, 4),
    }


def _stock_share(
    made: Rig, counting_port: CountingPort, carrier: Any, rate: float, seconds: float
) -> float:
    """Share of a core that the stock server uses for the same casts."""
    transport = om.get_rpc_transport(carrier.conf, url=made.broker)
    caller = om.get_rpc_client(transport, empty_server.TARGET)
    if counting_port.last is None:
        raise RuntimeError('no delta was sent')
    name, body = counting_port.last.name, message.to_builtins(counting_port.last)
    cpu, began, number = made.cpu_seconds(empty_server.NAME), time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds:
        if number < (now - began) * rate:
            caller.cast({}, 'update_resource_stats', name=name, stats=body)
            number += 1
        else:
            time.sleep(0.002)
    # One tick at least: a short run may be less than the clock of the kernel counts.
    used = max(made.cpu_seconds(empty_server.NAME) - cpu, 1 / os.sysconf('SC_CLK_TCK'))
    return used / (time.monotonic() - began)


def _search(
    made: Rig, farm: Farm, counting_port: CountingPort, args: argparse.Namespace
) -> dict[str, object]:
    """Return the highest of some rates at which as many reports are applied as are due."""
    best, limit, tried = 0.0, 'not reached', {}
    for times in RATES:
        period = args.period / times
        _report_every(farm, period)
        time.sleep(period + min(3.0, args.seconds))
        due = args.hosts / period
        before, sent, began = _outcomes(made), counting_port.sent, time.monotonic()
        cpu = made.cpu_seconds('scheduler')
        # Whole periods: within one, hosts need not be spread evenly.
        time.sleep(period * max(1, round(min(20.0, args.seconds) / period)))
        took = time.monotonic() - began
        sent_rate = (counting_port.sent - sent) / took
        share = (made.cpu_seconds('scheduler') - cpu) / took
        rates = {
            outcome: (n - before.get(outcome, 0)) / took for outcome, n in _outcomes(made).items()
        }
        rate = rates.get('applied', 0.0)
        tried[round(due)] = {'sent': round(sent_rate, 1), 'share': round(share, 3)} | {
            outcome: round(r, 1) for outcome, r in rates.items() if r
        }
        note(f'due {due:.0f}/s: {tried[round(due)]}')
        if rate < sent_rate * KEEPS_UP:
            limit = 'the scheduler'
            break
        best = max(best, round(rate, 1))
        if sent_rate < due * KEEPS_UP:
            limit = 'the farm, the broker and the database, on the same processors'
            break
    return {'highest_rate_that_keeps_up': best, 'limited_by': limit, 'rates': tried}


def _report_every(farm: Farm, period: float) -> None:
    for host in farm.hosts.values():
        if host.host_agent is not None:
            host.host_agent.session.report_seconds = period
    _spread(farm, period)


def _spread(farm: Farm, period: float) -> None:
    rng = random.Random(1)
    for host in farm.hosts.values():
        if host.host_agent is not None:
            host.host_agent.run_within(rng.uniform(0, period))


def _outcomes(made: Rig) -> dict[str, float]:
    """Return reports so far by their outcome, from the scheduler's own metrics."""
    (line,) = [x for x in made.config.read_text().splitlines() if x.startswith('metrics_port')]
    port = int(line.partition('=')[2])
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=10) as answer:
        text = answer.read().decode()
    counts = re.findall(r'^gantt_reports_total\{outcome="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {outcome: float(count) for outcome, count in counts}


def reported_in_time(store: SqlStores, period: float) -> int:
    """Return hosts whose last persisted report is no older than one and a half periods."""
    everything = store.feed.load_everything()
    rows = [change.row for change in everything.hosts if change.row is not None]
    return sum(everything.now - row.reported_at < period * 1.5 for row in rows)


def _count(store: SqlStores, sql: str) -> int:
    with store.database.engine.connect() as connection:
        return int(connection.execute(sa.text(sql)).scalar_one())


def database_settings(store: SqlStores) -> dict[str, str]:
    with store.database.engine.connect() as connection:
        return {
            name: str(connection.execute(sa.text(f'SHOW {name}')).scalar_one())
            for name in ('server_version', 'fsync', 'synchronous_commit')
        }


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def wait_until(what: Any, seconds: float, text: str) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise RuntimeError(f'not within {seconds:.0f} s: {text}')
        time.sleep(0.5)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
