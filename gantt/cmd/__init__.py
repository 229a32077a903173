# SPDX-License-Identifier: Apache-2.0
"""Entry points; each parses, wires and runs.

The concurrency backend is chosen here and nowhere else: importing
oslo.messaging freezes it, and the default would be eventlet.  Some libraries
import eventlet wherever it is installed, which costs memory, prints a warning
and hooks into fork: here it counts as not installed.
"""

import sys

sys.modules['eventlet'] = None  # type: ignore[assignment]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

#: Exit code: the command line was not understood.
USAGE = 64
