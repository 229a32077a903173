# SPDX-License-Identifier: Apache-2.0
"""Solver in a process of its own, whose end in any way is an answer.

A solver may take all memory, and an exception cannot end it.  It is started when it is first
needed, or by ``start``, and again after it has ended.

Messages between the two: a length, then so many bytes.
"""

import contextlib
import logging
import os
import pickle  # nosec B403 # from our own child alone
import select
import struct
import subprocess  # nosec B404 # of our own module
import sys
import threading
import time
from typing import IO

import msgspec
import numpy as np

from gantt.groups.model.model import Counts, Model, SolverGoal, SolverResult

#: Kinds of messages: a model, and a request to solve the last one.
MODEL, SOLVE = 'model', 'solve'
LENGTH_PREFIX = struct.Struct('>Q')


def write(to: IO[bytes], body: bytes) -> None:
    """Send one message."""
    to.write(LENGTH_PREFIX.pack(len(body)))
    to.write(body)
    to.flush()


def read(source: IO[bytes]) -> bytes | None:
    """Return the next message; None where there are no more."""
    head = source.read(LENGTH_PREFIX.size)
    if len(head) < LENGTH_PREFIX.size:
        return None
    (size,) = LENGTH_PREFIX.unpack(head)
    body = source.read(size)
    return body if len(body) == size else None


LOG = logging.getLogger(__name__)

#: Seconds that a call may take beyond its time: to be sent, and to be answered.
GRACE_SECONDS = 3.0
#: Seconds that the process may take to start.
START_SECONDS = 30.0
#: Seconds that the system may take to end it.
_KILL_SECONDS = 5.0
_READ_BYTES = 1 << 20


class SolverProcess:
    """Solver process; see the module docstring.  One call at a time.

    :param memory_mb: memory that it may have, in MiB
    :param nice: nice value, by which it gives way to other processes
    """

    def __init__(self, memory_mb: int = 2048, nice: int = 0) -> None:
        self._arguments = [str(memory_mb), str(nice)]
        self._memory_mb = memory_mb
        self._child: subprocess.Popen[bytes] | None = None
        self._begun_at: float | None = None  # while it has not reported that it is ready
        self._sent_model: Model | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process, so that the first call need not wait for that."""
        with self._lock:
            self._ready_child()

    def stop(self) -> None:
        """End the process, and with it the call under way."""
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._kill_child()

    @property
    def pid(self) -> int | None:
        """Process id; None: there is no process."""
        return None if self._child is None else self._child.pid

    def solve(
        self,
        model: Model,
        goal: SolverGoal,
        *,
        seconds: float,
        seed: int,
        hint: Counts | None = None,
    ) -> SolverResult:
        """Solve a model; see the port.  ``problem`` is set where the process ended."""
        with self._lock:
            end = time.monotonic() + seconds
            try:
                child = self._ready_child()
                if self._begun_at is not None:
                    self._receive(child, self._begun_at + START_SECONDS)
                    self._begun_at, end = None, max(end, time.monotonic() + seconds)
                self._send(child, model, goal, end, seed, hint)
                body = self._receive(child, end + GRACE_SECONDS)
                result = pickle.loads(body)  # nosec B301 # from our own child alone
            except (OSError, EOFError) as e:
                return SolverResult('unknown', problem=self._end_with_error(e))
            assert isinstance(result, SolverResult), 'it answers nothing else'
            return result

    # -- inside ----------------------------------------------------------------------------
    def _ready_child(self) -> 'subprocess.Popen[bytes]':
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._kill_child()
        command = [sys.executable, '-m', 'gantt.groups.solver.child', *self._arguments]
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
    ) -> None:
        """Send a model and a request.

        :raises TimeoutError: it has not taken all of it in time
        """
        write_end = end + GRACE_SECONDS
        if self._sent_model is not model:
            self._write(child, pickle.dumps((MODEL, _without_source(model)), protocol=5), write_end)
            self._sent_model = model
        seconds_left = max(end - time.monotonic(), 0.01)
        request = {'goal': goal, 'seconds': seconds_left, 'seed': seed, 'hint': hint}
        self._write(child, pickle.dumps((SOLVE, request), protocol=5), write_end)

    @staticmethod
    def _write(child: 'subprocess.Popen[bytes]', body: bytes, end: float) -> None:
        """Write one message, piece by piece as there is room in the pipe."""
        assert child.stdin is not None, 'it was made with one'
        number, unsent = child.stdin.fileno(), memoryview(LENGTH_PREFIX.pack(len(body)) + body)
        while unsent:
            seconds_left = end - time.monotonic()
            if seconds_left <= 0 or not _wait_for_pipe(number, select.POLLOUT, seconds_left):
                raise TimeoutError('it did not take the message in time')
            # Other processes may have used up the system's pipe buffers meanwhile.
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[os.write(number, unsent[:_READ_BYTES]) :]

    def _receive(self, child: 'subprocess.Popen[bytes]', end: float) -> bytes:
        """Return the next answer.

        :raises EOFError: it has ended
        :raises TimeoutError: it has not answered in time
        """
        (size,) = LENGTH_PREFIX.unpack(self._read_piece(child, LENGTH_PREFIX.size, end))
        return self._read_piece(child, size, end)

    def _read_piece(self, child: 'subprocess.Popen[bytes]', size: int, end: float) -> bytes:
        assert child.stdout is not None, 'it was made with one'
        number, received = child.stdout.fileno(), bytearray()
        while len(received) < size:
            # What is there already is read, however late: it may have begun long ago.
            seconds_left = max(0.0, end - time.monotonic())
            if not _wait_for_pipe(number, select.POLLIN, seconds_left):
                raise TimeoutError('it did not answer in time')
            piece = os.read(number, min(_READ_BYTES, size - len(received)))
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)

    def _end_with_error(self, error: Exception) -> str:
        """End what is left of the process; return how it ended."""
        child = self._child
        is_late = isinstance(error, TimeoutError)
        code = None
        if child is not None:
            try:
                code = child.wait(0.0 if is_late else 1.0)
            except subprocess.TimeoutExpired:
                code = None
        self._kill_child()
        if is_late or code is None:
            problem = 'the solver did not answer in time, and was ended'
        elif code < 0:
            problem = f'the solver ended by signal {-code}'
        else:
            problem = f'the solver ended with exit code {code}'
        if not is_late:
            problem += f'; it may have {self._memory_mb} MiB of memory'
        LOG.warning('Solver ended without an answer: problem=%s', problem)
        return problem

    def _kill_child(self) -> None:
        child, self._child, self._sent_model = self._child, None, None
        self._begun_at = None
        if child is None:
            return
        if child.poll() is None:
            child.kill()
        try:
            child.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            LOG.warning('Solver was killed and has not ended yet: pid=%s', child.pid)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # anything it had not read is of no use


def _wait_for_pipe(number: int, event: int, seconds: float) -> bool:
    """Return whether a pipe can be written to, or read from, or has ended, within so long."""
    poll = select.poll()
    poll.register(number, event)
    return bool(poll.poll(1000 * seconds))


def _without_source(model: Model) -> Model:
    """Return a model without its source data, which may be much larger."""
    empty = np.zeros(0, np.int64)
    problem = msgspec.structs.replace(
        model.problem,
        names=[],
        entries=empty,
        required=empty,
        kinds=empty,
        choices_of=[],
        choices=[],
        policies=[],
    )
    return msgspec.structs.replace(model, problem=problem)
