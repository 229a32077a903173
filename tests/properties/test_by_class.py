# SPDX-License-Identifier: Apache-2.0
"""Columns by class, sparse or dense, are a plain dictionary of figures; and decide the same.

Random news, picks, undone picks, commits, removals and copies are brought to three: a table
whose classes become dense at the thresholds drawn, one whose classes are all dense, and a
dictionary.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import CORE_CLASSES, Inventory
from gantt.core.placement.place import place, undo_decision
from gantt.core.records import decision_codec
from gantt.core.resources.host import HostChange, HostRow, Placed
from gantt.core.table import columns
from gantt.core.table.columns import BY_CLASS, COLUMN_TYPES, COLUMNS
from gantt.core.table.host_table import HostTable
from gantt.scheduler import table_log
from tests.core.builders import NOW, a_host, an_id
from tests.thorough import examples

RARE = tuple(f'CUSTOM_{letter}' for letter in 'ABCDE')
CLASSES = ('VCPU', 'MEMORY_MB', *RARE)
HOSTS = 9
PIPELINE = plugin_loader.load_pipeline()
#: DENSE_MIN, DENSE_SHARE and DENSE_MAX: all sparse, one host is enough, few lines, as they are.
THRESHOLDS = ((99, 1, 64), (0, 99, 64), (1, 99, 64), (2, 99, 5), (16, 16, 64))
ALL_DENSE = (-1, 99, 999)

inventories = st.dictionaries(
    st.sampled_from(CLASSES),
    st.builds(
        Inventory,
        total=st.integers(0, 9),
        min_unit=st.sampled_from((1, 1, 2)),
        step_size=st.sampled_from((1, 1, 3)),
        max_unit=st.sampled_from((None, 4)),
        allocation_ratio=st.sampled_from((1.0, 2.0)),
    ),
)
amounts = st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 4), max_size=4)
hosts = st.integers(1, HOSTS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just('news'), hosts, inventories, amounts, amounts),
        st.tuples(st.just('usage'), hosts, amounts, amounts),
        st.tuples(st.just('take'), hosts, amounts),
        st.tuples(st.just('give'), st.integers(0, 99)),
        st.tuples(st.just('commit'), hosts, st.booleans()),
        st.tuples(st.just('remove'), hosts),
        st.tuples(st.just('declare'), st.sampled_from(CLASSES)),
        st.tuples(st.just('copy')),
        st.tuples(st.just('snapshot')),
        st.tuples(st.just('rebuild')),
        st.tuples(st.just('place'), amounts, st.integers(1, 3)),
    ),
    max_size=40,
)


@contextlib.contextmanager
def dense_from(least: int, share: int, most: int) -> Iterator[None]:
    """Thresholds at which classes become dense."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, 'DENSE_HOSTS_MIN', least)
        patch.setattr(columns, 'DENSE_HOSTS_DIVISOR', share)
        patch.setattr(columns, 'DENSE_CLASSES_MAX', most)
        yield


class Reference:
    """Rows as they were last written, and the picks laid over them."""

    def __init__(self) -> None:
        self.rows: dict[int, HostRow] = {}
        self.picks: dict[int, dict[str, dict[str, int]]] = {}

    def figures(self, host: int, name: str) -> dict[str, Any]:
        """Every column of a host and class."""
        row = self.rows[host]
        used = row.used.get(name, 0)
        used += sum(pick.get(name, 0) for pick in self.picks[host].values())
        inventory = row.facts.inventories.get(name)
        figures = {column: COLUMNS[column].fill for column in BY_CLASS}
        if inventory is not None:
            figures |= {
                'cap': inventory.cap,
                'min_unit': inventory.min_unit,
                'largest': inventory.largest,
                'step': inventory.step_size,
                'total': inventory.total,
                'reserved': inventory.reserved,
                'ratio': inventory.allocation_ratio,
            }
        free = figures['cap'] - used - row.foreign.get(name, 0)
        return figures | {'used': used, 'free': free}


class ThreeWays:
    """The tables and the dictionary."""

    def __init__(self, thresholds: tuple[int, int, int]) -> None:
        self.thresholds = [thresholds, ALL_DENSE]
        self.tables = self.each(lambda _: HostTable(rows=4))
        for table in self.tables:
            table.now = NOW
        self.reference = Reference()
        self.snapshots: list[tuple[HostTable, dict[str, Any]]] = []
        self.serial = 0

    def each(self, do: Any) -> list[Any]:
        """What is done with each table, under its thresholds."""
        results = []
        for number, thresholds in enumerate(self.thresholds):
            with dense_from(*thresholds):
                results.append(do(number))
        return results

    def on_each(self, do: Any) -> list[Any]:
        """What is done with each table."""
        return self.each(lambda number: do(self.tables[number]))

    def news(self, host: int, has: Any, used: dict[str, int], foreign: dict[str, int]) -> None:
        known_row = self.reference.rows.get(host)
        row = a_host(host, version=1 if known_row is None else known_row.version + 1)
        facts = msgspec.structs.replace(row.facts, inventories=has)
        self._write(msgspec.structs.replace(row, facts=facts, used=used, foreign=foreign))

    def usage(self, host: int, used: dict[str, int], foreign: dict[str, int]) -> None:
        row = self.reference.rows.get(host)
        if row is not None:
            version = row.version + 1
            report = msgspec.structs.replace(row, version=version, used=used)
            self._write(report)
            self._write(msgspec.structs.replace(report, version=version + 1, foreign=foreign))

    def _write(self, row: HostRow) -> None:
        assert self.on_each(lambda table: table.apply(HostChange(provider_id=row.id, row=row)))
        self.reference.rows[row.id] = row
        self.reference.picks.setdefault(row.id, {})

    def take(self, host: int, amounts: dict[str, int]) -> None:
        if host not in self.reference.rows:
            return
        self.serial += 1
        placed = Placed(an_id(self.serial, 2), an_id(self.serial, 3), host)
        self.on_each(lambda table: table.add_pick(host, amounts, placed))
        self.reference.picks[host][placed.claim_id] = amounts

    def give(self, number: int) -> None:
        laid = [(h, c) for h, picks in sorted(self.reference.picks.items()) for c in picks]
        if laid:
            host, claim = laid[number % len(laid)]
            amounts = self.reference.picks[host].pop(claim)
            self.on_each(lambda table: table.remove_pick(host, amounts, claim))

    def commit(self, host: int, some: bool) -> None:
        row = self.reference.rows.get(host)
        if row is None:
            return
        picks = self.reference.picks[host]
        committed = sorted(picks)[: 1 if some else None]
        used = dict(row.used)
        for claim in committed:
            for name, amount in picks.pop(claim).items():
                used[name] = used.get(name, 0) + amount
        row = msgspec.structs.replace(row, used=used, version=row.version + 1)
        self.reference.rows[host] = row
        self.on_each(lambda table: table.correct_usage(row, frozenset(committed)))

    def remove(self, host: int) -> None:
        self.on_each(lambda table: table.apply(HostChange(provider_id=host, row=None)))
        self.reference.rows.pop(host, None)
        self.reference.picks.pop(host, None)

    def declare(self, name: str) -> None:
        self.on_each(lambda table: table.add_class(name))

    def copy(self) -> None:
        """Go on with copies; the tables that they were made of are written to in vain."""
        old, self.tables = self.tables, self.on_each(lambda table: table.copy())
        for table in old:
            for row in list(table.hosts):
                table.apply(HostChange(provider_id=row.id, row=None))

    def snapshot(self) -> None:
        for table in self.on_each(lambda table: table.snapshot()):
            self.snapshots.append((table, figures_of(table)))

    def rebuild(self) -> None:
        """Go on with tables as a replay builds them; it has no open picks."""
        for host in self.reference.rows:
            self.commit(host, False)
        self.tables = self.on_each(lambda table: table_log.table_of(table_log.everything_of(table)))

    def place(self, amounts: dict[str, int], members: int) -> None:
        """Both decide the same, and take it back."""
        self.serial += 1
        request = SelectDestinations(
            request_id=an_id(self.serial, 5),
            spec=RequestSpec(resources={name: n for name, n in amounts.items() if n}),
            consumers=[an_id(self.serial * 10 + i, 6) for i in range(members)],
            alternates=1,
        )
        before = [figures_of(table) for table in self.tables]

        def decide(table: HostTable) -> list[Any]:
            decision = place(table, request, PIPELINE, seed=1, decision_id='one')
            outputs = [figures_of(table), decision_codec.pack(decision, request)]
            undo_decision(table, decision, request)
            return outputs

        sparse, dense = self.on_each(decide)
        assert sparse == dense
        assert [figures_of(table) for table in self.tables] == before

    def check(self) -> None:
        for table in self.tables:
            rows = {host: table.row_of_id(host) for host in self.reference.rows}
            for name in table.classes.names:
                code = table.class_code(name)
                for host, row in rows.items():
                    expected = self.reference.figures(host, name)
                    actual = {column: getattr(table, column)[code][row] for column in BY_CLASS}
                    assert actual == expected, (name, host)
                    items = {c: getattr(table, c).item(code, row) for c in BY_CLASS}
                    assert items == expected
            for host, row in rows.items():
                used = table.host_state(row).used
                expected_used = {
                    name: self.reference.figures(host, name)['used'] for name in CLASSES
                }
                has = self.reference.rows[host].facts.inventories
                assert used == {n: u for n, u in expected_used.items() if u or n in has}
        sparse, dense = self.tables
        assert figures_of(sparse) == figures_of(dense)
        assert not dense.sparse.of_class
        check_form(sparse)
        check_form(dense)
        for snapshot, figures in self.snapshots:
            assert figures_of(snapshot) == figures


def figures_of(table: HostTable) -> dict[str, Any]:
    """All columns by class, as arrays of two dimensions, and the same by class."""
    figures = {}
    for name in BY_CLASS:
        column = getattr(table, name)
        whole = np.asarray(column)
        assert whole.dtype == COLUMN_TYPES[name]
        assert whole.shape == column.shape == (len(table.classes), len(table))
        assert [line.tolist() for line in column] == whole.tolist()
        figures[name] = whole.tolist()
    assert (table.free == np.asarray(table.free)).all()
    return figures


def check_form(table: HostTable) -> None:
    """A class is dense or has entries, and entries are found from both sides."""
    sparse = table.sparse
    assert [table.lines[code] for code in table.dense] == list(range(len(table.dense)))
    assert all(table.lines[code] < 0 for code in sparse.of_class)
    pairs = {(code, row) for code, rows in sparse.of_class.items() for row in rows}
    assert pairs == {(code, row) for row, codes in sparse.of_row.items() for code in codes}
    used = [entry for rows in sparse.of_class.values() for entry in rows.values()]
    assert len(set(used)) == len(used) <= sparse.size


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(THRESHOLDS), steps)
def test_any_history_is_the_same_in_every_form(thresholds: Any, history: list[Any]) -> None:
    world = ThreeWays(thresholds)
    for kind, *arguments in history:
        getattr(world, kind)(*arguments)
        world.check()


def a_world(classes: int, of_each: int, hosts: int) -> HostTable:
    """Each class on as many hosts, one after another."""
    has: list[dict[str, Inventory]] = [{'VCPU': Inventory(total=8)} for _ in range(hosts)]
    for number in range(classes * of_each):
        has[number % hosts][f'CUSTOM_{number // of_each}'] = Inventory(total=4)
    rows = [a_host(n + 1, inventories=inventories) for n, inventories in enumerate(has)]
    return HostTable.build(
        [HostChange(provider_id=row.id, row=row) for row in rows], [], {}, (), NOW
    )


def test_a_class_of_few_hosts_has_no_line_and_one_of_many_has():
    table = a_world(classes=100, of_each=5, hosts=400)
    assert set(table.dense) == set(range(len(CORE_CLASSES)))
    assert table.arrays['free'].shape[0] == COLUMNS['free'].lines
    assert table.sparse.size == 500
    for host in range(1, 27):
        row = msgspec.structs.replace(
            table.hosts[host],
            version=2,
            facts=a_host(1, inventories={'CUSTOM_0': Inventory(total=1)}).facts,
        )
        table.apply(HostChange(provider_id=row.id, row=row))
    assert table.lines[table.class_code('CUSTOM_0')] == len(CORE_CLASSES)
    assert int(table.cap_of(table.class_code('CUSTOM_0')).sum()) >= 26


def test_what_hosts_lose_leaves_no_entries_behind():
    table = a_world(classes=20, of_each=3, hosts=40)
    assert len(table.sparse.of_row) == 40
    for version in range(2, 12):
        for number in range(1, 41):
            has = {f'CUSTOM_{version}_{number}': Inventory(total=1)} if version < 11 else {}
            table.apply(
                HostChange(provider_id=number, row=a_host(number, version=version, inventories=has))
            )
    assert (table.sparse.of_class, table.sparse.of_row) == ({}, {})
    assert table.sparse.size <= 61


def test_dense_classes_have_a_bound():
    with dense_from(0, 99, 8):
        table = a_world(classes=30, of_each=3, hosts=10)
    assert len(table.dense) == 8
    assert [int(table.cap_of(code).sum()) for code in range(4, 34)] == [12] * 30


def test_a_snapshot_after_a_pick_of_what_its_host_does_not_have_is_whole():
    table = a_world(classes=1, of_each=1, hosts=3)
    code = table.class_code('CUSTOM_0')
    first = table.snapshot()
    table.add_pick(3, {'CUSTOM_0': 2}, Placed(an_id(1, 2), an_id(1, 3), 3))
    second = table.snapshot()
    assert [snapshot.cap_of(code).tolist() for snapshot in (first, second)] == [[4, 0, 0]] * 2
    assert [snapshot.free_of(code).tolist() for snapshot in (first, second)] == [
        [4, 0, 0],
        [4, 0, -2],
    ]
