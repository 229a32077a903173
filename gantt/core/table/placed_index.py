# SPDX-License-Identifier: Apache-2.0
"""The index of placed claims: consumers on hosts and members of server groups.

The index follows the host table.  A copy shares the dictionaries of hosts until one of the
two writes: the first writer of a host after a copy creates its own dictionary for it, and
edits that from then on.  So the cost of a pick does not depend on the number of claims on
its host, and a snapshot never changes.
"""

from collections.abc import Collection, Iterator, Mapping

from gantt.core.resources.host import Placed

_NOTHING: dict[str, Placed] = {}
_NOBODY: Mapping[tuple[int, str], int] = {}
#: Upper bound of remembered additions and removals of flavors.
MOVED_MAX = 4096
#: Attribute of guests -> provider id -> number of live claims.
Counts = dict[str, dict[int, int]]


class PlacedIndex:
    """Consumers with a live claim, by host, by consumer and by group."""

    def __init__(self) -> None:
        #: (provider id, consumer) -> number of claims, for consumers leaving in the same request.
        self.leaving: Mapping[tuple[int, str], int] = _NOBODY
        #: Provider id -> claim id -> claim.  All other parts follow from it.
        self._on: dict[int, dict[str, Placed]] = {}
        #: Hosts whose dictionary no other index shares: those written since a copy.
        self._own: set[int] = set()
        # consumer -> provider ids; None: it is built at the next look-up
        self._consumers: dict[str, tuple[int, ...]] | None = {}
        # group -> provider id -> consumer -> number of claims
        self._groups: dict[str, dict[int, dict[str, int]]] | None = {}
        # image -> provider id -> number of claims; None: not requested yet
        self._images: Counts | None = None
        # flavor, '' if it is not known -> provider id -> number of claims; None: likewise
        self._flavors: Counts | None = None
        # Hosts on which the first claim of a flavor was added or the last removed, newest last.
        self._moved: list[int] = []
        self._forgotten = 0  # number of earlier entries that were dropped

    def copy(self) -> 'PlacedIndex':
        """Return an independent index; its parts by consumer and by group are built on demand."""
        other = PlacedIndex()
        other._on = dict(self._on)
        self._own = set()
        other._consumers = other._groups = None
        return other

    def on(self, provider_id: int) -> dict[str, Placed]:
        """Return claim id -> claim of one host; not to be edited, nor kept over a write."""
        return self._on.get(provider_id, _NOTHING)

    def where(self, consumer: str) -> tuple[int, ...]:
        """Return the provider ids of the hosts on which a consumer has live claims."""
        if self._consumers is None:
            self._index()
        assert self._consumers is not None
        return self._consumers.get(consumer, ())

    def in_group(self, group: str) -> Mapping[int, Mapping[str, int]]:
        """Return provider id -> consumer -> number of live claims, of a group's members."""
        if self._groups is None:
            self._index()
        assert self._groups is not None
        return self._groups.get(group, {})

    def leaves(self, provider_id: int, consumer: str, claims: int) -> bool:
        """Return whether a consumer leaves a host with all its claims there; see ``leaving``."""
        return claims <= self.leaving.get((provider_id, consumer), 0)

    def by_image(self) -> Mapping[str, Mapping[int, int]]:
        """Return image properties -> provider id -> number of live claims."""
        if self._images is None:
            images: Counts = {}
            for placed in self:
                if placed.image is not None:
                    _count(images, placed.image, placed.provider_id, 1)
            self._images = images
        return self._images

    def by_flavor(self) -> Mapping[str, Mapping[int, int]]:
        """Return flavor, '' if it is not known -> provider id -> number of live claims."""
        if self._flavors is None:
            flavors: Counts = {}
            for placed in self:
                _count(flavors, placed.flavor or '', placed.provider_id, 1)
            self._flavors = flavors
        return self._flavors

    def flavors_moved(self, since: int) -> tuple[int, Collection[int] | None]:
        """Return the number of flavor moves, and the hosts of the moves after number ``since``.

        The hosts are None if that is too long ago to be known.
        """
        count = self._forgotten + len(self._moved)
        if since < self._forgotten:
            return count, None
        return count, set(self._moved[since - self._forgotten :])

    def __iter__(self) -> Iterator[Placed]:
        for placed in self._on.values():
            yield from placed.values()

    def replace(self, provider_id: int, placed: dict[str, Placed]) -> None:
        """Replace all claims on one host; the index owns ``placed`` from then on."""
        old = self.on(provider_id)
        if old == placed:
            return
        for claim_id, removed in old.items():
            if placed.get(claim_id) != removed:
                self._forget(removed)
        for claim_id, added in placed.items():
            if old.get(claim_id) != added:
                self._note(added)
        if placed:
            self._on[provider_id] = placed
            self._own.add(provider_id)
        else:
            self._drop(provider_id)

    def add(self, placed: Placed) -> tuple[Mapping[str, Placed], bool]:
        """Add a claim.

        :returns: all claims on its host, and whether the claim was there before
        """
        claims = self._writable(placed.provider_id)
        old = claims.get(placed.claim_id)
        if old is not None:
            self._forget(old)
        claims[placed.claim_id] = placed
        self._note(placed)
        return claims, old is not None

    def remove(self, provider_id: int, claim_id: str) -> None:
        """Remove a claim, if it is there."""
        removed = self.on(provider_id).get(claim_id)
        if removed is None:
            return
        claims = self._writable(provider_id)
        del claims[claim_id]
        if not claims:
            self._drop(provider_id)
        self._forget(removed)

    def _writable(self, provider_id: int) -> dict[str, Placed]:
        """Return the dictionary of one host, to be edited."""
        if provider_id in self._own:
            return self._on[provider_id]
        # Copying all is many times faster than copying only the entries that stay.
        claims = self._on[provider_id] = self._on.get(provider_id, _NOTHING).copy()
        self._own.add(provider_id)
        return claims

    def _drop(self, provider_id: int) -> None:
        self._on.pop(provider_id, None)
        self._own.discard(provider_id)

    def _index(self) -> None:
        # Filled in locals first: readers of a snapshot may come from many threads.
        consumers: dict[str, tuple[int, ...]] = {}
        groups: dict[str, dict[int, dict[str, int]]] = {}
        for provider_id, claims in self._on.items():
            alone = (provider_id,)
            for placed in claims.values():
                provider_ids = consumers.get(placed.consumer)
                consumers[placed.consumer] = (
                    alone if provider_ids is None else (*provider_ids, provider_id)
                )
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
        provider_ids = self._consumers.get(placed.consumer, ())
        self._consumers[placed.consumer] = (*provider_ids, placed.provider_id)
        _note_member(self._groups, placed)

    def _forget(self, placed: Placed) -> None:
        self._count(placed, -1)
        if self._consumers is None or self._groups is None:
            return
        provider_ids = list(self._consumers.get(placed.consumer, ()))
        if placed.provider_id in provider_ids:
            provider_ids.remove(placed.provider_id)
        if provider_ids:
            self._consumers[placed.consumer] = tuple(provider_ids)
        else:
            self._consumers.pop(placed.consumer, None)
        _forget_member(self._groups, placed)


def _count(counts: Counts, key: str, provider_id: int, step: int) -> bool:
    """Count up or down.

    :returns: whether the first claim was added, or the last removed
    """
    by_provider = counts.setdefault(key, {})
    count = by_provider.get(provider_id, 0) + step
    if count:
        by_provider[provider_id] = count
    else:
        by_provider.pop(provider_id, None)
    if not by_provider:
        del counts[key]
    return count == max(step, 0)


def _note_member(groups: dict[str, dict[int, dict[str, int]]], placed: Placed) -> None:
    if placed.group is not None:
        members = groups.setdefault(placed.group, {}).setdefault(placed.provider_id, {})
        members[placed.consumer] = members.get(placed.consumer, 0) + 1


def _forget_member(groups: dict[str, dict[int, dict[str, int]]], placed: Placed) -> None:
    if placed.group is None:
        return
    hosts = groups.get(placed.group, {})
    members = hosts.get(placed.provider_id, {})
    if members.get(placed.consumer, 0) > 1:
        members[placed.consumer] -= 1
        return
    members.pop(placed.consumer, None)
    if not members:
        hosts.pop(placed.provider_id, None)
    if not hosts:
        groups.pop(placed.group, None)
