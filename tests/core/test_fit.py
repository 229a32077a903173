# SPDX-License-Identifier: Apache-2.0
"""The fit library."""

import pytest

from gantt.core.messages.resource_classes import Inventory
from gantt.core.topology.fit import fit


@pytest.mark.parametrize(
    ('demand', 'inventory', 'used', 'foreign', 'kinds'),
    [
        (4, {'total': 4}, 0, 0, []),
        (5, {'total': 4}, 0, 0, ['max_unit', 'capacity']),
        (4, {'total': 4, 'reserved': 1}, 0, 0, ['capacity']),
        (4, {'total': 4, 'allocation_ratio': 4.0}, 12, 0, []),
        (4, {'total': 4, 'allocation_ratio': 4.0}, 12, 1, ['capacity']),
        (5, {'total': 4, 'allocation_ratio': 4.0}, 0, 0, ['max_unit']),
        (3, {'total': 8, 'max_unit': 2}, 0, 0, ['max_unit']),
        (1, {'total': 8, 'min_unit': 2}, 0, 0, ['min_unit']),
        (3, {'total': 8, 'step_size': 2}, 0, 0, ['step_size']),
        (4, {'total': 8, 'step_size': 2}, 5, 0, ['capacity']),
        (1, {'total': 8}, 20, 0, ['capacity']),
    ],
)
def test_plain_amounts(demand, inventory, used, foreign, kinds):
    answer = fit(
        {'VCPU': demand}, {'VCPU': Inventory(**inventory)}, {'VCPU': used}, {'VCPU': foreign}
    )
    assert [p.kind for p in answer.problems] == kinds
    assert answer.ok == (not kinds)


def test_a_class_the_host_does_not_have():
    answer = fit({'VGPU': 1, 'VCPU': 1}, {'VCPU': Inventory(total=1)}, {}, {})
    assert answer.reason == 'the host has no VGPU'


def test_a_problem_says_how_much_less_would_do():
    (problem,) = fit(
        {'MEMORY_MB': 4096}, {'MEMORY_MB': Inventory(total=8192)}, {'MEMORY_MB': 5000}, {}
    ).problems
    assert problem.lack == 4096 - 3192
    assert str(problem) == 'too little free MEMORY_MB (need 4 GiB, has 3.117 GiB)'
