# SPDX-License-Identifier: Apache-2.0
"""Options, one module per group.

Each module has ``register_opts(conf)`` and ``list_opts()``.  The configuration
object is always passed in; only ``gantt.cmd`` and ``gantt.wsgi`` touch the
global one (oslo.messaging registers some of its own groups only there).
"""

import importlib
from typing import Any

#: Modules of this package, in the order of the sample file.
MODULES = (
    'base',
    'scheduler',
    'filters',
    'claims',
    'decisions',
    'rpc',
    'database',
    'api',
    'compute',
    'nova_source',
    'report_source',
    'shadow',
    'audit_trail',
    'security',
    'quotas',
)


def register_opts(conf: Any) -> None:
    """Register every option of Gantt on ``conf``."""
    for name in MODULES:
        importlib.import_module(f'gantt.conf.{name}').register_opts(conf)
