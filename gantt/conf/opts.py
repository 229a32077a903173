# SPDX-License-Identifier: Apache-2.0
"""All options for oslo.config's generator and validator."""

from typing import Any

from gantt import conf


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return (group, options) pairs of every module."""
    options: list[tuple[str | None, list[Any]]] = []
    for module in conf.modules():
        has_more = hasattr(module, 'list_opts')
        options += module.list_opts() if has_more else [(module.GROUP.name, module.OPTS)]
    return options
