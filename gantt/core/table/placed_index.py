# SPDX-License-Identifier: Apache-2.0
"""The index of placed claims: consumers on hosts and members of server groups.

The index follows the host table.  A copy shares the dictionaries of hosts until one of the
two writes: the first writer of a host after a copy creates its own dictionary for it, and
edits that from then on.  So the cost of a pick does not depend on the number of claims on
its host, and a snapshot never changes.
"""

import sys
from collections.abc import Collection, Iterator, Mapping

from gantt.core.resources.host import Placed
from gantt.core.table.memory import MemoryCount, entries_of

_NO_CLAIMS: dict[str, Placed] = {}
_NOBODY_LEAVING: Mapping[tuple[int, str], int] = {}
#: Upper bound of remembered additions and removals of flavors.
FLAVOR_MOVES_MAX = 4096
#: Attribute of guests -> provider id -> number of live claims.
CountsByAttribute = dict[str, dict[int, int]]


class PlacedIndex:
    """Consumers with a live claim, by host, by consumer and by group."""

    def __init__(self) -> None:
        #: (provider id, consumer) -> number of claims, for consumers leaving in the same request.
        self.leaving: Mapping[tuple[int, str], int] = _NOBODY_LEAVING
        #: Provider id -> claim id -> claim.  All other parts follow from it.
        self._by_provider: dict[int, dict[str, Placed]] = {}
        #: Hosts whose dictionary no other index shares: those written since a copy.
        self._unshared_providers: set[int] = set()
        # Consumer -> provider id, or several; None: it is built at the next look-up.  Nearly all
        # have one claim: a tuple for each of them would be an eighth of a claim's memory.
        self._consumers: dict[str, int | tuple[int, ...]] | None = {}
        # group -> provider id -> consumer -> number of claims
        self._groups: dict[str, dict[int, dict[str, int]]] | None = {}
        # image -> provider id -> number of claims; None: not requested yet
        self._images: CountsByAttribute | None = None
        # flavor, '' if it is not known -> provider id -> number of claims; None: likewise
        self._flavors: CountsByAttribute | None = None
        # Hosts on which the first claim of a flavor was added or the last removed, newest last.
        self._flavor_moves: list[int] = []
        self._forgotten_moves = 0  # number of earlier entries that were dropped

    def copy(self) -> 'PlacedIndex':
        """Return an independent index; its parts by consumer and by group are built on demand."""
        other = PlacedIndex()
        other._by_provider = dict(self._by_provider)
        self._unshared_providers = set()
        other._consumers = other._groups = None
        return other

    def on_provider(self, provider_id: int) -> dict[str, Placed]:
        """Return claim id -> claim of one host; not to be edited, nor kept over a write."""
        return self._by_provider.get(provider_id, _NO_CLAIMS)

    def providers_of(self, consumer: str) -> tuple[int, ...]:
        """Return the provider ids of the hosts on which a consumer has live claims."""
        if self._consumers is None:
            self._build_index()
        assert self._consumers is not None
        return _ids(self._consumers.get(consumer))

    def in_group(self, group: str) -> Mapping[int, Mapping[str, int]]:
        """Return provider id -> consumer -> number of live claims, of a group's members."""
        if self._groups is None:
            self._build_index()
        assert self._groups is not None
        return self._groups.get(group, {})

    def is_leaving(self, provider_id: int, consumer: str, claims: int) -> bool:
        """Return whether a consumer leaves a host with all its claims there; see ``leaving``."""
        return claims <= self.leaving.get((provider_id, consumer), 0)

    def by_image(self) -> Mapping[str, Mapping[int, int]]:
        """Return image properties -> provider id -> number of live claims."""
        if self._images is None:
            images: CountsByAttribute = {}
            for placed in self:
                if placed.image is not None:
                    _add_count(images, placed.image, placed.provider_id, 1)
            self._images = images
        return self._images

    def by_flavor(self) -> Mapping[str, Mapping[int, int]]:
        """Return flavor, '' if it is not known -> provider id -> number of live claims."""
        if self._flavors is None:
            flavors: CountsByAttribute = {}
            for placed in self:
                _add_count(flavors, placed.flavor or '', placed.provider_id, 1)
            self._flavors = flavors
        return self._flavors

    def flavors_moved(self, since: int) -> tuple[int, Collection[int] | None]:
        """Return the number of flavor moves, and the hosts of the moves after number ``since``.

        The hosts are None if that is too long ago to be known.
        """
        count = self._forgotten_moves + len(self._flavor_moves)
        if since < self._forgotten_moves:
            return count, None
        return count, set(self._flavor_moves[since - self._forgotten_moves :])

    def memory(self, count: MemoryCount, claims: int) -> float:
        """Return the bytes of the claims, and of the dictionaries that find them.  Any thread.

        :param claims: number of claims in it
        """
        sample = entries_of(self._by_provider)
        # By claim, not by host: hosts of a sample may have more claims than others.
        per_claim = count.of(*sample) / max(1, sum(map(len, sample)))
        return (
            per_claim * claims
            # Not its values: a million ids, each of them in a claim.
            + sys.getsizeof(self._consumers)
            + sys.getsizeof(self._by_provider)
            + count.of_containers(self._groups, self._images, self._flavors)
        )

    def __iter__(self) -> Iterator[Placed]:
        for placed in self._by_provider.values():
            yield from placed.values()

    def replace(self, provider_id: int, placed: dict[str, Placed]) -> None:
        """Replace all claims on one host; the index owns ``placed`` from then on."""
        old = self.on_provider(provider_id)
        if old == placed:
            return
        for claim_id, removed in old.items():
            if placed.get(claim_id) != removed:
                self._unindex_claim(removed)
        for claim_id, added in placed.items():
            if old.get(claim_id) != added:
                self._index_claim(added)
        if placed:
            self._by_provider[provider_id] = placed
            self._unshared_providers.add(provider_id)
        else:
            self._drop_provider(provider_id)

    def add(self, placed: Placed) -> tuple[Mapping[str, Placed], bool]:
        """Add a claim.

        :returns: all claims on its host, and whether the claim was there before
        """
        claims = self._writable(placed.provider_id)
        old = claims.get(placed.claim_id)
        if old is not None:
            self._unindex_claim(old)
        claims[placed.claim_id] = placed
        self._index_claim(placed)
        return claims, old is not None

    def remove(self, provider_id: int, claim_id: str) -> None:
        """Remove a claim, if it is there."""
        removed = self.on_provider(provider_id).get(claim_id)
        if removed is None:
            return
        claims = self._writable(provider_id)
        del claims[claim_id]
        if not claims:
            self._drop_provider(provider_id)
        self._unindex_claim(removed)

    def _writable(self, provider_id: int) -> dict[str, Placed]:
        """Return the dictionary of one host, to be edited."""
        if provider_id in self._unshared_providers:
            return self._by_provider[provider_id]
        # Copying all is many times faster than copying only the entries that stay.
        claims = self._by_provider[provider_id] = self._by_provider.get(
            provider_id, _NO_CLAIMS
        ).copy()
        self._unshared_providers.add(provider_id)
        return claims

    def _drop_provider(self, provider_id: int) -> None:
        self._by_provider.pop(provider_id, None)
        self._unshared_providers.discard(provider_id)

    def _build_index(self) -> None:
        # Filled in locals first: readers of a snapshot may come from many threads.
        consumers: dict[str, int | tuple[int, ...]] = {}
        groups: dict[str, dict[int, dict[str, int]]] = {}
        for placed in self:
            _note_consumer(consumers, placed)
            _note_member(groups, placed)
        self._groups = groups
        self._consumers = consumers

    def _count_attributes(self, placed: Placed, step: int) -> None:
        if self._images is not None and placed.image is not None:
            _add_count(self._images, placed.image, placed.provider_id, step)
        if self._flavors is not None and _add_count(
            self._flavors, placed.flavor or '', placed.provider_id, step
        ):
            if len(self._flavor_moves) >= FLAVOR_MOVES_MAX:
                self._forgotten_moves += len(self._flavor_moves)
                self._flavor_moves.clear()
            self._flavor_moves.append(placed.provider_id)

    def _index_claim(self, placed: Placed) -> None:
        self._count_attributes(placed, 1)
        if self._consumers is None or self._groups is None:
            return
        # One entry per claim: a consumer with two claims on a host stays there
        # when one of them ends.
        _note_consumer(self._consumers, placed)
        _note_member(self._groups, placed)

    def _unindex_claim(self, placed: Placed) -> None:
        self._count_attributes(placed, -1)
        if self._consumers is None or self._groups is None:
            return
        provider_ids = list(_ids(self._consumers.pop(placed.consumer, None)))
        if placed.provider_id in provider_ids:
            provider_ids.remove(placed.provider_id)
        if provider_ids:
            self._consumers[placed.consumer] = (
                provider_ids[0] if len(provider_ids) == 1 else tuple(provider_ids)
            )
        _forget_member(self._groups, placed)


def _add_count(counts: CountsByAttribute, key: str, provider_id: int, step: int) -> bool:
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


def _ids(entry: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the provider ids of an entry of a consumer; None: it has none."""
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _note_consumer(consumers: dict[str, int | tuple[int, ...]], placed: Placed) -> None:
    entry = consumers.get(placed.consumer)
    consumers[placed.consumer] = (
        placed.provider_id if entry is None else (*_ids(entry), placed.provider_id)
    )


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
