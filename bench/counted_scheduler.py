# SPDX-License-Identifier: Apache-2.0
"""``gantt-scheduler`` that counts its objects when it gets SIGUSR1.

A copy of the process counts them, so that the counted process stays as
it was: no memory of its own, and no call that waits.  The copy writes two lines
to standard output: ``ALL`` or ``USED``, then by type how many objects there are
and how many bytes they take, once as it is, and once without unreachable ones,
which only wait for the garbage collector.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import collections
import gc
import itertools
import os
import signal
import sys
import types
from typing import Any

import msgspec
import numpy as np

from gantt.cmd import scheduler

ALL, USED = 'objects by type: ', 'objects in use by type: '
#: For the collection and the second count: what was in no use may end badly in the copy.
USED_SECONDS = 120
#: Types that take fewer bytes are not written.
LEAST_BYTES = 4096
#: Types whose holders are reported too, beside their number.
PLAIN = (bool, bytes, bytearray, dict, float, frozenset, int, list, set, str, tuple)

#: By type: how many objects, how many bytes.
Sizes = dict[str, tuple[int, int]]


def sizes() -> Sizes:
    """Return all objects of this process that the garbage collector can reach, by type.

    Objects that only the functions running just now hold are left out.

    Plain ones and arrays are named with the type of their holder: ``dict in
    gantt.x.Y``, with one of several holders.
    """
    roots = gc.get_objects()
    # A holder comes before what it holds.
    pending = [(item, '') for item in sorted(roots, key=_is_plain, reverse=True)]
    seen = {id(roots), id(pending)}
    counts: collections.Counter[str] = collections.Counter()
    taken: collections.Counter[str] = collections.Counter()
    while pending:
        item, holder = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        name = f'module {item.__name__}' if type(item) is types.ModuleType else _name(type(item))
        if not _is_plain(item):
            holder = name
        elif holder:
            name = f'{name} in {holder}'
        counts[name] += 1
        # A Raw states another size than it has.
        taken[name] += len(item) if type(item) is msgspec.Raw else sys.getsizeof(item, 0)
        pending += zip(_held(item), itertools.repeat(holder))
    return {name: (counts[name], taken[name]) for name in counts}


def _is_plain(value: object) -> bool:
    return type(value) in PLAIN or type(value).__module__ == 'numpy'


def _name(kind: type) -> str:
    home = '' if kind.__module__ == 'builtins' else f'{kind.__module__}.'
    return f'{home}{kind.__qualname__}'


def _held(holder: object) -> list[Any]:
    if type(holder) is np.ndarray:
        return [] if holder.base is None else [holder.base]
    held = gc.get_referents(holder)
    # The holder of a struct that the collector need not track is not reported.
    if not held and issubclass(type(holder), msgspec.Struct):
        held = [getattr(holder, field, None) for field in holder.__struct_fields__]
    return held


def grown(before: Sizes, after: Sizes, used: Sizes, most: int = 10) -> list[dict[str, object]]:
    """Return the types that take more than before, most bytes first.

    :param used: those of ``after`` without objects that wait for the garbage collector
    """
    more = {name: size - before.get(name, (0, 0))[1] for name, (_, size) in after.items()}
    first = sorted((name for name in more if more[name] > 0), key=more.__getitem__, reverse=True)
    return [
        {
            'type': name,
            'more_kb': round(more[name] / 1000, 1),
            'objects': [snapshot.get(name, (0, 0))[0] for snapshot in (before, after)],
            'objects_in_use': used.get(name, (0, 0))[0],
        }
        for name in first[:most]
    ]


def read(log: str, mark: str) -> list[Sizes]:
    """Return the counts so far, from the output of such a process.

    :param mark: ``ALL`` or ``USED``
    """
    return [
        msgspec.json.decode(line.removeprefix(mark), type=Sizes)
        for line in log.splitlines()
        if line.startswith(mark) and line.endswith('}')
    ]


def _count(*_: Any) -> None:
    """Count in a copy of this process; it is never waited for: there are a few of them at most."""
    if os.fork():
        return
    try:
        gc.disable()
        # An object collected here sends nothing on a connection of the first process.
        os.closerange(3, os.sysconf('SC_OPEN_MAX'))
        _write(ALL)
        signal.alarm(USED_SECONDS)
        gc.collect()
        _write(USED)
    finally:
        os._exit(0)


def _write(mark: str) -> None:
    large = {name: size for name, size in sizes().items() if size[1] >= LEAST_BYTES}
    os.write(1, f'\n{mark}{msgspec.json.encode(large).decode()}\n'.encode())


if __name__ == '__main__':
    signal.signal(signal.SIGUSR1, _count)
    sys.exit(scheduler.main())
