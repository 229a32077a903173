# SPDX-License-Identifier: Apache-2.0
"""Entry points; each parses, wires and runs.

The concurrency backend is chosen here and nowhere else: importing
oslo.messaging freezes it, and the default would be eventlet.  Some libraries
import eventlet wherever it is installed, which costs memory, prints a warning
and hooks into fork: here it counts as not installed.
"""

import gc
import sys

#: New objects before the garbage collector scans the young ones; of ten such scans one is of
#: the older ones, of ten of those one of all.  Python's own is 700, 10 and 10: a sixth of a start
#: would go into looking at what was just imported.
GC_THRESHOLDS = (20_000, 10, 10)

gc.set_threshold(*GC_THRESHOLDS)

sys.modules['eventlet'] = None  # type: ignore[assignment]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

#: Exit code: the command line was not understood.
USAGE_EXIT_CODE = 64
