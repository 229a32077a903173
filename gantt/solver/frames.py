# SPDX-License-Identifier: Apache-2.0
"""Messages between the solver's process and its parent: a length, then so many bytes."""

import struct
from typing import IO

#: Kinds of messages: a model, and a request to solve the last one.
MODEL, SOLVE = 'model', 'solve'
LENGTH = struct.Struct('>Q')


def write(to: IO[bytes], body: bytes) -> None:
    """Send one message."""
    to.write(LENGTH.pack(len(body)))
    to.write(body)
    to.flush()


def read(source: IO[bytes]) -> bytes | None:
    """Return the next message; None where there are no more."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = source.read(size)
    return body if len(body) == size else None
