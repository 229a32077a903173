# SPDX-License-Identifier: Apache-2.0
"""Nothing may be read, written or asked while the guard stands; in this thread.

Python's audit hooks stay for the life of the process: there is one, and it looks
only where a guard stands.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator

import numpy.ma  # noqa: F401  numpy itself imports it at first use

#: Audit events of Python that mean the outside world, by prefix.
OUTSIDE = (
    'open', 'os.', 'socket.', 'subprocess.', 'shutil.', 'tempfile.', 'urllib.', 'sqlite3.',
    'import', 'exec', 'compile', 'glob.', 'ctypes.', 'mmap.', 'signal.', 'fcntl.', 'time.',
)  # fmt: skip

_here = threading.local()
_installed = threading.Lock()
_done: list[bool] = []


class Outside(BaseException):
    """Not an Exception: no plugin's own handler may swallow it."""


def _hook(event: str, args: tuple) -> None:
    if getattr(_here, 'standing', False) and event.startswith(OUTSIDE):
        raise Outside(f'{event} {args!r:.80}')


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Raise :class:`Outside` at whatever this thread does with the outside world."""
    with _installed:
        if not _done:
            sys.addaudithook(_hook)
            _done.append(True)
    _here.standing = True
    try:
        yield
    finally:
        _here.standing = False
