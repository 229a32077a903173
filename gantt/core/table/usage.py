# SPDX-License-Identifier: Apache-2.0
"""How much of each class is used and free, by row: the database's figures and open picks.

Invariant: ``free == cap - used - foreign`` for every row and class, ``used`` being
the database's figure plus the open picks; of a class that a pool shares, the pool's.
"""

from collections.abc import Mapping

import numpy as np

from gantt.core.messages import resource_classes
from gantt.core.resources.host import HostRow, Placed
from gantt.core.table.columns import BY_CLASS, ROWS_MIN, Codes, IntArray
from gantt.core.table.topology_rows import InsideRows
from gantt.core.table.unreported import FreshPicks

NO_PICKS: dict[str, tuple[Mapping[str, int], Placed]] = {}


class UsageRows(InsideRows):
    """See the module docstring.

    :ivar largest_floor: by class, no inventory takes less than this in one piece
    :ivar min_ceiling: by class, no inventory has a larger min_unit
    :ivar has_step: by class, whether any inventory has a step other than 1
    """

    def __init__(self, rows: int = ROWS_MIN) -> None:
        super().__init__(rows)
        self.classes = Codes()
        self.largest_floor: list[int] = []
        self.min_ceiling: list[int] = []
        self.has_step: list[bool] = []
        self.pooled: frozenset[int] = frozenset()
        self.pool_ids: dict[tuple[int, int], int] = {}
        self.pool_free: IntArray = np.zeros(0, np.int64)
        self.pool_cap: IntArray = np.zeros(0, np.int64)
        self._pending: dict[int, dict[str, tuple[Mapping[str, int], Placed]]] = {}
        self._fresh = FreshPicks()
        for name in resource_classes.HOT:
            self.add_class(name)

    def class_code(self, name: str) -> int | None:
        """The line of a resource class in the arrays, None where no host ever had it."""
        return self.classes.get(name)

    def free_of(self, code: int) -> IntArray:
        """Free amount of a class by row; a sharer shows what its pool has left."""
        if code not in self.pooled:
            return self.free[code]
        index = self.pool[code]
        shared = self.pool_free.take(index, mode='wrap')
        return np.where(index >= 0, shared, self.free[code])

    def cap_of(self, code: int) -> IntArray:
        """Capacity of a class by row; of a sharer, its pool's."""
        if code not in self.pooled:
            return self.cap[code]
        index = self.pool[code]
        return np.where(index >= 0, self.pool_cap.take(index, mode='wrap'), self.cap[code])

    def add_class(self, name: str) -> int:
        """The line of a resource class, a new one where needed."""
        code = self.classes.add(name)
        if code == len(self.has_step):
            self.largest_floor.append(resource_classes.AMOUNT_MAX)
            self.min_ceiling.append(1)
            self.has_step.append(False)
            self.widen(BY_CLASS, code + 1)
            self.facts_seq += 1
        return code

    def _write_counters(self, i: int, row: HostRow) -> None:
        """What claims and reports change, anew."""
        arrays = self.arrays
        arrays['over_committed'][i] = row.over_committed
        arrays['open'][i] = row.is_open
        arrays['reported_at'][i] = row.reported_at
        arrays['generation'][i] = row.generation
        arrays['version'][i] = row.version
        self._write_usage(i)

    def _follow_counters(self, i: int, old: HostRow, row: HostRow) -> None:
        """The same where the columns say ``old``, with which ``row`` shares all but counters."""
        arrays = self.arrays
        if row.reported_at != old.reported_at:
            arrays['reported_at'][i] = row.reported_at
        arrays['generation'][i] = row.generation
        arrays['version'][i] = row.version
        if row.foreign != old.foreign or self.pooled or not self._follow_usage(i, row):
            self._write_usage(i)
        else:
            self._count_io(i)

    def _follow_usage(self, i: int, row: HostRow) -> bool:
        """Bring what is used to what it is now; False where a class is new to the table.

        After a commit of ours the table mostly says it already: the picks were laid over it.
        """
        used = self.arrays['used']
        said = used[:, i].tolist()
        now = [0] * len(said)
        codes = self.classes
        shares: list[Mapping[str, int]] = [row.used]
        shares += [amounts for amounts, _ in self._pending.get(row.id, NO_PICKS).values()]
        for amounts in shares:
            for name, amount in amounts.items():
                code = codes.get(name)
                if code is None:
                    return False
                now[code] += amount
        if now != said:
            free = self.arrays['free']
            for code, (before, after) in enumerate(zip(said, now, strict=True)):
                if before != after:
                    used[code, i] = after
                    free[code, i] += before - after
        return True

    def _write_usage(self, i: int) -> None:
        row, used, free = self.hosts[i], self.arrays['used'], self.arrays['free']
        codes = [self.add_class(name) for name in (*row.used, *row.foreign)]
        if codes:
            used, free = self.arrays['used'], self.arrays['free']
        used[:, i] = 0
        for code, amount in zip(codes, row.used.values(), strict=False):
            used[code, i] = amount
        free[:, i] = self.arrays['cap'][:, i] - used[:, i]
        for code, amount in zip(codes[len(row.used) :], row.foreign.values(), strict=True):
            free[code, i] -= amount
        for amounts, _ in self._pending.get(row.id, NO_PICKS).values():
            self._add(i, amounts, 1, pools=False)
        self._count_io(i)

    def _count_io(self, i: int) -> None:
        """Guests being built or moved, as the host says, and picks of ours since."""
        row = self.hosts[i]
        pending = self._pending.get(row.id, NO_PICKS)
        self.arrays['io_ops'][i] = self._fresh.operations(row, pending)

    def _add(self, i: int, amounts: Mapping[str, int], sign: int, pools: bool = True) -> None:
        for name, amount in amounts.items():
            code = self.classes.get(name)
            if code is None:
                code = self.add_class(name)
            arrays = self.arrays
            k = arrays['pool'][code, i] if code in self.pooled else -1
            if k < 0:
                arrays['used'][code, i] += sign * amount
                arrays['free'][code, i] -= sign * amount
            elif pools:
                self.pool_free[k] -= sign * amount


def counters_only(old: HostRow, new: HostRow) -> bool:
    """Whether all else is as it was: mostly it is made from the very same facts."""
    return (
        new.facts is old.facts
        and new.over_committed == old.over_committed
        and old.version >= 0
        and new.name == old.name
        and new.node == old.node
        and new.cell == old.cell
        and new.zone == old.zone
        and new.aggregates == old.aggregates
        and new.disabled == old.disabled
        and new.service_disabled == old.service_disabled
    )
