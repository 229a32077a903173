# SPDX-License-Identifier: Apache-2.0
"""What is promised of each decision, of plans of groups: their age, and what is not known."""

import time

import pytest

from gantt import exceptions, plugin_loader
from gantt.groups.model import group_description
from gantt.groups.model.plan_group import plan_group
from gantt.testing import guard
from tests.planner import a_description, a_member, a_plan_request, a_planner, place, refused
from tests.world import World, new_uuid


@pytest.fixture
def world():
    return World(hosts=4)


@pytest.fixture
def planner(world):
    return a_planner(world)


def blind(planner, monkeypatch):
    """News of hosts come no more; the rest of the database answers."""

    def fails(*_):
        raise exceptions.DatabaseUnavailable(problem='it does not answer')

    monkeypatch.setattr(planner.cache, 'fetch_news', fails)
    monkeypatch.setattr(planner.cache, 'fetch', fails)


def test_a_plan_says_how_old_is_what_it_was_decided_on(world, planner, monkeypatch):
    assert place(planner, a_plan_request()).age_seconds < 1
    blind(planner, monkeypatch)
    world.clock.sleep(60)
    assert place(planner, a_plan_request()).age_seconds == pytest.approx(60, abs=5)


def test_what_finds_no_room_on_an_old_table_is_not_known(world, planner, monkeypatch):
    too_many = a_description(a_member('web', 9))
    assert isinstance(refused(planner, a_plan_request(too_many)), exceptions.NoValidHost)
    blind(planner, monkeypatch)
    world.clock.sleep(planner.settings.unknown_after_seconds + 60)
    error = refused(planner, a_plan_request(too_many))
    assert isinstance(error, exceptions.HostsUnknown)
    assert 'the table is' in error.message
    assert world.store.claims.list_claims() == []


def test_planning_a_group_asks_nobody(world, planner):
    table, pipeline = planner.cache.table(0.0), plugin_loader.load_pipeline()
    body = group_description.read({**a_description(), 'uuid': new_uuid()})
    ticks = iter(range(10_000))
    with guard.guarded():
        plan = plan_group(
            table, body, pipeline, clock=lambda: next(ticks) * 0.001, seconds=0.2, seed=1
        )
    assert not plan.missing
    with pytest.raises(guard.OutsideAccess), guard.guarded():
        plan_group(table, body, pipeline, clock=time.monotonic, seconds=0.2, seed=1)
