# SPDX-License-Identifier: Apache-2.0
"""Run the service in a simulated world full of faults, or as a tree of zones."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence

import msgspec

from devel.sim.loop import TaskThreadPool
from devel.sim.verdict import SimVerdict
from devel.sim.world import SimulationRuns
from devel.sim.zones.run import SUMMARIES, TreeFigures, TreePlan, TreeRun
from gantt import cmd, exceptions
from gantt.cli import parsing
from gantt.zones.conf import load_strategies
from gantt.zones.model.strategies import DEFAULT

#: What is compared where no set is named: all zones at once, then one way after the other, then the
#: usual ones together.
COMPARED: tuple[tuple[str, ...], ...] = (
    (),
    ('RandomOrder',),
    ('LikelyFirst',),
    ('TopN',),
    ('WeightedRandom',),
    DEFAULT,
)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = parsing.Parser(
        prog='python -m devel.sim',
        description='Run the service in a simulated world.',
        epilog='exit codes: 0 all promises were kept, 1 some were not, 64 wrong usage',
    )
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    faults = commands.add_parser(
        'faults',
        help='faults that follow from a seed, then the audit; again for the next seed',
        description='Every seed is one world of schedulers, hosts and conductors in virtual time, '
        'with lost, late, doubled and overtaken messages, deaths, wrong clocks and a database '
        'that goes away; in some of them groups are planned as a whole as well. When all is '
        'healed every promise is checked.',
    )
    faults.add_argument(
        '--seeds',
        type=parsing.whole_number(1, parsing.SEED_MAX),
        default=200,
        help='how many (200)',
    )
    faults.add_argument(
        '--first',
        type=parsing.whole_number(0, parsing.SEED_MAX),
        default=0,
        help='the first seed (0)',
    )
    faults.add_argument(
        '--trees',
        action='store_true',
        help='trees of zones instead of one zone: two or three levels, a database each, links '
        'that are cut',
    )
    faults.add_argument('--trace', action='store_true', help='print all that happens')
    faults.add_argument(
        '-f',
        '--format',
        choices=('text', 'json'),
        default='text',
        help='text, or json: one object for each seed that failed, and a last one for all',
    )
    _add_zones(
        commands.add_parser(
            'zones',
            help='a tree of zones: how good and how dear each way of choosing zones is',
            description='Requests in bursts over a tree of three levels in virtual time. Zones '
            'know of each other what was so some minutes ago, those of a burst are under way '
            'together. Each set of strategies gets the same tree and the same requests.',
        )
    )
    return parser.parse_args(argv)


def _add_zones(zones: argparse.ArgumentParser) -> None:
    usual = TreePlan()
    zones.add_argument(
        '--strategies',
        action='append',
        metavar='A,B,…',
        help="strategies in force together, such as StaticRuleOut,WeightedRandom; '': none, all "
        'zones are queried at once; may be given several times (some sets to compare)',
    )
    for name, text in (
        ('hosts', 'in all zones together'),
        ('middle', 'zones directly below the top'),
        ('sites', 'zones with hosts below each of these'),
        ('concurrent', 'requests under way together'),
        ('bursts', 'how often so many'),
        ('samples', 'requests whose place is compared with all others, about'),
        ('seed', 'everything follows from it'),
    ):
        default = getattr(usual, name)
        zones.add_argument(
            f'--{name}',
            type=parsing.whole_number(1, parsing.SEED_MAX),
            default=default,
            help=f'{text} ({default})',
        )
    zones.add_argument(
        '--summaries',
        choices=SUMMARIES,
        default=usual.summaries,
        help='what zones say of their room: as it is, once and never again, anything, the '
        f'opposite ({usual.summaries})',
    )
    zones.add_argument(
        '-f',
        '--format',
        choices=('text', 'json'),
        default='text',
        help='text: a table; json: one object for each set',
    )


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 where every promise was kept."""
    try:
        options = _arguments(sys.argv[1:] if argv is None else argv)
    except SystemExit as e:
        return int(e.code or 0)
    return _zones(options) if options.command == 'zones' else _faults(options)


def _faults(given: argparse.Namespace) -> int:
    began = time.monotonic()
    failed, placed, planned, events = [], 0, 0, 0
    with contextlib.closing(SimulationRuns()) as runs:
        for seed in range(given.first, given.first + given.seeds):
            verdict = runs.run(seed, trees=given.trees, trace=given.trace)
            placed += verdict.placed
            planned += verdict.planned
            events += verdict.events
            if verdict.violations:
                failed.append(seed)
            if verdict.violations or given.trace:
                _show(verdict, given.format, given.trees)
    _sum_up(
        given,
        {
            'seeds': given.seeds,
            'first': given.first,
            'failed': failed,
            'placed': placed,
            'planned': planned,
            'events': events,
            'seconds': round(time.monotonic() - began, 1),
        },
    )
    return 1 if failed else 0


def replay(seed: int, trees: bool = False) -> str:
    """Return the command that runs one seed again."""
    return f'python -m devel.sim faults {"--trees " * trees}--first {seed} --seeds 1 --trace'


def _show(verdict: SimVerdict, form: str, trees: bool) -> None:
    if form == 'json':
        print(
            json.dumps(
                {
                    'seed': verdict.seed,
                    'violations': verdict.violations,
                    'digest': verdict.digest,
                    'replay': replay(verdict.seed, trees),
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
        print(f'  {replay(verdict.seed, trees)}')


def _sum_up(given: argparse.Namespace, total: dict[str, object]) -> None:
    if given.format == 'json':
        print(json.dumps(total))
        return
    failed = total['failed']
    assert isinstance(failed, list)
    print(
        f'{given.seeds} seeds from {given.first} in {total["seconds"]} s: '
        f'{total["events"]} events, {total["placed"]} requests placed, '
        f'{total["planned"]} plans of groups, {len(failed)} seeds failed'
    )


def _zones(given: argparse.Namespace) -> int:
    """Run each set of strategies on the same tree; return 0 where no feasible request failed."""
    sets: Sequence[Sequence[str]] = COMPARED
    if given.strategies is not None:
        sets = [[name for name in text.split(',') if name] for text in given.strategies]
    fields = ('hosts', 'middle', 'sites', 'concurrent', 'bursts', 'samples', 'seed', 'summaries')
    plan = TreePlan(**{name: getattr(given, name) for name in fields})
    stacks, missed = TaskThreadPool(), 0
    try:
        for names in sets:
            load_strategies(names, {})
    except exceptions.PluginError as e:
        print(f'sim: {e.message}', file=sys.stderr)
        return cmd.USAGE_EXIT_CODE
    if given.format == 'text':
        print(_LINE.format('quality', 'worst 5 %', 'messages', '99 %', 'conflicts', 'missed', ''))
    for names in sets:
        figures = TreeRun(msgspec.structs.replace(plan, strategies=names), stacks).figures()
        missed += figures.missed + len(figures.defects)
        _show_figures(names, figures, given.format)
    return 1 if missed else 0


_LINE = '{:>8} {:>9} {:>8} {:>6} {:>9} {:>6}  {}'


def _show_figures(names: Sequence[str], figures: TreeFigures, form: str) -> None:
    if form == 'json':
        print(json.dumps({'strategies': list(names), **msgspec.to_builtins(figures)}), flush=True)
        return
    line = _LINE.format(
        f'{figures.quality:.3f}',
        f'{figures.quality_p05:.3f}',
        f'{figures.messages:.1f}',
        f'{figures.messages_p99:.0f}',
        f'{figures.conflicts:.3f}',
        figures.missed,
        ' '.join(names) or 'none: all zones at once',
    )
    print(line, flush=True)
    for defect in figures.defects:
        print(defect, flush=True)


if __name__ == '__main__':
    sys.exit(main())
