# SPDX-License-Identifier: Apache-2.0
"""Types of messages and records, made ready before threads use them.

msgspec learns what fields a type has when it is decoded first.  Until it has learnt all of them the
type is there half-made, for other threads too: one that decodes it meanwhile crashes the process.
"""

import contextlib

import msgspec


def prepare_types() -> int:
    """Make all types ready that are imported by now; how many there are.

    Once in each process, before its threads are started.
    """
    seen: set[type] = set()
    waiting: list[type] = [msgspec.Struct]
    while waiting:
        below: list[type] = waiting.pop().__subclasses__()
        for found in below:
            if found in seen:
                continue
            seen.add(found)
            waiting.append(found)
            # What has a field that cannot be decoded is decoded by no thread.
            with contextlib.suppress(TypeError, NameError):
                msgspec.msgpack.Decoder(found)
    return len(seen)
