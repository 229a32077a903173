# SPDX-License-Identifier: Apache-2.0
"""``gantt-sim``: the service in a simulated world full of faults, run after run."""

import argparse
import json
import sys
import time

from gantt.cmd.arguments import ArgumentParser, whole
from gantt.sim.loop import Stacks
from gantt.sim.world import SimVerdict, run


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = ArgumentParser(
        prog='gantt-sim',
        description='Run the service in a simulated world.',
        epilog='exit codes: 0 all promises were kept, 1 some were not, 64 wrong usage',
    )
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    faults = commands.add_parser(
        'faults',
        help='faults that follow from a seed, then the audit; again for the next seed',
        description='Every seed is one world of schedulers, hosts and conductors in virtual time, '
        'with lost, late, doubled and overtaken messages, deaths, wrong clocks and a database '
        'that goes away. When all is healed every promise is checked.',
    )
    faults.add_argument('--seeds', type=whole(), default=200, help='how many (200)')
    faults.add_argument('--first', type=whole(least=0), default=0, help='the first seed (0)')
    faults.add_argument('--trace', action='store_true', help='print all that happens')
    faults.add_argument(
        '-f',
        '--format',
        choices=('text', 'json'),
        default='text',
        help='text, or json: one object for each seed that failed, and a last one for all',
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the seeds; 0 where every promise was kept."""
    try:
        given = _arguments(sys.argv[1:] if argv is None else argv)
    except SystemExit as e:
        return int(e.code or 0)
    stacks, began = Stacks(), time.monotonic()
    failed, placed, events = [], 0, 0
    for seed in range(given.first, given.first + given.seeds):
        verdict = run(seed, stacks=stacks, trace=given.trace)
        placed += verdict.placed
        events += verdict.events
        if verdict.violations:
            failed.append(seed)
        if verdict.violations or given.trace:
            _show(verdict, given.format)
    _sum_up(
        given,
        {
            'seeds': given.seeds,
            'first': given.first,
            'failed': failed,
            'placed': placed,
            'events': events,
            'seconds': round(time.monotonic() - began, 1),
        },
    )
    return 1 if failed else 0


def replay(seed: int) -> str:
    """The command that shows one seed again."""
    return f'gantt-sim faults --first {seed} --seeds 1 --trace'


def _show(verdict: SimVerdict, form: str) -> None:
    if form == 'json':
        print(
            json.dumps(
                {
                    'seed': verdict.seed,
                    'violations': verdict.violations,
                    'digest': verdict.digest,
                    'replay': replay(verdict.seed),
                    **({'trace': verdict.trace} if verdict.trace else {}),
                }
            )
        )
        return
    for line in verdict.trace:
        print(line)
    print(
        f'seed {verdict.seed}: {len(verdict.violations) or "no"} violations, '
        f'digest {verdict.digest}'
    )
    for line in verdict.violations:
        print(f'  {line}')
    if verdict.violations and not verdict.trace:
        print(f'  {replay(verdict.seed)}')


def _sum_up(given: argparse.Namespace, total: dict[str, object]) -> None:
    if given.format == 'json':
        print(json.dumps(total))
        return
    failed = total['failed']
    assert isinstance(failed, list)
    print(
        f'{given.seeds} seeds from {given.first} in {total["seconds"]} s: '
        f'{total["events"]} events, {total["placed"]} requests placed, {len(failed)} seeds failed'
    )


if __name__ == '__main__':
    sys.exit(main())
