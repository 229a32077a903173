# SPDX-License-Identifier: Apache-2.0
"""Numbers that aggregates set for their hosts, beside the options.

The key of the metadata is the option's name.  Of several aggregates of a host the
smallest number counts; where one of them is no number, the option does, whatever
the others say.  The arrays are kept until an aggregate or a membership changes.
"""

from collections.abc import Iterable

from gantt.core.resources.host import Aggregate

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


def problems(aggregates: Iterable[Aggregate]) -> list[str]:
    """What an operator should know: multipliers that are no numbers."""
    return [
        f'aggregate {aggregate.name}: {key} is {value[:_SHOWN_MAX]!r}, expected {EXPECTED}; '
        'its hosts go by the option'
        for aggregate in aggregates
        for key, value in sorted(aggregate.metadata.items())
        if key.endswith(SUFFIX) and number(value) is None
    ]
