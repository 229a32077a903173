# SPDX-License-Identifier: Apache-2.0
"""What weighers by metrics share: their settings, read from one line of text."""

import math
from typing import TYPE_CHECKING

import numpy as np

from gantt import exceptions
from gantt.core.plugin import Plugin
from gantt.core.table.columns import FloatArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

_least, _most = np.minimum.reduce, np.maximum.reduce

#: Names in one setting at most.
NAMES_MAX = 64
#: What is beyond it is as good as this: sums stay numbers, and scales have a length.
SUM_MAX = 1e200


def read(plugin: Plugin, option: str) -> dict[str, float]:
    """``name1=1.0, name2=-0.5`` as name -> ratio.

    :raises PluginError: an entry of another form, a name that is there twice
    """
    found: dict[str, float] = {}
    for entry in getattr(plugin, option).split(','):
        if not entry.strip():
            continue
        name, separator, text = (part.strip() for part in entry.rpartition('='))
        ratio = _number(text)
        if not separator or not name or ratio is None or name in found:
            _refuse(plugin, option, f'expected name=ratio, each name once, got {entry.strip()!r}')
        assert ratio is not None
        found[name] = ratio
    if len(found) > NAMES_MAX:
        _refuse(plugin, option, f'expected {NAMES_MAX} names at most, got {len(found)}')
    return found


def weighted(values: FloatArray, ratio: float) -> FloatArray:
    """Values, which are written over, times a ratio and within what sums stay numbers in."""
    if abs(ratio) > 1.0:
        with np.errstate(over='ignore'):
            np.multiply(values, ratio, out=values)
    elif ratio != 1.0:
        np.multiply(values, ratio, out=values)
    return bounded(values)


def bounded(values: FloatArray) -> FloatArray:
    """Values, which are written over, within what sums stay numbers in."""
    # Mostly they are: to look is less work than to write.
    if not (_least(values) >= -SUM_MAX and _most(values) <= SUM_MAX):
        np.maximum(values, -SUM_MAX, out=values)
        np.minimum(values, SUM_MAX, out=values)
    return values


def limits(hosts: 'HostTable', ratios: dict[str, float]) -> tuple[float | None, float | None]:
    """The least and the most that a sum can be, where all its metrics have declared bounds."""
    low = high = 0.0
    for name, ratio in ratios.items():
        declared = hosts.declared_metrics.get(name)
        if declared is None or declared.lower is None or declared.upper is None:
            return None, None
        ends = (declared.lower * ratio, declared.upper * ratio)
        low, high = low + min(ends), high + max(ends)
    return max(low, -SUM_MAX), min(high, SUM_MAX)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _refuse(plugin: Plugin, option: str, problem: str) -> None:
    raise exceptions.PluginError(
        plugin=plugin.name,
        option=option,
        problem=f'option {option}: {problem}',
        fix='Set it accordingly',
    )
