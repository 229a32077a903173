# SPDX-License-Identifier: Apache-2.0
"""Process of the solver: ``python -m gantt.groups.solver.child MEMORY_MB NICE``, over its pipes.

Messages come only from the process that started it.
"""

import os
import pickle  # nosec B403 # from our own parent alone
import resource
import signal
import sys
from typing import BinaryIO

from gantt.groups.model.model import Model
from gantt.groups.solver.process import MODEL, read, write

#: Virtual memory that its libraries take before anything is solved.
LIBRARY_MEMORY_MB = 512


def main(memory_mb: int, nice: int) -> int:
    """Solve messages until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal, it is for the parent
    os.nice(max(0, nice - os.nice(0)))  # its parent may give way already
    limit = (memory_mb + LIBRARY_MEMORY_MB) << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from gantt.groups.solver.cp_sat import CpSat  # it takes a second

    try:
        return _serve(CpSat(), sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:  # the parent has ended, or closed the pipe
        os._exit(0)  # output that Python would still flush has no reader either


def _serve(solver: object, calls: BinaryIO, answers: BinaryIO) -> int:
    model: Model | None = None
    write(answers, b'')  # it has started
    while (body := read(calls)) is not None:
        kind, value = pickle.loads(body)  # nosec B301 # from our own parent alone
        if kind == MODEL:
            model = value
            continue
        write(answers, pickle.dumps(solver.solve(model, **value), protocol=5))  # type: ignore[attr-defined]
    return 0


if __name__ == '__main__':
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
