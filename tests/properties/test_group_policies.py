# SPDX-License-Identifier: Apache-2.0
"""The policies of a group, asked for one member, are what plain counting says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gantt.core.filters.affinity import (
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
)
from gantt.core.filters.group_policy import GroupPolicyFilter
from gantt.core.group_policies.one_member import costs_of_policies
from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, Policy, PolicySet
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import GroupRef, RequestSpec, SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.core.weighers.server_group import (
    GroupPolicyWeigher,
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)
from tests.core.builders import a_change, a_host, a_table, an_id, decide
from tests.properties.policy_worlds import GROUP, OTHER, Guest, worlds
from tests.thorough import examples


@settings(max_examples=examples(300), deadline=None)
@given(worlds())
def test_what_each_policy_costs_is_what_is_counted(world):
    for strength in ('hard', 'drop', 'soft'):
        all_costs = costs_of_policies(
            world.table(), world.spec(), world.consumer, strengths=(strength,)
        )
        expected = list(world.costs(strength))
        assert [costs_of.policy for costs_of in all_costs] == [policy for policy, _ in expected]
        for costs_of, (_, cost) in zip(all_costs, expected, strict=True):
            assert costs_of.by_row.tolist() == pytest.approx(cost), costs_of.line


@given(worlds())
def test_hosts_that_break_a_hard_policy_are_removed(world):
    mask = GroupPolicyFilter().mask_for(world.table(), world.spec(), None, world.consumer)
    each = [cost for _, cost in world.costs('hard')]
    passes = [not any(cost[row] > 0 for cost in each) for row in range(len(world.places))]
    assert mask.tolist() == passes


@given(worlds())
def test_soft_policies_weigh_what_they_cost(world):
    world.consumer = ''
    rows = np.arange(len(world.places))
    raw = GroupPolicyWeigher().raw(world.table(), world.spec(), rows)
    each = [[policy.soft * amount for amount in cost] for policy, cost in world.costs('soft')]
    expected = [-sum(cost[row] for cost in each) for row in range(len(world.places))]
    if any(policy.soft for policy in world.policies.full_policies):
        assert raw.tolist() == pytest.approx(expected)
    else:
        assert raw is None


@given(worlds(), st.integers(1, 3))
def test_members_of_one_request_obey_one_after_the_other(world, many):
    world.consumer = ''
    consumers = [an_id(i, 5) for i in range(many)]
    members = placed(world, consumers)
    for member in members:
        passing = hosts_left(world)
        row = int(member.selection.host.removeprefix('cmp-')) - 1
        could = [passing_row + 1 for passing_row in passing]
        assert row in steps_met(world, passing, could)
        assert given_up(world, row, could) == sorted(
            line.rpartition(' (')[0] for line in member.given_up if line.startswith('drop')
        )
        world.guests.append(Guest(100 + len(world.guests), row + 1, GROUP, world.member))
    if len(members) < many:
        assert not hosts_left(world)


def placed(world, consumers):
    """The members that have a place, as many as there are."""
    for many in range(len(consumers), 0, -1):
        request = SelectDestinations(
            request_id=an_id(1, 4), spec=world.spec(), consumers=consumers[:many]
        )
        decision = decide(world.table(), request)
        if decision.outcome is Outcome.PLACED:
            return list(decision.members)
    return []


def hosts_left(world):
    hard = [cost for _, cost in world.costs('hard')]
    return [row for row in range(len(world.places)) if not any(cost[row] > 0 for cost in hard)]


def steps_met(world, passing, could):
    """Who is left when what is given up last is looked at first."""
    steps = {}
    for policy, cost in world.costs('drop', could):
        of = steps.setdefault(policy.drop, [0.0] * len(cost))
        steps[policy.drop] = [a + b for a, b in zip(of, cost, strict=True)]
    for order in sorted(steps, reverse=True):
        least = min(steps[order][row] for row in passing)
        passing = [row for row in passing if steps[order][row] <= least + 1e-9]
    return passing


def given_up(world, row, could):
    return sorted(
        f'drop {policy.drop}: {policy.line(subject)}'
        for policy, subject, cost in world.costs_by_subject('drop', could)
        if cost[row] > 0
    )


@st.composite
def groups(draw):
    """Services of several nodes, guests of the group and others, and what the caller names."""
    hosts = [
        a_host(i, hypervisor=Hypervisor(service=draw(st.sampled_from(('', 'a', 'b')))))
        for i in range(1, draw(st.integers(1, 5)) + 1)
    ]
    guests = [
        Guest(i, host, group, None)
        for i, (host, group) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.integers(1, len(hosts)), st.sampled_from((GROUP, OTHER, None))),
                    max_size=6,
                )
            )
        )
    ]
    table = a_table(
        *(a_change(host, *(g.placed for g in guests if g.host == host.id)) for host in hosts)
    )
    consumer = draw(st.sampled_from([an_id(9, 5), *(guest.consumer for guest in guests)]))
    others = [guest.consumer for guest in guests]
    group = GroupRef(
        uuid=GROUP,
        members=draw(st.lists(st.sampled_from(others), max_size=3)) if others else [],
    )
    return table, group, consumer


@given(groups(), st.integers(1, 2))
def test_novas_policies_are_shorthands(world, most):
    table, group, consumer = world
    for policy, rule, fields in (
        (Policy.ANTI_AFFINITY, ServerGroupAntiAffinityFilter, {'max_per_domain': most}),
        (Policy.AFFINITY, ServerGroupAffinityFilter, {}),
    ):
        level = LevelPolicy(policy=GroupPolicyKind(policy.value), **fields)
        novas = replace(group, policy=policy, max_per_host=most)
        ours = replace(group, policies=PolicySet(policies=[level]))
        mask = rule().mask_for(table, spec_of(novas), consumer)
        passing = GroupPolicyFilter().mask_for(table, spec_of(ours), None, consumer)
        assert passing.tolist() == ([True] * len(table) if mask is None else mask.tolist())


@given(groups())
def test_novas_soft_policies_only_tell_more_hosts_apart(world):
    table, group, _ = world
    for policy, weigher in (
        (Policy.SOFT_ANTI_AFFINITY, ServerGroupSoftAntiAffinityWeigher),
        (Policy.SOFT_AFFINITY, ServerGroupSoftAffinityWeigher),
    ):
        rows = np.arange(len(table))
        novas = weigher().raw(table, spec_of(replace(group, policy=policy)), rows)
        ours = replace(group, policies=PolicySet(policies=[policy]))
        weights = GroupPolicyWeigher().raw(table, spec_of(ours), rows)
        assert set(np.flatnonzero(novas == novas.max())) <= set(
            np.flatnonzero(weights == weights.max())
        )


def spec_of(group):
    return RequestSpec(resources={'VCPU': 1}, group=group)
