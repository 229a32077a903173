# SPDX-License-Identifier: Apache-2.0
"""Preparation of the types of messages and records before threads use them.

msgspec reads the fields of a type when it is decoded first.  Until it has read all of them the type
is visible half-initialized to other threads: one that decodes it meanwhile crashes the process.
"""

import contextlib

import msgspec


def prepare_types() -> int:
    """Prepare all types that are imported by now; return their number.

    Once in each process, before its threads are started.
    """
    prepared: set[type] = set()
    waiting: list[type] = [msgspec.Struct]
    while waiting:
        below: list[type] = waiting.pop().__subclasses__()
        for struct in below:
            if struct in prepared:
                continue
            prepared.add(struct)
            waiting.append(struct)
            # A type with a field that cannot be decoded is decoded by no thread.
            with contextlib.suppress(TypeError, NameError):
                msgspec.msgpack.Decoder(struct)
    return len(prepared)
