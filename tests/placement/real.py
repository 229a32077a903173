# SPDX-License-Identifier: Apache-2.0
"""Placement as it is published: one process and one database in a file for each configuration.

SQLite, for Placement 16 does not work on PostgreSQL with psycopg 3: it reads ``lastrowid``, which
that cursor lacks, and asks for total usages by a column that is in no GROUP BY.
"""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.placement.states import RULES

HERE = Path(__file__).parent
#: Seconds until a server listens: it makes all tables before.
START_SECONDS = 120.0
STOP_SECONDS = 10.0
#: Requests at a time of one server; the tests make one.
THREADS = 4

_CONF = """\
[DEFAULT]
log_file = placement.log
log_dir = {folder}
[api]
auth_strategy = noauth2
[placement_database]
connection = {database}
sqlite_synchronous = false
sync_on_startup = true
[oslo_policy]
enforce_new_defaults = {secure}
policy_file = {folder}/policy.yaml
"""
#: One that checks capacity while it makes combinations, instead of after it.
OPTIMISED = """\
[workarounds]
optimize_for_wide_provider_trees = true
"""
_CORS = """\
[cors]
allowed_origin = http://valid.example.com
allow_headers = openstack-api-version
"""


class RealError(Exception):
    """Placement is not installed, or does not come up; the message says what to do."""


def look_up(python: Path) -> tuple[str, Path]:
    """Placement's version, and the folder of its files of tests.

    :param python: that of the environment which has it
    :raises RealError: it does not
    """
    code = (
        'import importlib.metadata, importlib.util\n'
        'print(importlib.metadata.version("openstack-placement"))\n'
        'print(importlib.util.find_spec("placement").submodule_search_locations[0])\n'
    )
    try:
        process = subprocess.run(
            [python, '-c', code], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as e:
        raise RealError(f'{python}: no openstack-placement there; "make venv-placement"') from e
    version, where = process.stdout.split('\n')[:2]
    return version, Path(where) / 'tests' / 'functional' / 'gabbits'


def _start(
    python: Path, folder: Path, rules: str, database: str, more: str, threads: int
) -> subprocess.Popen:
    folder.mkdir()
    text = _CONF.format(
        folder=folder,
        database=database or f'sqlite:///{folder}/placement.db',
        secure=str(rules == 'secure').lower(),
    )
    (folder / 'placement.conf').write_text(text + (_CORS if rules == 'cors' else '') + more)
    if rules == 'open':
        (folder / 'open').touch()
    with open(folder / 'output', 'wb') as output:
        return subprocess.Popen(
            # On SQLite one at a time: it refuses a second writer that has read before.
            [python, HERE / 'real_side' / 'serve.py', folder, str(threads if database else 1)],
            env=os.environ | {'PYTHONWARNINGS': 'ignore'},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )


def _url(process: subprocess.Popen, folder: Path) -> str:
    """Where it listens, once it does.

    :raises RealError: it ended before, or takes too long
    """
    end = time.monotonic() + START_SECONDS
    while not (folder / 'port').exists():
        if process.poll() is not None or time.monotonic() > end:
            tail = (folder / 'output').read_text(errors='replace')[-3000:]
            raise RealError(f'Placement does not come up within {START_SECONDS:.0f} s: {tail}')
        time.sleep(0.1)
    return f'http://127.0.0.1:{(folder / "port").read_text()}'


def _stop(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()


@contextlib.contextmanager
def servers(
    python: Path,
    needed: Iterable[str] = RULES,
    database: str = '',
    more: str = '',
    threads: int = THREADS,
) -> Iterator[dict[str, str]]:
    """Configuration -> URL of a Placement that has it; all are gone at the end.

    :param database: URL of the one database of all of them; empty: a file for each
    :param more: sections of the configuration
    :param threads: requests at a time
    :raises RealError: one of them does not come up
    """
    rules = list(needed)
    with tempfile.TemporaryDirectory(prefix='gantt-placement-') as root:
        processes: list[subprocess.Popen] = []
        try:
            for name in rules:
                processes.append(_start(python, Path(root) / name, name, database, more, threads))
            yield {
                name: _url(process, Path(root) / name)
                for name, process in zip(rules, processes, strict=True)
            }
        finally:
            _stop(processes)
