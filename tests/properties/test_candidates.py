# SPDX-License-Identifier: Apache-2.0
"""The search finds what the plain product finds, over providers that change."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.candidates import find as find_module
from gantt.core.candidates.find import CandidatesFound, find_candidates, why_few_candidates
from gantt.core.candidates.query import CandidatesQuery, GroupQuery
from gantt.core.candidates.table import ClassInventory, ProviderEntry, ProviderTable
from tests.properties import plain_candidates as plain
from tests.properties.candidate_worlds import CandidateWorld
from tests.thorough import examples

seeds = st.integers(0, 2**32)


def table_of(entries) -> ProviderTable:
    table = ProviderTable()
    table.apply(entries.values())
    return table


def as_plain(table: ProviderTable, candidates: CandidatesFound) -> list[plain.PlainCandidate]:
    """What was found in the form of the plain product, in order."""
    rows = []
    for row in candidates.rows:
        amounts: dict[tuple[str, str], int] = {}
        groups: dict[str, set[str]] = {}
        for part, slot in zip(candidates.parts, row, strict=True):
            uuid = table.entry(slot).uuid
            groups.setdefault(part.suffix, set()).add(uuid)
            for name, amount in part.amounts:
                amounts[uuid, name] = amounts.get((uuid, name), 0) + amount
        rows.append(
            (
                frozenset((*key, amount) for key, amount in amounts.items()),
                frozenset((suffix, frozenset(uuids)) for suffix, uuids in groups.items()),
            )
        )
    return rows


@settings(max_examples=examples(400), deadline=None)
@given(seeds, st.booleans())
def test_all_candidates_are_those_of_the_plain_product(seed, nested):
    world = CandidateWorld(seed)
    table = table_of(world.entries)
    for _ in range(3):
        query = msgspec.structs.replace(world.query(), nested=nested)
        expected = plain.candidates(plain.PlainProviders(world.entries), query)
        candidates = as_plain(table, find_candidates(table, query))
        assert len(candidates) == len(set(candidates))
        assert set(candidates) == set(expected)
        assert why_few_candidates(table, query)
        table.apply([world.change()])


@settings(max_examples=examples(300), deadline=None)
@given(seeds, st.integers(1, 6))
def test_with_a_limit_each_tree_comes_once_before_any_twice(seed, limit):
    world = CandidateWorld(seed)
    table = table_of(world.entries)
    query = msgspec.structs.replace(world.query(), limit=limit)
    expected = plain.candidates(plain.PlainProviders(world.entries), query)
    candidates = as_plain(table, find_candidates(table, query))
    assert len(candidates) == len(set(candidates)) <= limit
    assert set(candidates) <= set(expected)
    assert bool(candidates) == bool(expected)
    # What lies on pools alone counts for one of the trees that they serve: not known, for which.
    if all(len(roots) == 1 for roots in expected.values()):
        roots = [next(iter(expected[candidate])) for candidate in candidates]
        first = min(limit, len(set().union(*expected.values())))
        assert len(set(roots[:first])) == first


class EachByItself:
    """The plain reference for ``EqualTrees``: every tree is searched anew."""

    def __init__(self, table, search, budget):
        self.solutions = search.solutions


def farm_of_devices(units: list[list[tuple[int, bool]]]) -> ProviderTable:
    """Trees by their devices: what each has, and whether it has a trait."""
    entries, number = [], 0
    for tree in units:
        number += 1
        root = number
        entries.append(ProviderEntry(id=root, uuid=f'root-{root}', root_id=root, inventories={}))
        for free, is_fast in tree:
            number += 1
            entries.append(
                ProviderEntry(
                    id=number,
                    uuid=f'device-{number}',
                    root_id=root,
                    parent_id=root,
                    traits=('FAST',) if is_fast else (),
                    inventories={'VGPU': ClassInventory(cap=free)},
                )
            )
    table = ProviderTable()
    table.apply(entries)
    return table


TREES = st.lists(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=4), max_size=8)


@settings(max_examples=examples(300), deadline=None)
@given(
    TREES,
    st.lists(st.integers(1, 2), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.booleans(),
    st.sampled_from([None, 1, 3, 100]),
    st.booleans(),
)
def test_trees_searched_once_for_all_that_are_equal_are_as_each_by_itself(
    units, amounts, fast, isolate, limit, spread
):
    table = farm_of_devices(units)
    query = CandidatesQuery(
        groups=tuple(
            GroupQuery(
                suffix='' if spread and not n else str(n),
                resources={'VGPU': amount},
                required=(frozenset(['FAST']),) if fast[n] else (),
            )
            for n, amount in enumerate(amounts)
        ),
        isolate=isolate,
        limit=limit,
    )
    for _ in range(2):
        together = find_candidates(table, query)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(find_module, 'EqualTrees', EachByItself)
            apart = find_candidates(table, query)
        assert without_steps(together) == without_steps(apart)
        # One device is taken of: it is equal to none, or to others than before.
        for slot in list(table.ids())[:3]:
            entry = table.entry(table.slot(table.uuid_of(slot)))
            taken = {
                name: msgspec.structs.replace(inventory, used=1)
                for name, inventory in entry.inventories.items()
            }
            table.apply([msgspec.structs.replace(entry, inventories=taken, version=1)])


def without_steps(candidates):
    """An answer, however long it took."""
    return candidates.parts, candidates.rows, candidates.scores


@settings(max_examples=examples(150), deadline=None)
@given(seeds, st.sampled_from([None, 2, 50]))
def test_in_any_world_equal_trees_are_as_each_by_itself(seed, limit):
    world = CandidateWorld(seed)
    table = table_of(world.entries)
    query = msgspec.structs.replace(world.query(), limit=limit)
    together = find_candidates(table, query)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(find_module, 'EqualTrees', EachByItself)
        assert without_steps(together) == without_steps(find_candidates(table, query))


def devices(units: list[int], **more) -> dict[int, ProviderEntry]:
    """A root with one device for each number."""
    entries = {1: ProviderEntry(id=1, uuid='root', root_id=1, inventories={})}
    for n, free in enumerate(units):
        entries[n + 2] = ProviderEntry(
            id=n + 2,
            uuid=f'device-{n}',
            root_id=1,
            parent_id=1,
            inventories={'VGPU': ClassInventory(cap=free, **more)},
        )
    return entries


def groups(count: int, amount: int = 1, **more) -> CandidatesQuery:
    return CandidatesQuery(
        groups=tuple(GroupQuery(suffix=str(n), resources={'VGPU': amount}) for n in range(count)),
        **more,
    )


@pytest.mark.parametrize('isolate', [False, True])
def test_groups_that_do_not_find_room_are_refused_without_a_search(isolate):
    table = table_of(devices([1] * 7))
    assert find_candidates(table, groups(8, isolate=isolate), steps=400).rows == []


def test_groups_fit_one_to_a_device():
    table = table_of(devices([1] * 8))
    assert (
        len(find_candidates(table, groups(8, isolate=True, limit=10)).rows) == 1
    )  # all devices are equal
    assert len(find_candidates(table, groups(4, isolate=True)).rows) == 8 * 7 * 6 * 5


def test_a_search_without_an_end_is_an_error_and_no_empty_answer():
    table = table_of(devices([8] * 8))
    with pytest.raises(exceptions.SearchOutOfBudget, match='1000 steps'):
        find_candidates(table, groups(8), steps=1000)


def test_the_emptiest_tree_comes_first():
    table = ProviderTable()
    for n, used in enumerate([5, 0, 3]):
        inventories = {'VCPU': ClassInventory(cap=8, used=used)}
        table.apply([ProviderEntry(id=n, uuid=f'{n}', root_id=n, inventories=inventories)])
    query = CandidatesQuery(groups=(GroupQuery(resources={'VCPU': 1}),), limit=2)
    candidates = find_candidates(table, query)
    assert [table.entry(slot).uuid for (slot,) in candidates.rows] == ['1', '2']
    assert candidates.scores == [7 / 8, 4 / 8]


def test_a_tree_of_a_thousand_providers():
    table = table_of(devices([2] * 1000))
    assert len(find_candidates(table, groups(64, isolate=True, limit=5)).rows) == 1
    assert len(find_candidates(table, groups(1)).rows) == 1000


def test_providers_go_and_come():
    entries = devices([1, 1])
    table = table_of(entries)
    table.apply([], gone=[1])  # what is below waits for a root
    assert find_candidates(table, groups(1)).rows == []
    table.apply([entries[1]])
    assert len(find_candidates(table, groups(1)).rows) == 2
    table.apply([], gone=[2])
    assert len(find_candidates(table, groups(1)).rows) == 1
    assert len(table) == 2


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_a_table_that_followed_is_as_one_made_anew(seed):
    world = CandidateWorld(seed)
    table = table_of(world.entries)
    for _ in range(30):
        pid = world.random.choice(list(world.entries))
        if world.random.random() < 0.3:
            table.apply([], gone=[pid])
            table.apply([world.entries[pid]])
        else:
            table.apply([world.change()])
    fresh = table_of(world.entries)
    for _ in range(5):
        query = world.query()
        assert set(as_plain(table, find_candidates(table, query))) == set(
            as_plain(fresh, find_candidates(fresh, query))
        )
