# SPDX-License-Identifier: Apache-2.0
"""What one batch leaves alone, as others keep it locked."""

from collections.abc import Callable, Collection, Iterable


class Aside:
    """Providers of one batch, over its tries.

    :param blocked: those of some providers that are known to be locked by others, see ``locks``
    :ivar wanted: the providers that it was about to lock
    :ivar left: those that it does without
    """

    def __init__(self, blocked: Callable[[Collection[int]], Iterable[int]]) -> None:
        self._blocked = blocked
        self.wanted: set[int] = set()
        self.left: set[int] = set()

    def without(self, ids: Collection[int]) -> set[int]:
        """The providers to lock: all but those that are left aside."""
        self.wanted = set(ids)
        self.left.update(self._blocked(self.wanted))
        return self.wanted - self.left
