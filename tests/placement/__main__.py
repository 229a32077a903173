# SPDX-License-Identifier: Apache-2.0
"""Placement's own declarative tests over HTTP, against Placement itself or any other server.

``python -m tests.placement [--url [CONFIGURATION=]URL]... [FILE ...]``
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.placement import real, runner
from tests.placement.exceptions import EXCEPTIONS
from tests.placement.named_states import STATES
from tests.placement.server import ServerError
from tests.placement.states import RULES

#: So many tests have to pass in a run of all files, so that exceptions stay few.
LEAST_PASSED = 1300
#: Characters of what a test that failed says.
SHOWN = 600


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='python -m tests.placement',
        description='Run the declarative tests that Placement has for itself, over HTTP. '
        'Without --url Placement itself is started and judged.',
        epilog='configurations: ' + '; '.join(f'{name}: {what}' for name, what in RULES.items()),
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
    rules, found, url = word.partition('=')
    if not found or '/' in rules:
        rules, url = 'legacy', word
    if rules not in RULES:
        raise argparse.ArgumentTypeError(f'expected one of {", ".join(RULES)}; got {rules!r}')
    if not url.startswith(('http://', 'https://')):
        raise argparse.ArgumentTypeError(f'expected http:// or https://; got {url!r}')
    return rules, url


def show(file: runner.TestFile, found: runner.Results) -> None:
    """One line for a file, and what went wrong in it."""
    outcome = 'FAILED' if found.failed else 'passed' if found.passed else 'excluded'
    print(f'{outcome:8}  {len(found.passed):4} of {found.count():4}  {file.name}', flush=True)
    for name, text in found.failed.items():
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


def judge(files: list[runner.TestFile], given: argparse.Namespace) -> tuple[str, runner.Results]:
    """Who was judged, and the results."""
    if given.url:
        return 'other', runner.run(files, dict(given.url), EXCEPTIONS, show)
    needed = [one for one in RULES if any(file.state.rules == one for file in files)]
    with real.servers(given.python, needed) as urls:
        return 'real', runner.run(files, urls, EXCEPTIONS, show)


def write(path: Path, report: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + '\n')


def main(words: list[str] | None = None) -> int:
    """0: all that is judged passed; 1: something failed; 2: nothing could be judged."""
    given = parse(words)
    began = time.monotonic()
    try:
        version, folder = real.look_up(given.python)
        files = chosen(folder, given.files)
        who, found = judge(files, given)
    except (real.RealError, ServerError, ValueError) as e:
        print(e, file=sys.stderr)
        return 2
    if not found.passed and not found.failed:
        print('nothing was judged: all tests of these files are excluded', file=sys.stderr)
        return 2
    seconds = time.monotonic() - began
    report = {'placement': version, 'seconds': round(seconds, 1), who: found.as_json()}
    write(given.report, report)
    few = who == 'real' and not given.files and len(found.passed) < LEAST_PASSED
    print(
        f'{len(found.passed)} passed, {len(found.failed)} failed, {len(found.excluded)} excluded '
        f'in {len(files)} files of openstack-placement {version}, {seconds:.0f} s; {given.report}'
    )
    if few:
        print(f'at least {LEAST_PASSED} have to pass', file=sys.stderr)
    return 1 if found.failed or few else 0


if __name__ == '__main__':
    sys.exit(main())
