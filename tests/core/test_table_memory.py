# SPDX-License-Identifier: Apache-2.0
"""Memory of host tables: what is counted is what they take, and claims that end leave nothing."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from gantt.core.messages.report import Hypervisor, NumaCell
from gantt.core.resources.host import HostChange
from gantt.core.table import memory
from gantt.core.table.host_table import HostTable
from gantt.core.table.memory import MemoryCount, TableMemory
from tests.core.builders import a_change, a_guest, a_host, an_id

HOSTS, CLAIMS_OF_HOST, ROUNDS = 100, 20, 5
AMOUNTS = {'VCPU': 1, 'MEMORY_MB': 512}
#: Bounds of what a host without devices and a claim of plain amounts take.
HOST_BYTES_MAX, CLAIM_BYTES_MAX = 5000, 450


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    """Let allocations be traced."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _change(number: int, claims: int = 0, first: int = 0, **fields: object) -> HostChange:
    """Return a host that is like no other, with guests of numbers from ``first`` on."""
    row = a_host(
        1000 + number,
        ram=32_768 + number,
        traits=['HW_CPU_X86_VMX', 'COMPUTE_NODE'],
        hypervisor=Hypervisor(hostname=f'cmp-{1000 + number}', host_ip='10.0.0.1'),
        used={name: claims * amount for name, amount in AMOUNTS.items()},
        **fields,
    )
    guests = (a_guest(first + claim, row.id) for claim in range(claims))
    return a_change(row, *guests)


def _build(claims: Callable[[int], int], **fields: object) -> HostTable:
    """Return a table of hosts with so many claims, by the number of the host."""
    changes = (_change(number, claims(number), 100 * number, **fields) for number in range(HOSTS))
    return HostTable.build(changes, [], {})


def _measure(table: HostTable) -> TableMemory:
    return table.memory(MemoryCount())


def _numa(number: int) -> list[NumaCell]:
    processors = list(range(1000, 1024))
    return [NumaCell(id=cell, pinned_cpus=processors, memory_mb=number) for cell in (0, 1)]


@pytest.mark.parametrize('fields', [{}, {'numa': _numa(65_536)}], ids=['plain', 'with cells'])
def test_what_is_counted_of_hosts_is_what_they_take(fields: dict[str, object]) -> None:
    before = _traced_bytes()
    table = _build(lambda number: 0, **fields)
    taken = _traced_bytes() - before
    counted = _measure(table)
    assert (counted.hosts, counted.claims) == (HOSTS, 0)
    assert counted.host_bytes == pytest.approx(taken, rel=0.15)
    if not fields:
        assert counted.host_bytes < HOSTS * HOST_BYTES_MAX


def _uneven(number: int) -> int:
    return number % 40


@pytest.mark.parametrize('claims', [lambda number: CLAIMS_OF_HOST, _uneven], ids=['even', 'uneven'])
def test_what_is_counted_of_claims_is_what_they_take(claims: Callable[[int], int]) -> None:
    before = _traced_bytes()
    without = _build(lambda number: 0)
    between = _traced_bytes()
    table = _build(claims)
    taken = (_traced_bytes() - between) - (between - before)
    counted = _measure(table)
    assert counted.claims == sum(map(claims, range(HOSTS)))
    assert counted.claim_bytes == pytest.approx(taken, rel=0.15)
    assert counted.claim_bytes < counted.claims * CLAIM_BYTES_MAX
    assert counted.host_bytes == pytest.approx(_measure(without).host_bytes, rel=0.1)


def test_a_sample_tells_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _build(_uneven)
    by_sample = _measure(table)
    monkeypatch.setattr(memory, 'SAMPLE_MIN', 10**6)
    whole = _measure(table)
    assert by_sample.host_bytes == pytest.approx(whole.host_bytes, rel=0.1)
    assert by_sample.claim_bytes == pytest.approx(whole.claim_bytes, rel=0.1)


def test_what_a_snapshot_shares_is_counted_once() -> None:
    table = _build(_uneven)
    before = _traced_bytes()
    snapshot = table.snapshot()
    taken = _traced_bytes() - before
    alone, count = _measure(table), MemoryCount()
    both = [table.memory(count), snapshot.memory(count)]
    total = sum(part.host_bytes + part.claim_bytes for part in both)
    # The copies of the columns, which a table and its snapshots share, were there before.
    assert taken < total - alone.claim_bytes
    assert sum(part.claim_bytes for part in both) < 1.1 * alone.claim_bytes
    assert sum(part.host_bytes for part in both) < 1.5 * alone.host_bytes


def test_group_members_are_counted() -> None:
    table = _build(lambda number: 0)
    for number in range(HOSTS):
        table.add_pick(1000 + number, AMOUNTS, a_guest(number, 1000 + number, an_id(9)))
    alone = _measure(table)
    for number in range(HOSTS):
        table.add_pick(1000 + number, AMOUNTS, a_guest(900 + number, 1000 + number))
    both = _measure(table)
    assert both.claims == 2 * alone.claims
    assert both.claim_bytes < 2 * alone.claim_bytes


def _by_feed(table: HostTable, turn: int) -> None:
    """Let other processes claim on all hosts, and the claims end."""
    for claims, version in ((CLAIMS_OF_HOST, 2 * turn), (0, 2 * turn + 1)):
        for number in range(HOSTS):
            first = (1 + turn) * 100_000 + 100 * number
            table.apply(_change(number, claims, first, version=version))


def _by_picks(table: HostTable, turn: int) -> None:
    """Let this process pick on all hosts, and give the picks back."""
    for number in range(HOSTS):
        first = (1 + turn) * 100_000 + 100 * number
        guests = [a_guest(first + claim, 1000 + number) for claim in range(CLAIMS_OF_HOST)]
        for guest in guests:
            table.add_pick(1000 + number, AMOUNTS, guest)
        for guest in guests:
            table.remove_pick(1000 + number, AMOUNTS, guest.claim_id)


def _by_commits(table: HostTable, turn: int) -> None:
    """Let this process commit picks on all hosts, and the claims end."""
    for number in range(HOSTS):
        first = (1 + turn) * 100_000 + 100 * number
        guest = a_guest(first, 1000 + number)
        table.add_pick(1000 + number, AMOUNTS, guest)
        row = _change(number, 1, first, version=2 * turn).row
        assert row is not None
        table.correct_usage(row, [guest.claim_id])
        table.apply(_change(number, version=2 * turn + 1))


@pytest.mark.parametrize('take_turn', [_by_feed, _by_picks, _by_commits])
def test_claims_that_end_leave_nothing(take_turn: Callable[[HostTable, int], None]) -> None:
    """Bytes after some rounds are those after the first one, as counted and as traced."""
    table = _build(lambda number: 0)
    counted, taken = [], []
    for turn in range(1, ROUNDS + 1):
        take_turn(table, turn)
        counted.append(_measure(table))
        taken.append(_traced_bytes())
    assert {memory.claims for memory in counted} == {0}
    first, last = counted[1], counted[-1]
    assert last.host_bytes == pytest.approx(first.host_bytes, rel=0.01)
    # Of claims only emptied dictionaries remain.
    assert last.claim_bytes <= first.claim_bytes < 2 * HOSTS * CLAIM_BYTES_MAX
    # The id of a claim alone has more than 80 bytes.
    assert taken[-1] - taken[1] < 20 * (ROUNDS - 2) * HOSTS
