# SPDX-License-Identifier: Apache-2.0
"""All options for oslo.config's generator and validator."""

import importlib
from typing import Any

from gantt import conf


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """(group, options) pairs of every module."""
    found = []
    for name in conf.MODULES:
        found.extend(importlib.import_module(f'gantt.conf.{name}').list_opts())
    return found
