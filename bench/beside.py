# SPDX-License-Identifier: Apache-2.0
"""A bench in turn with the same bench of another commit: what a change cost.

    python -m bench beside COMMIT NAME [its options] --json

The commit is checked out and installed into a folder of its own, without its libraries: both
sides run on those of this environment.  Pairs are run one after the other, and which side
begins changes from pair to pair, so that what a machine gains or loses in time falls on both.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec

from bench import Result, conditions

ROOT = pathlib.Path(__file__).parents[1]
#: Time limit of one run.
RUN_SECONDS = 3600
#: Units of which more is better; of all others less is.
MORE = ('/s', 'share of a stream')


class Run(msgspec.Struct, frozen=True):
    """Figures of one run of one side.

    :ivar value: the bench's figure
    :ivar cpu: its processor use, in a unit that is the same on both sides
    """

    value: float
    cpu: float
    unit: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commit, the bench, and everything that is for the bench."""
    parser.add_argument('commit', help='what git knows: a hash, a tag, HEAD~3')
    parser.add_argument('name', help='of a bench')
    parser.add_argument('--pairs', type=int, default=7, metavar='N', help='runs of each side (7)')
    parser.add_argument('options', nargs=argparse.REMAINDER, help='options of that bench')


def run(args: argparse.Namespace) -> Result:
    """Return the median over the pairs; above 1: this tree is better."""
    options = [option for option in args.options if option != '--json']
    pairs: list[tuple[Run, Run]] = []
    with checkout(args.commit) as (folder, paths):
        for number in range(max(1, args.pairs)):
            sides = {'here': (ROOT, ''), 'there': (folder, str(paths))}
            order = ('here', 'there') if number % 2 else ('there', 'here')
            runs = {side: _run(*sides[side], args.name, options) for side in order}
            pairs.append((runs['here'], runs['there']))
            print(f'pair {number + 1}: {runs}', file=sys.stderr, flush=True)
    unit = pairs[0][0].unit
    more = any(word in unit for word in MORE)
    here, there = (statistics.median(pair[side].value for pair in pairs) for side in (0, 1))
    cpu = [statistics.median(pair[side].cpu for pair in pairs) for side in (0, 1)]
    return Result(
        bench=f'beside {args.name}',
        value=here,
        unit=unit,
        yardstick={'name': f'the same at {args.commit}', 'value': there},
        ratio=here / there if more else there / here,
        conditions={
            **conditions.here(),
            'pairs': len(pairs),
            'options': options,
            'more_is_better': more,
            'cpu': cpu,
            'cpu_ratio': cpu[0] / cpu[1],
            'values': [[pair[side].value for pair in pairs] for side in (0, 1)],
        },
    )


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """Yield a work tree of a commit, and the folder into which its package is installed."""
    with tempfile.TemporaryDirectory(prefix='gantt-beside-') as directory:
        folder, paths = pathlib.Path(directory) / 'tree', pathlib.Path(directory) / 'site'
        _do('git', 'worktree', 'add', '--detach', '--force', str(folder), commit)
        try:
            # Entry points of plug-ins are found by what is installed, not by what is imported.
            _do(
                sys.executable,
                '-m',
                'pip',
                'install',
                '--quiet',
                '--no-deps',
                '--no-build-isolation',
                '--target',
                str(paths),
                str(folder),
            )
            yield folder, paths
        finally:
            _do('git', 'worktree', 'remove', '--force', str(folder))


def _do(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f'{" ".join(command[:3])}: {done.stderr.strip()[-2000:]}')


def _run(folder: pathlib.Path, paths: str, name: str, options: list[str]) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, '-m', 'bench', name, '--json', *options],
        cwd=folder,
        env=os.environ | {'PYTHONPATH': paths, conditions.WAIT: '0'},  # both were waited for
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    if done.returncode:
        sys.exit(f'bench {name} in {folder} ended with {done.returncode}: {done.stderr[-2000:]}')
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = json.loads(done.stdout.splitlines()[-1])
    return Run(result['value'], cpu_of(result, took), result['unit'])


def cpu_of(result: dict[str, Any], took: float) -> float:
    """Return the CPU use of a run: as its bench counted it, else all of its processes.

    :param took: CPU seconds of those processes
    """
    stated = result['conditions']
    if 'scheduler_cpu_ms_per_call' in stated:
        return float(stated['scheduler_cpu_ms_per_call'])
    if 'cpu_us_per_placement' in stated.get('measured', {}).get('gantt', {}):
        return float(stated['measured']['gantt']['cpu_us_per_placement'])
    if 'reports_per_second' in stated:
        return float(result['value'] / stated['reports_per_second'])
    if result['bench'].startswith('decide'):
        return float(result['value'])  # it does nothing but compute
    return took
