# SPDX-License-Identifier: Apache-2.0
"""Who is where: consumers on hosts and members of server groups.

The index follows the host table.  A copy shares what hosts hold until one of the two
writes there: who writes first to a host after a copy takes a dictionary of its own for it,
and edits that one from then on.  So a pick costs the same however many claims are on its
host, and what a snapshot was given never changes.
"""

from collections.abc import Collection, Iterator, Mapping

from gantt.core.resources.host import Placed

_NOTHING: dict[str, Placed] = {}
_NOBODY: Mapping[tuple[int, str], int] = {}
#: Comings and goings of flavors that are remembered.
MOVED_MAX = 4096
#: Something of guests -> provider id -> how many live claims of such.
Counts = dict[str, dict[int, int]]


class PlacedIndex:
    """Consumers with a live claim, by host, by consumer and by group."""

    def __init__(self) -> None:
        #: (provider id, consumer) -> how many claims, of those that leave together meanwhile.
        self.leaving: Mapping[tuple[int, str], int] = _NOBODY
        self._on: dict[int, dict[str, Placed]] = {}
        #: Hosts whose dictionary no other index has: those that were written since a copy.
        self._own: set[int] = set()
        self._consumers: dict[str, tuple[int, ...]] | None = {}
        # group -> provider id -> consumer -> how many claims
        self._groups: dict[str, dict[int, dict[str, int]]] | None = {}
        # image -> provider id -> how many claims; None: nobody asked yet
        self._images: Counts | None = None
        # flavor, '' where it is not known -> provider id -> how many claims; None: likewise
        self._flavors: Counts | None = None
        # Hosts to which a flavor has come, or from which one has gone, the last of them.
        self._moved: list[int] = []
        self._forgotten = 0  # how many there were before these

    def copy(self) -> 'PlacedIndex':
        """An independent index; its by-consumer and by-group halves are made when asked for."""
        other = PlacedIndex()
        other._on = dict(self._on)
        self._own = set()
        other._consumers = other._groups = None
        return other

    def on(self, provider_id: int) -> dict[str, Placed]:
        """Claim id -> what is placed on one host; not to be edited, nor kept over a write."""
        return self._on.get(provider_id, _NOTHING)

    def where(self, consumer: str) -> tuple[int, ...]:
        """Provider ids of the hosts that a consumer has live claims on."""
        if self._consumers is None:
            self._index()
        assert self._consumers is not None
        return self._consumers.get(consumer, ())

    def in_group(self, group: str) -> Mapping[int, Mapping[str, int]]:
        """Provider id -> consumer -> how many live claims, of a group's members."""
        if self._groups is None:
            self._index()
        assert self._groups is not None
        return self._groups.get(group, {})

    def leaves(self, provider_id: int, consumer: str, claims: int) -> bool:
        """Whether all that a consumer has on a host is what it leaves; see ``leaving``."""
        return claims <= self.leaving.get((provider_id, consumer), 0)

    def by_image(self) -> Mapping[str, Mapping[int, int]]:
        """Image properties -> provider id -> how many live claims of consumers with such."""
        if self._images is None:
            images: Counts = {}
            for placed in self:
                if placed.image is not None:
                    _count(images, placed.image, placed.provider_id, 1)
            self._images = images
        return self._images

    def by_flavor(self) -> Mapping[str, Mapping[int, int]]:
        """Flavor, '' where it is not known -> provider id -> how many live claims."""
        if self._flavors is None:
            flavors: Counts = {}
            for placed in self:
                _count(flavors, placed.flavor or '', placed.provider_id, 1)
            self._flavors = flavors
        return self._flavors

    def flavors_moved(self, since: int) -> tuple[int, Collection[int] | None]:
        """How often a flavor came to a host or went, and on which hosts beyond ``since`` times.

        None where that is too long ago to be known.
        """
        count = self._forgotten + len(self._moved)
        if since < self._forgotten:
            return count, None
        return count, set(self._moved[since - self._forgotten :])

    def __iter__(self) -> Iterator[Placed]:
        for placed in self._on.values():
            yield from placed.values()

    def replace(self, provider_id: int, placed: dict[str, Placed]) -> None:
        """All that is placed on one host, anew; what is given is the index's from then on."""
        old = self.on(provider_id)
        if old == placed:
            return
        for claim_id, gone in old.items():
            if placed.get(claim_id) != gone:
                self._forget(gone)
        for claim_id, new in placed.items():
            if old.get(claim_id) != new:
                self._note(new)
        if placed:
            self._on[provider_id] = placed
            self._own.add(provider_id)
        else:
            self._drop(provider_id)

    def add(self, placed: Placed) -> tuple[Mapping[str, Placed], bool]:
        """One more claim.

        :returns: all on its host, and whether it was there before
        """
        here = self._writable(placed.provider_id)
        old = here.get(placed.claim_id)
        if old is not None:
            self._forget(old)
        here[placed.claim_id] = placed
        self._note(placed)
        return here, old is not None

    def remove(self, provider_id: int, claim_id: str) -> None:
        """One claim less; nothing where it is not there."""
        gone = self.on(provider_id).get(claim_id)
        if gone is None:
            return
        left = self._writable(provider_id)
        del left[claim_id]
        if not left:
            self._drop(provider_id)
        self._forget(gone)

    def _writable(self, provider_id: int) -> dict[str, Placed]:
        """What one host holds, to be edited."""
        if provider_id in self._own:
            return self._on[provider_id]
        # The whole is copied many times faster than what is to stay.
        here = self._on[provider_id] = self._on.get(provider_id, _NOTHING).copy()
        self._own.add(provider_id)
        return here

    def _drop(self, provider_id: int) -> None:
        self._on.pop(provider_id, None)
        self._own.discard(provider_id)

    def _index(self) -> None:
        # Filled in locals first: readers of a snapshot may come from many threads.
        consumers: dict[str, tuple[int, ...]] = {}
        groups: dict[str, dict[int, dict[str, int]]] = {}
        for provider_id, here in self._on.items():
            alone = (provider_id,)
            for placed in here.values():
                known = consumers.get(placed.consumer)
                consumers[placed.consumer] = alone if known is None else (*known, provider_id)
                _note_member(groups, placed)
        self._groups, self._consumers = groups, consumers

    def _count(self, placed: Placed, step: int) -> None:
        if self._images is not None and placed.image is not None:
            _count(self._images, placed.image, placed.provider_id, step)
        if self._flavors is not None and _count(
            self._flavors, placed.flavor or '', placed.provider_id, step
        ):
            if len(self._moved) >= MOVED_MAX:
                self._forgotten += len(self._moved)
                self._moved.clear()
            self._moved.append(placed.provider_id)

    def _note(self, placed: Placed) -> None:
        self._count(placed, 1)
        if self._consumers is None or self._groups is None:
            return
        # One entry per claim: a consumer with two claims on a host stays there
        # when one of them ends.
        known = self._consumers.get(placed.consumer, ())
        self._consumers[placed.consumer] = (*known, placed.provider_id)
        _note_member(self._groups, placed)

    def _forget(self, placed: Placed) -> None:
        self._count(placed, -1)
        if self._consumers is None or self._groups is None:
            return
        left = list(self._consumers.get(placed.consumer, ()))
        if placed.provider_id in left:
            left.remove(placed.provider_id)
        if left:
            self._consumers[placed.consumer] = tuple(left)
        else:
            self._consumers.pop(placed.consumer, None)
        _forget_member(self._groups, placed)


def _count(counts: Counts, key: str, provider_id: int, step: int) -> bool:
    """Count up or down.

    :returns: whether the first has come, or the last has gone
    """
    here = counts.setdefault(key, {})
    count = here.get(provider_id, 0) + step
    if count:
        here[provider_id] = count
    else:
        here.pop(provider_id, None)
    if not here:
        del counts[key]
    return count == max(step, 0)


def _note_member(groups: dict[str, dict[int, dict[str, int]]], placed: Placed) -> None:
    if placed.group is not None:
        here = groups.setdefault(placed.group, {}).setdefault(placed.provider_id, {})
        here[placed.consumer] = here.get(placed.consumer, 0) + 1


def _forget_member(groups: dict[str, dict[int, dict[str, int]]], placed: Placed) -> None:
    if placed.group is None:
        return
    hosts = groups.get(placed.group, {})
    here = hosts.get(placed.provider_id, {})
    if here.get(placed.consumer, 0) > 1:
        here[placed.consumer] -= 1
        return
    here.pop(placed.consumer, None)
    if not here:
        hosts.pop(placed.provider_id, None)
    if not hosts:
        groups.pop(placed.group, None)
