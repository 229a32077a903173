# SPDX-License-Identifier: Apache-2.0
"""Single requests of a group with policies at any level: their hosts, and the report."""

import msgspec
import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages import policy_set
from gantt.core.messages.policy_set import PolicySet
from gantt.core.messages.request import GroupRef, RequestSpec
from gantt.core.placement import capacity
from gantt.core.placement.host_trace import steps_of
from gantt.core.records.decision import Outcome
from gantt.core.resources.host import Placed
from tests.core.builders import a_change, a_host, a_request, a_table, an_id, decide, hosts_of

GROUP = an_id(1, 8)
PLACES = ('s1.r1.k1', 's1.r1.k1', 's1.r1.k2', 's2.r1.k1', '')


def a_group(*policies, member=None, **fields):
    group_policies = msgspec.convert({'policies': policies, **fields}, PolicySet)
    return GroupRef(uuid=GROUP, policies=group_policies, member=member)


def a_cloud(*present, group=GROUP):
    """Return hosts in racks.

    :param present: (host, member) of guests of the group
    """
    guests = [
        Placed(an_id(i, 2), an_id(i, 3), host, group, member=member)
        for i, (host, member) in enumerate(present)
    ]
    return a_table(
        *(
            a_change(a_host(i, location=place), *(g for g in guests if g.provider_id == i))
            for i, place in enumerate(PLACES, 1)
        )
    )


def test_members_are_apart_by_rack_one_after_the_other():
    group = a_group({'policy': 'anti-affinity', 'level': 'rack'})
    decision = decide(a_cloud(), a_request(3, group=group))
    racks = {PLACES[int(host[-1]) - 1] for host in hosts_of(decision)}
    assert racks == {'s1.r1.k1', 's1.r1.k2', 's2.r1.k1'}


def test_a_host_whose_rack_is_not_known_is_never_taken():
    group = a_group({'policy': 'anti-affinity', 'level': 'rack'})
    table = a_cloud((1, None), (3, None), (4, None))
    decision = decide(table, a_request(1, group=group))
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert '5 against anti-affinity at rack' in decision.reason
    assert 'none meets this policy: anti-affinity at rack (group)' in decision.reason


def test_policies_of_subgroups_hold_for_the_member_that_is_asked_for():
    near = {'policy': 'near', 'level': 'rack', 'of': 'web', 'target': {'of': 'db'}}
    fields = {'subgroups': {'all': ['web', 'db']}}
    table = a_cloud((4, 'db'))
    assert hosts_of(decide(table, a_request(group=a_group(near, member='web-3', **fields)))) == [
        'cmp-4'
    ]
    free = decide(a_cloud((4, 'db')), a_request(group=a_group(near, member='db', **fields)))
    assert hosts_of(free) == ['cmp-1']


def test_what_is_given_up_in_order_is_so_beside_the_rules_of_the_caller():
    fields = {
        'group': a_group(
            {'policy': 'affinity', 'level': 'rack', 'drop': 2},
            {'policy': 'anti-affinity', 'level': 'host', 'drop': 1},
        ),
        'hints': {'rules': ['drop 3: location in "s2"']},
    }
    decision = decide(a_cloud((1, None)), a_request(**fields))
    [member] = decision.members
    assert member.selection.host == 'cmp-4'
    assert member.given_up == ['drop 2: affinity at rack (group)']
    assert member.level == 2
    without = decide(a_cloud((1, None)), a_request(group=fields['group']))
    assert hosts_of(without) == ['cmp-2']
    assert decision.relaxed == ['up to step 2: drop 2: affinity at rack (group)']


def test_what_a_soft_policy_costs_is_told():
    group = a_group({'policy': 'anti-affinity', 'level': 'site', 'soft': 2.5})
    decision = decide(a_cloud((1, None), (4, None)), a_request(group=group))
    [member] = decision.members
    assert member.given_up == ['soft 2.5: anti-affinity at site, costs 2.5 (group)']
    assert member.level == 0
    raw = dict(zip(decision.weighers, member.scores[0].raw, strict=True))
    assert raw['GroupPolicyWeigher'] == -2.5


def test_a_trace_of_a_host_says_each_policy():
    group = a_group(
        {'policy': 'anti-affinity', 'level': 'rack'},
        {'policy': 'spread', 'level': 'site', 'max_skew': 1, 'soft': 1},
    )
    pipeline, spec = plugin_loader.load_pipeline(), RequestSpec(resources={'VCPU': 1}, group=group)
    steps = steps_of(a_cloud((1, None), (2, None)), spec, '', pipeline, 0)
    step = next(host_step for host_step in steps if host_step.filter == 'GroupPolicyFilter')
    assert not step.passes
    assert step.why == 'against anti-affinity at rack'
    assert step.facts == [
        'does not meet anti-affinity at rack',
        'costs 1 by spread at site max_skew 1',
    ]


def test_room_is_counted_under_the_policies():
    group = a_group({'policy': 'anti-affinity', 'level': 'rack', 'max_per_domain': 2})
    table, pipeline = a_cloud((1, None)), plugin_loader.load_pipeline()
    spec = a_request(group=group).spec
    rows = [0, 1, 2, 3]
    count = capacity.free_capacity(table, spec, np.array(rows), pipeline.inside)
    assert count.total == 5
    assert next(iter(count.bound_counts())) == capacity.GROUP_RULE_BOUND


@pytest.mark.parametrize(
    ('policy', 'field', 'problem'),
    [
        ({'policy': 'affinity', 'level': 'rak'}, 'policies[0].level', "did you mean 'rack'"),
        (
            {
                'policy': 'near',
                'target': {'host': 'a'},
                'prices': [{'level': 'x', 'price': 0}],
                'soft': 1,
            },
            'policies[0].prices[0].level',
            "expected a level; got 'x'",
        ),
    ],
)
def test_a_level_that_there_is_not_is_named(policy, field, problem):
    with pytest.raises(exceptions.InvalidMessage, match=problem) as caught:
        decide(a_cloud(), a_request(group=a_group(policy)))
    assert caught.value.kwargs['field'] == f'request.spec.group.policies.{field}'


@pytest.mark.parametrize(
    ('without', 'policy', 'needs'),
    [
        ('GroupPolicyFilter', {'policy': 'affinity'}, 'hard policies'),
        ('RulesFilter', {'policy': 'affinity', 'drop': 1}, 'given up in order'),
    ],
)
def test_policies_that_nobody_looks_at_are_refused(without, policy, needs):
    names = [name for name in plugin_loader.DEFAULT_FILTERS if name != without]
    with pytest.raises(exceptions.InvalidMessage, match=f'{needs}.*{without}'):
        decide(a_cloud(), a_request(group=a_group(policy)), plugin_loader.load_pipeline(names))


def test_a_group_has_one_policy_of_novas_or_a_set():
    both = {'uuid': GROUP, 'policy': 'affinity', 'policies': {'policies': ['affinity']}}
    with pytest.raises(msgspec.ValidationError, match='one of policy and policies'):
        msgspec.convert(both, GroupRef)


@pytest.mark.parametrize(
    ('policies', 'as_policies'),
    [
        (['anti-affinity'], [{'policy': 'anti-affinity', 'level': 'host', 'beyond': 1}]),
        ([{'policy': 'affinity', 'soft': 1}], ['soft-affinity']),
        (
            [{'policy': 'affinity', 'of': ['web'], 'prices': [], 'target': None}],
            [{'of': 'web', 'policy': 'affinity', 'level': 'host'}],
        ),
    ],
)
def test_documents_that_say_the_same_are_the_same(policies, as_policies):
    fields = {'subgroups': {'all': ['web', 'db'], 'b': ['db']}}
    turned = {'subgroups': {'b': ['db'], 'all': ['db', 'web']}, 'members': []}
    first = msgspec.convert({'policies': policies, **fields}, PolicySet).text
    assert first == msgspec.convert({'policies': as_policies, **turned}, PolicySet).text
    assert policy_set.read(first).text == first


def test_documents_that_differ_in_anything_differ():
    policies = ['affinity', {'policy': 'affinity', 'level': 'rack'}, 'soft-affinity']
    policies += [{'policy': 'spread', 'max_skew': n} for n in (0, 1)]
    policies += [{'policy': 'affinity', 'soft': 2.0}, {'policy': 'affinity', 'drop': 2}]
    texts = {msgspec.convert({'policies': [policy]}, PolicySet).text for policy in policies}
    assert len(texts) == len(policies)


@pytest.mark.parametrize(
    ('body', 'problem'),
    [
        ({'policies': [{'policy': 'affinity', 'of': 'web'}]}, 'no subgroup or member'),
        ({'policies': ['affinity'], 'subgroups': {'a': []}}, 'at least one member'),
        ({'policies': ['affinity'], 'subgroups': {'a': ['b', 'b']}}, 'twice'),
        (
            {'policies': ['affinity'], 'subgroups': {'a': ['b']}, 'members': ['a', 'b']},
            'expected a name that no member has',
        ),
        (
            {
                'policies': [{'policy': 'near', 'of': 'a', 'target': {'of': 'b'}}],
                'subgroups': {'a': ['b']},
            },
            'expected members that the policy is not about',
        ),
    ],
)
def test_a_document_that_is_none_is_told(body, problem):
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(body, PolicySet)


def test_a_trace_does_not_count_domains_that_are_closed():
    hosts = [a_host(n, location=f's{n}.r.k', disabled='off' if n == 3 else None) for n in (1, 2, 3)]
    guests = [Placed(an_id(n, 2), an_id(n, 3), n, GROUP) for n in (1, 2)]
    table = a_table(*(a_change(h, *(g for g in guests if g.provider_id == h.id)) for h in hosts))
    group = a_group({'policy': 'spread', 'level': 'site', 'max_skew': 1})
    pipeline, spec = plugin_loader.load_pipeline(), RequestSpec(resources={'VCPU': 1}, group=group)
    [step] = [s for s in steps_of(table, spec, '', pipeline, 0) if s.filter == 'GroupPolicyFilter']
    assert step.passes
    assert step.facts == ['meets spread at site max_skew 1']
