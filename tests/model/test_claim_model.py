# SPDX-License-Identifier: Apache-2.0
"""The claim protocol holds in every world; each rule left out breaks a promise."""

import pytest

from tests.model.claim_model import FLAWS, Bounds, explore

ENOUGH = {
    'two callers, one place': Bounds(requests=2, stamps=3),
    'two callers and a crash': Bounds(requests=2, stamps=2, crashes=1),
    'a repeat and a crash': Bounds(tries=2, stamps=3, crashes=1, room=2),
    'two crashes': Bounds(stamps=3, crashes=2),
    'the database goes back': Bounds(stamps=2, crashes=1, restores=1),
    'two holds': Bounds(requests=2, stamps=3, lifecycle='hold'),
    'a plan for two': Bounds(requests=2, stamps=3, lifecycle='plan'),
}
LONG = {
    'two callers, a crash, more words': Bounds(requests=2, stamps=3, crashes=1),
    'repeats by two callers': Bounds(requests=2, tries=2, stamps=2, crashes=1),
    'three callers, two places': Bounds(requests=3, stamps=2, room=2),
    'the database goes back under two callers': Bounds(requests=2, stamps=2, crashes=1, restores=1),
}
#: Where the shortest story of a flaw is found.
PLACES = (
    Bounds(tries=2, stamps=2, room=2),
    Bounds(stamps=3, crashes=1),
    Bounds(requests=2, stamps=2),
    Bounds(stamps=2, lifecycle='hold'),
    Bounds(stamps=2, lifecycle='plan'),
    Bounds(stamps=2, crashes=1, restores=1),
)


@pytest.mark.parametrize('name', list(ENOUGH))
def test_the_protocol_keeps_every_promise_in_every_world(name):
    exploration = explore(ENOUGH[name])
    assert not exploration.broken, exploration.story
    assert len(exploration.parents) > 1000, 'hardly anything was explored'


@pytest.mark.slow
@pytest.mark.parametrize('name', list(LONG))
def test_the_protocol_keeps_every_promise_further_out(name):
    exploration = explore(LONG[name], most=5_000_000)
    assert not exploration.broken, exploration.story


@pytest.mark.parametrize('flaw', [flaw for flaw, promise in FLAWS.items() if promise])
def test_each_rule_left_out_breaks_its_promise(flaw):
    stories = (explore(bounds, flaw) for bounds in PLACES)
    exploration = next((exploration for exploration in stories if exploration.broken), None)
    assert exploration is not None, f'nothing breaks with {flaw!r}'
    assert exploration.broken.startswith(FLAWS[flaw]), (exploration.broken, exploration.story)


@pytest.mark.parametrize('flaw', [flaw for flaw, promise in FLAWS.items() if not promise])
def test_what_is_a_luxury_breaks_nothing(flaw):
    for bounds in PLACES:
        exploration = explore(bounds, flaw)
        assert not exploration.broken, exploration.story
