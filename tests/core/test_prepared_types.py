# SPDX-License-Identifier: Apache-2.0
"""Types are ready before threads use them: else the first of these crash the process."""

import subprocess
import sys

from gantt.core.messages.prepared import prepare_types

BEFORE = """
import contextlib, sys, threading
import msgspec
import gantt.cmd.http_app, gantt.scheduler.service
from gantt.core.messages.prepared import prepare_types
"""
#: Module and name of each type of a message or record that can be decoded.
NAMES = """
waiting = [msgspec.Struct]
while waiting:
    for type_ in waiting.pop().__subclasses__():
        waiting.append(type_)
        if type_.__module__.startswith('gantt.core.') and '.' not in type_.__qualname__:
            with contextlib.suppress(TypeError, NameError):
                msgspec.json.Decoder(type_)
                print(type_.__module__, type_.__name__)
"""
#: Each type is decoded by eight threads at once, its last field first, for the first time.
DECODED = """
THREADS = 8
prepare_types()
types = [getattr(sys.modules[m], n) for m, n in (line.split() for line in sys.stdin)]
sys.setswitchinterval(1e-6)
begin = threading.Barrier(THREADS)

def decode():
    for type_ in types:
        body = msgspec.json.encode(dict.fromkeys(reversed(type_.__struct_encode_fields__)))
        begin.wait()
        with contextlib.suppress(msgspec.MsgspecError):
            msgspec.json.decode(body, type=type_)

threads = [threading.Thread(target=decode) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print('alive')
"""


def printed(script, given=''):
    """Return the output of a process of its own, which has decoded nothing before."""
    process = subprocess.run(
        [sys.executable, '-c', BEFORE + script],
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, (process.returncode, process.stderr[-2000:])
    return process.stdout


def test_threads_decode_types_that_are_prepared():
    names = printed(NAMES)
    assert len(names.splitlines()) > 100
    assert printed(DECODED, names) == 'alive\n'


def test_types_may_be_prepared_again():
    assert prepare_types() <= prepare_types()
