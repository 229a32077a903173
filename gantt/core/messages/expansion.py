# SPDX-License-Identifier: Apache-2.0
"""Bound of what a parsed YAML document expands to: an alias in a small file may stand for much."""

from typing import Any

#: Most values of a document, counted as often as aliases repeat them.
VALUES_MAX = 2_000_000


def problem_of(document: Any) -> str | None:
    """Return why a document is too large to be expanded; None: it is not.

    Each container is visited once, however often aliases repeat it.

    :raises RecursionError: it is nested too deep
    """
    try:
        count = _value_count(document, {})
    except _CycleError:
        return 'an alias stands for what contains it'
    if count <= VALUES_MAX:
        return None
    return f'expected at most {VALUES_MAX:,} values with all aliases expanded, got {count:,}'


class _CycleError(Exception):
    """A container contains itself."""


def _value_count(value: Any, counts: dict[int, int | None]) -> int:
    """Return the number of values in a document, itself among them.

    :param counts: id of a container -> its number; None while it is counted
    """
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) in counts:
        known = counts[id(value)]
        if known is None:
            raise _CycleError
        return known
    counts[id(value)] = None
    inner = value.values() if isinstance(value, dict) else value
    count = counts[id(value)] = 1 + sum(_value_count(element, counts) for element in inner)
    return count
