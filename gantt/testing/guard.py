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
FORBIDDEN_EVENTS = (
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
_FORBIDDEN_MODULES = frozenset({'time', 'posix', 'nt', '_socket', 'select'})
_ALLOWED_FUNCTIONS = frozenset({'fspath'})
_CLOCK_METHODS = frozenset({'now', 'utcnow', 'today'})

_thread_state = threading.local()
_install_lock = threading.Lock()
_hooks_installed: list[bool] = []


class OutsideAccess(BaseException):
    """Access to the outside under a guard; no Exception: no plugin's own handler may swallow it.

    :ivar reached: the event or function of Python
    """

    def __init__(self, reached: str) -> None:
        super().__init__(
            f'reached {reached} under the guard; expected only the arguments of the call to be '
            'used: no file, network, process, import, clock or environment'
        )
        self.reached = reached


def _raise_outside(reached: str) -> None:
    _thread_state.reached = reached
    raise OutsideAccess(reached)


def _audit_hook(event: str, args: tuple) -> None:
    if getattr(_thread_state, 'is_active', False) and event.startswith(FORBIDDEN_EVENTS):
        _raise_outside(f'{event} {args!r:.80}')


def _profile_hook(frame: FrameType, event: str, function: Any) -> None:
    if not getattr(_thread_state, 'is_active', False):
        return
    if event == 'call' and frame.f_globals.get('__name__') == 'os':
        _raise_outside(f'os: {frame.f_code.co_name}')
    elif event == 'c_call':
        name, owner = function.__name__, getattr(function, '__self__', None)
        threads = function.__module__ == '_thread' and name.startswith('start_')
        if threads or (
            function.__module__ in _FORBIDDEN_MODULES and name not in _ALLOWED_FUNCTIONS
        ):
            _raise_outside(f'{function.__module__}.{name}')
        if name in _CLOCK_METHODS and isinstance(owner, type) and issubclass(owner, datetime.date):
            _raise_outside(f'{owner.__name__}.{name}')


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Raise :class:`OutsideAccess` at whatever this thread does with the outside world."""
    with _install_lock:
        if not _hooks_installed:
            sys.addaudithook(_audit_hook)
            _hooks_installed.append(True)
    before, collects = sys.getprofile(), gc.isenabled()
    # What others left behind may close files and sockets as it goes.
    gc.disable()
    _thread_state.is_active = True
    _thread_state.reached = ''
    sys.setprofile(_profile_hook)
    try:
        yield
    finally:
        _thread_state.is_active = False
        sys.setprofile(before)
        if collects:
            gc.enable()
    if _thread_state.reached:  # somebody caught all that there is
        raise OutsideAccess(_thread_state.reached)
