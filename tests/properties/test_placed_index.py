# SPDX-License-Identifier: Apache-2.0
"""Who is where against plain dictionaries: what is written to one copy changes no other one."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.resources.host import Placed
from gantt.core.table.placed_index import PlacedIndex
from tests.thorough import examples

HOSTS, CLAIMS = (1, 2, 3), tuple(f'claim-{n}' for n in range(6))
GUESTS, GROUPS = ('guest-1', 'guest-2', 'guest-3'), ('red', 'blue')

host, claim = st.sampled_from(HOSTS), st.sampled_from(CLAIMS)
guest = st.tuples(
    st.sampled_from(GUESTS), st.sampled_from((None, *GROUPS)), st.sampled_from((None, 'm1', 'm2'))
)
step = st.one_of(
    st.tuples(st.just('add'), host, claim, guest),
    st.tuples(st.just('add'), host, claim, guest),
    st.tuples(st.just('remove'), host, claim),
    st.tuples(st.just('replace'), host, st.dictionaries(claim, guest, max_size=4)),
    st.tuples(st.just('copy')),
    st.tuples(st.just('ask')),
)
#: Which of the indexes that there are by then takes a step.
story = st.lists(st.tuples(st.integers(0, 7), step), max_size=60)


def placed_on(number: int, claim_id: str, of: tuple[str, str | None, str | None]) -> Placed:
    consumer, group, flavor = of
    return Placed(claim_id, consumer, number, group, image=flavor and f'of {flavor}', flavor=flavor)


class Pair:
    """An index, and what it is to say: host -> claim id -> who is placed."""

    def __init__(self, index: PlacedIndex, model: dict[int, dict[str, Placed]]) -> None:
        self.index, self.model = index, model

    def add(self, number: int, claim_id: str, of: tuple[str, str | None, str | None]) -> None:
        placed = placed_on(number, claim_id, of)
        here, was_there = self.index.add(placed)
        assert was_there == (claim_id in self.model[number])
        self.model[number][claim_id] = placed
        assert here == self.model[number]

    def remove(self, number: int, claim_id: str) -> None:
        self.index.remove(number, claim_id)
        self.model[number].pop(claim_id, None)

    def replace(self, number: int, of: dict[str, tuple[str, str | None, str | None]]) -> None:
        self.model[number] = {c: placed_on(number, c, guest) for c, guest in of.items()}
        self.index.replace(number, dict(self.model[number]))

    def copy(self) -> 'Pair':
        return Pair(self.index.copy(), {number: dict(of) for number, of in self.model.items()})

    def ask(self) -> None:
        """Counts are followed from the first time that they are asked for."""
        self.index.by_image(), self.index.by_flavor()

    def check(self) -> None:
        everything = [placed for here in self.model.values() for placed in here.values()]
        assert Counter(self.index) == Counter(everything)
        for number, here in self.model.items():
            assert self.index.on_provider(number) == here
        for guest_name in GUESTS:
            on = [p.provider_id for p in everything if p.consumer == guest_name]
            assert Counter(self.index.providers_of(guest_name)) == Counter(on)
        for group in GROUPS:
            members: dict[int, Counter[str]] = {}
            for placed in everything:
                if placed.group == group:
                    members.setdefault(placed.provider_id, Counter())[placed.consumer] += 1
            assert self.index.in_group(group) == members
        for index, name in ((self.index.by_image(), 'image'), (self.index.by_flavor(), 'flavor')):
            counts: dict[str, Counter[int]] = {}
            for placed in everything:
                value = getattr(placed, name)
                if name == 'flavor' or value is not None:
                    counts.setdefault(value or '', Counter())[placed.provider_id] += 1
            assert index == counts


@settings(max_examples=examples(400), deadline=None)
@given(story)
def test_a_copy_and_what_it_was_made_from_go_their_own_ways(steps):
    pairs = [Pair(PlacedIndex(), {number: {} for number in HOSTS})]
    for turn, (kind, *given_to) in steps:
        pair = pairs[turn % len(pairs)]
        copied = getattr(pair, kind)(*given_to)
        if copied is not None:
            pairs.append(copied)
        if kind != 'ask':
            continue
        for each in pairs:
            each.check()
    for each in pairs:
        each.check()


def test_what_a_snapshot_gave_out_stays_while_its_host_is_written():
    index = PlacedIndex()
    for claim_id in CLAIMS[:3]:
        index.add(placed_on(1, claim_id, ('guest-1', None, None)))
    snapshot = index.copy()
    here = snapshot.on_provider(1)
    index.add(placed_on(1, CLAIMS[3], ('guest-2', None, None)))
    index.remove(1, CLAIMS[0])
    assert list(here) == list(snapshot.on_provider(1)) == list(CLAIMS[:3])
    assert list(index.on_provider(1)) == list(CLAIMS[1:4])


def test_a_host_is_copied_once_after_each_snapshot():
    index = PlacedIndex()
    index.add(placed_on(1, CLAIMS[0], ('guest-1', None, None)))
    index.copy()
    first, _ = index.add(placed_on(1, CLAIMS[1], ('guest-1', None, None)))
    second, _ = index.add(placed_on(1, CLAIMS[2], ('guest-1', None, None)))
    index.remove(1, CLAIMS[0])
    assert first is second is index.on_provider(1)
