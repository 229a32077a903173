# SPDX-License-Identifier: Apache-2.0
"""HostTable: what is believed of every host, a NumPy column per fact.

The table is a cache of the database, fed by change news (``apply``), by the
truth after our own commits (``settle``) and, between the two, by the overlay
of picks that are not committed yet (``take`` and its inverse ``give``).

Invariants: ``free == cap - used - foreign`` for every row and class, ``used``
being the database's figure plus the pending picks; a row's ``version`` never
goes back; a snapshot never changes.
"""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from gantt import exceptions
from gantt.core.resources.host import Aggregate, HostChange, HostRow, Placed
from gantt.core.table import aggregate_overrides
from gantt.core.table.host_rows import HostRows
from gantt.core.table.host_state import HostState
from gantt.core.table.mask_cache import KeptArrays, KeptMasks
from gantt.core.table.metrics import DeclaredMetric
from gantt.core.table.unreported import FreshPicks


class HostTable(HostRows):
    """All hosts; see the module docstring.  Not safe for writers in two threads."""

    @classmethod
    def build(
        cls,
        hosts: Iterable[HostChange],
        aggregates: list[Aggregate],
        groups: dict[str, int],
        classes: Iterable[str] = (),
        now: float = 0.0,
        *,
        metrics: Iterable[DeclaredMetric] = (),
        default_zone: str = 'nova',
    ) -> 'HostTable':
        """A table of everything, as ``Store.load_everything`` gives it."""
        changes = list(hosts)
        table = cls(default_zone=default_zone, rows=len(changes))
        table.now = now
        for name in sorted(classes):
            table.add_class(name)
        table.set_groups(groups)
        table.set_metrics(metrics)
        table.set_aggregates(aggregates)
        for change in changes:
            table._fold(change)
        table.renew()
        return table

    def __len__(self) -> int:
        return self.count

    def host_state(self, name_or_row: str | int) -> HostState:
        """A typed view of one row, valid until the table changes.

        :raises NotFound: no host of that name
        """
        row = self.row_of(name_or_row) if isinstance(name_or_row, str) else name_or_row
        if row is None or not 0 <= row < self.count:
            raise exceptions.NotFound(kind='host', name=name_or_row)
        return HostState(self, int(row))

    def count_stale(self, limit: float) -> int:
        """How many hosts last reported more than ``limit`` seconds ago, or never."""
        return int(np.count_nonzero(self.reported_at < self.now - limit))

    def count_reported_within(self, first: float, last: float) -> int:
        """How many hosts last reported between two times."""
        at = self.reported_at
        return int(np.count_nonzero((at >= first) & (at <= last)))

    def names_of_stale(self, limit: float, most: int) -> list[str]:
        """Names of the first ``most`` of them, by row."""
        rows = np.flatnonzero(self.reported_at < self.now - limit)[:most]
        names = self.names  # of a table that its owner may change meanwhile
        return [names[row] for row in rows.tolist() if row < len(names)]

    def whole_version(self, provider_id: int) -> int:
        """The version up to which we know all that is placed on a host; -1: unknown host.

        Behind ``version`` where a commit of ours showed that others had
        written the host in between: that news is still wanted.
        """
        row = self._by_id.get(provider_id)
        return -1 if row is None else self._whole[row]

    def provider_ids_bytes(self) -> bytes:
        """The ids of all rows as packed int64."""
        if self._packed_ids is None:
            self._packed_ids = self.ids.tobytes()
        return self._packed_ids

    def changes(self) -> list[HostChange]:
        """Every host as a piece of news, by row: a table built from them is alike.

        For a table without open picks.  Where more was written to a host than is
        known here, the news has the version that is known whole.
        """
        return [
            HostChange(
                provider_id=row.id,
                row=row if whole == row.version else msgspec.structs.replace(row, version=whole),
                placed=list(self.placed.on(row.id).values()),
            )
            for row, whole in zip(self.hosts, self._whole, strict=True)
        ]

    def generations(self) -> dict[str, int]:
        """Generations of all known server groups."""
        return dict(self._groups)

    def group_generation(self, uuid: str) -> int:
        """The generation of a server group, 0 where it is not known."""
        return self._groups.get(uuid, 0)

    # -- news ------------------------------------------------------------------

    def apply(self, change: HostChange) -> bool:
        """Fold one entry of the feed.

        :returns: False where it says nothing newer than what is known
        """
        self.check_writable()
        count = self.count
        changed = self._fold(change)
        if self.count != count:
            self.renew()
        return changed

    def settle(self, row: HostRow, claims: Iterable[str] | None = None) -> None:
        """The truth about a host after a commit; who is placed stays as ``take`` noted it.

        :param claims: ids whose fate the truth contains; None: all pending ones
        """
        self.check_writable()
        i = self._by_id.get(row.id)
        if i is None:
            self.apply(HostChange(provider_id=row.id, row=row))
            self._whole[self._by_id[row.id]] = -1
            return
        pending = self._pending.get(row.id)
        if pending is not None:
            done = [c for c in (list(pending) if claims is None else claims) if c in pending]
            for claim_id in done:
                del pending[claim_id]
            self._fresh.note(row.id, done, row.reported_at)
            if not pending:
                del self._pending[row.id]
        known = self.hosts[i].version
        if row.version >= known:
            follows = row.version <= known + 1 and self._whole[i] == known
            self._write(i, row)
            if follows:
                self._whole[i] = row.version
        else:
            self._write_usage(i)
        self.seq += 1

    def set_aggregates(self, aggregates: list[Aggregate]) -> None:
        """All aggregates anew: membership and availability zones follow."""
        self.check_writable()
        self.known_aggregates = {a.uuid: a for a in sorted(aggregates, key=lambda a: a.id)}
        self.aggregate_metadata = aggregate_overrides.by_key(aggregates)
        self.membership_seq += 1
        of: dict[str, tuple[str, ...]] = {}
        for uuid, aggregate in self.known_aggregates.items():
            self.aggregate_codes.add(uuid)
            for name in aggregate.hosts:
                of[name] = (*of.get(name, ()), uuid)
        self._aggregates_of = of
        self.versions.touch(('aggregates', 'zone'))
        for i, row in enumerate(self.hosts):
            self._write_membership(i, row)
        self.facts_seq += 1
        self.seq += 1

    def set_groups(self, groups: Mapping[str, int], whole: bool = False) -> None:
        """Generations of server groups; 0 is that of a group that is not known.

        :param whole: one that is left out is gone; else it stays as it was
        """
        self.check_writable()
        if whole:
            self._groups.clear()
        self._groups.update(groups)
        for uuid in [uuid for uuid, generation in groups.items() if not generation]:
            del self._groups[uuid]

    def set_metrics(self, metrics: Iterable[DeclaredMetric]) -> None:
        """All declarations of metrics anew."""
        self.check_writable()
        declared = {metric.name: metric for metric in metrics}
        if declared != self.declared_metrics:
            self.versions.touch(('metrics',))
        self.declared_metrics = declared
        self.seq += 1

    def set_pool(
        self, provider_id: int, resource_class: str, cap: int, used: int, hosts: Iterable[int]
    ) -> None:
        """A pool that hosts share: what any of them takes, all have less of.

        :param hosts: provider ids of the sharers; unknown ones are left out
        """
        self.check_writable()
        code = self.add_class(resource_class)
        key = (provider_id, code)
        if key not in self.pool_ids:
            self.pool_ids = {**self.pool_ids, key: len(self.pool_ids)}
            self.pool_free = np.append(self.pool_free, 0)
            self.pool_cap = np.append(self.pool_cap, 0)
        k = self.pool_ids[key]
        self.pool_free[k] = cap - used
        self.pool_cap = self.pool_cap.copy()  # snapshots share it
        self.pool_cap[k] = cap
        line = self.pool[code]
        line[line == k] = -1
        rows = [self._by_id[p] for p in hosts if p in self._by_id]
        line[rows] = k
        self.pooled |= {code}
        self.facts_seq += 1
        self.seq += 1

    # -- picks -------------------------------------------------------------------

    def take(self, provider_id: int, amounts: Mapping[str, int], placed: Placed) -> None:
        """Lay a pick over a host: its amounts are used, its consumer is there.

        :raises Bug: an unknown host
        """
        self.check_writable()
        i = self._by_id.get(provider_id)
        if i is None:
            raise exceptions.Bug(invariant=f'a pick is on a known host, not {provider_id}')
        self._add(i, amounts, 1)
        self._pending.setdefault(provider_id, {})[placed.claim_id] = (amounts, placed)
        here = self.placed.on(provider_id)
        is_new = placed.claim_id not in here
        if not is_new:
            self._there.add((provider_id, placed.claim_id))
        self.placed.add(placed)
        self._lay(i, placed, is_new)
        self.instances[i] = len(here) + is_new
        self._count_io(i)
        self.seq += 1

    def give(self, provider_id: int, amounts: Mapping[str, int], claim_id: str) -> None:
        """Undo a ``take``.  Where the truth has been settled since, only the consumer goes.

        A repeat may pick the very claim that is there already: that one stays.
        """
        self.check_writable()
        i = self._by_id.get(provider_id)
        if i is None:
            return
        pending = self._pending.get(provider_id, {})
        if pending.pop(claim_id, None) is not None:
            self._add(i, amounts, -1)
            if not pending:
                del self._pending[provider_id]
            self._count_io(i)
        if (provider_id, claim_id) in self._there:
            self._there.remove((provider_id, claim_id))
        else:
            here = self.placed.on(provider_id)
            self.placed.remove(provider_id, claim_id)
            if self._fresh.drop(provider_id, claim_id):
                self._count_io(i)
            if claim_id in here and here[claim_id].layout is not None:
                self._write_room(i)
        self.instances[i] = len(self.placed.on(provider_id))
        self.seq += 1

    def pending_of(self, provider_id: int) -> list[str]:
        """Claim ids of the picks on a host that no truth contains yet."""
        return list(self._pending.get(provider_id, ()))

    def picks(self) -> dict[int, int]:
        """Row -> how many picks lie over it that no truth contains yet."""
        rows = self._by_id
        return {rows[p]: len(picks) for p, picks in self._pending.items() if p in rows}

    def fresh_picks(self) -> dict[int, dict[str, float]]:
        """Committed picks that no report can contain yet; see ``core.table.unreported``."""
        return self._fresh.as_dict()

    def set_fresh_picks(self, picks: Mapping[int, Mapping[str, float]]) -> None:
        """All of them anew, as :meth:`fresh_picks` gave them."""
        self.check_writable()
        self._fresh = FreshPicks(picks)
        for provider_id in picks:
            i = self._by_id.get(provider_id)
            if i is not None:
                self._count_io(i)
        self.seq += 1

    # -- versions --------------------------------------------------------------

    def snapshot(self) -> 'HostTable':
        """A read-only independent version."""
        return self._clone(writable=False)

    def copy(self) -> 'HostTable':
        """A writable independent version, for a dry run or a what-if."""
        return self._clone(writable=True)

    def _clone(self, writable: bool) -> 'HostTable':
        other: HostTable = HostTable.__new__(HostTable)
        other.__dict__.update(self.__dict__)
        other._copies = {}
        other.versions, other.kept_masks = self.versions.copy(), KeptMasks()
        other.kept = KeptArrays(other.versions)
        self.copy_columns(other, writable)
        other.frozen = not writable
        for name in (
            'names',
            'nodes',
            'hosts',
            '_whole',
            'largest_floor',
            'min_ceiling',
            'has_step',
        ):
            setattr(other, name, list(getattr(self, name)))
        for name in (
            'classes',
            'zones',
            'cells',
            'locations',
            'trait_codes',
            'platforms',
            'aggregate_codes',
        ):
            setattr(other, name, getattr(self, name).copy())
        other.placed = self.placed.copy()
        other.pool_free = self.pool_free.copy()
        other.pool_free.flags.writeable = writable
        other._groups = dict(self._groups)
        other._pending = {p: dict(claims) for p, claims in self._pending.items()}
        other._there = set(self._there)
        other._fresh = self._fresh.copy()
        other._trait_sets = {}
        self._copy_inside(other)
        other.minima = {}
        self._shared_names = other._shared_names = True
        return other

    # -- inside ------------------------------------------------------------------

    def _fold(self, change: HostChange) -> bool:
        row, i = change.row, self._by_id.get(change.provider_id)
        if row is None:
            if i is None:
                return False
            self._remove(i)
            self.seq += 1
            return True
        if i is None:
            i = self._append(row)
        elif row.version < self.hosts[i].version or row.version <= self._whole[i]:
            return False
        self._fold_placed(i, change)
        self._write(i, row)
        self._layouts_changed(i)
        self._whole[i] = row.version
        self.seq += 1
        return True

    def _fold_placed(self, i: int, change: HostChange) -> None:
        host = change.provider_id
        # A claim on something below or beside the host counts as being on the host.
        placed = {
            p.claim_id: p if p.provider_id == host else replace(p, provider_id=host)
            for p in change.placed
        }
        pending = self._pending.get(change.provider_id)
        if pending is not None:
            # Picks that the news contains are truth now; the others stay laid over it.
            self._there.difference_update([(host, claim_id) for claim_id in pending])
            done = [c for c in pending if c in placed]
            for claim_id in done:
                del pending[claim_id]
                self._there.add((host, claim_id))
            if change.row is not None:
                self._fresh.note(host, done, change.row.reported_at)
            placed.update((claim_id, pick[1]) for claim_id, pick in pending.items())
            if not pending:
                del self._pending[change.provider_id]
        self._fresh.keep(host, placed)
        self.placed.replace(change.provider_id, placed)
        self.arrays['instances'][i] = len(placed)
