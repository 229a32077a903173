# SPDX-License-Identifier: Apache-2.0
"""A tree of zones in virtual time: how good places are where few zones are queried.

Three levels of zones, processors and memory, groups; what zones know of each other is up to five
minutes old, 256 requests are under way at once.  The value is the mean quality of the places, the
yardstick what the same requests had got at the same moment from all zones at once: brute force.
Quality is the share of the hosts that fit which are not better.  Nothing is timed but the bench.
"""

import argparse
import sys
import time

from bench import Result, conditions, count
from devel.sim.zones.run import SUMMARIES, TreePlan, TreeRun
from gantt.zones.model.strategies import DEFAULT

#: Nothing here depends on how fast the machine is.
IS_TIMED = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--hosts', type=count, default=100_000, help='in all zones together')
    parser.add_argument('--middle', type=count, default=10, help='zones directly below the top')
    parser.add_argument('--sites', type=count, default=100, help='with hosts, below each of these')
    parser.add_argument('--concurrent', type=count, default=256, help='requests at once')
    parser.add_argument('--bursts', type=count, default=20, help='how often so many')
    parser.add_argument('--samples', type=count, default=400, help='requests that are compared')
    parser.add_argument('--seed', type=count, default=1)
    parser.add_argument('--strategies', default=','.join(DEFAULT), help='A,B,…')
    parser.add_argument('--summaries', choices=SUMMARIES, default='true')


def run(args: argparse.Namespace) -> Result:
    """Run once."""
    began, cpu = time.monotonic(), time.process_time()
    names = [name for name in args.strategies.split(',') if name]
    plan = TreePlan(
        seed=args.seed,
        hosts=args.hosts,
        middle=args.middle,
        sites=args.sites,
        concurrent=args.concurrent,
        bursts=args.bursts,
        samples=args.samples,
        summaries=args.summaries,
        strategies=names,
    )

    def note(line: str) -> None:
        at = time.monotonic() - began
        print(f'{at:6.0f} s, {conditions.rss_mb():.0f} MB: {line}', file=sys.stderr, flush=True)

    tree = TreeRun(plan, note=note)
    figures = tree.figures()
    return Result(
        bench='zones-sim',
        value=figures.quality,
        unit='mean share of fitting hosts that are not better',
        yardstick={'name': 'all zones queried at once', 'value': figures.brute},
        ratio=round(figures.quality / figures.brute, 4),
        conditions={
            **conditions.here(),
            'hosts': len(tree.tree.sites) * len(tree.tree.sites[0].zone.table),
            'zones': len(tree.tree.zones),
            'strategies': names,
            'summaries': args.summaries,
            'summary_seconds': plan.age,
            'concurrent': args.concurrent,
            'requests': figures.requests,
            'placed': figures.placed,
            'refused': figures.refused,
            'missed': figures.missed,
            'sampled': figures.sampled,
            'quality_p05': figures.quality_p05,
            'messages_mean': figures.messages,
            'messages_p99': figures.messages_p99,
            'conflicts_per_request': figures.conflicts,
            'minutes': round((time.monotonic() - began) / 60, 2),
            'cpu_minutes': round((time.process_time() - cpu) / 60, 2),
            'rss_mb': conditions.rss_mb(),
            'problems': figures.defects[:20],
        },
        audit=figures.missed + figures.overcommitted + len(figures.defects),
    )
