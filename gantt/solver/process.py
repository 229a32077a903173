# SPDX-License-Identifier: Apache-2.0
"""A solver in a process of its own: what becomes of that is an answer, whatever it is.

A solver may take all memory that there is, and it is not ours to end by an exception.  It is begun
when it is needed first, or by ``start``, and again after it has ended.
"""

import logging
import os
import pickle  # nosec B403 # of our own child alone
import select
import subprocess  # nosec B404 # of our own module
import sys
import threading
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from gantt.core.groups.model import Counts, Model, SolverGoal, SolverResult
from gantt.solver.frames import LENGTH, MODEL, SOLVE, write

LOG = logging.getLogger(__name__)

#: What an answer may take beyond the time that was given.
GRACE_SECONDS = 3.0
#: What it may take to begin.
START_SECONDS = 30.0
_PIECE = 1 << 20


class SolverProcess:
    """See the module docstring; one call at a time.

    :param memory_mb: that it may have, in MiB
    :param nice: by how much it gives way to other processes
    """

    def __init__(self, memory_mb: int = 2048, nice: int = 0) -> None:
        self._arguments = [str(memory_mb), str(nice)]
        self._memory_mb = memory_mb
        self._child: subprocess.Popen[bytes] | None = None
        self._sent: Model | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin it, so that the first call need not wait for that."""
        with self._lock:
            self._ready()

    def stop(self) -> None:
        """End it."""
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        """Of its process; None: there is none."""
        return None if self._child is None else self._child.pid

    def solve(
        self,
        model: Model,
        goal: SolverGoal,
        *,
        seconds: float,
        seed: int,
        hint: Counts | None = None,
        free: Sequence[int] | None = None,
    ) -> SolverResult:
        """As the port has it; ``problem`` says what became of the process where it ended."""
        with self._lock:
            end = time.monotonic() + seconds
            try:
                child = self._ready()
                self._send(child, model, goal, end, seed, hint, free)
                body = self._received(child, end + GRACE_SECONDS)
                found = pickle.loads(body)  # nosec B301 # of our own child alone
            except (OSError, EOFError) as e:
                return SolverResult('unknown', problem=self._ended(e))
            assert isinstance(found, SolverResult), 'it answers nothing else'
            return found

    # -- inside ----------------------------------------------------------------------------
    def _ready(self) -> 'subprocess.Popen[bytes]':
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        command = [sys.executable, '-m', 'gantt.solver.child', *self._arguments]
        self._child = subprocess.Popen(  # nosec B603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._child

    def _send(
        self,
        child: 'subprocess.Popen[bytes]',
        model: Model,
        goal: SolverGoal,
        end: float,
        seed: int,
        hint: Counts | None,
        free: Sequence[int] | None,
    ) -> None:
        assert child.stdin is not None, 'it was made with one'
        if self._sent is not model:
            write(child.stdin, pickle.dumps((MODEL, _slim(model)), protocol=5))
            self._sent = model
        left = max(end - time.monotonic(), 0.01)
        what = {'goal': goal, 'seconds': left, 'seed': seed, 'hint': hint, 'free': free}
        write(child.stdin, pickle.dumps((SOLVE, what), protocol=5))

    def _received(self, child: 'subprocess.Popen[bytes]', end: float) -> bytes:
        """The next answer.

        :raises EOFError: it has ended
        :raises TimeoutError: it has not answered in time
        """
        (size,) = LENGTH.unpack(self._piece(child, LENGTH.size, end + START_SECONDS))
        return self._piece(child, size, end + START_SECONDS)

    def _piece(self, child: 'subprocess.Popen[bytes]', size: int, end: float) -> bytes:
        assert child.stdout is not None, 'it was made with one'
        number, found = child.stdout.fileno(), bytearray()
        while len(found) < size:
            left = end - time.monotonic()
            if left <= 0 or not select.select([number], [], [], left)[0]:
                raise TimeoutError('it did not answer in time')
            piece = os.read(number, min(_PIECE, size - len(found)))
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)

    def _ended(self, error: Exception) -> str:
        """End what is left of it, and say what has become of it."""
        child = self._child
        late = isinstance(error, TimeoutError)
        code = None
        if child is not None:
            try:
                code = child.wait(0.0 if late else 1.0)
            except subprocess.TimeoutExpired:
                code = None
        self._end()
        if late or code is None:
            problem = 'the solver did not answer in time, and was ended'
        elif code < 0:
            problem = f'the solver ended by signal {-code}'
        else:
            problem = f'the solver ended with exit code {code}'
        if not late:
            problem += f'; it may have {self._memory_mb} MiB of memory'
        LOG.warning('%s', problem)
        return problem

    def _end(self) -> None:
        child, self._child, self._sent = self._child, None, None
        if child is None:
            return
        if child.poll() is None:
            child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # what it had not read is of no use


def _slim(model: Model) -> Model:
    """A model without what it was made from, which may be much larger."""
    none = np.zeros(0, np.int64)
    problem = msgspec.structs.replace(
        model.problem,
        names=[],
        entries=none,
        required=none,
        kinds=none,
        choices_of=[],
        choices=[],
        policies=[],
    )
    return msgspec.structs.replace(model, problem=problem)
