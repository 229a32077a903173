# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share: which host may take what from which, and what is laid over them.

A host is served by any number of pools, several of one class as well.  What is asked for of a
class comes from one provider: the host itself where it has it in one piece, else the fullest
pool that still fits (the least is free there; of equals that with the lowest id), so that
large pieces stay whole.

A claim lies on a pool from when it is picked: until the pick is undone, its host is known
without it, or the pool is known with it.  So never more of a pool is free than was known at
its version, less what is on the hosts.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.shared_pool import SharedPool
from gantt.core.table.caches import Versions
from gantt.core.table.columns import BoolArray, IntArray

#: Pool -> class -> amount.
Shares = Mapping[int, Mapping[str, int]]
NO_POOLS: tuple[int, ...] = ()
#: A claim by its host and id: a repeat may have one of the same id elsewhere.
_Claim = tuple[int, str]


def in_one_piece(inventory: Inventory, amount: int) -> bool:
    """Whether the rules about units admit an amount."""
    least, most = inventory.min_unit, inventory.largest
    return least <= amount <= most and amount % inventory.step_size == 0


class SharedPools:
    """All pools of a table.

    :ivar of_id: id -> pool
    :ivar of_class: class -> ids of the pools that have it; empty where there are none at all
    """

    def __init__(self, row_by_id: Mapping[int, int], versions: Versions) -> None:
        """Of a table that has its hosts at these rows."""
        self._row_by_id, self._versions = row_by_id, versions
        # pool -> how often hosts had come or gone, and the rows that it served then
        self._rows: dict[int, tuple[int, IntArray]] = {}
        self.of_id: dict[int, SharedPool] = {}
        self.of_class: dict[str, tuple[int, ...]] = {}
        # host -> pools that serve it, by id
        self._of_host: dict[int, tuple[int, ...]] = {}
        # pool -> what claims take there that it is not known with, and the sum of it
        self._laid: dict[int, dict[_Claim, dict[str, int]]] = {}
        self._taken: dict[int, dict[str, int]] = {}
        # host -> its claims that are laid over pools
        self._claims: dict[int, set[str]] = {}

    def copy(self, row_by_id: Mapping[int, int], versions: Versions) -> 'SharedPools':
        other = SharedPools(row_by_id, versions)
        other.of_id, other.of_class = dict(self.of_id), dict(self.of_class)
        other._of_host = dict(self._of_host)
        other._laid = {
            pool: {claim: dict(amounts) for claim, amounts in laid.items()}
            for pool, laid in self._laid.items()
        }
        other._taken = {pool: dict(taken) for pool, taken in self._taken.items()}
        other._claims = {host: set(claims) for host, claims in self._claims.items()}
        return other

    # -- looking things up ---------------------------------------------------------

    def have_any(self, names: Iterable[str]) -> bool:
        """Whether there is a pool of one of the classes."""
        of_class = self.of_class
        return bool(of_class) and any(name in of_class for name in names)

    def serving(self, host: int, name: str) -> list[int]:
        """The pools of a class that serve a host, by id."""
        of_id = self.of_id
        return [p for p in self._of_host.get(host, NO_POOLS) if name in of_id[p].inventories]

    def first(self, host: int, name: str) -> int:
        """The first pool of a class that serves a host; -1: none does."""
        return next(iter(self.serving(host, name)), -1)

    def free(self, pool: int, name: str) -> int:
        """What is left of a class; negative where over-committed."""
        known = self.of_id[pool]
        inventory = known.inventories.get(name)
        used = known.used.get(name, 0) + known.foreign.get(name, 0)
        used += self._taken.get(pool, {}).get(name, 0)
        return (inventory.cap if inventory else 0) - used

    def times(self, pool: int, name: str, amount: int) -> int:
        """How often an amount fits."""
        inventory = self.of_id[pool].inventories[name]
        return max(self.free(pool, name), 0) // amount if in_one_piece(inventory, amount) else 0

    def choose(self, host: int, name: str, amount: int) -> int | None:
        """The pool that a host takes an amount from; None: none of its pools has it."""
        fitting = [p for p in self.serving(host, name) if self.times(p, name, amount)]
        return min(fitting, key=lambda pool: (self.free(pool, name), pool), default=None)

    def served(self, count: int, name: str, amount: int) -> BoolArray | None:
        """Which of ``count`` hosts a pool has an amount for, by row; None: none has the class."""
        pools = self.of_class.get(name)
        if pools is None:
            return None
        mask = np.zeros(count, np.bool_)
        for pool in pools:
            if self.times(pool, name, amount):
                mask[self._rows_of(pool)] = True
        return mask

    def most(self, count: int, name: str) -> IntArray:
        """The most that is left of a class in one pool, by row as in :meth:`served`; 0: nothing."""
        found = np.zeros(count, np.int64)
        for pool in self.of_class.get(name, NO_POOLS):
            at = self._rows_of(pool)
            found[at] = np.maximum(found[at], self.free(pool, name))
        return found

    def _rows_of(self, pool: int) -> IntArray:
        """The rows of the hosts that a pool serves; not to be written to."""
        stamp, found = self._versions.rows, self._rows.get(pool)
        if found is None or found[0] != stamp:
            rows = map(self._row_by_id.get, self.of_id[pool].hosts)
            known = np.array([row for row in rows if row is not None], np.int64)
            found = self._rows[pool] = (stamp, known)
        return found[1]

    # -- news ------------------------------------------------------------------------

    def put(self, pool: SharedPool) -> bool:
        """A pool as it is now.

        :returns: False where it says nothing newer than what is known
        """
        known = self.of_id.get(pool.id)
        if known is not None and pool.version <= known.version:
            return False
        self._link(known, pool)
        for claim in [c for c in self._laid.get(pool.id, ()) if c[1] in pool.claims]:
            self._drop(pool.id, claim)
        return True

    def remove(self, pool: int) -> bool:
        """A pool that is gone; whether it was known."""
        known = self.of_id.get(pool)
        if known is not None:
            self._laid.pop(pool, None)
            self._taken.pop(pool, None)
            self._link(known, None)
        return known is not None

    def _link(self, old: SharedPool | None, new: SharedPool | None) -> None:
        if old is not None:
            del self.of_id[old.id]
            self._rows.pop(old.id, None)
        if new is not None:
            self.of_id[new.id] = new
        for index, field in ((self.of_class, 'inventories'), (self._of_host, 'hosts')):
            before = set(getattr(old, field)) if old is not None else set()
            now = set(getattr(new, field)) if new is not None else set()
            for key in before - now:
                assert old is not None, 'it had something before'
                left = tuple(pool for pool in index[key] if pool != old.id)
                if left:
                    index[key] = left
                else:
                    del index[key]
            for key in now - before:
                assert new is not None, 'it has something now'
                index[key] = tuple(sorted((*index.get(key, NO_POOLS), new.id)))

    # -- picks -----------------------------------------------------------------------

    def lay(self, host: int, claim: str, shares: Shares) -> None:
        """A claim of a host takes these."""
        for pool, amounts in shares.items():
            laid = self._laid.setdefault(pool, {}).setdefault((host, claim), {})
            self._add(pool, laid, amounts, 1)
        self._claims.setdefault(host, set()).add(claim)

    def lift(self, host: int, claim: str, shares: Shares) -> None:
        """Undo a ``lay``, as far as the pools are not known with it meanwhile."""
        for pool, amounts in shares.items():
            laid = self._laid.get(pool, {}).get((host, claim))
            if laid is not None:
                self._add(pool, laid, amounts, -1)
                if not any(laid.values()):
                    self._drop(pool, (host, claim))

    def keep(self, host: int, claims: Collection[str]) -> None:
        """No claims but these are on a host."""
        here = self._claims.get(host)
        if here is None:
            return
        for claim in [claim for claim in here if claim not in claims]:
            here.discard(claim)
            for pool in [pool for pool, laid in self._laid.items() if (host, claim) in laid]:
                self._drop(pool, (host, claim))
        if not here:
            del self._claims[host]

    def _add(self, pool: int, laid: dict[str, int], amounts: Mapping[str, int], sign: int) -> None:
        taken = self._taken.setdefault(pool, {})
        for name, amount in amounts.items():
            laid[name] = laid.get(name, 0) + sign * amount
            taken[name] = taken.get(name, 0) + sign * amount

    def _drop(self, pool: int, claim: _Claim) -> None:
        self._add(pool, {}, self._laid[pool].pop(claim), -1)
        if not self._laid[pool]:
            del self._laid[pool], self._taken[pool]
