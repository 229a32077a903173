# SPDX-License-Identifier: Apache-2.0
"""Used and free amounts by class: the database's figures, with own picks laid over them.

Invariant: ``free == cap - used - foreign`` for every row and class, ``used`` being
the figure of the host's row plus the picks that this row does not contain.

A pick is open until it is committed.  A commit returns the version of the host at which it
was written; the pick stays laid over the host until its row has that version.  A host
counts the guests that it is building only in its next report: until then each own pick
counts as one, so that picks of successive batches do not treat a host as idle that is
about to be busy.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from gantt.core.messages import resource_classes
from gantt.core.messages.report import IO_WORKLOAD
from gantt.core.messages.resource_classes import AMOUNT_MAX, Inventory
from gantt.core.resources.host import HostRow, Placed
from gantt.core.table.columns import BY_CLASS, COLUMNS, Codes, Columns
from gantt.core.table.pools import Shares

#: Columns by class that follow from inventories; the others hold usage.
_INVENTORY_COLUMNS = tuple(name for name in BY_CLASS if COLUMNS[name].made_from)


class Pick(msgspec.Struct, gc=False):
    """A pick that is laid over a host whose row does not contain it yet.

    :ivar amounts: amounts that it uses of the host itself
    :ivar shares: amounts that it uses of pools; None: none
    :ivar replaces_claim: the claim was on the host without it: a repeat may pick its own place
    :ivar version: version of the host, as the commit wrote it; None: it is not committed
    :ivar earlier_pick: pick of the same claim that is laid again once this one is lifted
    """

    amounts: Mapping[str, int]
    placed: Placed
    replaces_claim: bool = False
    version: int | None = None
    earlier_pick: 'Pick | None' = None
    shares: Shares | None = None


NO_PICKS: dict[str, Pick] = {}
_NO_REPORT_TIMES: dict[str, float] = {}
#: From so many hosts on picks are added to whole columns: calls to NumPy cost more for fewer.
_ROWS_BY_COLUMN_MIN = 6


class UnreportedPicks:
    """Committed picks that no report of their host can contain yet.

    Provider id -> claim id -> time of the host's last report, as of the commit.
    """

    def __init__(self, of: Mapping[int, Mapping[str, float]] | None = None) -> None:
        self._picks = {host: dict(picks) for host, picks in (of or {}).items() if picks}
        #: Provider id -> report time that no pick on the host precedes.
        self._oldest_report = {host: min(picks.values()) for host, picks in self._picks.items()}

    def as_dict(self) -> dict[int, dict[str, float]]:
        """Return a copy of the picks, as the constructor accepts it."""
        return {host: dict(picks) for host, picks in self._picks.items()}

    def on(self, provider_id: int) -> Mapping[str, float]:
        """Return the picks on a host."""
        return self._picks.get(provider_id, _NO_REPORT_TIMES)

    def note(self, provider_id: int, claims: Iterable[str], reported_at: float) -> None:
        """Note that claims were committed on a host whose last report was at ``reported_at``."""
        picks = dict.fromkeys(claims, reported_at)
        noted = self._picks.get(provider_id)
        if noted is not None:
            noted.update(picks)
            if picks and reported_at < self._oldest_report[provider_id]:
                self._oldest_report[provider_id] = reported_at
        elif picks:
            self._picks[provider_id] = picks
            self._oldest_report[provider_id] = reported_at

    def drop(self, provider_id: int, claim_id: str) -> None:
        """Drop a claim that was removed or that its host has reported."""
        picks = self._picks.get(provider_id)
        if picks is not None and picks.pop(claim_id, None) is not None and not picks:
            del self._picks[provider_id]
            del self._oldest_report[provider_id]

    def keep(self, provider_id: int, claims: Collection[str]) -> None:
        """Drop all claims on the host except the given ones."""
        for claim_id in [c for c in self._picks.get(provider_id, ()) if c not in claims]:
            self.drop(provider_id, claim_id)

    def operations(self, row: HostRow, pick_ids: Collection[str]) -> int:
        """Return the number of guests being built or moved: as last reported, plus own picks since.

        :param pick_ids: claim ids of picks that are laid over it
        """
        workload = row.facts.metrics.get(IO_WORKLOAD)
        reported = (
            int(workload.value) if workload is not None and 0 < workload.value <= AMOUNT_MAX else 0
        )
        picks = self._picks.get(row.id)
        if picks is None:
            return reported + len(pick_ids)
        if self._oldest_report[row.id] < row.reported_at:
            for claim_id in [
                c for c, reported_at in picks.items() if reported_at < row.reported_at
            ]:
                self.drop(row.id, claim_id)
            if picks:
                self._oldest_report[row.id] = min(picks.values())
        # Runs for each pick, so it does not iterate over all claims on the host.
        return reported + len(pick_ids) + len(picks) - sum(c in picks for c in pick_ids)


class UsageColumns:
    """The resource classes of a table, bounds of their inventories, and own picks.

    :ivar largest_floor: lower bound of the largest single allocation of all inventories, by class
    :ivar min_ceiling: upper bound of the min_unit of all inventories, by class
    :ivar has_step: by class, whether any inventory has a step other than 1
    :ivar picks_by_host: provider id -> claim id -> pick
    """

    def __init__(self) -> None:
        self.classes = Codes()
        self.largest_floor: list[int] = []
        self.min_ceiling: list[int] = []
        self.has_step: list[bool] = []
        self.picks_by_host: dict[int, dict[str, Pick]] = {}
        self.unreported = UnreportedPicks()

    def copy(self) -> 'UsageColumns':
        other = UsageColumns()
        other.classes = self.classes.copy()
        other.largest_floor, other.min_ceiling = list(self.largest_floor), list(self.min_ceiling)
        other.has_step = list(self.has_step)
        # Picks are not modified in place: a commit replaces a pick.
        other.picks_by_host = {host: dict(picks) for host, picks in self.picks_by_host.items()}
        other.unreported = UnreportedPicks(self.unreported.as_dict())
        return other

    def add_class(self, columns: Columns, name: str) -> int:
        """Return the code of a resource class, and add the class if it is new."""
        code = self.classes.add(name)
        if code == len(self.has_step):
            self.largest_floor.append(resource_classes.AMOUNT_MAX)
            self.min_ceiling.append(1)
            self.has_step.append(False)
            columns.append_class(name in resource_classes.CORE_CLASSES)
        return code

    # -- columns ---------------------------------------------------------------

    def write_inventories(
        self, columns: Columns, i: int, inventories: Mapping[str, Inventory]
    ) -> None:
        """Rewrite the inventories of a host; its usage is to be written afterwards."""
        codes = [self.add_class(columns, name) for name in inventories]
        for name in _INVENTORY_COLUMNS:
            columns.arrays[name][:, i] = COLUMNS[name].fill
        columns.sparse.blank(i, _INVENTORY_COLUMNS)
        for code, inventory in zip(codes, inventories.values(), strict=True):
            arrays, index = columns.place(code, i)
            arrays['cap'][index] = inventory.cap
            arrays['largest'][index] = largest = inventory.largest
            arrays['min_unit'][index] = inventory.min_unit
            arrays['step'][index] = inventory.step_size
            arrays['total'][index] = inventory.total
            arrays['reserved'][index] = inventory.reserved
            arrays['ratio'][index] = inventory.allocation_ratio
            # Bounds only ever widen: a looser one costs a comparison, never an answer.
            self.largest_floor[code] = min(self.largest_floor[code], largest)
            self.min_ceiling[code] = max(self.min_ceiling[code], inventory.min_unit)
            self.has_step[code] = self.has_step[code] or inventory.step_size != 1

    def write(self, columns: Columns, i: int, row: HostRow) -> None:
        """Rewrite the usage of a host."""
        for name in (*row.used, *row.foreign):
            self.add_class(columns, name)
        used, free, sparse = columns.arrays['used'], columns.arrays['free'], columns.sparse
        used[:, i] = 0
        free[:, i] = columns.arrays['cap'][:, i]
        for code in sparse.of_row.get(i, ()):
            index = sparse.of_class[code][i]
            sparse.arrays['used'][index], sparse.arrays['free'][index] = (
                0,
                sparse.arrays['cap'][index],
            )
        self._add(columns, i, row.used, 1)
        for name, amount in row.foreign.items():
            arrays, index = columns.place(self.classes.add(name), i)
            arrays['free'][index] -= amount
        for pick in self.picks_by_host.get(row.id, NO_PICKS).values():
            self._add(columns, i, pick.amounts, 1)
        if i in sparse.of_row:
            sparse.drop_blank(i)
        self.count_io(columns, i, row)

    def follow_usage(self, columns: Columns, i: int, row: HostRow) -> None:
        """Update the usage of a host of which nothing else has changed.

        After an own commit the table mostly holds it already, as the picks were laid over it.
        """
        used, lines = columns.arrays['used'], columns.lines
        used_before = used[:, i].tolist()
        used_after = [0] * len(used_before)
        rare = dict.fromkeys(columns.sparse.of_row.get(i, ()), 0)
        shares: list[Mapping[str, int]] = [row.used]
        shares += [pick.amounts for pick in self.picks_by_host.get(row.id, NO_PICKS).values()]
        for amounts in shares:
            for name, amount in amounts.items():
                code = self.classes.get(name)
                if code is None:
                    self.write(columns, i, row)
                    return
                line = lines[code]
                if line >= 0:
                    used_after[line] += amount
                else:
                    rare[code] = rare.get(code, 0) + amount
        if used_after != used_before:
            free = columns.arrays['free']
            for line, (old, new) in enumerate(zip(used_before, used_after, strict=True)):
                if old != new:
                    used[line, i] = new
                    free[line, i] += old - new
        for code, new in rare.items():
            arrays, index = columns.place(code, i)
            arrays['free'][index] += arrays['used'][index] - new
            arrays['used'][index] = new
        self.count_io(columns, i, row)

    def count_io(self, columns: Columns, i: int, row: HostRow) -> None:
        """Write the number of guests being built or moved: as reported, plus own picks since."""
        laid = self.picks_by_host.get(row.id, NO_PICKS)
        columns.arrays['io_ops'][i] = self.unreported.operations(row, laid)

    def _add(self, columns: Columns, i: int, amounts: Mapping[str, int], sign: int) -> None:
        used, free, lines = columns.arrays['used'], columns.arrays['free'], columns.lines
        for name, amount in amounts.items():
            code = self.classes.get(name)
            if code is None:
                code = self.add_class(columns, name)
            line = lines[code]
            if line >= 0:
                used[line, i] += sign * amount
                free[line, i] -= sign * amount
                continue
            arrays, index = columns.place(code, i)
            arrays['used'][index] += sign * amount
            arrays['free'][index] -= sign * amount
            used, free = (
                columns.arrays['used'],
                columns.arrays['free'],
            )  # the class may be dense now

    # -- picks -----------------------------------------------------------------

    def add_equal_picks(
        self,
        columns: Columns,
        hosts: Sequence[HostRow],
        amounts: Mapping[str, int],
        picks_by_row: Mapping[int, Sequence[Pick]],
    ) -> None:
        """Add picks of the same amounts to the usage of hosts.

        :param picks_by_row: row -> picks on the host there
        """
        count = len(picks_by_row)
        guests = [self._lay(hosts[row].id, picks) for row, picks in picks_by_row.items()]
        if count < _ROWS_BY_COLUMN_MIN:
            for (row, picks), building in zip(picks_by_row.items(), guests, strict=True):
                self._add(columns, row, amounts, len(picks))
                columns.arrays['io_ops'][row] += building
            return
        rows = np.fromiter(picks_by_row, np.int64, count)
        counts = np.fromiter(map(len, picks_by_row.values()), np.int64, count)
        columns.arrays['io_ops'][rows] += guests
        for name, amount in amounts.items():
            line = columns.lines[self.add_class(columns, name)]
            if line >= 0:
                added = counts * amount
                columns.arrays['used'][line][rows] += added
                columns.arrays['free'][line][rows] -= added
            else:  # the class may be dense afterwards
                for row, picks in picks_by_row.items():
                    self._add(columns, row, {name: amount}, len(picks))

    def _lay(self, provider_id: int, picks: Sequence[Pick]) -> int:
        """Lay picks over a host; return how many more guests are being built there by them."""
        laid = self.picks_by_host.setdefault(provider_id, {})
        unreported, count = self.unreported.on(provider_id), 0
        for pick in picks:
            claim_id = pick.placed.claim_id
            if claim_id in laid:
                pick = msgspec.structs.replace(pick, earlier_pick=laid[claim_id])
            elif claim_id not in unreported:
                count += 1
            laid[claim_id] = pick
        return count

    def remove_pick(self, columns: Columns, i: int, row: HostRow, claim_id: str) -> Pick | None:
        """Remove a pick from the usage of a host and return it; None: the host has none of it."""
        pick = self.picks_by_host.get(row.id, NO_PICKS).get(claim_id)
        if pick is not None:
            self._add(columns, i, pick.amounts, -1)
            self._drop(row.id, [claim_id])
            if pick.earlier_pick is not None:
                self.picks_by_host.setdefault(row.id, {})[claim_id] = pick.earlier_pick
            self.count_io(columns, i, row)
        return pick

    def committed_row(
        self, stored: HostRow, row: HostRow, claims: Container[str] | None
    ) -> HostRow:
        """Return the row to store of a host after an own commit; see ``HostTable.correct_usage``.

        :param stored: the row that is stored
        :param claims: ids of the picks that are committed; None: all
        """
        laid = self.picks_by_host.get(row.id, NO_PICKS)
        done = [c for c, p in laid.items() if p.version is None and (claims is None or c in claims)]
        self.unreported.note(row.id, done, row.reported_at)
        if row.version == stored.version + 1:
            self._drop(row.id, done)
            return row
        version = max(row.version, stored.version + (row.version == stored.version))
        for claim_id in done:
            laid[claim_id] = msgspec.structs.replace(laid[claim_id], version=version)
        if row.version < stored.version:
            self.drop_contained(stored, ())
            return stored
        used = dict(row.used)
        for pick in laid.values():
            if pick.version is not None:
                for name, amount in pick.amounts.items():
                    used[name] = used.get(name, 0) - amount
        return msgspec.structs.replace(row, version=stored.version, used=used)

    def add_committed(
        self, stored: HostRow, version: int, claims: Container[str] | None
    ) -> HostRow | None:
        """Add the picks on a host to its row, which an own commit wrote at a version.

        Usage, and the guests being built, stay as they are: they include the picks already.

        :param stored: the row that is stored
        :param claims: ids of the picks that are committed; None: all
        :returns: the row to store; None if others have written the host, or picks stay laid over it
        """
        laid = self.picks_by_host.get(stored.id)
        if laid is None or version != stored.version + 1:
            return None
        used = dict(stored.used)
        for claim_id, pick in laid.items():
            # A claim that is laid over it twice is part of the row once.
            is_plain = pick.version is None and pick.earlier_pick is None
            if not is_plain or not (claims is None or claim_id in claims):
                return None
            for name, amount in pick.amounts.items():
                used[name] = used.get(name, 0) + amount
        self.unreported.note(stored.id, laid, stored.reported_at)
        del self.picks_by_host[stored.id]
        return msgspec.structs.replace(
            stored, version=version, generation=stored.generation + 1, used=used
        )

    def row_at_version(
        self, stored: HostRow, version: int, claims: Container[str] | None
    ) -> HostRow:
        """Return the row to store of a host of which an own commit returned only the version.

        If that is the next version, only the picks were added.  Otherwise other instances have
        written the host as well, and the known usage stays as it was.

        :param stored: the row that is stored
        :param claims: ids of the picks that are committed; None: all
        """
        is_next = version == stored.version + 1
        used = dict(stored.used)
        for claim_id, pick in self.picks_by_host.get(stored.id, NO_PICKS).items():
            is_open = pick.version is None and (claims is None or claim_id in claims)
            if is_open or (pick.version is not None and not is_next):
                for name, amount in pick.amounts.items():
                    used[name] = used.get(name, 0) + amount
        generation = stored.generation + is_next
        return msgspec.structs.replace(stored, version=version, generation=generation, used=used)

    def drop_contained(self, row: HostRow, placed: Container[str]) -> None:
        """Drop the picks that a row contains: these claims, and all up to the row's version."""
        laid = self.picks_by_host.get(row.id)
        if not laid:
            return
        placed_ids = [claim_id for claim_id in laid if claim_id in placed]
        opened = [claim_id for claim_id in placed_ids if laid[claim_id].version is None]
        self.unreported.note(row.id, opened, row.reported_at)
        past = [c for c, p in laid.items() if p.version is not None and p.version <= row.version]
        self._drop(row.id, {*placed_ids, *past})
        for claim_id, pick in laid.items():
            if pick.replaces_claim:
                laid[claim_id] = msgspec.structs.replace(pick, replaces_claim=False)

    def forget(self, provider_id: int) -> None:
        """Forget the picks of a host that was deleted."""
        self.picks_by_host.pop(provider_id, None)
        self.unreported.keep(provider_id, ())

    def _drop(self, provider_id: int, claims: Iterable[str]) -> None:
        laid = self.picks_by_host.get(provider_id)
        if laid is None:
            return
        for claim_id in claims:
            del laid[claim_id]
        if not laid:
            del self.picks_by_host[provider_id]
