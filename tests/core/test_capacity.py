# SPDX-License-Identifier: Apache-2.0
"""How many more of a shape fit, and what runs out first."""

import numpy as np

from gantt.core.capacity import GROUP_RULE, room
from gantt.core.request import GroupRef, Policy, RequestSpec
from tests.core.builders import a_change, a_guest, a_host, a_table, an_id

GROUP = an_id(9)


def counted(table, group=None, **amounts):
    spec = RequestSpec(resources=amounts, group=group)
    return room(table, spec, np.arange(len(table)))


def test_counts_by_host_and_what_bounds_them():
    table = a_table(a_host(1), a_host(2, vcpu=4), a_host(3, ram=1000), a_host(4, used={'VCPU': 16}))
    found = counted(table, VCPU=2, MEMORY_MB=4096)
    assert found.counts.tolist() == [8, 2, 0, 0]
    assert found.total == 10
    assert found.bound_counts() == {'VCPU': 3, 'MEMORY_MB': 1}
    assert found.runs_out_first == 'VCPU'


def test_no_host_no_room():
    found = counted(a_table(), VCPU=1)
    assert (found.total, found.runs_out_first) == (0, None)


def test_a_pool_is_given_out_once():
    table = a_table(a_host(1), a_host(2), a_host(3, disk=40))
    table.set_pool(900, 'DISK_GB', cap=100, used=0, hosts=[1, 2])
    found = counted(table, VCPU=2, DISK_GB=10)
    assert found.counts.tolist() == [8, 2, 4]
    assert found.total == 14
    assert found.bound_counts() == {'DISK_GB': 2, 'VCPU': 1}


def test_the_rule_of_a_group_bounds():
    table = a_table(a_change(a_host(1), a_guest(1, 1, GROUP)), a_host(2), a_host(3, vcpu=1))
    apart = GroupRef(uuid=GROUP, policy=Policy.ANTI_AFFINITY, max_per_host=2)
    found = counted(table, apart, VCPU=1)
    assert found.counts.tolist() == [1, 2, 1]
    assert found.bound_counts() == {GROUP_RULE: 2, 'VCPU': 1}


def test_together_is_what_one_host_takes_unless_the_group_is_on_several():
    hosts = [a_change(a_host(1, vcpu=3), a_guest(1, 1, GROUP)), a_host(2, vcpu=5)]
    together = GroupRef(uuid=GROUP, policy=Policy.AFFINITY)
    assert counted(a_table(a_host(1, vcpu=3), a_host(2, vcpu=5)), together, VCPU=1).total == 5
    assert counted(a_table(*hosts), together, VCPU=1).total == 8
