# SPDX-License-Identifier: Apache-2.0
"""Each filter by itself: whom it lets pass."""

from typing import Any

import pytest

from gantt.core.filters.affinity import (
    DifferentHostFilter,
    SameHostFilter,
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
)
from gantt.core.filters.aggregates import AggregatesFilter, AvailabilityZoneFilter
from gantt.core.filters.compute import ComputeFilter
from gantt.core.filters.destination import (
    ForcedHostsFilter,
    IgnoredHostsFilter,
    RequestedDestinationFilter,
)
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.filters.traits import TraitsFilter
from gantt.core.messages.request import Destination, GroupRef, Policy, RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate
from tests.core.builders import NOW, a_change, a_guest, a_host, a_table, an_id, passing

ALL = ['cmp-1', 'cmp-2', 'cmp-3']
GROUP = an_id(9)


def a_spec(**fields: Any) -> RequestSpec:
    fields.setdefault('resources', {'VCPU': 1})
    return RequestSpec(**fields)


@pytest.mark.parametrize(
    ('fields', 'pass_'),
    [
        ({}, ALL),
        ({'force_hosts': ['CMP-2', 'nobody']}, ['cmp-2']),
        ({'force_nodes': ['node-3']}, ['cmp-3']),
        ({'force_nodes': ['NODE-3']}, []),
        ({'force_hosts': ['cmp-2'], 'force_nodes': ['node-3']}, []),
        ({'force_hosts': ['cmp-3', 'cmp-1'], 'force_nodes': ['node-3']}, ['cmp-3']),
    ],
)
def test_forced_hosts(fields, pass_):
    table = a_table(*(a_host(n, node=f'node-{n}') for n in (1, 2, 3)))
    assert passing(table, ForcedHostsFilter(), a_spec(**fields)) == pass_


def test_ignored_hosts_whatever_their_case():
    table = a_table(a_host(1), a_host(2), a_host(3))
    assert passing(table, IgnoredHostsFilter(), a_spec(ignore_hosts=['CMP-2', 'x'])) == [
        'cmp-1',
        'cmp-3',
    ]
    assert IgnoredHostsFilter().mask(table, a_spec(ignore_hosts=['nobody'])) is None


@pytest.mark.parametrize(
    ('destination', 'pass_'),
    [
        ({}, ALL),
        ({'host': 'cmp-2'}, ['cmp-2']),
        ({'host': 'CMP-2'}, []),
        ({'host': 'cmp-2', 'node': 'cmp-1'}, []),
        ({'node': 'cmp-3'}, ['cmp-3']),
        ({'cell': an_id(1)}, ['cmp-1', 'cmp-2']),
        ({'cell': an_id(5)}, []),
        ({'aggregates': [['red']]}, ['cmp-2', 'cmp-3']),
        ({'aggregates': [['red', 'blue'], ['blue']]}, ['cmp-3']),
        ({'cell': an_id(1), 'aggregates': [['red']]}, ['cmp-2']),
        ({'forbidden_aggregates': ['blue']}, ['cmp-1', 'cmp-2']),
    ],
)
def test_requested_destination(destination, pass_):
    table = a_table(
        a_host(1, cell=an_id(1)),
        a_host(2, cell=an_id(1)),
        a_host(3, cell=an_id(2)),
        aggregates=[
            Aggregate(id=1, uuid=an_id(11), name='red', hosts=['cmp-2', 'cmp-3']),
            Aggregate(id=2, uuid=an_id(12), name='blue', hosts=['cmp-3']),
        ],
    )
    assert (
        passing(table, RequestedDestinationFilter(), a_spec(destination=Destination(**destination)))
        == pass_
    )


def test_compute_wants_hosts_enabled_up_and_not_over_committed():
    table = a_table(
        a_host(1),
        a_host(2, disabled='x'),
        a_host(3, service_disabled='x'),
        a_host(4, over_committed=True),
        a_host(5, reported_at=NOW - 180),
        a_host(6, reported_at=NOW - 181),
        a_host(7, reported_at=0.0),
        a_host(8, reported_at=NOW + 5),
    )
    assert passing(table, ComputeFilter(), a_spec()) == ['cmp-1', 'cmp-5', 'cmp-8']
    patient = ComputeFilter({'service_down_time': 181})
    assert passing(table, patient, a_spec()) == ['cmp-1', 'cmp-5', 'cmp-6', 'cmp-8']


def test_a_forced_host_may_be_silent_but_not_closed():
    table = a_table(
        a_host(1, reported_at=0.0), a_host(2, disabled='x'), a_host(3, over_committed=True)
    )
    assert passing(table, ComputeFilter(), a_spec(force_hosts=ALL)) == ['cmp-1']


@pytest.mark.parametrize(
    ('zone', 'pass_'),
    [
        (None, ALL),
        ('east', ['cmp-2']),
        ('nova', ['cmp-1', 'cmp-3']),
        ('nowhere', []),
    ],
)
def test_availability_zone(zone, pass_):
    table = a_table(a_host(1), a_host(2, zone='east'), a_host(3, zone='nova'))
    assert passing(table, AvailabilityZoneFilter(), a_spec(availability_zone=zone)) == pass_


def test_the_default_zone_where_no_host_has_a_zone():
    table = a_table(a_host(1), a_host(2))
    assert passing(table, AvailabilityZoneFilter(), a_spec(availability_zone='nova')) == [
        'cmp-1',
        'cmp-2',
    ]


@pytest.mark.parametrize(
    ('fields', 'pass_'),
    [
        ({}, ALL),
        ({'member_of': [['red']]}, ['cmp-1', 'cmp-2']),
        ({'member_of': [[an_id(11), 'blue']]}, ALL),
        ({'member_of': [['red'], ['blue']]}, ['cmp-2']),
        ({'member_of': [['unknown']]}, []),
        ({'member_of': [['unknown', 'blue']]}, ['cmp-2', 'cmp-3']),
        ({'forbidden_aggregates': ['blue']}, ['cmp-1']),
        ({'forbidden_aggregates': ['unknown']}, ALL),
        ({'member_of': [['red']], 'forbidden_aggregates': ['blue']}, ['cmp-1']),
        ({'member_of': [['empty']]}, []),
    ],
)
def test_aggregates(fields, pass_):
    many = [Aggregate(id=n, uuid=an_id(n), name=f'a{n}', hosts=['cmp-1']) for n in range(100, 180)]
    table = a_table(
        a_host(1),
        a_host(2),
        a_host(3),
        aggregates=[
            Aggregate(id=1, uuid=an_id(11), name='red', hosts=['cmp-1', 'cmp-2', 'unknown']),
            *many,
            Aggregate(id=900, uuid=an_id(12), name='blue', hosts=['cmp-2', 'cmp-3']),
            Aggregate(id=901, uuid=an_id(13), name='empty'),
        ],
    )
    assert passing(table, AggregatesFilter(), a_spec(**fields)) == pass_


@pytest.mark.parametrize(
    ('fields', 'pass_'),
    [
        ({}, ALL),
        ({'required_traits': ['A']}, ['cmp-1', 'cmp-2']),
        ({'required_traits': ['A', 'B']}, ['cmp-2']),
        ({'required_traits': ['A', 'FAR']}, ['cmp-2']),
        ({'required_traits': ['NOBODY_HAS']}, []),
        ({'forbidden_traits': ['A']}, ['cmp-3']),
        ({'forbidden_traits': ['NOBODY_HAS']}, ALL),
        ({'any_traits': [['A', 'C']]}, ALL),
        ({'any_traits': [['A', 'C'], ['B', 'NOBODY_HAS']]}, ['cmp-2']),
        ({'any_traits': [['NOBODY_HAS']]}, []),
        ({'required_traits': ['A'], 'forbidden_traits': ['B']}, ['cmp-1']),
    ],
)
def test_traits(fields, pass_):
    filler = [f'T{n}' for n in range(300)]
    table = a_table(
        a_host(1, traits=['A']),
        a_host(2, traits=['A', *filler, 'B', 'FAR']),
        a_host(3, traits=['C']),
    )
    assert passing(table, TraitsFilter(), a_spec(**fields)) == pass_


@pytest.mark.parametrize(
    ('amounts', 'pass_'),
    [
        ({'VCPU': 4}, ALL),
        ({'VCPU': 5}, ['cmp-1', 'cmp-2']),
        ({'VCPU': 9}, ['cmp-2']),
        ({'VCPU': 17}, []),
        ({'CUSTOM_LICENSE': 4}, ['cmp-3']),
        ({'CUSTOM_LICENSE': 3}, []),
        ({'CUSTOM_LICENSE': 1}, []),
        ({'CUSTOM_LICENSE': 8}, []),
        ({'CUSTOM_UNKNOWN': 1}, []),
        ({'VCPU': 4, 'MEMORY_MB': 32768}, ['cmp-2', 'cmp-3']),
    ],
)
def test_resources(amounts, pass_):
    licenses = Inventory(total=20, min_unit=2, max_unit=6, step_size=2)
    table = a_table(
        a_host(1, vcpu=8, foreign={'MEMORY_MB': 1}),
        a_host(
            2, inventories={'VCPU': Inventory(total=16, allocation_ratio=4.0)}, used={'VCPU': 40}
        ),
        a_host(
            3, used={'VCPU': 12, 'CUSTOM_LICENSE': 16}, inventories={'CUSTOM_LICENSE': licenses}
        ),
    )
    assert passing(table, ResourcesFilter(), a_spec(resources=amounts)) == pass_


def apart(most: int = 1, **fields: Any) -> GroupRef:
    return GroupRef(uuid=GROUP, policy=Policy.ANTI_AFFINITY, max_per_host=most, **fields)


def together(**fields: Any) -> GroupRef:
    return GroupRef(uuid=GROUP, policy=Policy.AFFINITY, **fields)


def a_grouped_table():
    return a_table(
        a_change(a_host(1), a_guest(1, 1, GROUP), a_guest(2, 1, GROUP)),
        a_change(a_host(2), a_guest(3, 2, GROUP), a_guest(4, 2, an_id(8))),
        a_change(a_host(3), a_guest(5, 3)),
    )


@pytest.mark.parametrize(
    ('group', 'pass_'),
    [
        (apart(), ['cmp-3']),
        (apart(2), ['cmp-2', 'cmp-3']),
        (apart(3), ALL),
        (apart(members=[an_id(5, 3)]), []),
        (apart(2, members=[an_id(4, 3)]), ['cmp-3']),
        (apart(2, members=[an_id(3, 3)]), ['cmp-2', 'cmp-3']),
        (apart(hosts=['cmp-3']), []),
        (apart(2, hosts=['cmp-1', 'cmp-3']), ['cmp-2', 'cmp-3']),
        (GroupRef(uuid=GROUP, policy=Policy.SOFT_ANTI_AFFINITY), ALL),
        (GroupRef(uuid=an_id(7), policy=Policy.ANTI_AFFINITY), ALL),
    ],
)
def test_anti_affinity(group, pass_):
    assert passing(a_grouped_table(), ServerGroupAntiAffinityFilter(), a_spec(group=group)) == pass_


def test_a_member_is_not_in_its_own_way():
    rule, table, spec = ServerGroupAntiAffinityFilter(), a_grouped_table(), a_spec(group=apart())
    mask = rule.mask_for(table, spec, an_id(3, 3))
    assert mask.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ('group', 'pass_'),
    [
        (together(), ['cmp-1', 'cmp-2']),
        (together(hosts=['cmp-3']), ALL),
        (together(members=[an_id(5, 3)]), ALL),
        (GroupRef(uuid=an_id(7), policy=Policy.AFFINITY), ALL),
        (GroupRef(uuid=an_id(7), policy=Policy.AFFINITY, hosts=['cmp-3']), ['cmp-3']),
        (GroupRef(uuid=an_id(7), policy=Policy.AFFINITY, hosts=['CMP-3']), []),
        (GroupRef(uuid=an_id(7), policy=Policy.AFFINITY, members=[an_id(4, 3)]), ['cmp-2']),
        (GroupRef(uuid=GROUP, policy=Policy.SOFT_AFFINITY), ALL),
    ],
)
def test_affinity(group, pass_):
    assert passing(a_grouped_table(), ServerGroupAffinityFilter(), a_spec(group=group)) == pass_


def test_the_only_member_of_an_affinity_group_may_move_anywhere():
    table = a_table(a_change(a_host(1), a_guest(1, 1, GROUP)), a_host(2))
    rule, spec = ServerGroupAffinityFilter(), a_spec(group=together())
    assert rule.mask_for(table, spec, an_id(1, 3)) is None
    assert rule.mask_for(table, spec, an_id(2, 3)).tolist() == [True, False]


def test_same_and_different_host():
    table = a_grouped_table()
    first, third = an_id(1, 3), an_id(3, 3)
    assert passing(table, SameHostFilter(), a_spec(same_host=[first, third])) == ['cmp-1', 'cmp-2']
    assert passing(table, SameHostFilter(), a_spec(same_host=[an_id(99)])) == []
    assert passing(table, SameHostFilter(), a_spec()) == ALL
    assert passing(table, DifferentHostFilter(), a_spec(different_host=[first])) == [
        'cmp-2',
        'cmp-3',
    ]
    assert passing(table, DifferentHostFilter(), a_spec(different_host=[an_id(99)])) == ALL
