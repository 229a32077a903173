# SPDX-License-Identifier: Apache-2.0
"""select_destinations for one instance, end to end: RabbitMQ in, claim in PostgreSQL, reply out.

Nova's captured boot message is the body; every call claims and records its
decision before it is answered.  The yardstick is an empty oslo.messaging call
to a stock server, through the same broker from the same client process,
measured in turn with it.

``--half-load`` adds the times of calls that come at half of that rate, whether
or not those before them are answered, and in turn with them those of empty
calls that come likewise; ``--monitored`` the rate of callers with a call
monitor, as Nova's are, against that of callers without one, in turn.
"""

import argparse
import statistics
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from oslo_config import cfg

import gantt.cmd  # noqa: F401  (chooses native threads, before oslo.messaging comes)
from bench import Result, conditions, empty_server
from bench import callers as shared
from bench.rig import Rig, rig
from devel import captures
from gantt import client
from gantt import conf as gantt_conf
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.resource_classes import Inventory
from gantt.stores import stores_for_url

import oslo_messaging as om  # isort: skip

QUORUM = {'rabbit_quorum_queue': 'true', 'rabbit_transient_quorum_queue': 'true'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=1000)
    parser.add_argument('--callers', type=int, default=16, help='of the figure itself')
    parser.add_argument('--beside', default='1,4,64', help='other numbers of callers')
    parser.add_argument('--seconds', type=float, default=1.5, help='of a window')
    parser.add_argument('--repeats', type=int, default=7, help='windows of each kind')
    parser.add_argument('--half-load', action='store_true', help='times at half of the rate')
    parser.add_argument('--monitored', action='store_true', help='with a call monitor against none')
    parser.add_argument('--no-quorum', action='store_true', help='classic queues only')


def run(args: argparse.Namespace) -> Result:
    """Measure classic queues for the figure; other callers and quorum queues beside."""
    beside = [int(n) for n in args.beside.split(',') if n]
    classic = _with_queues('classic', args, [args.callers, *beside])
    main = classic['callers'][args.callers]
    stated: dict[str, object] = {
        **conditions.here(),
        'hosts': args.hosts,
        'callers': args.callers,
        'body': 'captured select_destinations of Nova, boot of one instance',
        'repeats': args.repeats,
        'window_seconds': args.seconds,
        **classic['stated'],
        **{k: v for k, v in main.items() if k not in ('rate', 'empty')},
        **classic['more'],
        'other_callers': {n: classic['callers'][n] for n in beside},
    }
    problems = classic['problems']
    if not args.no_quorum:
        quorum = _with_queues('quorum', args, [args.callers])
        stated['quorum'] = quorum['callers'][args.callers]
        problems += quorum['problems']
    if problems:
        stated['problems'] = problems[:20]
    return Result(
        bench='rpc-single',
        value=main['rate'],
        unit='calls/s, each with a durable claim and a recorded decision',
        yardstick={'name': 'empty calls/s to a stock server', 'value': main['empty']},
        ratio=main['rate'] / main['empty'],
        conditions=stated,
        audit=len(problems),
    )


def _with_queues(kind: str, args: argparse.Namespace, callers: list[int]) -> dict[str, Any]:
    """Measure on a rig with queues of one kind; return figures by number of callers."""
    options: dict[str, dict[str, object]] = {
        'rpc': {'nova_enabled': 'true'},
        'filters': {'service_down_time': 3600},
        'scheduler': {'unknown_after_seconds': 3600},
        'oslo_messaging_rabbit': {'rpc_conn_pool_size': 100},
    }
    if kind == 'quorum':
        options['oslo_messaging_rabbit'].update(QUORUM)
    with rig(options) as testbed:
        testbed.start('scheduler', 'gantt-scheduler')
        empty_server.start(testbed)
        testbed.wait_for('scheduler', 'is ready')
        load = Load(testbed, args.hosts)
        figures = {}
        for number in callers:
            figures[number] = _measured(load, testbed, number, args)
        more: dict[str, Any] = {}
        if kind == 'classic' and args.half_load:
            rate = figures[args.callers]['rate'] / 2
            more['half_load'] = _half_load(load, rate, args)
        if kind == 'classic' and args.monitored:
            more['monitored'] = _monitored(load, args)
        result = {
            'callers': figures,
            'more': more,
            'stated': shared.servers(testbed)
            | {
                'processes': 1,
                'queues': kind,
                'scheduler_rss_mb': round(testbed.rss_mb('scheduler'), 1),
            },
            'problems': load.problems(),
        }
        load.close()
        return result


class Load:
    """Hosts that have reported, and callers as nova-conductor is one."""

    def __init__(self, made: Rig, hosts: int) -> None:
        gantt_conf.register_opts(cfg.CONF, ('rpc',))
        cfg.CONF(['--config-file', str(made.config)], project='gantt')
        self._rig = made
        self._transport = client.get_transport(cfg.CONF, made.broker)
        # Nova's conductors and the yardstick's callers use oslo.messaging.
        self._stock = om.get_rpc_transport(cfg.CONF, url=made.broker)
        self._boot = captures.load('boot')
        nova = om.get_rpc_client(
            self._stock, om.Target(exchange='nova', topic='scheduler', version='4.5'), retry=2
        )
        # Nova's own callers have a monitor: so have these, unless stated otherwise.
        self._nova = nova.prepare(timeout=60, call_monitor_timeout=60)
        self._plain = nova.prepare(timeout=60)
        self._empty = om.get_rpc_client(self._stock, empty_server.TARGET, retry=2).prepare(
            timeout=60
        )
        self.acknowledged: dict[str, str] = {}
        self._report(hosts)

    def close(self) -> None:
        self._transport.cleanup()
        self._stock.cleanup()
        cfg.CONF.reset()

    def _report(self, hosts: int) -> None:
        """Report hosts with ample room."""
        claims, stats = client.ClaimsClient(self._transport), client.StatsClient(self._transport)
        inventories = {
            'VCPU': Inventory(total=100_000),
            'MEMORY_MB': Inventory(total=100_000_000),
            'DISK_GB': Inventory(total=1_000_000),
        }
        for number in range(hosts):
            name = f'cmp-{number:05}'
            registered = claims.register_host(
                RegisterHost(name=name, boot_nonce='bench', cell=str(uuid.UUID(int=7)))
            )
            # Half of the room differs from host to host, so that scores do.
            report = HostReport(
                name=name,
                epoch=registered.epoch,
                sequence=1,
                full=True,
                running=[],
                pending=[],
                inventories=inventories,
                foreign={'MEMORY_MB': 1024 * (number % 97)},
            )
            stats.update_resource_stats(report, wait=number == hosts - 1)
        store = stores_for_url(self._rig.database)
        end = time.monotonic() + 60
        while (
            sum(1 for c in store.feed.load_everything().hosts if c.row and c.row.reported_at)
            < hosts
        ):
            if time.monotonic() > end:
                raise RuntimeError('not all hosts have reported within 60 s')
            time.sleep(0.2)
        store.database.close()
        time.sleep(1.0)  # the scheduler's own table follows its feed

    def boot(self) -> None:
        """Place one instance for one boot; record what was promised."""
        self._boot_by(self._nova)

    def boot_without_monitor(self) -> None:
        """Place the same, by a caller that wants no heartbeats while it waits."""
        self._boot_by(self._plain)

    def _boot_by(self, caller: Any) -> None:
        instance = str(uuid.uuid4())
        context, args = self._boot.fresh([instance], f'req-{uuid.uuid4()}')
        selections = caller.call(context, 'select_destinations', **args)
        self.acknowledged[instance] = selections[0][0]['nova_object.data']['service_host']

    def nothing(self) -> None:
        """Make the yardstick's call."""
        self._empty.call({}, 'nothing')

    def problems(self) -> list[str]:
        """Return broken promises: the audit, and acknowledged claims that are not there."""
        store = stores_for_url(self._rig.database)
        lines = [
            f'{kind}: {line}' for kind, lines in store.claims.audit().items() for line in lines
        ]
        held: dict[str, str] = {}
        marker = None
        while page := store.claims.list_claims(limit=1000, marker=marker):
            for claim in page:
                if claim.is_live and claim.consumer in held:
                    lines.append(f'consumer {claim.consumer} has two claims')
                held[claim.consumer] = claim.host
            marker = page[-1].id
        lines += [
            f'acknowledged claim of {consumer} on {host} is not there'
            for consumer, host in self.acknowledged.items()
            if held.get(consumer) != host
        ]
        recorded = len(store.records.list_decisions(limit=1))
        if self.acknowledged and not recorded:
            lines.append('no decision was recorded')
        store.database.close()
        return lines


def _measured(load: Load, made: Rig, callers: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run windows of the case and of the yardstick in turn; return medians."""
    for call in (load.boot, load.nothing):
        shared.window(call, callers, 0.5)
    rates, empties, times = [], [], []
    cpu, calls = 0.0, 0
    for _ in range(args.repeats):
        before = made.cpu_seconds('scheduler')
        rate, every = shared.window(load.boot, callers, args.seconds)
        cpu += made.cpu_seconds('scheduler') - before
        calls += len(every)
        rates.append(rate)
        times += every
        empties.append(shared.window(load.nothing, callers, args.seconds)[0])
    times.sort()
    ratios = [rate / empty for rate, empty in zip(rates, empties, strict=True)]
    return {
        'rate': round(statistics.median(rates), 1),
        'empty': round(statistics.median(empties), 1),
        'ratio': round(statistics.median(rates) / statistics.median(empties), 3),
        'ratio_min': round(min(ratios), 3),
        'ratio_max': round(max(ratios), 3),
        'minimum': round(min(rates), 1),
        'maximum': round(max(rates), 1),
        'p50_ms': round(times[len(times) // 2], 2),
        'p99_ms': round(times[len(times) * 99 // 100], 2),
        'scheduler_cpu_ms_per_call': round(cpu * 1000 / max(1, calls), 3),
    }


def _monitored(load: Load, args: argparse.Namespace) -> dict[str, Any]:
    """Measure callers with a call monitor and without, in turn; return medians."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(args.repeats):
        for monitored, call in ((True, load.boot), (False, load.boot_without_monitor)):
            rates[monitored].append(shared.window(call, args.callers, args.seconds)[0])
    with_one, without = statistics.median(rates[True]), statistics.median(rates[False])
    return {
        'rate': round(with_one, 1),
        'rate_without': round(without, 1),
        'ratio': round(with_one / without, 3),
    }


def _half_load(load: Load, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    """Make ``rate`` calls a second, empty ones and boots in turn; return percentiles of each kind.

    Both kinds come from the same threads and at the same moments of their windows.
    ``p99_ratio`` is the median over the pairs of windows, boots to empty calls: what
    disturbs one window is in one pair, and not in the figure.
    """
    times: dict[str, list[float]] = {'empty': [], 'boot': []}
    p99: dict[str, list[float]] = {'empty': [], 'boot': []}
    took = {'empty': 0.0, 'boot': 0.0}
    with ThreadPoolExecutor(shared.OPEN_THREADS) as pool:
        for number in range(args.repeats):
            for kind, call in (('empty', load.nothing), ('boot', load.boot)):
                began = time.perf_counter()
                every = sorted(shared.open_loop(pool, call, rate, args.seconds, seed=number))
                times[kind] += every
                p99[kind].append(shared.percentile(every, 0.99))
                took[kind] += time.perf_counter() - began
    boots, empties = sorted(times['boot']), sorted(times['empty'])
    ratios = [boot / empty for boot, empty in zip(p99['boot'], p99['empty'], strict=True)]
    return {
        'p99_ratio': round(statistics.median(ratios), 2),
        'p99_ratios': [round(ratio, 2) for ratio in ratios],
        'rate': round(len(boots) / took['boot'], 1),
        'p50_ms': shared.percentile(boots, 0.5),
        'p99_ms': shared.percentile(boots, 0.99),
        'calls': len(boots),
        'empty_rate': round(len(empties) / took['empty'], 1),
        'empty_p50_ms': shared.percentile(empties, 0.5),
        'empty_p99_ms': shared.percentile(empties, 0.99),
        'empty_calls': len(empties),
    }
