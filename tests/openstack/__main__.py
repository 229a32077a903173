# SPDX-License-Identifier: Apache-2.0
"""Bring the cloud up, take all steps, say what passed; 0 when all did.

``python -m tests.openstack --gantt .venv/bin [STEP ...]``
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.openstack import (
    access,
    asking,
    boots,
    compared,
    deletes,
    files,
    moves,
    plans,
    zones,
)
from tests.openstack.cloud import Cloud, Trouble
from tests.openstack.trial import Trial

Step = Callable[[Trial], str]
STEPS: tuple[Step, ...] = (
    *boots.STEPS,
    *deletes.STEPS,
    *moves.STEPS,
    *plans.STEPS,
    *access.STEPS,
    *zones.STEPS,
    *moves.LAST,
    *compared.STEPS,
)


def up(cloud: Cloud) -> Trial:
    """Everything but nova-scheduler, in the order of the guides."""
    cloud.write()
    cloud.make()
    cloud.up_identity()
    asking.prepare(asking.User(cloud.keystone), cloud.ports)
    cloud.up_images()
    cloud.up_placement()
    cloud.up_nova()
    cloud.read_cells()
    cloud.gantt_command('gantt-manage', 'config', 'check', fails=True)
    cloud.gantt_command('gantt-manage', 'db', 'sync')
    cloud.up_gantt('gantt-scheduler', 'gantt-planner', 'gantt-api', 'gantt-nova-source')
    cloud.wait_port('gantt')
    trial = Trial(cloud)
    trial.prepare()
    return trial


def take(trial: Trial, step: Step) -> bool:
    """One step, and no server of it is left; whether it passed."""
    began = time.monotonic()
    try:
        outcome = step(trial)
        trial.delete_all()
        passed = True
    except Trouble as e:
        outcome, passed = str(e), False
    except Exception:
        outcome, passed = traceback.format_exc(), False
    if not passed:
        trial.sweep()
    took = time.monotonic() - began
    print(
        f'{"passed" if passed else "FAILED"}  {took:5.1f} s  {step.__doc__}\n'
        f'                 {outcome}',
        flush=True,
    )
    return passed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument('--gantt', type=Path, required=True, help="folder of Gantt's commands")
    parser.add_argument('--port', type=int, default=18700, help='the first of ten ports')
    parser.add_argument('--root', type=Path, help='folder for files and logs')
    parser.add_argument('--keep', action='store_true', help='leave it running')
    parser.add_argument('steps', nargs='*', help='their names; all of them where none is given')
    given = parser.parse_args()
    root = given.root or Path(tempfile.mkdtemp(prefix='gantt-openstack-'))
    cloud = Cloud(root, given.port, given.gantt.resolve(), f'gantt_os_{os.getpid()}')
    print(f'files and logs: {root}; hosts: {", ".join(files.HOSTS)}', flush=True)
    steps = [step for step in STEPS if not given.steps or step.__name__ in given.steps]
    failed = len(steps)
    try:
        trial = up(cloud)
        failed -= sum([take(trial, step) for step in steps])
    finally:
        if not given.keep:
            cloud.down()
    print(f'{len(steps) - failed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
