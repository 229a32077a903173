# SPDX-License-Identifier: Apache-2.0
"""Locks of starts that may still be under way after their agent was killed.

A command that starts a guest survives the agent that ran it.  The next agent
must not judge the guest while that command runs.  So the command inherits a
locked file, whose lock ends with the last process that holds it: with the
command, however it ends.
"""

import contextlib
import fcntl
import os
import pathlib
import time
from collections.abc import Iterator

POLL_SECONDS = 0.1


class StartLocks:
    """A lock per claim that is being started.

    :param folder: folder of the locks; beside the journal
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def held(self, claim_id: str) -> Iterator[int]:
        """Hold the lock of a claim; yield a descriptor for the command to inherit."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / claim_id
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield lock
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def wait(self, claim_id: str, seconds: float, longest: float) -> bool:
        """Wait up to ``seconds``; return whether the guest of a claim is not being started.

        :param longest: the longest that a start may take; a lock that is held for
            longer is held by the guest itself
        """
        path = self._folder / claim_id
        end = time.monotonic() + seconds
        while not self._is_over(path, longest):
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    @staticmethod
    def _is_over(path: pathlib.Path, longest: float) -> bool:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.time() - os.fstat(lock).st_mtime < longest:
                return False
        finally:
            os.close(lock)
        path.unlink(missing_ok=True)
        return True
