# SPDX-License-Identifier: Apache-2.0
"""The multipliers that aggregates set for their hosts, by row."""

import numpy as np

from gantt.core.table.aggregates import number
from gantt.core.table.columns import BoolArray, FloatArray
from gantt.core.table.host_table import HostTable


def minimum(hosts: HostTable, key: str) -> FloatArray | None:
    """By row the smallest number that aggregates set, NaN where the option counts.

    None where it counts everywhere.  Not to be written to.
    """
    said = hosts.aggregate_metadata.get(key)
    if not said:
        return None
    return hosts.kept.get(('minimum', key), ('aggregates',), lambda: _minimum(hosts, said))


def _minimum(hosts: HostTable, said: dict[str, str]) -> FloatArray | None:
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


def _members(hosts: HostTable, uuid: str) -> BoolArray:
    code = hosts.aggregate_codes.get(uuid)
    if code is None or code >> 6 >= hosts.aggregates.shape[0]:
        return np.zeros(len(hosts), np.bool_)
    return (hosts.aggregates[code >> 6] & np.uint64(1 << (code & 63))) != 0
