# SPDX-License-Identifier: Apache-2.0
"""Decides for random clouds while nothing may be read, written or asked.

Run as a process of its own, since an audit hook stays for ever:

    python -m tests.properties.no_io FIRST_SEED COUNT [PLUGIN]

PLUGIN is a filter or weigher of ``BAD``, put before the others.  Exit code 3 and
one line where somebody did what is not allowed.  The guard stands from the first
decision on: what is read once and remembered is I/O as well.
"""

import functools
import os
import random
import socket
import subprocess
import sys

import msgspec
import numpy as np
import numpy.ma  # numpy itself imports it at first use

from gantt import plugin_loader
from gantt.core.filters.base import PerHostFilter
from gantt.core.messages.request import Purpose
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import place
from gantt.core.weighers.base import Weigher
from tests.properties import clouds

#: Audit events of Python that mean the outside world, by prefix.
OUTSIDE = (
    'open',
    'os.',
    'socket.',
    'subprocess.',
    'shutil.',
    'tempfile.',
    'urllib.',
    'sqlite3.',
    'import',
    'exec',
    'compile',
    'glob.',
    'ctypes.',
    'mmap.',
    'signal.',
    'fcntl.',
    'time.',
)


class OutsideAccess(BaseException):
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


@functools.cache
def a_setting() -> str:
    """Read at first use, remembered for ever."""
    with open('/etc/hostname') as file:
        return file.read()


class ReadsOnce(PerHostFilter):
    """Looks something up on the disk, but only the first time."""

    def host_passes(self, host, spec):
        return bool(a_setting()) or True


class RunsACommand(PerHostFilter):
    """Asks another program."""

    def host_passes(self, host, spec):
        return subprocess.run(['/bin/true']).returncode == 0


class LoadsCode(PerHostFilter):
    """Imports what it needs when it needs it."""

    def host_passes(self, host, spec):
        import tabnanny

        return bool(tabnanny)


class WeighsByAFile(Weigher):
    """Looks scores up on the disk."""

    def raw(self, hosts, spec, rows):
        return np.full(len(rows), float(len(os.listdir('/'))))


BAD = {
    cls.__name__: cls
    for cls in (
        ReadsAFile,
        ReadsOnce,
        AsksAServer,
        LooksAround,
        RunsACommand,
        LoadsCode,
        WeighsByAFile,
    )
}


def with_bad(usual: Pipeline, plugin: str) -> Pipeline:
    """The default set with one of ``BAD`` before it; '' for none."""
    if not plugin:
        return usual
    bad = BAD[plugin]()
    if isinstance(bad, Weigher):
        return Pipeline(usual.filters, [bad, *usual.weighers])
    return Pipeline([bad, *usual.filters], usual.weighers)


def a_case(seed: int) -> tuple:
    """A table and a request; every purpose comes up."""
    rng = random.Random(seed)
    table, request = clouds.a_table(clouds.a_cloud(rng)), clouds.a_random_request(rng)
    purpose = rng.choice((request.spec.purpose, *Purpose))
    spec = msgspec.structs.replace(request.spec, purpose=purpose)
    return table, msgspec.structs.replace(request, spec=spec)


def main(first: int, count: int, plugin: str = '') -> int:
    """Decide ``count`` random cases under guard."""
    watching = False

    def guard(event: str, args: tuple) -> None:
        if watching and event.startswith(OUTSIDE):
            raise OutsideAccess(f'{event} {args!r:.80}')

    sys.addaudithook(guard)
    pipeline = with_bad(plugin_loader.load_pipeline(), plugin)
    cases = [a_case(seed) for seed in range(first, first + count)]
    outcomes = set()
    watching = True
    for number, (table, request) in enumerate(cases):
        try:
            decision = place(table, request, pipeline, seed=number, decision_id='d')
        except OutsideAccess as e:
            watching = False
            print(f'{plugin or "the default set"}: {e}')
            return 3
        outcomes.add(decision.outcome)
    watching = False
    print(f'{count} decisions, outcomes {", ".join(sorted(outcomes))}')
    return 0


if __name__ == '__main__':
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
