# SPDX-License-Identifier: Apache-2.0
"""Decides for random clouds while nothing may be read, written or asked.

Run as a process of its own, since an audit hook stays for ever:

    python -m tests.properties.no_io FIRST_SEED COUNT [PLUGIN]

PLUGIN is a filter of ``BAD``, put before the others.  Exit code 3 and one line
where somebody did what is not allowed.
"""

import os
import random
import socket
import sys

from gantt import plugins
from gantt.core.filters.base import PerHostFilter
from gantt.core.pipeline import Pipeline, place
from tests.properties import clouds

#: Audit events of Python that mean the outside world, by prefix.
OUTSIDE = (
    'open', 'os.', 'socket.', 'subprocess.', 'shutil.', 'tempfile.', 'urllib.', 'sqlite3.',
    'import', 'glob.', 'ctypes.', 'mmap.', 'signal.', 'fcntl.',
)  # fmt: skip


class Outside(BaseException):
    """Not an Exception: no plugin's own handler may swallow it."""


class ReadsAFile(PerHostFilter):
    """Looks something up on the disk."""

    def host_passes(self, host, spec):
        return bool(open('/etc/hostname').close) or True


class AsksAServer(PerHostFilter):
    """Looks something up in the network."""

    def host_passes(self, host, spec):
        with socket.socket() as asking:
            return asking.connect_ex(('127.0.0.1', 9)) != 0


class LooksAround(PerHostFilter):
    """Decides by what lies about."""

    def host_passes(self, host, spec):
        return bool(os.listdir('/')) or True


BAD = {cls.__name__: cls for cls in (ReadsAFile, AsksAServer, LooksAround)}


def main(first: int, count: int, plugin: str = '') -> int:
    """Decide ``count`` random cases under guard."""
    watching = False

    def guard(event: str, args: tuple) -> None:
        if watching and event.startswith(OUTSIDE):
            raise Outside(f'{event} {args!r:.80}')

    sys.addaudithook(guard)
    usual = plugins.load_pipeline()
    pipeline = Pipeline([BAD[plugin](), *usual.filters], usual.weighers) if plugin else usual
    cases = []
    for seed in range(first, first + count):
        rng = random.Random(seed)
        cases.append((clouds.a_table(clouds.a_cloud(rng)), clouds.a_random_request(rng)))
    outcomes = set()
    # Once for what Python itself looks up at first use, then for good.
    for watching in (False, True):
        for number, (table, request) in enumerate(cases):
            try:
                made = place(table.copy(), request, pipeline, seed=number, decision_id='d')
            except Outside as e:
                watching = False
                print(f'{plugin or "the default set"}: {e}')
                return 3
            outcomes.add(made.outcome)
    watching = False
    print(f'{count} decisions, outcomes {", ".join(sorted(outcomes))}')
    return 0


if __name__ == '__main__':
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
