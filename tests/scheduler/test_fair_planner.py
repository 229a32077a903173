# SPDX-License-Identifier: Apache-2.0
"""P15 of plans: a project that asks for many groups makes no other one wait for all of them."""

import pytest

from gantt import exceptions
from gantt.groups.model.model import SolverResult
from tests.planner import a_member, a_plan_request, a_planner
from tests.world import World, new_uuid


@pytest.fixture
def world():
    return World(hosts=4)


def asked(planner, project, times=1, **fields):
    """Groups of a project, queued: the futures of those that are, until one is turned away."""
    futures = []
    for _ in range(times):
        request = a_plan_request(project_id=project, dry_run=True, **fields)
        futures.append(planner.submit(request))
    return futures


def order(planner, futures):
    """Names of futures in the order in which they are answered."""
    waiting, names = dict(futures), []
    while waiting:
        assert planner.step() == 1
        (name,) = [name for name, future in waiting.items() if future.done()]
        waiting.pop(name)
        names.append(name)
    return names


def test_projects_take_turns(world):
    planner = a_planner(world)
    red = asked(planner, 'red', 4)
    [blue] = asked(planner, 'blue')
    futures = {f'red-{n}': future for n, future in enumerate(red)} | {'blue': blue}
    assert order(planner, futures) == ['red-0', 'blue', 'red-1', 'red-2', 'red-3']


def test_long_plans_are_turns_of_their_length(world):
    """Of what they took, not of what they were said to take."""

    class Solver:
        seconds = iter([0.2, 0.05, 0.05, 0.05, 0.05])

        def solve(self, model, goal, **_):
            world.clock.advance(next(self.seconds))
            return SolverResult('unknown', problem='it takes its time')

    planner = a_planner(world, solver=Solver())
    # More than there is room for, so that a solver is asked.
    large = {'group': {'members': [a_member('m', 50, vcpu=3)]}}
    red = asked(planner, 'red', 2, plan_ms=10, **large)
    blue = asked(planner, 'blue', 3, plan_ms=200, **large)
    futures = {f'red-{n}': future for n, future in enumerate(red)}
    futures |= {f'blue-{n}': future for n, future in enumerate(blue)}
    assert order(planner, futures) == ['red-0', 'blue-0', 'blue-1', 'blue-2', 'red-1']


def test_a_project_of_more_weight_has_more_turns(world):
    planner = a_planner(world)
    planner.settings.project_weights = {'red': 3.0}
    futures = {f'blue-{n}': future for n, future in enumerate(asked(planner, 'blue', 2))}
    futures |= {f'red-{n}': future for n, future in enumerate(asked(planner, 'red', 3))}
    names = order(planner, futures)
    assert names[:2] == ['blue-0', 'red-0'] and names[-1] == 'blue-1'


def test_no_project_fills_the_queue(world):
    planner = a_planner(world, queue_limit=4)
    for project, most in (('red', 2), ('blue', 1), ('green', 1)):
        asked(planner, project, most)
        with pytest.raises(exceptions.Busy, match='groups wait to be planned'):
            asked(planner, project)
    # What was turned away is nowhere: it is taken in as soon as there is room for it.
    assert [planner.step() for _ in range(5)] == [1, 1, 1, 1, 0]
    asked(planner, 'red', 2)


def test_who_is_not_known_is_bounded_with_all_others_alone(world):
    planner = a_planner(world, queue_limit=4)
    asked(planner, None, 4)
    with pytest.raises(exceptions.Busy):
        asked(planner, new_uuid())


def test_many_that_were_asked_for_leave_nothing_behind(world):
    planner = a_planner(world, queue_limit=4)
    for number in range(40):
        asked(planner, f'project {number}')
        assert planner.step() == 1
    assert (planner.queue.waiting, planner.queue.depth, planner.queue.projects) == (0, 0, 0)
