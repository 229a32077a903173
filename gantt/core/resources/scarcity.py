# SPDX-License-Identifier: Apache-2.0
"""The choice among suitable devices, so that scarce ones stay free for requests that need them."""

from collections import Counter
from collections.abc import Hashable, Sequence


def scarcity_ranks(
    kinds: Sequence[Hashable], features: Sequence[int], counts: Sequence[int]
) -> list[tuple[int, int]]:
    """Return a rank of each device or pool of one host, by position; the least is allocated first.

    Items with the fewest features come first, as other requests may name features; of those, the
    kind of which the host has most, so that a request for any kind leaves the scarce ones.

    :param kinds: equal for items of one kind
    :param features: number of features of each
    :param counts: amount of each, allocated or not
    """
    total = Counter[Hashable]()
    for kind, count in zip(kinds, counts, strict=True):
        total[kind] += count
    return [
        (feature_count, -total[kind]) for kind, feature_count in zip(kinds, features, strict=True)
    ]
