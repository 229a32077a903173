# SPDX-License-Identifier: Apache-2.0
"""Processes of ours that begin with everything imported, which is most of the time of a start.

    made = warm.Rig(database, broker, folder, options)     # as one of bench/rig.py
    life = warm.PROCESSES.Process(target=..., daemon=True)
    done = warm.run('gantt.cmd.manage', '--config-file', path, 'audit')

Each is forked from a server of the process that runs tests, which has opened nothing.  How a
command starts from nothing is shown where a plain rig is used, as in ``tests/functional``.
"""

import atexit
import importlib
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait

from bench import rig

PROCESSES = multiprocessing.get_context('forkserver')
# The program too: each of them would read it anew.
PROCESSES.set_forkserver_preload(
    [
        '__main__',
        *(module for module in rig.COMMANDS.values() if module.startswith('gantt.')),
        'tests.nemesis.mortal',
        'tests.zones.tree',
    ]
)


class Started:
    """A running command: the part of ``subprocess.Popen`` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        out: pathlib.Path,
        error: pathlib.Path,
        environment: Mapping[str, str],
    ) -> None:
        self.args = arguments
        files = (str(out), str(error))
        self._process = PROCESSES.Process(
            target=_run, args=(arguments, files, dict(environment), os.getcwd()), daemon=True
        )
        self._process.start()
        self.pid: int = self._process.pid
        self._asked = threading.Lock()

    @property
    def returncode(self) -> int | None:
        """Exit code at the last check."""
        return self.poll()

    def poll(self) -> int | None:
        """Return the exit code, below 0 that of a signal; None: it runs."""
        with self._asked:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code.

        :raises TimeoutExpired: it has not
        """
        wait([self._process.sentinel], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it to one that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: Sequence[str], files: Sequence[str], environment: Mapping[str, str], folder: str
) -> None:
    """Run the command in the process, as if it had been started as one."""
    # As in any process, one of its own is a plain fork of it; a supervisor has such.
    multiprocessing.current_process()._config['daemon'] = False
    multiprocessing.set_start_method('fork', force=True)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(files, 1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    module = importlib.import_module(arguments[0])
    sys.argv = [str(module.__file__), *arguments[1:]]
    try:
        sys.exit(module.main())
    finally:
        # No process of multiprocessing does these.
        threading._shutdown()
        atexit._run_exitfuncs()


def run(
    module: str,
    *words: object,
    seconds: float = 110.0,
    environment: Mapping[str, str] | None = None,
) -> 'subprocess.CompletedProcess[str]':
    """Run a command of ours to its end, as ``subprocess.run`` does with what it prints.

    :param environment: variables that it has beside those of this process
    :raises TimeoutExpired: it did not end
    """
    arguments = [module, *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        out, error = pathlib.Path(folder, 'out'), pathlib.Path(folder, 'error')
        process = Started(arguments, out, error, {**os.environ, **(environment or {})})
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, out.read_text(), error.read_text())


class Rig(rig.Rig):
    """A rig whose processes are forked from a warm one, where they run this tree's code."""

    def run(self, command: str, *words: str, seconds: float = 120) -> str:
        """Run a command as a plain rig does."""
        if self.tree is not None:
            return super().run(command, *words, seconds=seconds)
        process = run(*self._words(command, words), seconds=seconds)
        if process.returncode:
            output = process.stdout + process.stderr
            raise RuntimeError(f'{command} {" ".join(words)}: {output}')
        return process.stdout

    def start(self, name: str, command: str, *words: str) -> 'subprocess.Popen[bytes] | Started':
        """Start a process as a plain rig does."""
        if self.tree is not None:
            return super().start(name, command, *words)
        log = self.folder / f'{name}.log'
        started = Started(self._words(command, words), log, log, os.environ)
        self.processes[name] = started
        return started

    def _words(self, command: str, words: Sequence[str]) -> list[str]:
        return [rig.COMMANDS[command], '--config-file', str(self.config), *words]
