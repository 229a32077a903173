# SPDX-License-Identifier: Apache-2.0
"""python -m tests.oracle SEED[:REQUEST] [SEED ...]: compare with Nova again, and tell all.

``FROM-TO`` is every seed from one up to the other, the last left out.
"""

import sys
from collections.abc import Iterator

from tests.oracle import compare, nova, runs


def main(arguments: list[str]) -> int:
    """0: no difference that is not meant; 1: some; 64: not understood."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 64
    started = nova.start()
    if isinstance(started, str):
        print(f'no Nova to compare with: {started}; "make venv-nova" installs it', file=sys.stderr)
        return 1
    oracle, about = started
    names, failed = compare.both_have(about), 0
    with oracle:
        for seed, only in _seeds(arguments):
            report = runs.run(oracle, names, [seed])
            kinds = set()
            for at, number, seen in report.failures:
                if only in (None, number) and (number, seen.plugin) not in kinds:
                    kinds.add((number, seen.plugin))
                    failed += 1
                    print(runs.told(at, number, seen, runs.smallest(oracle, names, seen)), '\n')
    print(f'{failed} differences that nobody meant')
    return int(failed > 0)


def _seeds(arguments: list[str]) -> Iterator[tuple[int, int | None]]:
    for argument in arguments:
        seeds, _, number = argument.partition(':')
        first, _, last = seeds.partition('-')
        for seed in range(int(first), int(last or int(first) + 1)):
            yield seed, int(number) if number else None


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
