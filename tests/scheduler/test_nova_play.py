# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of an unmodified Nova, lost and late in every way: no claim in use ends, leaks do.

Each script is what Nova does to one guest; see ``nova_play`` for what is
looked at after every word.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.nova_play import LATE, LATER, LOST, NOW, Play, all_fates
from tests.thorough import stride


def boots(play: Play) -> None:
    play.boot('A')
    play.rounds(4)


def boots_and_goes(play: Play) -> None:
    boots(play)
    play.gone()


def goes_before_it_is_seen(play: Play) -> None:
    play.boot('A')
    play.gone()


def is_rescheduled(play: Play) -> None:
    play.boot('A')
    play.rescheduled('B')
    play.rounds(3)
    play.gone()


def migrates_live(play: Play) -> None:
    boots(play)
    play.move('live_migrate', 'B')
    play.arrive_live()
    play.rounds(5)
    play.gone()


def migrates_for_hours(play: Play) -> None:
    boots(play)
    play.move('live_migrate', 'B', rounds=30)
    play.arrive_live()
    play.rounds(5)


def does_not_migrate(play: Play) -> None:
    boots(play)
    play.move('live_migrate', 'B')
    play.stay()
    play.rounds(3)
    play.gone()


def does_not_migrate_and_tries_elsewhere(play: Play) -> None:
    boots(play)
    play.move('live_migrate', 'B')
    play.stay()
    play.move('live_migrate', 'C')
    play.arrive_live()
    play.rounds(5)


def resizes(play: Play) -> None:
    boots(play)
    play.move('resize', 'B')
    play.arrive_resized()
    play.rounds(4)
    play.confirm()
    play.rounds(3)


def resizes_and_is_confirmed_at_once(play: Play) -> None:
    boots(play)
    play.move('resize', 'B', rounds=12)
    play.arrive_resized()
    play.confirm()
    play.rounds(4)
    play.gone()


def resizes_and_reverts(play: Play) -> None:
    boots(play)
    play.move('resize', 'B')
    play.arrive_resized()
    play.rounds(4)
    play.stay()
    play.rounds(4)


def resizes_and_reverts_at_once(play: Play) -> None:
    boots(play)
    play.move('resize', 'B')
    play.arrive_resized()
    play.stay()
    play.rounds(4)


def goes_while_it_is_resized(play: Play) -> None:
    boots(play)
    play.move('resize', 'B')
    play.arrive_resized()
    play.rounds(4)
    play.confirm()
    play.gone()


def resizes_on_its_host(play: Play) -> None:
    boots(play)
    play.move('resize', 'A')
    play.arrive_resized()
    play.rounds(4)
    play.confirm()
    play.rounds(4)


def resizes_there_and_back(play: Play) -> None:
    boots(play)
    for to in ('B', 'A'):
        play.move('resize', to, rounds=2)
        play.arrive_resized()
        play.rounds(1)
        play.confirm()
        play.rounds(1)


def is_evacuated(play: Play) -> None:
    boots(play)
    play.down.add('A')
    play.move('evacuate', 'B')
    play.arrive_evacuated()
    play.rounds(4)
    play.down.clear()


def is_shelved_and_comes_back(play: Play) -> None:
    boots(play)
    play.gone()
    play.rounds(1)
    play.boot('B', 'unshelve')
    play.rounds(3)


def is_shelved_and_comes_back_home(play: Play) -> None:
    boots(play)
    play.gone()
    play.rounds(1)
    play.boot('A', 'unshelve')
    play.rounds(3)


SCRIPTS: list[Callable[[Play], None]] = [
    boots,
    boots_and_goes,
    goes_before_it_is_seen,
    is_rescheduled,
    migrates_live,
    migrates_for_hours,
    does_not_migrate,
    does_not_migrate_and_tries_elsewhere,
    resizes,
    resizes_and_is_confirmed_at_once,
    resizes_and_reverts,
    resizes_and_reverts_at_once,
    goes_while_it_is_resized,
    resizes_on_its_host,
    resizes_there_and_back,
    is_evacuated,
    is_shelved_and_comes_back,
    is_shelved_and_comes_back_home,
]

#: Lists of guests that are lost: of so many rounds the first so many, by host.
DEAFNESS = [
    {},
    {'A': (2, 1), 'B': (3, 2)},
    {'A': (3, 2), 'B': (2, 1), 'C': (3, 2)},
    {'B': (3, 2)},
    {'A': (3, 2)},
]


#: How late lists come, in rounds, by turns.
SLOWNESS = [
    {'A': [LATE], 'B': [NOW, LATER]},
    {'A': [LATER, NOW, 2], 'B': [LATER, 3, 2, LATE, NOW], 'C': [3, NOW]},
    {'A': [LATER], 'B': [LATER], 'C': [LATER]},
    {'A': [LATER, 3, 2, LATE], 'B': [2, NOW, NOW, LATER]},
]
#: By how many seconds clocks of hosts are ahead, from which round on.
CLOCKS = [
    {'A': [(3, -1200.0)], 'B': [(5, -300.0)]},
    {'A': [(0, -600.0)], 'B': [(0, 20.0)], 'C': [(0, -60.0)]},
    {'A': [(0, -1200.0), (6, 0.0)], 'B': [(7, -1300.0)]},
]
#: Hours: such a clock is believed, and lists come in time.
WRONG_CLOCKS = [{'B': [(4, -7200.0)]}, {'A': [(0, 7200.0), (5, 0.0)]}]


class Count:
    """How many broadcasts a script sends beside the lists."""

    def __init__(self, script: Callable[[Play], None]) -> None:
        self.count = 0

        def fates():
            while True:
                self.count += 1
                yield NOW

        script(Play(fates()))


def some_of(*choices: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Every fifth combination for a change: of two, three or four choices each comes with each."""
    return itertools.islice(itertools.product(*choices), 0, None, stride(5))


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.__name__)
def test_in_every_order_that_loss_and_delay_allow(script):
    count = Count(script).count
    all_of_them = all_fates(count, (LOST, NOW, LATE, LATER) if count < 4 else (LOST, NOW, LATER))
    for fates, deaf in some_of(all_of_them, DEAFNESS[:2]):
        play = Play(fates, deaf)
        script(play)
        play.end()


@pytest.mark.parametrize('most', [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.__name__)
def test_lists_that_come_late_and_clocks_that_differ(script, most):
    count = Count(script).count
    of_clocks = [(slow, clocks) for slow in ({}, *SLOWNESS) for clocks in ({}, *CLOCKS)]
    of_clocks += [({}, clocks) for clocks in WRONG_CLOCKS]
    all_of_them = all_fates(min(count, most), (LOST, NOW, LATER))
    for (slow, clocks), fates in some_of(of_clocks, all_of_them):
        play = Play(fates, slow=slow, clocks=clocks)
        play.say(f'lists late by {slow}, clocks ahead by {clocks}')
        script(play)
        play.end()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.__name__)
def test_in_every_order_with_more_delays_and_deafer(script):
    count = Count(script).count
    for fates in all_fates(count, (LOST, NOW, LATE, 2, LATER)):
        for deaf in DEAFNESS:
            play = Play(fates, deaf)
            script(play)
            play.end()


def test_a_late_word_of_an_earlier_move_proves_nothing_of_this_one():
    """Resized there and reverted, then there again: the first arrival is heard in the second."""
    play = Play([None, 1])
    play.boot('A')
    play.move('resize', 'B', 0)
    play.arrive_resized()
    play.stay()
    play.move('resize', 'B', 4)
    play.arrive_resized()
    play.confirm()
    play.end()


STEPS = ('live', 'live_back', 'resize', 'revert', 'resize_home', 'shelve', 'wait')


@settings(deadline=None, max_examples=25)
@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=6),
    fates=st.lists(st.sampled_from((LOST, NOW, LATE, 2, 3, LATER)), max_size=20),
    deaf=st.fixed_dictionaries(
        {host: st.sampled_from([(1, 0), (2, 1), (3, 1), (3, 2)]) for host in 'ABC'}
    ),
    pauses=st.lists(st.integers(0, 6), min_size=20, max_size=20),
)
def test_a_long_life(steps, fates, deaf, pauses):
    play = Play(fates, deaf)
    rest = iter(pauses)
    play.boot('A')
    for step in steps:
        play.rounds(next(rest))
        _step(play, step, rest)
    play.end()


def _step(play: Play, step: str, rest) -> None:
    here = play.where
    other = {'A': 'B', 'B': 'C', 'C': 'A'}[here]
    match step:
        case 'live' | 'live_back':
            play.move('live_migrate', other, next(rest))
            play.arrive_live() if step == 'live' else play.stay()
        case 'resize' | 'revert' | 'resize_home':
            play.move('resize', here if step == 'resize_home' else other, next(rest))
            play.arrive_resized()
            play.rounds(next(rest))
            play.stay() if step == 'revert' else play.confirm()
        case 'shelve':
            play.gone()
            play.rounds(next(rest))
            play.boot(other, 'unshelve')
        case 'wait':
            play.rounds(2)
