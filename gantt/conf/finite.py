# SPDX-License-Identifier: Apache-2.0
"""Options that are numbers have finite ones.

A number that is none (``nan``) is neither below a minimum nor above a maximum, so the
library that reads the files lets it pass.
"""

import math
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from gantt import exceptions


def check(conf: Any) -> None:
    """Check all options.  :raises Misconfigured: an option is no finite number; names it"""
    for name in conf:
        value = _value(conf, name)
        if not isinstance(value, Mapping):
            _check(name, value)
            continue
        for member in value:
            _check(f'[{name}] {member}', _value(value, member))


def _value(of: Any, name: str) -> Any:
    try:
        return of[name]
    except cfg.Error:
        return None  # who asks for it is told


def _check(option: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, member in value.items():
            _check(f'{option} {key}', member)
    if isinstance(value, float) and not math.isfinite(value):
        raise exceptions.Misconfigured(
            option=option, problem=f'expected a finite number, got {value}', fix='Correct it'
        )
