# SPDX-License-Identifier: Apache-2.0
"""Three processes on RabbitMQ and PostgreSQL; the scheduler is killed on the way.

A conductor asks and builds, a farm of fake hosts confirms and reports, and
``gantt-scheduler`` is killed with -9 and started again.  Afterwards every
acknowledged claim must be there, none twice, none over capacity.

The yardstick is the same run without a kill.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import time

import msgspec

from bench import Result, conditions
from bench.rig import Rig, rig
from gantt.stores import SqlStores, stores_for_url

LEASE_SECONDS = 20
REPORT_SECONDS = 10


class Outcome(msgspec.Struct):
    """Results of a run.

    :ivar problems: broken promises, a line each; must be empty
    """

    seconds: float
    acknowledged: int
    placed: int
    kills: int
    built: dict[str, int]
    refused: dict[str, int]
    problems: list[str]
    rss_mb: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=1000)
    parser.add_argument('--requests', type=int, default=10_000)
    parser.add_argument('--kills', type=int, default=3)
    parser.add_argument('--callers', type=int, default=16)
    parser.add_argument(
        '--beside', type=int, default=0, help='schedulers that nobody kills, beside the one'
    )
    parser.add_argument('--no-yardstick', action='store_true', help='leave the quiet run out')


def run(args: argparse.Namespace) -> Result:
    """Run the bench: with kills, then without."""
    disturbed = once(args.hosts, args.requests, args.kills, args.callers, beside=args.beside)
    rate = disturbed.placed / disturbed.seconds
    quiet_rate, quiet_problems = rate, []
    if not args.no_yardstick:
        quiet = once(args.hosts, args.requests, 0, args.callers, beside=args.beside)
        quiet_rate, quiet_problems = quiet.placed / quiet.seconds, quiet.problems
    return Result(
        bench='survive',
        value=rate,
        unit='claims/s, each confirmed by its host',
        yardstick={'name': 'the same without a kill', 'value': quiet_rate},
        ratio=rate / quiet_rate,
        conditions={
            **conditions.here(),
            'hosts': args.hosts,
            'requests': args.requests,
            'callers': args.callers,
            'database': 'PostgreSQL',
            'queues': 'classic',
            **msgspec.to_builtins(disturbed),
        },
        audit=len(disturbed.problems) + len(quiet_problems),
    )


def once(
    hosts: int,
    requests: int,
    kills: int,
    callers: int = 8,
    lease: int = LEASE_SECONDS,
    report: int = REPORT_SECONDS,
    beside: int = 0,
    kind: type[Rig] = Rig,
) -> Outcome:
    """Run once; return its outcome.

    :param beside: schedulers that stay alive beside the one that is killed
    :param kind: class of the rig that starts the processes
    """
    options: dict[str, dict[str, object]] = {
        'claims': {'lease_seconds': lease, 'sweep_seconds': 2},
        'scheduler': {'report_seconds': report},
    }
    with rig(options, kind=kind) as testbed:
        for number in range(beside):
            _start_scheduler(testbed, -1 - number)
        _start_scheduler(testbed, 0)
        testbed.start('farm', 'gantt-compute', '--fake', str(hosts), '--name', 'farm')
        store = stores_for_url(testbed.database)
        _until(lambda: _reporting(store) >= hosts, 120, 'the hosts have reported')
        out = testbed.folder / 'conductor.jsonl'
        began = time.monotonic()
        conductor = subprocess.Popen(
            [
                sys.executable,
                '-m',
                'bench.conductor',
                '--config-file',
                str(testbed.config),
                '--out',
                str(out),
                '--requests',
                str(requests),
                '--callers',
                str(callers),
            ],
        )
        testbed.processes['conductor'] = conductor
        for kill in range(kills):
            goal = requests * (kill + 1) // (kills + 1)
            _until(lambda goal=goal: _lines(out) >= goal, 600, f'{goal} requests are answered')
            testbed.kill(f'scheduler-{kill}')
            _start_scheduler(testbed, kill + 1)
        _until(lambda: conductor.poll() is not None, 1800, 'the conductor is done')
        seconds = time.monotonic() - began
        rss = testbed.rss_mb(f'scheduler-{kills}')
        time.sleep(lease + report * 1.1 + 4)  # leases, a report, a sweep
        outcome = _judge(store, out, requests)
        outcome.seconds, outcome.kills, outcome.rss_mb = seconds, kills, rss
        try:
            testbed.run('gantt-manage', 'audit')
        except RuntimeError as e:
            outcome.problems.append(str(e))
        store.database.close()
        return outcome


def _start_scheduler(made: Rig, number: int) -> None:
    name = f'scheduler-{number}'
    made.start(name, 'gantt-scheduler')
    made.wait_for(name, 'is ready')


def _reporting(store: SqlStores) -> int:
    return sum(1 for c in store.feed.load_everything().hosts if c.row and c.row.full_sequence)


def _until(what: object, seconds: float, text: str) -> None:
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        if time.monotonic() > end:
            raise RuntimeError(f'not within {seconds:.0f} s: {text}')
        time.sleep(0.1)


def _lines(out: pathlib.Path) -> int:
    if not out.exists():
        return 0
    return sum(1 for line in out.read_text().splitlines() if line.startswith('{"request_id"'))


def _judge(store: SqlStores, out: pathlib.Path, requests: int) -> Outcome:
    """Compare the acknowledged claims with those in the database."""
    written = [json.loads(line) for line in out.read_text().splitlines()]
    acked = [w for w in written if 'claims' in w]
    refused = collections.Counter(w['error'] for w in written if 'error' in w)
    built = {w['claim']: w['built'] for w in written if 'built' in w}
    problems = []
    claims = {}
    marker = None
    while page := store.claims.list_claims(limit=1000, marker=marker):
        claims.update({claim.id: claim for claim in page})
        marker = page[-1].id
    acknowledged = [c for answer in acked for c in answer['claims']]
    for c in acknowledged:
        claim = claims.get(c['id'])
        if claim is None or (claim.consumer, claim.host) != (c['consumer'], c['host']):
            problems.append(f'acknowledged claim {c["id"]} is not there')
        elif built.get(c['id']) == 'running' and claim.state != 'confirmed':
            problems.append(f'claim {c["id"]} of a running guest is {claim.state}')
        elif claim.adopted:
            problems.append(f'claim {c["id"]} had to be adopted')
    live = collections.Counter(c.consumer for c in claims.values() if c.is_live)
    problems += [f'consumer {c} has {n} live claims' for c, n in live.items() if n > 1]
    answered = len(acked) + refused.total()
    if answered != requests:
        problems.append(f'{requests - answered} requests have no answer at all')
    flagged = [
        c.row.name for c in store.feed.load_everything().hosts if c.row and c.row.over_committed
    ]
    problems += [f'host {name} is over-committed' for name in flagged]
    for name, lines in store.claims.audit().items():
        problems += [f'{name}: {line}' for line in lines]
    return Outcome(
        seconds=0,
        acknowledged=len(acked),
        placed=len(acknowledged),
        kills=0,
        built=dict(collections.Counter(built.values())),
        refused=dict(refused),
        problems=problems,
        rss_mb=0,
    )
