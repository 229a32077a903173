# SPDX-License-Identifier: Apache-2.0
"""Placement's own declarative tests over HTTP: what it passes itself, Gantt has to pass.

``python -m tests.placement [--real] [--gantt DATABASE]... [FILE ...]``, or
``python -m tests.placement --url [CONFIGURATION=]URL [FILE ...]`` for any other server.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.placement import ours, real, runner
from tests.placement.exceptions import EXCEPTIONS
from tests.placement.named_states import STATES
from tests.placement.server import ServerError
from tests.placement.states import RULES

#: Placement itself in the report; databases of Gantt where nothing is named, and by which name
#: they stand there.
REAL = 'real'
ALL = ('postgresql', 'mysql')
REPORTED = {'mysql': 'mariadb'}
#: So many tests have to pass in a run of all files, so that exceptions stay few.
LEAST_PASSED = 1300
#: Characters of what a test that failed says.
SHOWN = 600


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m tests.placement',
        description='Run the declarative tests that Placement has for itself, over HTTP. '
        'Without --real, --gantt and --url: Placement itself, then Gantt on PostgreSQL and on '
        'MariaDB.',
        epilog='configurations: '
        + '; '.join(f'{name}: {meaning}' for name, meaning in RULES.items()),
    )
    parser.add_argument(
        '--url',
        action='append',
        type=named_url,
        default=[],
        metavar='[CONFIGURATION=]URL',
        help='judge the empty server there, which accepts the tokens of noauth2; its '
        'configuration is "legacy" where none is given; may be repeated',
    )
    parser.add_argument(
        '--real', action='store_true', help='start and judge Placement itself, on SQLite'
    )
    parser.add_argument(
        '--gantt',
        action='append',
        choices=sorted(ours.DATABASES),
        default=[],
        help='start and judge Gantt, on an empty database of this kind; may be repeated',
    )
    parser.add_argument(
        '--python',
        type=Path,
        default=Path('.venv-placement/bin/python'),
        help='that of the environment with openstack-placement (%(default)s)',
    )
    parser.add_argument(
        '--report', type=Path, default=Path('build/placement.json'), help='(%(default)s)'
    )
    parser.add_argument('files', nargs='*', help='their names without suffix; default: all')
    return parser.parse_args(words)


def named_url(word: str) -> tuple[str, str]:
    """Configuration and URL.

    :raises argparse.ArgumentTypeError: it is neither
    """
    rules, is_named, url = word.partition('=')
    if not is_named or '/' in rules:
        rules, url = 'legacy', word
    if rules not in RULES:
        raise argparse.ArgumentTypeError(f'expected one of {", ".join(RULES)}; got {rules!r}')
    if not url.startswith(('http://', 'https://')):
        raise argparse.ArgumentTypeError(f'expected http:// or https://; got {url!r}')
    return rules, url


def show(file: runner.TestFile, results: runner.Results) -> None:
    """One line for a file, and what went wrong in it."""
    outcome = 'FAILED' if results.failed else 'passed' if results.passed else 'excluded'
    print(f'{outcome:8}  {len(results.passed):4} of {results.count():4}  {file.name}', flush=True)
    for name, text in results.failed.items():
        print(f'        {name}\n            {text[:SHOWN]}', flush=True)


def chosen(folder: Path, names: list[str]) -> list[runner.TestFile]:
    """The files of that names, or all of them.

    :raises ValueError: there is no such file, or none at all
    """
    paths = sorted(folder.glob('*.yaml'))
    if not paths:
        raise ValueError(f'{folder}: expected files of tests, found none')
    if unknown := set(names) - {path.stem for path in paths}:
        raise ValueError(f'files: expected names of files in {folder}; unknown: {sorted(unknown)}')
    return [runner.read(path, STATES) for path in paths if not names or path.stem in names]


def judge(
    files: list[runner.TestFile], given: argparse.Namespace
) -> Iterator[tuple[str, runner.Results]]:
    """Who is judged, and the results, one after another."""
    if given.url:
        yield 'other', runner.run(files, dict(given.url), EXCEPTIONS, show)
        return
    needed = [rules for rules in RULES if any(file.state.rules == rules for file in files)]
    all_of_them = not given.real and not given.gantt
    if given.real or all_of_them:
        print('Placement itself', flush=True)
        with real.servers(given.python, needed) as urls:
            yield REAL, runner.run(files, urls, EXCEPTIONS, show)
    for database in ALL if all_of_them else given.gantt:
        print(f'Gantt on {database}', flush=True)
        with ours.servers(database, needed) as urls:
            yield REPORTED.get(database, database), runner.run(files, urls, EXCEPTIONS, show)


def wrong(results_by_server: Mapping[str, runner.Results], is_all: bool) -> list[str]:
    """What a run has to be judged by: nothing where all is well.

    :param is_all: all files were run
    """
    lines = []
    placement = results_by_server.get(REAL)
    if placement is not None and is_all and len(placement.passed) < LEAST_PASSED:
        lines.append(f'{REAL}: at least {LEAST_PASSED} have to pass')
    for server, results in results_by_server.items():
        missing = set(results.failed)
        if placement is not None and server != REAL:
            missing |= set(placement.passed) - set(results.passed)
        if missing:
            lines.append(f'{server}: {len(missing)} that have to pass do not')
    return lines


def write(path: Path, report: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + '\n')


def main(words: list[str] | None = None) -> int:
    """0: all that is judged passed; 1: something failed; 2: nothing could be judged."""
    given = parse(words)
    began = time.monotonic()
    results_by_server: dict[str, runner.Results] = {}
    try:
        version, folder = real.look_up(given.python)
        files = chosen(folder, given.files)
        for server, results in judge(files, given):
            results_by_server[server] = results
            tell(version, server, results, given.report)
            if not results.passed and not results.failed:
                print('nothing was judged: all tests are excluded', file=sys.stderr)
                return 2
    except (real.RealError, ServerError, ValueError) as e:
        print(e, file=sys.stderr)
        return 2
    seconds = time.monotonic() - began
    report = {'placement': version, 'seconds': round(seconds, 1)}
    write(
        given.report,
        report | {server: results.as_json() for server, results in results_by_server.items()},
    )
    lines = wrong(results_by_server, not given.files)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


def tell(version: str, server: str, results: runner.Results, report: Path) -> None:
    print(
        f'{server}: {len(results.passed)} passed, {len(results.failed)} failed, '
        f'{len(results.excluded)} excluded of openstack-placement {version}; {report}',
        flush=True,
    )


if __name__ == '__main__':
    sys.exit(main())
