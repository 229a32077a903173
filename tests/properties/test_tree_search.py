# SPDX-License-Identifier: Apache-2.0
"""Looking ahead, and remembering what was in vain, change nothing of what a search finds."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.candidates import tree_search
from gantt.core.candidates.find import find_candidates
from gantt.core.candidates.one_tree import OneTreeSearch
from gantt.core.candidates.query import query_of
from gantt.core.candidates.table import ClassInventory, ProviderEntry
from gantt.core.messages.tree_request import TreeRequest
from tests.properties.candidate_worlds import CandidateWorld
from tests.properties.test_candidates import table_of, without_steps
from tests.thorough import examples

seeds = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def _looking_ahead_from_the_first_step(monkeypatch):
    monkeypatch.setattr(tree_search, 'STEPS_BEFORE_LOOKAHEAD', 0)


@settings(max_examples=examples(150), deadline=None)
@given(seeds, st.sampled_from([None, 1, 3, 50]), st.booleans())
def test_candidates_are_the_same_in_the_same_order(seed, limit, nested):
    world = CandidateWorld(seed)
    table = table_of(world.entries)
    for _ in range(3):
        query = msgspec.structs.replace(world.query(), limit=limit, nested=nested)
        ahead = find_candidates(table, query)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tree_search, 'STEPS_BEFORE_LOOKAHEAD', 10**9)
            assert without_steps(find_candidates(table, query)) == without_steps(ahead)


def a_tree(rooms: list[int], other: list[int] | None = None) -> list[ProviderEntry]:
    """A host with devices of so much room, no two of which are equal."""
    entries = [ProviderEntry(id=1, uuid='1', root_id=1)]
    for n, room in enumerate(rooms):
        used = n + 1
        classes = {'VGPU': ClassInventory(cap=room + used, used=used)}
        if other is not None:
            classes['CUSTOM_B'] = ClassInventory(cap=other[n] + used, used=used)
        entries.append(
            ProviderEntry(id=n + 2, uuid=f'{n}', root_id=1, parent_id=1, inventories=classes)
        )
    return entries


def a_search(groups: list[dict[str, int]], policy: str = 'none') -> OneTreeSearch:
    body = {'groups': {f'g{n}': {'resources': amounts} for n, amounts in enumerate(groups)}}
    tree = msgspec.convert(body | {'group_policy': policy}, TreeRequest)
    return OneTreeSearch(query_of({}, tree, {'VGPU'}, lambda name: frozenset((name,))))


def of_devices(amounts: list[int]) -> OneTreeSearch:
    return a_search([{'VGPU': amount} for amount in amounts])


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from(['none', 'none', 'isolate']),
    st.integers(0, 3),
)
def test_groups_are_packed_where_they_go_at_all(rooms, amounts, policy, more):
    other = [room // 2 + more for room in rooms]
    groups = [{'VGPU': a} | ({'CUSTOM_B': b} if b else {}) for a, b in amounts]
    search, entries = a_search(groups, policy), a_tree(rooms, other)
    answer, _ = search.best_solution(entries, 100_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tree_search, 'STEPS_BEFORE_LOOKAHEAD', 10**9)
        assert search.best_solution(entries, 100_000)[0] == answer
    assert (answer is not None) == any(
        fits(rooms, other, amounts, choice, policy)
        for choice in itertools.product(range(len(rooms)), repeat=len(amounts))
    )
    if answer is not None:
        assert fits(rooms, other, amounts, [slot - 1 for slot in answer], policy)


def fits(rooms, other, amounts, choice, policy) -> bool:
    if policy == 'isolate' and len(set(choice)) < len(choice):
        return False
    return all(
        sum(a for (a, _), at in zip(amounts, choice, strict=True) if at == n) <= rooms[n]
        and sum(b for (_, b), at in zip(amounts, choice, strict=True) if at == n) <= other[n]
        for n in range(len(rooms))
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.integers(1, 8), min_size=1, max_size=6),
)
def test_bounds_never_say_that_what_goes_does_not(rooms, amounts):
    goes = any(
        all(
            sum(amount for amount, at in zip(amounts, choice, strict=True) if at == n) <= room
            for n, room in enumerate(rooms)
        )
        for choice in itertools.product(range(len(rooms)), repeat=len(amounts))
    )
    assert tree_search.may_be_packed(amounts, rooms, lambda looks: None) or not goes


@pytest.mark.parametrize(
    ('rooms', 'amounts', 'goes'),
    [
        ([66] * 31, [33] * 48 + [34] * 8, False),
        ([66] * 32, [33] * 48 + [34] * 8, True),
        ([100] * 16, [51] * 8 + [34] * 24 + [26] * 32, False),
        ([100] * 31, [51] * 20 + [40] * 24 + [26] * 20, True),
        ([100] * 16, [34] * 33 + [33] * 15, False),
        ([66 + n for n in range(31)], [33] * 62 + [35] * 2, False),
    ],
)
def test_many_groups_are_answered_in_few_steps(rooms, amounts, goes, monkeypatch):
    monkeypatch.setattr(tree_search, 'STEPS_BEFORE_LOOKAHEAD', 256)
    answer, steps = of_devices(amounts).best_solution(a_tree(rooms), 20_000)
    assert (answer is not None) == goes
    assert steps <= 20_000


def test_what_is_found_does_not_depend_on_how_many_steps_there_are():
    pick = random.Random(3)
    for _ in range(3):
        amounts = [pick.randint(15, 60) for _ in range(24)]
        rooms = [100 + pick.randint(0, 4) for _ in range(sum(amounts) // 96)]
        search, entries = of_devices(amounts), a_tree(rooms)
        first = None
        for steps in (200, 2000, 20_000, 60_000, 120_000):
            try:
                answer = search.best_solution(entries, steps)
            except exceptions.SearchOutOfBudget:
                assert first is None
                continue
            assert first in (None, answer)
            first = answer
