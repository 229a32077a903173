# SPDX-License-Identifier: Apache-2.0
"""Metadata of aggregates as filters read it, for all hosts at once.

A question is evaluated once per aggregate and carried over to its hosts by the bits of their
aggregates.  Values of one key over all aggregates of a host count together, as in Nova: match-style
keys are split at commas, limits are whole numbers of which the least counts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from gantt.core.filters.base import has_any
from gantt.core.resources.host import Aggregate
from gantt.core.table.columns import BoolArray, FloatArray, IntArray, words_of
from gantt.core.table.host_table import HostTable

N = TypeVar('N', int, float)


def split(text: str) -> list[str]:
    """Return the values of a match-style key: parts between commas, without spaces around."""
    return [part.strip() for part in text.split(',')]


def inside(hosts: HostTable, aggregates: Iterable[Aggregate]) -> BoolArray:
    """Return which hosts are in one of the aggregates."""
    codes = (hosts.aggregate_codes.get(aggregate.uuid) for aggregate in aggregates)
    return has_any(hosts.aggregates, words_of(code for code in codes if code is not None))


def those(hosts: HostTable, chosen: Callable[[Mapping[str, str]], bool]) -> list[Aggregate]:
    """Return the aggregates whose metadata is ``chosen``."""
    return [a for a in hosts.known_aggregates.values() if chosen(a.metadata)]


def restricted(
    hosts: HostTable, has_rule: list[Aggregate], admits: Callable[[Aggregate], bool]
) -> BoolArray | None:
    """Return hosts with no rule, or one that admits the request; None: no host has a rule."""
    if not has_rule:
        return None
    return ~inside(hosts, has_rule) | inside(hosts, filter(admits, has_rule))


def least(
    hosts: HostTable,
    key: str,
    otherwise: 'N | IntArray | FloatArray',
    read: Callable[[str], 'N | None'],
) -> 'tuple[np.ndarray, list[str]]':
    """Return the least value of a key over each host's aggregates, and texts that are no value.

    :param otherwise: where no aggregate of a host has a value, one for all or by row
    :param read: returns a value from its text, None where it is none; such a text does not count
    """
    values = np.array(np.broadcast_to(np.asarray(otherwise), len(hosts)))
    by_value: dict[N, list[Aggregate]] = {}
    wrong: list[str] = []
    for aggregate in those(hosts, lambda metadata: key in metadata):
        value = read(aggregate.metadata[key])
        if value is None:
            wrong.append(aggregate.metadata[key])
        else:
            by_value.setdefault(value, []).append(aggregate)
    for value in sorted(by_value, reverse=True):
        values[inside(hosts, by_value[value])] = value
    return values, wrong
