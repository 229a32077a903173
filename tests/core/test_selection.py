# SPDX-License-Identifier: Apache-2.0
"""Filters that run by purpose, and the pick, against what Nova's users expect."""

import collections

import pytest

from gantt import plugin_loader
from gantt.core.messages.request import Destination, GroupRef, Policy, Purpose
from gantt.core.resources.host import Aggregate
from tests.core.builders import (
    a_change,
    a_guest,
    a_host,
    a_request,
    a_table,
    an_id,
    decide,
    hosts_of,
)

ALL = plugin_loader.load_pipeline(plugin_loader.installed(plugin_loader.FILTERS))
#: Capacity, group rules, what Nova queries from Placement, and the request's own hosts:
#: checked for forced hosts too.
OF_FORCED = {
    'AggregatesFilter',
    'AvailabilityZoneFilter',
    'ComputeFilter',
    'ForcedHostsFilter',
    'GroupPolicyFilter',
    'IgnoredHostsFilter',
    'NUMATopologyFilter',
    'PciPassthroughFilter',
    'RequestedDestinationFilter',
    'ResourcesFilter',
    'RetryFilter',
    'ServerGroupAffinityFilter',
    'ServerGroupAntiAffinityFilter',
    'TraitsFilter',
}
#: Nova's three, and those on the guest's host and on the needs of its new image.
OF_REBUILDS = {
    'AggregateImagePropertiesIsolation',
    'ImagePropertiesFilter',
    'IsolatedHostsFilter',
    'ForcedHostsFilter',
    'RequestedDestinationFilter',
    'TraitsFilter',
}


def running(purpose: Purpose, forced: bool) -> set[str]:
    applies = ALL.applying(purpose, forced)
    return {rule.name for rule, runs in zip(ALL.filters, applies, strict=True) if runs}


def picks(pipeline, table, count=200):
    """Return how often each host was chosen, by seed."""
    chosen = collections.Counter()
    for seed in range(count):
        decision = decide(table, a_request(number=seed, dry_run=True), pipeline, seed=seed)
        chosen.update(hosts_of(decision))
    return chosen


def test_which_filters_are_asked_of_forced_hosts():
    assert running(Purpose.CREATE, forced=True) == OF_FORCED


def test_a_rebuild_runs_its_own_few_filters_forced_or_not():
    few = running(Purpose.REBUILD, forced=False)
    assert few - {'LocationFilter', 'RulesFilter'} == OF_REBUILDS


@pytest.mark.parametrize('field', ['force_hosts', 'force_nodes'])
def test_a_forced_host_is_taken_past_filters_but_not_past_what_placement_holds(field):
    table = a_table(
        a_change(a_host(1, node='cmp-1', zone='east', reported_at=0.0), a_guest(1, 1)),
        a_host(2),
        aggregates=[Aggregate(id=1, uuid=an_id(1), name='red', hosts=['cmp-2'])],
    )
    fields = {'availability_zone': 'east', 'different_host': [an_id(1, 3)]}
    assert hosts_of(decide(table, a_request(**fields, **{field: ['cmp-1']}))) == ['cmp-1']
    kept = [
        {'availability_zone': 'west'},
        {'required_traits': ['A']},
        {'member_of': [['red']]},
        {'destination': Destination(host='cmp-2')},
    ]
    for hint in kept:
        request = a_request(**{**fields, **hint}, **{field: ['cmp-1']})
        assert hosts_of(decide(table, request)) == [None], hint
    fields['resources'] = {'VCPU': 17}
    refused = decide(table, a_request(**fields, **{field: ['cmp-1']}))
    assert hosts_of(refused) == [None]
    assert refused.reason == 'cmp-1: too little free VCPU (need 17 vCPU, has 14 vCPU)'


def test_ignored_hosts_come_before_forced_ones():
    table = a_table(a_host(1), a_host(2))
    request = a_request(force_hosts=['cmp-1', 'cmp-2'], ignore_hosts=['CMP-1'])
    assert hosts_of(decide(table, request)) == ['cmp-2']


def test_a_requested_destination_is_filtered_like_any_other_host_and_by_its_aggregates():
    red = Aggregate(id=1, uuid=an_id(1), name='red', hosts=['cmp-1', 'cmp-2'])
    blue = Aggregate(id=2, uuid=an_id(2), name='blue', hosts=['cmp-2', 'cmp-3'])
    table = a_table(
        *(a_host(n) for n in (1, 2, 3)), a_host(4, disabled='x'), aggregates=[red, blue]
    )
    both = Destination(aggregates=[['red'], [an_id(2)]])
    assert hosts_of(decide(table, a_request(destination=both))) == ['cmp-2']
    either = Destination(host='cmp-3', aggregates=[['red', 'blue']])
    assert hosts_of(decide(table, a_request(destination=either, number=1))) == ['cmp-3']
    never = Destination(forbidden_aggregates=['red', 'blue'])
    assert hosts_of(decide(table, a_request(destination=never, number=2))) == [None]


def test_the_pick_is_random_among_the_best_few_and_even():
    table = a_table(*(a_host(n, ram=8192 * n) for n in range(1, 9)))
    chosen = picks(plugin_loader.load_pipeline(subset_size=4), table)
    assert set(chosen) == {'cmp-5', 'cmp-6', 'cmp-7', 'cmp-8'}
    assert min(chosen.values()) > 25
    assert set(picks(plugin_loader.load_pipeline(subset_size=100), table)) == set(table.names)


@pytest.mark.parametrize('size', [1, 2, 5])
def test_equals_are_shuffled_before_the_few_are_taken(size):
    table = a_table(*(a_host(n) for n in range(1, 9)))
    chosen = picks(plugin_loader.load_pipeline(shuffle_best=True, subset_size=size), table)
    assert set(chosen) == set(table.names)
    assert min(chosen.values()) > 8


def test_fewer_equals_than_the_few_are_not_all_that_is_taken():
    hosts = [*(a_host(n, ram=65536) for n in (1, 2)), *(a_host(n, ram=4096) for n in (3, 4))]
    pipeline = plugin_loader.load_pipeline(shuffle_best=True, subset_size=3)
    assert set(picks(pipeline, a_table(*hosts))) == {'cmp-1', 'cmp-2', 'cmp-3'}


@pytest.mark.parametrize('alternates', [0, 1, 2, 5])
def test_so_many_alternates_as_asked_none_of_them_claimed_or_selected(alternates):
    cells = {f'cmp-{n}': an_id(n % 2, 9) for n in range(1, 13)}
    table = a_table(*(a_host(n, cell=an_id(n % 2, 9)) for n in range(1, 13)))
    group = GroupRef(uuid=an_id(9), policy=Policy.ANTI_AFFINITY)
    decision = decide(table, a_request(3, alternates=alternates, group=group))
    selected = set(hosts_of(decision))
    assert len(selected) == 3
    for member in decision.members:
        names = [alternate.host for alternate in member.alternates]
        cell = member.selection.cell
        unused = [name for name in cells if cells[name] == cell and name not in selected]
        assert len(set(names)) == len(names) == min(alternates, len(unused))
        assert set(names) <= set(unused)
        assert all(alternate.claim_id is None for alternate in member.alternates)
