# SPDX-License-Identifier: Apache-2.0
"""``python -m bench NAME [--json] [options]``."""

import argparse
import importlib
import pathlib
import signal
import sys

import msgspec

from bench import conditions


def names() -> list[str]:
    """Return every bench there is: the modules here that take arguments and can be run."""
    modules = (
        path.stem
        for path in pathlib.Path(__file__).parent.glob('[a-z]*.py')
        if all(f'\ndef {name}(' in path.read_text() for name in ('add_arguments', 'run'))
    )
    return sorted(name.replace('_', '-') for name in modules)


def main(argv: list[str] | None = None) -> int:
    """Run one bench; the last line on standard output is its result."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in names():
        problem = f'no bench {argv[0]!r}; ' if argv and not argv[0].startswith('-') else ''
        print(f'{problem}usage: python -m bench NAME [--json]; NAME: {", ".join(names())}')
        return 0 if argv and argv[0] in ('-h', '--help') else 64
    module = importlib.import_module(f'bench.{argv[0].replace("-", "_")}')
    parser = argparse.ArgumentParser(prog=f'python -m bench {argv[0]}', description=module.__doc__)
    parser.add_argument('--json', action='store_true', help='one JSON object as the last line')
    module.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    # On SIGTERM a bench still stops its processes and drops what it created.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Counts are the same on a busy machine.
    before = conditions.wait_until_quiet() if getattr(module, 'IS_TIMED', True) else {}
    result = module.run(args)
    result.conditions.update(before)
    if args.json:
        print(msgspec.json.encode(result).decode(), flush=True)
    else:
        print(
            f'{result.bench}: {result.value:.4g} {result.unit}, {result.ratio:.3g} times '
            f'{result.yardstick["name"]} ({result.yardstick["value"]:.4g})'
        )
        for key, value in result.conditions.items():
            print(f'  {key}: {value}')
        print(f'  audit: {result.audit}')
    return 1 if result.audit else 0


if __name__ == '__main__':
    sys.exit(main())
