# SPDX-License-Identifier: Apache-2.0
"""A solver in a process of its own: what becomes of that is an answer, whatever it is.

A solver may take all memory that there is, and it is not ours to end by an exception.  It is begun
when it is needed first, or by ``start``, and again after it has ended.
"""

import contextlib
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
from gantt.solver.frames import LENGTH, MODEL, SOLVE

LOG = logging.getLogger(__name__)

#: What a call may take beyond the time that was given: to be sent, and to be answered.
GRACE_SECONDS = 3.0
#: What it may take to begin, from when it was begun.
START_SECONDS = 30.0
#: What the system may take to end it.
_KILL_SECONDS = 5.0
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
        self._begun_at: float | None = None  # of one that has not said that it is ready
        self._sent: Model | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin it, so that the first call need not wait for that."""
        with self._lock:
            self._ready()

    def stop(self) -> None:
        """End it, and with it the call under way."""
        child = self._child
        if child is not None:
            child.kill()
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
                if self._begun_at is not None:
                    self._received(child, self._begun_at + START_SECONDS)
                    self._begun_at, end = None, max(end, time.monotonic() + seconds)
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
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._child.stdin is not None, 'it was made with one'
        os.set_blocking(self._child.stdin.fileno(), False)
        self._begun_at = time.monotonic()
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
        """
        :raises TimeoutError: it has not taken all of it in time
        """
        late = end + GRACE_SECONDS
        if self._sent is not model:
            self._write(child, pickle.dumps((MODEL, _slim(model)), protocol=5), late)
            self._sent = model
        left = max(end - time.monotonic(), 0.01)
        what = {'goal': goal, 'seconds': left, 'seed': seed, 'hint': hint, 'free': free}
        self._write(child, pickle.dumps((SOLVE, what), protocol=5), late)

    @staticmethod
    def _write(child: 'subprocess.Popen[bytes]', body: bytes, end: float) -> None:
        """One message, piece by piece as there is room in the pipe."""
        assert child.stdin is not None, 'it was made with one'
        number, rest = child.stdin.fileno(), memoryview(LENGTH.pack(len(body)) + body)
        while rest:
            left = end - time.monotonic()
            if left <= 0 or not _is_ready(number, select.POLLOUT, left):
                raise TimeoutError('it did not take the message in time')
            # Others of the machine may have taken the room of all pipes meanwhile.
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(number, rest[:_PIECE]) :]

    def _received(self, child: 'subprocess.Popen[bytes]', end: float) -> bytes:
        """The next answer.

        :raises EOFError: it has ended
        :raises TimeoutError: it has not answered in time
        """
        (size,) = LENGTH.unpack(self._piece(child, LENGTH.size, end))
        return self._piece(child, size, end)

    def _piece(self, child: 'subprocess.Popen[bytes]', size: int, end: float) -> bytes:
        assert child.stdout is not None, 'it was made with one'
        number, found = child.stdout.fileno(), bytearray()
        while len(found) < size:
            left = end - time.monotonic()
            if left <= 0 or not _is_ready(number, select.POLLIN, left):
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
        self._begun_at = None
        if child is None:
            return
        if child.poll() is None:
            child.kill()
        try:
            child.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            LOG.warning('the solver was killed and has not ended yet pid=%s', child.pid)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # what it had not read is of no use


def _is_ready(number: int, event: int, seconds: float) -> bool:
    """Whether a pipe can be written to, or read from, or has ended, within so long."""
    waiting = select.poll()
    waiting.register(number, event)
    return bool(waiting.poll(1000 * seconds))


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
