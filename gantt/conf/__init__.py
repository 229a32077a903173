# SPDX-License-Identifier: Apache-2.0
"""Options, one module per group.

Each module has a ``GROUP`` and its ``OPTS``, or ``register_opts(conf)`` and ``list_opts()``
where that is not all.  The configuration object is always passed in; only ``gantt.cmd`` and
``gantt.wsgi`` touch the global one (oslo.messaging registers some of its own groups only there).
"""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from oslo_config import cfg

#: Modules of this package, in the order of the sample file.
MODULES = (
    'base',
    'scheduler',
    'filters',
    'claims',
    'planner',
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
    'zones',
)


def modules(names: Iterable[str] = MODULES) -> list[Any]:
    """Return the modules of this package, imported."""
    return [importlib.import_module(f'gantt.conf.{name}') for name in names]


def register_opts(conf: Any, names: Iterable[str] = MODULES) -> None:
    """Register the options of these modules on ``conf``."""
    for module in modules(names):
        if hasattr(module, 'register_opts'):
            module.register_opts(conf)
        else:
            register_group(conf, module.GROUP, module.OPTS)


def register_group(conf: Any, group: cfg.OptGroup, opts: Sequence[cfg.Opt]) -> None:
    """Register the options of a group.

    A configuration copies a group with the very same options in it: what is set in one
    configuration of a process would hold in every other, so each gets a group of its own.
    """
    conf.register_group(cfg.OptGroup(group.name, title=group.title, help=group.help))
    conf.register_opts(opts, group=group.name)
