# SPDX-License-Identifier: Apache-2.0
"""Goals of plans, compared."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.groups.model import group_description
from gantt.groups.model.build import build_problem
from gantt.groups.model.group_table import GroupTable
from gantt.groups.model.problem import Assignment, goals_of
from tests.core.builders import a_host, a_table

HOSTS = 7


@given(st.permutations(range(HOSTS)), st.lists(st.integers(1, 97), min_size=HOSTS, max_size=HOSTS))
def test_plans_are_equal_in_which_alike_members_change_places(order, sizes):
    table = a_table(*(a_host(n + 1, vcpu=size) for n, size in enumerate(sizes)))
    pipeline = plugin_loader.load_pipeline()
    members = [{'name': 'a', 'count': HOSTS, 'spec': {'resources': {'VCPU': 1}}}]
    problem = build_problem(table, group_description.read({'members': members}), pipeline)

    def reached(rows):
        plan = Assignment.empty(problem)
        plan.rows[:] = rows
        trial = GroupTable(table, problem, pipeline)
        assert trial.try_plan(plan) == []
        return goals_of(problem, plan), goals_of(problem, plan, trial.score())

    assert reached(np.array(order)) == reached(np.arange(HOSTS))
