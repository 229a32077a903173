# SPDX-License-Identifier: Apache-2.0
"""Shared pools: the hosts that each serves, its free amounts, and the claims laid over it.

A pool serves every host that is in one of its aggregates.  A host is served by any number of
pools, also by several of one class.  A requested amount of a class comes from one provider: the
host itself if it has it in one piece, else the fullest pool that still fits (the one with the
least free; of equals the one with the lowest id), so that large pieces stay whole.

A claim is laid over a pool from the pick until it is lifted, or until the commit that created
it has returned the usage of the pool.  So the free amount of a pool never exceeds the one known
at its version, less the picks since.
"""

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import PoolUsage, SharedPool
from gantt.core.table.aggregates import Membership
from gantt.core.table.caches import Versions
from gantt.core.table.columns import BoolArray, IntArray, words_of
from gantt.core.table.host_index import HostIndex
from gantt.core.table.nested import NestedProviders

#: Pool -> class -> amount.
Shares = Mapping[int, Mapping[str, int]]
NO_POOLS: tuple[int, ...] = ()
NO_SHARES: Shares = {}
_NO_AMOUNTS: Mapping[str, int] = {}
#: For tables without nested providers: never written to.
_NO_NESTED_PROVIDERS = NestedProviders()
#: A claim by its host and id: a repeat may have a claim of the same id elsewhere.
_Claim = tuple[int, str]


def in_one_piece(inventory: Inventory, amount: int) -> bool:
    """Return whether min_unit, max_unit and step_size admit an amount."""
    smallest, largest = inventory.min_unit, inventory.largest
    return smallest <= amount <= largest and amount % inventory.step_size == 0


class SharedPools:
    """The shared pools and nested providers of a table.

    :ivar by_id: id -> pool, or provider nested below a host
    :ivar of_class: class -> ids of the pools that have it; empty if there are no pools
    :ivar nested: the providers nested below hosts
    """

    def __init__(
        self,
        index: HostIndex,
        membership: Membership,
        arrays: Mapping[str, np.ndarray],
        versions: Versions,
    ) -> None:
        """Create the pools of a table that consists of the given parts."""
        self._index = index
        self._membership = membership
        self._arrays = arrays
        self._versions = versions
        # pool -> stamp of its rows, and the rows that it serves as of that stamp
        self._rows: dict[int, tuple[object, IntArray]] = {}
        self.by_id: dict[int, SharedPool] = {}
        self.of_class: dict[str, tuple[int, ...]] = {}
        self.nested = _NO_NESTED_PROVIDERS
        self._of_aggregate: dict[str, tuple[int, ...]] = {}  # uuid -> ids of its pools
        self._seq = 0  # number of pools added, removed, or with changed aggregates
        # host -> pools that serve it, by id, as of the stamp
        self._of_host: dict[int, tuple[int, ...]] = {}
        self._stamp: object = None
        # pool -> amounts of claims that its known usage does not contain, and their sum
        self._picked_amounts: dict[int, dict[_Claim, dict[str, int]]] = {}
        self._taken: dict[int, dict[str, int]] = {}
        # Shares that count as returned while the request whose claims have them is placed.
        self._returned_shares: Shares = NO_SHARES
        #: Cached results of tree searches, by all their inputs.
        self.tree_search_results: dict[object, Any] = {}

    def copy(
        self,
        index: HostIndex,
        membership: Membership,
        arrays: Mapping[str, np.ndarray],
        versions: Versions,
    ) -> 'SharedPools':
        other = SharedPools(index, membership, arrays, versions)
        other.by_id, other.of_class = dict(self.by_id), dict(self.of_class)
        other._of_aggregate, other._seq = dict(self._of_aggregate), self._seq
        other._picked_amounts = {
            pool: {claim: dict(amounts) for claim, amounts in laid.items()}
            for pool, laid in self._picked_amounts.items()
        }
        other._taken = {pool: dict(taken) for pool, taken in self._taken.items()}
        if self.nested is not _NO_NESTED_PROVIDERS:
            other.nested = self.nested.copy()
        return other

    # -- look-ups ------------------------------------------------------------------

    def have_any(self, names: Iterable[str]) -> bool:
        """Return whether there is a pool of one of the classes."""
        of_class = self.of_class
        return bool(of_class) and any(name in of_class for name in names)

    def serving(self, host: int, name: str) -> list[int]:
        """Return the pools of a class that serve a host, by id."""
        by_id = self.by_id
        return [pool for pool in self.of_host(host) if name in by_id[pool].inventories]

    def of_host(self, host: int) -> tuple[int, ...]:
        """Return the pools that serve a host, by id."""
        if not self.by_id:
            return NO_POOLS
        stamp = (self._versions.of_columns(('aggregates',)), self._seq)
        if self._stamp != stamp:
            self._of_host = {}
            self._stamp = stamp
        serving_pools = self._of_host.get(host)
        if serving_pools is None:
            row, pools = self._index.by_id.get(host), set[int]()
            if row is not None:
                service = self._index.separate_service(row)
                for uuid in self._membership.of(self._index.hosts[row], service):
                    pools.update(self._of_aggregate.get(uuid, NO_POOLS))
            serving_pools = self._of_host[host] = tuple(sorted(pools))
        return serving_pools

    def free(self, pool: int, name: str) -> int:
        """Return the free amount of a class; negative if over-committed."""
        provider = self.by_id[pool]
        inventory = provider.inventories.get(name)
        used = provider.used.get(name, 0) + provider.foreign.get(name, 0)
        used += self._taken.get(pool, _NO_AMOUNTS).get(name, 0)
        if self._returned_shares:
            used -= self._returned_shares.get(pool, _NO_AMOUNTS).get(name, 0)
        return (inventory.cap if inventory else 0) - used

    def fit_count(self, pool: int, name: str, amount: int) -> int:
        """Return how many times an amount fits."""
        inventory = self.by_id[pool].inventories[name]
        return max(self.free(pool, name), 0) // amount if in_one_piece(inventory, amount) else 0

    @property
    def has_returned_shares(self) -> bool:
        """True where shares count as given back, see :meth:`with_returned_shares`."""
        return bool(self._returned_shares)

    def shared_part(self, shares: Shares) -> Shares:
        """Return the part of the shares that is on providers serving several hosts."""
        by_id = self.by_id
        return {
            pool: amounts
            for pool, amounts in shares.items()
            if pool in by_id and by_id[pool].is_shared
        }

    def picked_amount(self, pool: int, name: str) -> int:
        """Return the amount of a class laid by picks that the known usage does not contain yet."""
        laid = self._taken.get(pool, _NO_AMOUNTS).get(name, 0)
        return laid - self._returned_shares.get(pool, _NO_AMOUNTS).get(name, 0)

    def can_supply(self, pool: int, name: str, amount: int, whole: bool) -> bool:
        """Return whether a pool has an amount in one piece; ``whole``: only if it is unused."""
        inventory, free = self.by_id[pool].inventories[name], self.free(pool, name)
        if not whole:
            return free >= amount and in_one_piece(inventory, amount)
        return free == inventory.cap >= amount and in_one_piece(inventory, inventory.cap)

    def choose(self, host: int, name: str, amount: int) -> int | None:
        """Return the pool that a host takes an amount from; None if none of its pools has it.

        An amount that is given back is taken from the same pool again.
        """
        back = self._returned_shares
        fitting = [p for p in self.serving(host, name) if self.fit_count(p, name, amount)]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        return min(
            fitting,
            key=lambda pool: (name not in back.get(pool, ()), self.free(pool, name), pool),
        )

    def served(self, count: int, name: str, amount: int) -> BoolArray | None:
        """Return a mask of ``count`` hosts for which a pool has an amount; None: no such pool."""
        pools = self.of_class.get(name)
        if pools is None:
            return None
        mask = np.zeros(count, np.bool_)
        for pool in pools:
            if self.fit_count(pool, name, amount):
                mask[self.rows_of(pool)] = True
        return mask

    def most(self, count: int, name: str) -> IntArray:
        """Return the largest free amount of a class in one pool, by row as in :meth:`served`."""
        free_max = np.zeros(count, np.int64)
        for pool in self.of_class.get(name, NO_POOLS):
            pool_rows = self.rows_of(pool)
            free_max[pool_rows] = np.maximum(free_max[pool_rows], self.free(pool, name))
        return free_max

    def rows_of(self, pool: int) -> IntArray:
        """Return the rows of the hosts that a pool serves; not to be written to."""
        stamp, stamp_and_rows = self._versions.of_columns(('aggregates',)), self._rows.get(pool)
        if stamp_and_rows is None or stamp_and_rows[0] != stamp:
            codes = map(self._membership.codes.get, self.by_id[pool].aggregates)
            bits, count = self._arrays['aggregates'], len(self._index.hosts)
            mask = np.zeros(count, np.bool_)
            for word, value in words_of(code for code in codes if code is not None).items():
                if word < len(bits):
                    mask |= (bits[word, :count] & np.uint64(value)) != 0
            stamp_and_rows = self._rows[pool] = (stamp, np.flatnonzero(mask))
        return stamp_and_rows[1]

    @contextlib.contextmanager
    def with_returned_shares(self, shares: Shares) -> Iterator[None]:
        """Count the shares as given back; pools that hold them are preferred among equals."""
        outer_shares, self._returned_shares = self._returned_shares, shares
        try:
            yield
        finally:
            self._returned_shares = outer_shares

    # -- changes ---------------------------------------------------------------------

    def put(self, pool: SharedPool) -> bool:
        """Replace a pool with its current state.

        :returns: False if it is not newer than the known state
        """
        stored = self.by_id.get(pool.id)
        if stored is not None and pool.version <= stored.version:
            return False
        if stored is not None and pool.version < stored.usage_version:
            pool = msgspec.structs.replace(
                pool,
                usage_version=stored.usage_version,
                inventories=stored.inventories,
                used=stored.used,
                foreign=stored.foreign,
            )
        self._link_aggregates(stored, pool)
        return True

    def correct(self, usage: PoolUsage, claims: Container[str]) -> None:
        """Update the usage of a pool as an own commit left it, or read it.

        :param claims: ids of the claims that the commit created; ``usage`` contains them
        """
        stored = self.by_id.get(usage.id)
        for claim in [c for c in self._picked_amounts.get(usage.id, ()) if c[1] in claims]:
            self._drop(usage.id, claim)
        if stored is None or usage.version <= max(stored.version, stored.usage_version):
            return
        # The next version, written here, is completely known; else others wrote the pool as well.
        is_next = usage.is_written and usage.version == stored.version + 1
        new = msgspec.structs.replace(
            stored,
            version=usage.version if is_next else stored.version,
            usage_version=0 if is_next else usage.version,
            inventories=usage.inventories,
            used=usage.used,
            foreign=usage.foreign,
        )
        self._link_aggregates(stored, new)

    def remove(self, pool: int) -> bool:
        """Remove a pool that was deleted or shares no more; return whether it was known."""
        stored = self.by_id.get(pool)
        if stored is not None:
            self._picked_amounts.pop(pool, None)
            self._taken.pop(pool, None)
            self._link_aggregates(stored, None)
        return stored is not None

    def _link_aggregates(self, old: SharedPool | None, new: SharedPool | None) -> None:
        if (old is not None and old.root) or (new is not None and new.root):
            if self.nested is _NO_NESTED_PROVIDERS:
                self.nested = NestedProviders()
            self.nested.put(old, new, {} if new is None else self._taken.get(new.id, {}))
        before_of, now_of = _shared_classes(old), _shared_classes(new)
        if old is not None and new is not None and before_of[1] == now_of[1]:
            self.by_id[new.id] = new
        else:
            self._seq += 1
            if old is not None:
                del self.by_id[old.id]
                self._rows.pop(old.id, None)
            if new is not None:
                self.by_id[new.id] = new
        indices = (self.of_class, self._of_aggregate)
        for index, old_keys, new_keys in zip(indices, before_of, now_of, strict=True):
            for key in old_keys - new_keys:
                assert old is not None, 'it had something before'
                remaining = tuple(pool for pool in index[key] if pool != old.id)
                if remaining:
                    index[key] = remaining
                else:
                    del index[key]
            for key in new_keys - old_keys:
                assert new is not None, 'it has something now'
                index[key] = tuple(sorted((*index.get(key, NO_POOLS), new.id)))

    # -- picks -----------------------------------------------------------------------

    def add_shares(self, host: int, claim: str, shares: Shares) -> None:
        """Lay the shares of a claim of a host over the pools; unknown pools are skipped."""
        for pool, amounts in shares.items():
            if pool in self.by_id:
                laid = self._picked_amounts.setdefault(pool, {}).setdefault((host, claim), {})
                self._add(pool, laid, amounts, 1)

    def remove_shares(self, host: int, claim: str, shares: Shares) -> None:
        """Undo ``add_shares``, except on pools whose known usage contains the claim meanwhile."""
        for pool, amounts in shares.items():
            laid = self._picked_amounts.get(pool, {}).get((host, claim))
            if laid is not None:
                self._add(pool, laid, amounts, -1)
                if not any(laid.values()):
                    self._drop(pool, (host, claim))

    def forget(self, host: int, claim: str | None = None) -> None:
        """Lift a claim of a host, or all its claims, off all pools."""
        for pool, laid in list(self._picked_amounts.items()):
            for laid_claim in [c for c in laid if c[0] == host and claim in (None, c[1])]:
                self._drop(pool, laid_claim)

    def _add(self, pool: int, laid: dict[str, int], amounts: Mapping[str, int], sign: int) -> None:
        taken = self._taken.setdefault(pool, {})
        for name, amount in amounts.items():
            laid[name] = laid.get(name, 0) + sign * amount
            taken[name] = taken.get(name, 0) + sign * amount
        provider = self.by_id.get(pool)
        if provider is not None and provider.root:
            self.nested.write(provider, taken)

    def _drop(self, pool: int, claim: _Claim) -> None:
        self._add(pool, {}, self._picked_amounts[pool].pop(claim), -1)
        if not self._picked_amounts[pool]:
            del self._picked_amounts[pool], self._taken[pool]


def _shared_classes(pool: SharedPool | None) -> tuple[set[str], set[str]]:
    """Return the classes that a provider shares, and the aggregates in which it shares them."""
    if pool is None or not pool.is_shared:
        return set(), set()
    return set(pool.inventories), set(pool.aggregates)
