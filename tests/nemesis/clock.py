# SPDX-License-Identifier: Apache-2.0
"""A clock that is wrong, and steps, for real processes.

    clock = Clock(folder)
    site.start('one', environment=clock.environment)
    clock.set(-12 * 3600)       # at once, for every process that has it

libfaketime cannot be used: with it Python's ``time.sleep`` fails as soon as only
the time of day is to be wrong.
"""

import pathlib
import shutil
import struct
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).with_suffix('.c')


class Clock:
    """One wrong clock; any number of processes may have it."""

    def __init__(self, folder: pathlib.Path) -> None:
        compiler = shutil.which('cc') or shutil.which('gcc')
        if compiler is None or not sys.platform.startswith('linux'):
            pytest.skip('NO C COMPILER: the wrong clock is made by cc on Linux; install gcc')
        library, self._file = folder / 'clock.so', folder / 'clock'
        subprocess.run(
            [compiler, '-shared', '-fPIC', '-O1', '-o', str(library), str(SOURCE)],
            check=True,
            timeout=60,
        )
        self._file.write_bytes(bytes(8))
        self.environment = {'LD_PRELOAD': str(library), 'GANTT_TEST_CLOCK': str(self._file)}

    def set(self, seconds: int) -> None:
        """Ahead of the right time by so much; below 0: behind it."""
        with self._file.open('r+b') as file:
            file.write(struct.pack('=q', seconds))
