# SPDX-License-Identifier: Apache-2.0
"""``make heat-test``: import a folder of Heat's templates, and print what becomes of each.

Parameters without a default get a value of their type, and every flavor that is named is one of the
cloud: what is tested is that templates are read, not what they need.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from gantt import exceptions
from gantt.cli.endpoint import Failure, load_body
from gantt.templates import heat_offline
from gantt.templates.flavors import read_flavors

SUFFIXES = ('.yaml', '.yml', '.template')
VERSIONS = ('heat_template_version', 'HeatTemplateFormatVersion', 'AWSTemplateFormatVersion')
VALUES = {'number': '1', 'json': '{}', 'boolean': 'true'}
NO_SERVER = 'expected a server'


def templates_in(folder: Path) -> list[Path]:
    """Return files that have the version of a template."""
    paths = (path for path in sorted(folder.rglob('*')) if path.suffix in SUFFIXES)
    return [
        path
        for path in paths
        if any(version in path.read_text(errors='replace') for version in VERSIONS)
    ]


def values_of(template: Path) -> dict[str, str]:
    """Return a value for each parameter that has none."""
    try:
        document = load_body(str(template))
    except Failure:
        return {}  # refused by Heat, in words of its own
    schemas = document.get('parameters') or document.get('Parameters') or {}
    lower = {
        name: {key.lower(): value for key, value in schema.items()}
        for name, schema in schemas.items()
        if isinstance(schema, dict)
    }
    return {name: _value(schema) for name, schema in lower.items() if schema.get('default') is None}


def _value(schema: dict[str, Any]) -> str:
    constraints = [c for c in schema.get('constraints') or [] if isinstance(c, dict)]
    allowed = [c['allowed_values'] for c in constraints if 'allowed_values' in c]
    for values in [*allowed, schema.get('allowedvalues')]:
        if values:
            return str(values[0])
    return VALUES.get(str(schema.get('type')).lower(), 'x')


def main() -> int:
    """Import all of them.  Ends with 1 where the importer failed at one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--python', help="a Python that has Heat's library")
    parser.add_argument('--least', type=int, default=0, help='fail where fewer are read')
    args = parser.parse_args()
    began = time.monotonic()
    paths = templates_in(args.folder)
    described, no_server = 0, 0
    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    with heat_offline.HeatLibrary(args.python) as library:
        for path in paths:
            name = str(path.relative_to(args.folder))
            try:
                expanded = library.read(str(path), (), values_of(path))
                names = {server.flavor for server in expanded.servers if server.flavor}
                flavors = read_flavors([{'name': n, 'vcpus': 1, 'ram': 1024} for n in names])
                heat_offline.convert_expanded(expanded, flavors, where=name)
                described += 1
            except exceptions.GanttError as e:
                problem = e.message.replace(str(args.folder.resolve()), '…')
                if NO_SERVER in problem:
                    no_server += 1
                else:
                    refused[name] = problem
            except Exception as e:  # what this is for: none may end so
                failed[name] = f'{type(e).__name__}: {e}'
    for name, problem in {**refused, **failed}.items():
        print(f'{name}: {problem}')
    print(*library.notes, sep='\n')
    print(
        f'{len(paths)} templates in {time.monotonic() - began:.1f} s: {described} become '
        f'descriptions, {no_server} are read and have no server, {len(refused)} are refused by '
        f'name, {len(failed)} failed'
    )
    return 1 if failed or described + no_server < args.least else 0


if __name__ == '__main__':
    sys.exit(main())
