# SPDX-License-Identifier: Apache-2.0
"""Numbers that aggregates set for their hosts, beside the options.

The key of the metadata is the option's name.  Of several aggregates of a host the
smallest number counts; where one of them is no number, the option does, whatever
the others say.  The arrays are kept until an aggregate or a membership changes.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gantt.core.columns import BoolArray, FloatArray
from gantt.core.host import Aggregate

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable

#: The keys that are meant to be numbers end so.
SUFFIX = '_weight_multiplier'
#: Multipliers are no larger: sums of many weights stay numbers that can be told apart.
MULTIPLIER_MAX = 1e12
EXPECTED = 'a number from -1e12 to 1e12'
#: Of a value that is told in words no more than this is repeated.
_SHOWN_MAX = 40


def by_key(aggregates: Iterable[Aggregate]) -> dict[str, dict[str, str]]:
    """Metadata as key -> uuid of the aggregate -> value."""
    found: dict[str, dict[str, str]] = {}
    for aggregate in aggregates:
        for key, value in aggregate.metadata.items():
            found.setdefault(key, {})[aggregate.uuid] = value
    return found


def is_usable(value: float) -> bool:
    """Whether weights may be multiplied with it."""
    return -MULTIPLIER_MAX <= value <= MULTIPLIER_MAX


def number(text: str) -> float | None:
    """What a value means; None: it is no number, or none that is usable."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_usable(value) else None


def minimum(hosts: 'HostTable', key: str) -> FloatArray | None:
    """By row the smallest number that aggregates set, NaN where the option counts.

    None where it counts everywhere.  Not to be written to.
    """
    said = hosts.aggregate_metadata.get(key)
    if not said:
        return None
    kept = hosts.minima.get(key)
    if kept is not None and kept[0] == hosts.membership_seq:
        return kept[1]
    found = _minimum(hosts, said)
    hosts.minima[key] = (hosts.membership_seq, found)
    return found


def _minimum(hosts: 'HostTable', said: dict[str, str]) -> FloatArray | None:
    least = np.full(len(hosts), np.inf)
    broken = np.zeros(len(hosts), np.bool_)
    for uuid, text in said.items():
        members = _members(hosts, uuid)
        value = number(text)
        if value is None:
            broken |= members
        else:
            np.minimum(least, value, out=least, where=members)
    least[broken | np.isinf(least)] = np.nan
    return None if np.isnan(least).all() else least


def _members(hosts: 'HostTable', uuid: str) -> BoolArray:
    code = hosts.aggregate_codes.get(uuid)
    if code is None or code >> 6 >= hosts.aggregates.shape[0]:
        return np.zeros(len(hosts), np.bool_)
    return (hosts.aggregates[code >> 6] & np.uint64(1 << (code & 63))) != 0


def problems(aggregates: Iterable[Aggregate]) -> list[str]:
    """What an operator should know: multipliers that are no numbers."""
    return [
        f'aggregate {aggregate.name}: {key} is {value[:_SHOWN_MAX]!r}, expected {EXPECTED}; '
        'its hosts go by the option'
        for aggregate in aggregates
        for key, value in sorted(aggregate.metadata.items())
        if key.endswith(SUFFIX) and number(value) is None
    ]
