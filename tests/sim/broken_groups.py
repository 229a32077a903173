# SPDX-License-Identifier: Apache-2.0
"""Rules of planned groups that are broken on purpose: the simulator must find every one of them."""

import msgspec

from devel.memory_store import commit, tables
from devel.memory_store.database import atomic
from devel.memory_store.group_plans import MemoryGroupPlans
from gantt.core.claims import reservation_commit, reservations
from gantt.groups.service import place_group, remaining_members
from gantt.groups.service.remaining_members import MemberSplit

_replace = msgspec.structs.replace


class ForgetsPlaces(MemoryGroupPlans):
    """A plan that is released leaves its places behind."""

    port = 'plans'

    @atomic
    def release_plan(self, uuid, reason, members=(), planned_by=None):
        result = super().release_plan(uuid, reason, ['nobody'], planned_by)
        del self.database.tables.plans[uuid]
        return result


def a_plan_may_lack_members(monkeypatch):
    """Those that have a place are committed, whoever has none."""
    monkeypatch.setattr(place_group.PlaceGroups, '_check_complete', lambda *_: None)


def no_place_comes_back(monkeypatch):
    """A create that ends takes its place with it."""
    for module in (commit, tables):
        monkeypatch.setattr(module, 'restored_reservation', lambda place, now: None)


def a_place_keeps_its_id(monkeypatch):
    """What is late about an ended create is about the next one."""
    restored_reservation = reservations.restored_reservation

    def under_the_same_id(place, now):
        survivor = restored_reservation(place, now)
        return None if survivor is None else _replace(survivor, id=place.id)

    for module in (commit, tables):
        monkeypatch.setattr(module, 'restored_reservation', under_the_same_id)


def whoever_asks_gets_a_place(monkeypatch):
    """Nobody looks whether another create has it."""
    monkeypatch.setattr(
        reservation_commit,
        'check_reservations',
        lambda request_id, takes, *_: (list(range(len(takes))), ''),
    )


def plans_are_stored_beside_others(monkeypatch):
    """Two that plan one group both get what they planned."""
    monkeypatch.setattr(commit, 'check_plans', lambda *_: {})
    monkeypatch.setattr(commit, 'requests_with_changed_group', lambda batch, ended, rules: set())


def who_stands_counts_for_no_policy(monkeypatch):
    """A change is planned as if its group were not there."""
    monkeypatch.setattr(MemberSplit, 'consumers', property(lambda self: {}))
    monkeypatch.setattr(remaining_members, 'consumers_on', lambda *_: {})


def repeats_are_told_what_was_planned_last(monkeypatch):
    """Who asks again is not told what is stored."""
    placed = place_group.EarlierAnswers.placed_answer

    def another(self, call, stored):
        return _replace(placed(self, call, stored), stayed=['nobody'])

    monkeypatch.setattr(place_group.EarlierAnswers, 'placed_answer', another)
