# SPDX-License-Identifier: Apache-2.0
"""A guard under which this thread may read, write or query nothing.

Python's audit hooks stay for the life of the process: there is one, and it acts
only under a guard.  What has no audit event (the clock, the environment,
whether a file is there) is seen as the call of a function.
"""

import contextlib
import datetime
import gc
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy.ma  # noqa: F401  numpy itself imports it at first use

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
#: Modules written in C whose functions reach outside, and those of them that do not.
_MODULES = frozenset({'time', 'posix', 'nt', '_socket', 'select'})
_HARMLESS = frozenset({'fspath'})
_CLOCKS = frozenset({'now', 'utcnow', 'today'})

_here = threading.local()
_installed = threading.Lock()
_done: list[bool] = []


class Outside(BaseException):
    """Access to the outside under a guard; no Exception: no plugin's own handler may swallow it."""


def _stop(what: str) -> None:
    _here.seen = what
    raise Outside(what)


def _hook(event: str, args: tuple) -> None:
    if getattr(_here, 'standing', False) and event.startswith(OUTSIDE):
        _stop(f'{event} {args!r:.80}')


def _profile(frame: FrameType, event: str, called: Any) -> None:
    if not getattr(_here, 'standing', False):
        return
    if event == 'call' and frame.f_globals.get('__name__') == 'os':
        _stop(f'os: {frame.f_code.co_name}')
    elif event == 'c_call':
        name, owner = called.__name__, getattr(called, '__self__', None)
        threads = called.__module__ == '_thread' and name.startswith('start_')
        if threads or (called.__module__ in _MODULES and name not in _HARMLESS):
            _stop(f'{called.__module__}.{name}')
        if name in _CLOCKS and isinstance(owner, type) and issubclass(owner, datetime.date):
            _stop(f'{owner.__name__}.{name}')


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Raise :class:`Outside` at whatever this thread does with the outside world."""
    with _installed:
        if not _done:
            sys.addaudithook(_hook)
            _done.append(True)
    before, collects = sys.getprofile(), gc.isenabled()
    # What others left behind may close files and sockets as it goes.
    gc.disable()
    _here.standing, _here.seen = True, ''
    sys.setprofile(_profile)
    try:
        yield
    finally:
        _here.standing = False
        sys.setprofile(before)
        if collects:
            gc.enable()
    if _here.seen:  # somebody caught all that there is
        raise Outside(_here.seen)
