# SPDX-License-Identifier: Apache-2.0
"""Options, one module per group.

Each module has a ``GROUP`` and its ``OPTS``, or ``register_opts(conf)`` and ``list_opts()``
where that is not all.  The configuration object is always passed in; only ``gantt.cmd`` and
``gantt.wsgi`` touch the global one (oslo.messaging registers some of its own groups only there).

Numbers are finite: one that is none (``nan``) is neither below a minimum nor above a maximum, so
that the types of oslo.config let it pass.
"""

import importlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from oslo_config import cfg, types

#: Name -> module, in the order of the sample file; the options of a capability are with it.
MODULES = {
    'base': 'gantt.conf.base',
    'scheduler': 'gantt.conf.scheduler',
    'filters': 'gantt.conf.filters',
    'claims': 'gantt.conf.claims',
    'planner': 'gantt.groups.conf',
    'decisions': 'gantt.conf.decisions',
    'rpc': 'gantt.conf.rpc',
    'database': 'gantt.conf.database',
    'api': 'gantt.conf.api',
    'compute': 'gantt.conf.compute',
    'nova_source': 'gantt.nova.conf',
    'report_source': 'gantt.conf.report_source',
    'shadow': 'gantt.conf.shadow',
    'audit_trail': 'gantt.conf.audit_trail',
    'security': 'gantt.conf.security',
    'quotas': 'gantt.conf.quotas',
    'zones': 'gantt.zones.conf',
}


def modules(names: Iterable[str] = tuple(MODULES)) -> list[Any]:
    """Return the modules of options, imported."""
    return [importlib.import_module(MODULES[name]) for name in names]


def register_opts(conf: Any, names: Iterable[str] = tuple(MODULES)) -> None:
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


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return (group, options) pairs of every module."""
    options: list[tuple[str | None, list[Any]]] = []
    for module in modules():
        has_more = hasattr(module, 'list_opts')
        options += module.list_opts() if has_more else [(module.GROUP.name, module.OPTS)]
    return options


class Finite(types.Float):
    """The type of a finite number."""

    def __call__(self, value: Any) -> int | float | None:
        """Return the number.  :raises ValueError: it is none, infinite, or out of bounds"""
        number = super().__call__(value)
        if number is not None and not math.isfinite(number):
            raise ValueError(f'expected a finite number, got {number}')
        return number


class FloatOpt(cfg.FloatOpt):
    """As in oslo.config, for a finite number."""

    def __init__(
        self, name: str, min: float | None = None, max: float | None = None, **options: Any
    ) -> None:
        super().__init__(name, min=min, max=max, **options)
        self.type = Finite(min, max)
