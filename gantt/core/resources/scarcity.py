# SPDX-License-Identifier: Apache-2.0
"""Which of several that will do is given, so that what is scarce stays for who names it."""

from collections import Counter
from collections.abc import Hashable, Sequence


def need(
    kinds: Sequence[Hashable], features: Sequence[int], counts: Sequence[int]
) -> list[tuple[int, int]]:
    """How much others need each of what one host has, by place; the least is to be given first.

    That is what has the fewest features, which are what else could be asked for, and of those the
    kind that the host has most of, so that a wish for any of them leaves the few.

    :param kinds: the same of those that are of one kind
    :param features: how many each has
    :param counts: how much each has to give, given away or not
    """
    total = Counter[Hashable]()
    for kind, count in zip(kinds, counts, strict=True):
        total[kind] += count
    return [(many, -total[kind]) for kind, many in zip(kinds, features, strict=True)]
