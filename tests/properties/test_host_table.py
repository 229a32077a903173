# SPDX-License-Identifier: Apache-2.0
"""The host table against a plain dictionary of hosts, through random histories."""

import random
from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np
import pytest

from gantt.core.resources.host import HostChange, Placed
from gantt.core.table.columns import COLUMNS
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, an_id, state_of
from tests.properties.clouds import CLASSES, GROUPS, GUESTS, a_cloud, a_random_host, few, guests_on


class Model:
    """What is true, which picks are laid over it, and which no report contains yet."""

    def __init__(self) -> None:
        self.rows = {}
        self.placed: dict[int, dict[str, Placed]] = {}
        self.picks: dict[int, dict[str, tuple[dict[str, int], Placed]]] = {}
        self.fresh: dict[int, dict[str, float]] = {}

    def io_ops(self, number: int) -> int:
        metric = self.rows[number].facts.metrics.get('stats.io_workload')
        picks = {*self.picks[number], *self.fresh[number]}
        return (max(0, int(metric.value)) if metric else 0) + len(picks)

    def used(self, number: int, name: str) -> int:
        laid = sum(amounts.get(name, 0) for amounts, _ in self.picks[number].values())
        return self.rows[number].used.get(name, 0) + laid

    def news(self, change: HostChange) -> None:
        number = change.provider_id
        if change.row is None:
            for by_host in (self.rows, self.placed, self.picks, self.fresh):
                by_host.pop(number, None)
            return
        self.rows[number] = change.row
        picks, fresh = self.picks.setdefault(number, {}), self.fresh.setdefault(number, {})
        for placed in change.placed:
            if picks.pop(placed.claim_id, None):
                fresh[placed.claim_id] = change.row.reported_at
        self.placed[number] = {p.claim_id: p for p in change.placed}
        self.placed[number].update({c: placed for c, (_, placed) in picks.items()})
        self.fresh[number] = {
            c: then
            for c, then in fresh.items()
            if c in self.placed[number] and then >= change.row.reported_at
        }


class History:
    """Random steps on a table and on the model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        _, aggregates = a_cloud(self.rng)
        self.table = HostTable.build([], aggregates, {}, (), NOW)
        self.model, self.serial, self.settled = Model(), 0, 0

    def step(self) -> None:
        kinds = [
            'news',
            'news',
            'take',
            'take',
            'take',
            'give',
            'correct_usage',
            'commit',
            'remove',
            'declare',
        ]
        getattr(self, self.rng.choice(kinds))()

    def a_known(self) -> int | None:
        return self.rng.choice(sorted(self.model.rows)) if self.model.rows else None

    def news(self) -> None:
        number = self.rng.randint(1, 30)
        old = self.model.rows.get(number)
        version = old.version + 1 if old else 1
        if self.rng.random() < 0.5 and old is not None:
            used = {n: self.rng.randint(0, 9) for n in few(self.rng, CLASSES)}
            row = msgspec.structs.replace(old, used=used, version=version)
        else:
            row = msgspec.structs.replace(a_random_host(self.rng, number), version=version)
        placed = guests_on(self.rng, number)
        for _, pick in self.model.picks.get(number, {}).values():
            if self.rng.random() < 0.5:
                placed.append(pick)
        change = HostChange(provider_id=number, row=row, placed=placed)
        assert self.table.apply(change)
        assert not self.table.apply(change)
        self.model.news(change)

    def take(self) -> None:
        number = self.a_known()
        if number is None:
            return
        self.serial += 1
        placed = Placed(
            an_id(self.serial, 99),
            self.rng.choice(GUESTS),
            number,
            self.rng.choice((None, *GROUPS)),
        )
        amounts = {n: self.rng.randint(1, 4) for n in few(self.rng, CLASSES, 1)}
        self.table.add_pick(number, amounts, placed)
        self.model.picks[number][placed.claim_id] = (amounts, placed)
        self.model.placed[number][placed.claim_id] = placed

    def give(self) -> None:
        number = self.a_known()
        if number is None or not self.model.picks[number]:
            return
        claim_id = self.rng.choice(sorted(self.model.picks[number]))
        amounts, _ = self.model.picks[number].pop(claim_id)
        del self.model.placed[number][claim_id]
        self.table.remove_pick(number, amounts, claim_id)

    def correct_usage(self) -> None:
        number = self.a_known()
        if number is None:
            return
        old = self.model.rows[number]
        used = {n: self.model.used(number, n) for n in CLASSES}
        row = msgspec.structs.replace(
            old, used=used, version=old.version + 1, over_committed=self.rng.random() < 0.2
        )
        some = set(
            self.rng.sample(
                sorted(self.model.picks[number]), self.rng.randint(0, len(self.model.picks[number]))
            )
        )
        for claim_id in some:
            del self.model.picks[number][claim_id]
            self.model.fresh[number][claim_id] = row.reported_at
        outside = {
            n: sum(a.get(n, 0) for a, _ in self.model.picks[number].values()) for n in CLASSES
        }
        row = msgspec.structs.replace(row, used={n: used[n] - outside[n] for n in CLASSES})
        self.model.rows[number] = row
        self.table.correct_usage(row, some)

    def commit(self) -> None:
        """Commits that returned only versions: the next one of a host, or one after others'."""
        versions = {
            number: row.version + self.rng.choice((1, 1, 1, 2, 0))
            for number, row in self.model.rows.items()
            if self.rng.random() < 0.4
        }
        ids = [c for number in versions for c in sorted(self.model.picks[number])]
        claims = {claim_id for claim_id in ids if self.rng.random() < 0.9}
        by_rows, settled = self.table.copy(), self.table.copy()
        assert not settle(by_rows, versions, claims, ())
        self.settled += settle(settled, versions, claims, versions)
        assert everything_of(settled) == everything_of(by_rows)
        versions = {n: v for n, v in versions.items() if v == self.model.rows[n].version + 1}
        settle(self.table, versions, claims, versions)
        for number in versions:
            self._note_committed(number, claims)

    def _note_committed(self, number: int, claims: set[str]) -> None:
        row, picks = self.model.rows[number], self.model.picks[number]
        used = dict(row.used)
        for claim_id in sorted(picks.keys() & claims):
            amounts, _ = picks.pop(claim_id)
            self.model.fresh[number][claim_id] = row.reported_at
            for name, amount in amounts.items():
                used[name] = used.get(name, 0) + amount
        self.model.rows[number] = msgspec.structs.replace(
            row, version=row.version + 1, generation=row.generation + 1, used=used
        )

    def remove(self) -> None:
        number = self.a_known()
        if number is None or self.rng.random() < 0.5:
            return
        change = HostChange(provider_id=number, row=None)
        assert self.table.apply(change)
        self.model.news(change)

    def declare(self) -> None:
        self.table.add_class(f'CUSTOM_{self.rng.randint(0, 40)}')

    def check(self) -> None:
        table, model = self.table, self.model
        assert sorted(table.ids.tolist()) == sorted(model.rows)
        assert np.frombuffer(table.provider_ids_bytes(), np.int64).tolist() == table.ids.tolist()
        foreign = np.zeros_like(table.free)
        for number, row in model.rows.items():
            state = table.host_state(row.name)
            i = table.row_of_id(number)
            assert state.row == i == table.rows_of_names([row.name.upper()])[0]
            assert i in table.rows_of_nodes([row.node or row.name])
            for name in CLASSES:
                code = table.class_code(name)
                use = model.used(number, name) + row.foreign.get(name, 0)
                assert state.free(name) == row.cap(name) - use
                if code is not None:
                    foreign[code, i] = row.foreign.get(name, 0)
            assert state.traits == set(row.facts.traits)
            assert bool(table.open[i]) == row.is_open
            assert table.io_ops[i] == model.io_ops(number)
            assert set(state.consumers) == {p.consumer for p in model.placed[number].values()}
            assert table.instances[i] == len(model.placed[number])
        assert (table.free == table.cap - table.used - foreign).all()
        self._check_index()

    def _check_index(self) -> None:
        everywhere = [p for placed in self.model.placed.values() for p in placed.values()]
        for guest in GUESTS:
            where = {self.table.row_of_id(p.provider_id) for p in everywhere if p.consumer == guest}
            assert set(self.table.rows_of_consumer(guest)) == where
        for group in GROUPS:
            assert self.table.placed.in_group(group) == members_of(everywhere, group)


def settle(
    table: HostTable, versions: dict[int, int], claims: set[str], written: Collection[int]
) -> int:
    """Settle hosts after a commit; return how many were settled at once."""
    settled, rows = table.commit_picks(versions, claims, written)
    for row in rows:
        table.correct_usage(row, claims)
    assert all(before.version + 1 == row.version for before, row in settled)
    return len(settled)


def everything_of(table: HostTable) -> dict[str, Any]:
    """All of a table, bit for bit."""
    state = {name: getattr(table, name).tobytes() for name in COLUMNS}
    state['placed'] = [table.placed.on_provider(row.id) for row in table.hosts]
    state |= {'hosts': list(table.hosts), 'unreported': table.unreported_claims()}
    return state | {'picks': table._usage.picks_by_host, 'seq': table.seq}


def members_of(placed, group):
    """Provider id -> consumer -> claims, of one group."""
    members = {}
    for placed_guest in placed:
        if placed_guest.group == group:
            here = members.setdefault(placed_guest.provider_id, {})
            here[placed_guest.consumer] = here.get(placed_guest.consumer, 0) + 1
    return members


@pytest.mark.parametrize('block', [range(n * 20, n * 20 + 20) for n in range(5)], ids=str)
def test_any_history_leaves_what_is_true_plus_the_picks(block):
    settled = 0
    for seed in block:
        history = History(seed)
        for step in range(60):
            history.step()
            if step % 5 == 0:
                history.check()
        history.check()
        settled += history.settled
    assert settled > 10


def test_snapshots_taken_on_the_way_stay_as_they_were():
    for seed in range(30):
        history = History(seed)
        taken = []
        for _ in range(60):
            history.step()
            if history.rng.random() < 0.2:
                snapshot = history.table.snapshot()
                assert state_of(snapshot) == state_of(history.table)
                taken.append((snapshot, state_of(snapshot), list(snapshot.names)))
        for snapshot, state, names in taken:
            assert state_of(snapshot) == state, f'seed {seed}'
            assert [snapshot.names[snapshot.row_of(name)] for name in names] == names
            for group in GROUPS:
                assert snapshot.placed.in_group(group) == members_of(snapshot.placed, group)


def test_arrays_of_a_snapshot_cannot_be_written():
    history = History(1)
    for _ in range(30):
        history.step()
    snapshot = history.table.snapshot()
    assert not any(array.flags.writeable for array in snapshot.arrays.values())
    assert all(array.flags.writeable for array in snapshot.copy().arrays.values())
