# SPDX-License-Identifier: Apache-2.0
"""Choice of the members that are released when a group is scaled down."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gantt.groups.model import group_description, violations
from gantt.groups.model.violations import PresentMember, choose_leaving, find_violations
from tests.core.builders import a_guest
from tests.core.groups.test_check import GROUP, a_cloud

POLICIES = [
    {'policy': 'anti-affinity'},
    {'policy': 'anti-affinity', 'level': 'rack', 'soft': 2.0},
    {'policy': 'affinity', 'level': 'rack', 'of': 'web'},
    {'policy': 'affinity', 'soft': 0.5},
    {'policy': 'spread', 'level': 'rack', 'max_skew': 1},
    {'policy': 'spread', 'level': 'rack', 'min_domains': 2, 'drop': 1},
    {'policy': 'near', 'of': 'web', 'target': {'of': 'db'}, 'level': 'rack'},
    {'policy': 'anti-affinity', 'of': 'web', 'target': {'of': 'db'}, 'soft': 3.0},
]


def a_group(policies):
    spec = {'resources': {'VCPU': 1}}
    members = [{'name': 'web', 'count': 6, 'spec': spec}, {'name': 'db', 'count': 2, 'spec': spec}]
    return group_description.read({'uuid': GROUP, 'policies': policies, 'members': members})


def present(webs, dbs):
    """Return members on hosts by number, and who stands there."""
    rows = [('web', n, host) for n, host in enumerate(webs, 1)]
    rows += [('db', n, host) for n, host in enumerate(dbs, 1)]
    guests = [a_guest(i, host, GROUP) for i, (_, _, host) in enumerate(rows, 1)]
    members = [
        PresentMember(f'{kind}-{n}', kind, guest.consumer, guest.provider_id)
        for (kind, n, _), guest in zip(rows, guests, strict=True)
    ]
    return members, guests


def harm(description, members, guests, without):
    """Return what is violated in a cloud that the others alone stand in."""
    stays = [member for member in members if member.name not in without]
    consumers = {member.consumer for member in stays}
    table = a_cloud(*(guest for guest in guests if guest.consumer in consumers))
    sums = [0.0, 0.0, 0.0]
    for violation in find_violations(table, description, stays):
        policy = description.full_policies[violation.policy]
        kind = 0 if policy.is_hard else 1 if policy.soft is None else 2
        sums[kind] += violation.amount * (1.0 if policy.soft is None else policy.soft)
    return [round(total, 9) for total in sums]


HOSTS = st.integers(1, 5)


@given(
    st.lists(st.sampled_from(POLICIES), min_size=1, max_size=3, unique_by=msgspec.json.encode),
    st.lists(HOSTS, min_size=2, max_size=6),
    st.lists(HOSTS, max_size=2),
    st.integers(1, 2),
)
def test_nobody_could_leave_with_less_harm(policies, webs, dbs, count):
    description = a_group(policies)
    members, guests = present(webs, dbs)
    candidates = [member.name for member in members if member.member == 'web'][1:]
    count = min(count, len(candidates))
    leaving = choose_leaving(a_cloud(*guests), description, members, candidates, count)
    assert len(set(leaving)) == count and set(leaving) <= set(candidates)
    for i, name in enumerate(leaving):
        before = set(leaving[:i])
        chosen = harm(description, members, guests, before | {name})
        others = [
            harm(description, members, guests, before | {other})
            for other in candidates
            if other not in before
        ]
        assert chosen == min(others)


def test_the_last_ones_leave_where_no_policy_says_who():
    description = a_group([])
    members, guests = present([1, 2, 3, 3], [])
    names = [member.name for member in members]
    leaving = choose_leaving(a_cloud(*guests), description, members, names, 2)
    assert leaving == ['web-4', 'web-3']


def test_the_one_that_stands_too_close_leaves_first():
    members, guests = present([1, 1, 3, 4], [])
    names = [member.name for member in members]
    apart = a_group([{'policy': 'anti-affinity', 'soft': 1.0}])
    assert choose_leaving(a_cloud(*guests), apart, members, names, 1) == ['web-2']
    together = a_group([{'policy': 'affinity', 'level': 'rack'}])
    assert choose_leaving(a_cloud(*guests), together, members, ['web-1', 'web-3', 'web-4'], 2) == [
        'web-4',
        'web-3',
    ]


def test_a_choice_among_many_is_bounded(monkeypatch):
    members, guests = present([1, 1, 3, 4], [])
    names = [member.name for member in members]
    apart = a_group([{'policy': 'anti-affinity', 'soft': 1.0}])
    monkeypatch.setattr(violations, 'EVALUATIONS_MAX', 1)
    assert choose_leaving(a_cloud(*guests), apart, members, names, 2) == ['web-2', 'web-4']
