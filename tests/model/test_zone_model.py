# SPDX-License-Identifier: Apache-2.0
"""Placing over zones holds in every world; each rule left out breaks a promise."""

import pytest

from tests.model.zone_model import FLAWS, Bounds
from tests.model.zone_promises import explore

SAME = ('guest', 'guest')
ENOUGH = {
    'two requests for one place': Bounds(consumers=('one', 'two'), rooms=(0, 1)),
    'two requests for one consumer': Bounds(consumers=SAME, places=('below', 'here'), late=1),
    'one is taken over': Bounds(runs=2, places=('below', 'here'), late=1),
    'one is taken over and goes down': Bounds(
        runs=2, places=('below', 'below'), rooms=(0, 1), late=1
    ),
    'an offer is gone and the row opened again': Bounds(openings=2),
    'the zone between crashes': Bounds(crashes=1, late=1),
    'one is cancelled': Bounds(consumers=SAME, cancels=1, places=('below', 'here')),
}
LONG = {
    'two requests for one consumer below': Bounds(consumers=SAME, rooms=(0, 2), late=1),
    'two requests for one consumer anywhere': Bounds(consumers=SAME, late=1),
    'one is taken over, guests end': Bounds(runs=2, late=1, guests_end=True),
    'crashes and openings': Bounds(openings=2, crashes=1, late=2),
    'one is cancelled, both anywhere': Bounds(consumers=SAME, cancels=1),
}
#: What each flaw needs to break a promise.
PLACES = {
    'finish without looking': 'two requests for one consumer',
    'an overdue request finishes': 'two requests for one consumer',
    'a cancel frees the consumer at once': 'one is cancelled',
    'take-over leaves the keys of before': 'one is taken over',
    'a second opening has the keys of the first': 'one is taken over and goes down',
}


@pytest.mark.parametrize('name', list(ENOUGH))
def test_every_promise_holds_in_every_world(name):
    exploration = explore(ENOUGH[name])
    assert not exploration.broken, (exploration.broken, exploration.story)
    assert exploration.worlds > 1000, 'hardly anything was explored'


@pytest.mark.slow
@pytest.mark.parametrize('name', list(LONG))
def test_every_promise_holds_further_out(name):
    exploration = explore(LONG[name], most=2_000_000)
    assert not exploration.broken, (exploration.broken, exploration.story)


@pytest.mark.parametrize('flaw', list(FLAWS))
def test_each_rule_left_out_breaks_its_promise(flaw):
    exploration = explore(ENOUGH[PLACES.get(flaw, 'two requests for one place')], flaw)
    assert exploration.broken.startswith(FLAWS[flaw]), (exploration.broken, exploration.story)
