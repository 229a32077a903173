# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share: which host may take what from which, and what is laid over them.

A pool serves every host that is in one of its aggregates.  A host is served by any number of
pools, several of one class as well.  What is asked for of a class comes from one provider: the
host itself where it has it in one piece, else the fullest pool that still fits (the least is free
there; of equals that with the lowest id), so that large pieces stay whole.

A claim lies on a pool from when it is picked until it is taken back, or the commit that made it
has told what is used of the pool.  So never more of a pool is free than was known at its version,
less what was picked since.
"""

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.shared_pool import PoolUsage, SharedPool
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
#: Of tables with nothing nested: never written to.
_NONE_NESTED = NestedProviders()
#: A claim by its host and id: a repeat may have one of the same id elsewhere.
_Claim = tuple[int, str]


def in_one_piece(inventory: Inventory, amount: int) -> bool:
    """Whether the rules about units admit an amount."""
    least, most = inventory.min_unit, inventory.largest
    return least <= amount <= most and amount % inventory.step_size == 0


class SharedPools:
    """All pools of a table.

    :ivar of_id: id -> pool, or what is nested below a host
    :ivar of_class: class -> ids of the pools that have it; empty where there are none at all
    :ivar nested: what is nested below hosts
    """

    def __init__(
        self,
        index: HostIndex,
        membership: Membership,
        arrays: Mapping[str, np.ndarray],
        versions: Versions,
    ) -> None:
        """Of a table of these parts."""
        self._index, self._membership = index, membership
        self._arrays, self._versions = arrays, versions
        # pool -> what its rows were found at, and the rows that it served then
        self._rows: dict[int, tuple[object, IntArray]] = {}
        self.of_id: dict[int, SharedPool] = {}
        self.of_class: dict[str, tuple[int, ...]] = {}
        self.nested = _NONE_NESTED
        self._of_aggregate: dict[str, tuple[int, ...]] = {}
        self._seq = 0  # how often pools have come, gone, or changed aggregates
        # host -> pools that serve it, by id, as of the stamp
        self._of_host: dict[int, tuple[int, ...]] = {}
        self._stamp: object = None
        # pool -> what claims take there that it is not known with, and the sum of it
        self._laid: dict[int, dict[_Claim, dict[str, int]]] = {}
        self._taken: dict[int, dict[str, int]] = {}
        self._coming_back: Shares = NO_SHARES
        #: What searches of trees came to, by what they looked at; follows from that alone.
        self.searched: dict[object, Any] = {}

    def copy(
        self,
        index: HostIndex,
        membership: Membership,
        arrays: Mapping[str, np.ndarray],
        versions: Versions,
    ) -> 'SharedPools':
        other = SharedPools(index, membership, arrays, versions)
        other.of_id, other.of_class = dict(self.of_id), dict(self.of_class)
        other._of_aggregate, other._seq = dict(self._of_aggregate), self._seq
        other._laid = {
            pool: {claim: dict(amounts) for claim, amounts in laid.items()}
            for pool, laid in self._laid.items()
        }
        other._taken = {pool: dict(taken) for pool, taken in self._taken.items()}
        if self.nested is not _NONE_NESTED:
            other.nested = self.nested.copy()
        return other

    # -- looking things up ---------------------------------------------------------

    def have_any(self, names: Iterable[str]) -> bool:
        """Whether there is a pool of one of the classes."""
        of_class = self.of_class
        return bool(of_class) and any(name in of_class for name in names)

    def serving(self, host: int, name: str) -> list[int]:
        """The pools of a class that serve a host, by id."""
        of_id = self.of_id
        return [pool for pool in self.of_host(host) if name in of_id[pool].inventories]

    def of_host(self, host: int) -> tuple[int, ...]:
        """The pools that serve a host, by id."""
        if not self.of_id:
            return NO_POOLS
        stamp = (self._versions.at(('aggregates',)), self._seq)
        if self._stamp != stamp:
            self._of_host, self._stamp = {}, stamp
        found = self._of_host.get(host)
        if found is None:
            row, pools = self._index.by_id.get(host), set[int]()
            if row is not None:
                service = self._index.service_apart(row)
                for uuid in self._membership.of(self._index.hosts[row], service):
                    pools.update(self._of_aggregate.get(uuid, NO_POOLS))
            found = self._of_host[host] = tuple(sorted(pools))
        return found

    def free(self, pool: int, name: str) -> int:
        """What is left of a class; negative where over-committed."""
        known = self.of_id[pool]
        inventory = known.inventories.get(name)
        used = known.used.get(name, 0) + known.foreign.get(name, 0)
        used += self._taken.get(pool, _NO_AMOUNTS).get(name, 0)
        if self._coming_back:
            used -= self._coming_back.get(pool, _NO_AMOUNTS).get(name, 0)
        return (inventory.cap if inventory else 0) - used

    def times(self, pool: int, name: str, amount: int) -> int:
        """How often an amount fits."""
        inventory = self.of_id[pool].inventories[name]
        return max(self.free(pool, name), 0) // amount if in_one_piece(inventory, amount) else 0

    @property
    def is_giving_back(self) -> bool:
        """Whether something counts as given back, see :meth:`giving_back`."""
        return bool(self._coming_back)

    def shared_of(self, shares: Shares) -> Shares:
        """Of what is taken of providers that of those which serve several hosts."""
        of_id = self.of_id
        return {pool: of for pool, of in shares.items() if pool in of_id and of_id[pool].is_shared}

    def laid_on(self, pool: int, name: str) -> int:
        """What picks take of a class that a provider is not known with yet."""
        laid = self._taken.get(pool, _NO_AMOUNTS).get(name, 0)
        return laid - self._coming_back.get(pool, _NO_AMOUNTS).get(name, 0)

    def may_give(self, pool: int, name: str, amount: int, whole: bool) -> bool:
        """Whether it has an amount in one piece; ``whole``: all that it has, nothing of it used."""
        inventory, free = self.of_id[pool].inventories[name], self.free(pool, name)
        if not whole:
            return free >= amount and in_one_piece(inventory, amount)
        return free == inventory.cap >= amount and in_one_piece(inventory, inventory.cap)

    def choose(self, host: int, name: str, amount: int) -> int | None:
        """The pool that a host takes an amount from; None: none of its pools has it.

        What is given back is taken again where it was: what lies in a pool stays there.
        """
        back = self._coming_back
        fitting = [p for p in self.serving(host, name) if self.times(p, name, amount)]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        return min(
            fitting,
            key=lambda pool: (name not in back.get(pool, ()), self.free(pool, name), pool),
        )

    def served(self, count: int, name: str, amount: int) -> BoolArray | None:
        """Which of ``count`` hosts a pool has an amount for, by row; None: none has the class."""
        pools = self.of_class.get(name)
        if pools is None:
            return None
        mask = np.zeros(count, np.bool_)
        for pool in pools:
            if self.times(pool, name, amount):
                mask[self.rows_of(pool)] = True
        return mask

    def most(self, count: int, name: str) -> IntArray:
        """The most that is left of a class in one pool, by row as in :meth:`served`; 0: nothing."""
        found = np.zeros(count, np.int64)
        for pool in self.of_class.get(name, NO_POOLS):
            at = self.rows_of(pool)
            found[at] = np.maximum(found[at], self.free(pool, name))
        return found

    def rows_of(self, pool: int) -> IntArray:
        """The rows of the hosts that a pool serves; not to be written to."""
        stamp, found = self._versions.at(('aggregates',)), self._rows.get(pool)
        if found is None or found[0] != stamp:
            codes = map(self._membership.codes.get, self.of_id[pool].aggregates)
            bits, count = self._arrays['aggregates'], len(self._index.hosts)
            mask = np.zeros(count, np.bool_)
            for word, value in words_of(code for code in codes if code is not None).items():
                if word < len(bits):
                    mask |= (bits[word, :count] & np.uint64(value)) != 0
            found = self._rows[pool] = (stamp, np.flatnonzero(mask))
        return found[1]

    @contextlib.contextmanager
    def giving_back(self, shares: Shares) -> Iterator[None]:
        """As if these had been given back; who has them comes first among equals."""
        before, self._coming_back = self._coming_back, shares
        try:
            yield
        finally:
            self._coming_back = before

    # -- news ------------------------------------------------------------------------

    def put(self, pool: SharedPool) -> bool:
        """A pool as it is now.

        :returns: False where it says nothing newer than what is known
        """
        known = self.of_id.get(pool.id)
        if known is not None and pool.version <= known.version:
            return False
        if known is not None and pool.version < known.usage_version:
            pool = msgspec.structs.replace(
                pool,
                usage_version=known.usage_version,
                inventories=known.inventories,
                used=known.used,
                foreign=known.foreign,
            )
        self._link(known, pool)
        return True

    def correct(self, usage: PoolUsage, claims: Container[str]) -> None:
        """What is used of a pool as a commit of ours left it, or read it.

        :param claims: ids of the claims that the commit made: what it tells contains them
        """
        known = self.of_id.get(usage.id)
        for claim in [c for c in self._laid.get(usage.id, ()) if c[1] in claims]:
            self._drop(usage.id, claim)
        if known is None or usage.version <= max(known.version, known.usage_version):
            return
        # Written by us right after what is known, all of it is; else others wrote it as well.
        is_next = usage.is_written and usage.version == known.version + 1
        new = msgspec.structs.replace(
            known,
            version=usage.version if is_next else known.version,
            usage_version=0 if is_next else usage.version,
            inventories=usage.inventories,
            used=usage.used,
            foreign=usage.foreign,
        )
        self._link(known, new)

    def remove(self, pool: int) -> bool:
        """A pool that is gone, or shares no more; whether it was known."""
        known = self.of_id.get(pool)
        if known is not None:
            self._laid.pop(pool, None)
            self._taken.pop(pool, None)
            self._link(known, None)
        return known is not None

    def _link(self, old: SharedPool | None, new: SharedPool | None) -> None:
        if (old is not None and old.root) or (new is not None and new.root):
            if self.nested is _NONE_NESTED:
                self.nested = NestedProviders()
            self.nested.put(old, new, {} if new is None else self._taken.get(new.id, {}))
        before_of, now_of = _serves(old), _serves(new)
        if old is not None and new is not None and before_of[1] == now_of[1]:
            self.of_id[new.id] = new
        else:
            self._seq += 1
            if old is not None:
                del self.of_id[old.id]
                self._rows.pop(old.id, None)
            if new is not None:
                self.of_id[new.id] = new
        indices = (self.of_class, self._of_aggregate)
        for index, before, now in zip(indices, before_of, now_of, strict=True):
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
        """A claim of a host takes these; of a pool that is not known it takes nothing."""
        for pool, amounts in shares.items():
            if pool in self.of_id:
                laid = self._laid.setdefault(pool, {}).setdefault((host, claim), {})
                self._add(pool, laid, amounts, 1)

    def lift(self, host: int, claim: str, shares: Shares) -> None:
        """Undo a ``lay``, as far as the pools are not known with it meanwhile."""
        for pool, amounts in shares.items():
            laid = self._laid.get(pool, {}).get((host, claim))
            if laid is not None:
                self._add(pool, laid, amounts, -1)
                if not any(laid.values()):
                    self._drop(pool, (host, claim))

    def forget(self, host: int, claim: str | None = None) -> None:
        """Nothing of a claim of a host, or of all its claims, is laid over pools any more."""
        for pool, laid in list(self._laid.items()):
            for one in [c for c in laid if c[0] == host and claim in (None, c[1])]:
                self._drop(pool, one)

    def _add(self, pool: int, laid: dict[str, int], amounts: Mapping[str, int], sign: int) -> None:
        taken = self._taken.setdefault(pool, {})
        for name, amount in amounts.items():
            laid[name] = laid.get(name, 0) + sign * amount
            taken[name] = taken.get(name, 0) + sign * amount
        known = self.of_id.get(pool)
        if known is not None and known.root:
            self.nested.write(known, taken)

    def _drop(self, pool: int, claim: _Claim) -> None:
        self._add(pool, {}, self._laid[pool].pop(claim), -1)
        if not self._laid[pool]:
            del self._laid[pool], self._taken[pool]


def _serves(pool: SharedPool | None) -> tuple[set[str], set[str]]:
    """The classes that a provider shares, and the aggregates in which it does."""
    if pool is None or not pool.is_shared:
        return set(), set()
    return set(pool.inventories), set(pool.aggregates)
