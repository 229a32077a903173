# SPDX-License-Identifier: Apache-2.0
"""What waits for locked hosts: in order, for as long as each is locked, and no longer."""

import pytest

from devel.doubles import ManualClock
from gantt.scheduler.update_resource_stats import RETRY_SECONDS, WAIT_SECONDS_MAX, SetAsideItems


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def aside(clock):
    return SetAsideItems(clock, lambda item: item[0])


def test_what_is_newer_waits_behind_what_waits(aside, clock):
    assert aside.put(['a1']) == []
    assert aside.without_waiting_hosts(['b1', 'a2']) == ['b1']
    assert aside.take_due() == []
    clock.advance(2 * RETRY_SECONDS)
    assert aside.take_due() == ['a1', 'a2']


def test_a_host_that_stays_locked_is_given_up_once(aside, clock):
    aside.put(['a1', 'b1'])
    gone = []
    while not gone:
        clock.advance(WAIT_SECONDS_MAX / 4)
        items = [item for item in aside.take_due() if item != 'b1']
        gone = aside.put(items)
    assert gone == ['a1']
    assert list(aside) == []


def test_a_host_that_was_free_in_between_waits_anew(aside, clock):
    aside.put(['a1'])
    clock.advance(2 * RETRY_SECONDS)
    assert aside.take_due() == ['a1']  # and is free
    clock.advance(2 * WAIT_SECONDS_MAX)
    assert aside.take_due() == []
    assert aside.put(['a2']) == []
    assert list(aside) == ['a2']
