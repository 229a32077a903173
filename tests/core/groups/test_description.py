# SPDX-License-Identifier: Apache-2.0
"""Descriptions of groups: valid ones, and the field that an error names."""

import pytest

from gantt import exceptions, plugin_loader
from gantt.core.group_policies.policies import PolicyForm
from gantt.core.messages.request import Policy
from gantt.groups.model import group_description
from gantt.groups.model.build import build_problem
from tests.core.builders import a_host, a_table

SPEC = {'resources': {'VCPU': 1}}


def body(**fields):
    return {
        'members': [
            {'name': 'web', 'count': 3, 'spec': SPEC},
            {'name': 'db', 'count': [1, 2], 'spec': SPEC},
        ],
        **fields,
    }


def refusal(document):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        group_description.read(document)
    return str(caught.value)


def test_members_are_named_and_counted():
    description = group_description.read(body())
    web, db = description.members
    assert web.unit_names == ['web-1', 'web-2', 'web-3']
    assert (web.least, web.most, db.least, db.most) == (3, 3, 1, 2)


@pytest.mark.parametrize('policy', list(Policy))
def test_nova_s_policies_are_written_short(policy):
    (full,) = group_description.read(body(policies=[policy.value])).full_policies
    assert (full.level, full.of) == ('host', None)
    assert full.is_hard is policy.is_hard
    assert policy.value.removeprefix('soft-') == full.policy.value


@pytest.mark.parametrize('name', ['user_data', 'key_name', 'security_groups', 'metadata'])
def test_what_placement_does_not_need_is_refused_by_name(name):
    of_member = body()
    of_member['members'][0] = {**of_member['members'][0], name: 'x'}
    assert refusal(of_member).startswith(f'group.members[0].{name}: placement needs nothing of it')
    assert refusal(body(**{name: 'x'})).startswith(f'group.{name}: placement needs nothing')
    of_spec = body()
    of_spec['members'][1] = {'name': 'db', 'spec': {**SPEC, name: 'x'}}
    assert refusal(of_spec).startswith(f'group.members[1].spec.{name}: placement needs nothing')


@pytest.mark.parametrize('at', ['spec', 'alternatives[0]'])
def test_a_range_is_refused_by_its_path(at):
    ranging = {'resources': {'VCPU': 1}, 'max_resources': {'VCPU': 4}}
    member = {'name': 'web', 'spec': ranging if at == 'spec' else SPEC}
    if at != 'spec':
        member['alternatives'] = [ranging]
    message = refusal({'members': [member]})
    assert message.startswith(f'group.members[0].{at}.max_resources: expected none')


@pytest.mark.parametrize('at', ['spec', 'alternatives[0]'])
def test_an_order_of_hosts_is_refused_by_its_path(at):
    hosts_spec, several = (
        {**SPEC, 'destination': {'hosts': hosts}} for hosts in (['cmp-1'], ['cmp-2', 'cmp-1'])
    )
    member = {'name': 'web', 'spec': hosts_spec, 'alternatives': [hosts_spec]}
    assert group_description.read({'members': [member]}).members[0].specs
    wrong = {'spec': several} if at == 'spec' else {'alternatives': [several]}
    message = refusal({'members': [{**member, **wrong}]})
    assert message.startswith(f'group.members[0].{at}.destination.hosts: expected at most one')


def test_policies_are_about_so_many_in_all():
    members = [{'name': f'm{i}', 'spec': SPEC} for i in range(500)]
    of_all = {'policy': 'anti-affinity', 'of': [member['name'] for member in members]}
    enough = {'members': members, 'policies': [of_all] * 4}
    assert len(group_description.read(enough).full_policies) == 4
    message = refusal({'members': members, 'policies': [*[of_all] * 4, 'affinity']})
    assert message.startswith('group.policies[4].of: expected at most 2000 subgroups and members')


def test_a_name_has_room_for_the_number_of_the_last_member():
    def named(length, count):
        return {'members': [{'name': 'x' * length, 'count': count, 'spec': SPEC}]}

    assert group_description.read(named(253, 9)).members[0].unit_names[-1].endswith('x-9')
    assert group_description.read(named(255, 1)).members[0].unit_names == ['x' * 255]
    message = refusal(named(253, 10))
    assert message.startswith(
        'group.members[0].name: expected at most 255 characters with the number'
    )


@pytest.mark.parametrize(
    ('policy', 'field'),
    [
        ({'policy': 'afinity'}, 'policy: '),
        ({'policy': 'affinity', 'of': 'wbe'}, "of: there is no subgroup or member 'wbe'; did you"),
        ({'policy': 'near'}, 'target: '),
        ({'policy': 'near', 'target': {}}, 'target.of: '),
        ({'policy': 'near', 'target': {'host': 'a', 'pool': 'b'}}, 'target.pool: '),
        ({'policy': 'near', 'of': 'web', 'target': {'of': 'web'}}, 'target.of: '),
        ({'policy': 'spread'}, 'min_domains: '),
        ({'policy': 'spread', 'min_domains': 6}, 'min_domains: expected at most 5'),
        ({'policy': 'spread', 'max_per_domain': 0}, 'max_per_domain: '),
        ({'policy': 'affinity', 'max_per_domain': 2}, 'max_per_domain: '),
        ({'policy': 'affinity', 'soft': 1.0, 'drop': 1}, 'drop: '),
        ({'policy': 'affinity', 'soft': 0}, 'soft: '),
        ({'policy': 'affinity', 'drop': 1001}, 'drop: '),
        ({'policy': 'affinity', 'level': ''}, 'level: '),
    ],
)
def test_a_policy_that_says_nothing_is_refused_with_its_field(policy, field):
    assert refusal(body(policies=['affinity', policy])).startswith(f'group.policies[1].{field}')


@pytest.mark.parametrize(
    ('fields', 'line'),
    [
        ({'subgroups': {'all': []}}, 'group.subgroups.all: expected at least one member'),
        ({'subgroups': {'all': ['wb']}}, "group.subgroups.all[0]: there is no member 'wb'"),
        ({'subgroups': {'all': ['db', 'db']}}, "group.subgroups.all[1]: 'db' is listed twice"),
        ({'subgroups': {'web': ['db']}}, 'group.subgroups.web: expected a name that no member has'),
        ({'members': []}, 'group.members: '),
        ({'version': 2}, 'group.version: '),
        ({'members': [{'name': 'a', 'count': 1001, 'spec': SPEC}]}, 'group.members[0].count: '),
        ({'members': [{'name': 'a', 'count': [2, 1], 'spec': SPEC}]}, 'group.members[0].count: '),
        ({'members': [{'name': 'a', 'count': [0, 0], 'spec': SPEC}]}, 'group.members[0].count: '),
        (
            {'members': [{'name': n, 'count': 600, 'spec': SPEC} for n in 'ab']},
            'group.members: expected at most 1000 in all, got 1200',
        ),
        (
            {'members': [{'name': 'a', 'count': 2, 'spec': SPEC}, {'name': 'a-2', 'spec': SPEC}]},
            "group.members[1].name: 'a-2' is the name of another member",
        ),
        (
            {'members': [{'name': 'a', 'spec': {**SPEC, 'hints': {'group': ['1' * 8]}}}]},
            'group.members[0].spec.hints',
        ),
        (
            {'members': [{'name': 'a', 'spec': {**SPEC, 'kind': 'pool'}}]},
            'group.members[0].spec.kind: ',
        ),
        (
            {'members': [{'name': 'a', 'spec': {**SPEC, 'purpose': 'resize'}}]},
            'group.members[0].spec.purpose: ',
        ),
    ],
)
def test_a_group_that_is_absurd_is_refused_with_its_field(fields, line):
    assert refusal(body(**fields)).startswith(line)


def test_members_are_in_no_server_group_of_their_own():
    spec = {**SPEC, 'group': {'uuid': '0' * 8 + '-0000-0000-0000-' + '0' * 12}}
    message = refusal({'members': [{'name': 'a', 'spec': spec}]})
    assert message.startswith('group.members[0].spec.group: expected none')


@pytest.mark.parametrize(
    ('policy', 'line'),
    [
        ({'policy': 'affinity', 'level': 'rak'}, "level: expected a level; got 'rak'"),
        ({'policy': 'affinity', 'level': 'free.VCPU'}, 'level: expected a level'),
        ({'policy': 'affinity', 'level': 'request.zone'}, 'level: expected a level'),
        ({'policy': 'near', 'target': {'host': 'nobody'}}, 'target.host: expected a known host'),
        ({'policy': 'near', 'target': {'pool': 'none'}}, 'target.pool: expected a known pool'),
        (
            {'policy': 'near', 'level': 'rack', 'target': {'domain': 'k9'}},
            "target.domain: expected a domain of rack; got 'k9'",
        ),
        (
            {
                'policy': 'near',
                'soft': 1.0,
                'prices': [{'level': 'rok', 'price': 0.0}],
                'target': {'host': 'cmp-1'},
            },
            "prices[0].level: expected a level; got 'rok'",
        ),
    ],
)
def test_what_the_cloud_does_not_have_is_refused_with_its_field(policy, line):
    description = group_description.read(body(policies=[policy]))
    table = a_table(a_host(1, location='s1.r1.k1'))
    with pytest.raises(exceptions.InvalidMessage) as error:
        build_problem(table, description, plugin_loader.load_pipeline())
    assert str(error.value).startswith(f'group.policies[0].{line}')


def test_a_rule_that_is_not_understood_is_refused_with_the_member():
    members = [
        {'name': 'a', 'spec': SPEC},
        {'name': 'b', 'spec': SPEC, 'alternatives': [{**SPEC, 'hints': {'rules': ['free >']}}]},
    ]
    description = group_description.read({'members': members})
    with pytest.raises(exceptions.InvalidMessage) as error:
        build_problem(a_table(a_host(1)), description, plugin_loader.load_pipeline())
    assert str(error.value).startswith('group.members[1].alternatives[0].hints.rules[0]: ')


def test_one_policy_of_several_subjects_is_one_for_each():
    description = group_description.read(
        body(policies=[{'policy': 'anti-affinity', 'of': ['web', 'db'], 'max_per_domain': 2}])
    )
    problem = build_problem(a_table(a_host(1)), description, plugin_loader.load_pipeline())
    assert [p.form for p in problem.policies] == [
        PolicyForm.MAX_PER_DOMAIN,
        PolicyForm.MAX_PER_DOMAIN,
    ]
    assert [int(p.subject_units.sum()) for p in problem.policies] == [3, 2]


def test_what_a_change_of_a_description_would_change_is_said_line_by_line():
    spec = {'resources': {'VCPU': 1, 'MEMORY_MB': 64}}
    web = {'name': 'web', 'count': 2, 'spec': spec}
    before = group_description.read(
        {'members': [web, {'name': 'db', 'spec': spec}], 'policies': ['anti-affinity']}
    )
    assert group_description.changes(before, before) == []
    after = group_description.read(
        {
            'members': [
                {'name': 'web', 'count': [2, 4], 'spec': {'resources': {'VCPU': 2}}},
                {'name': 'cache', 'count': 3, 'spec': spec},
            ],
            'policies': ['soft-anti-affinity'],
            'others': 'allowed',
        }
    )
    assert group_description.changes(before, after) == [
        'member db goes',
        'member web: 2 -> 2..4',
        'member web: spec.resources differs',
        'member cache comes: 3',
        'without policy: anti-affinity at host',
        'with policy: anti-affinity at host (soft 1)',
        'others differs',
    ]


def test_other_prices_are_a_difference():
    spec = {'resources': {'VCPU': 1}}
    members = [{'name': 'web', 'spec': spec}, {'name': 'db', 'spec': spec}]

    def priced(price):
        near = {'policy': 'near', 'of': 'web', 'target': {'of': 'db'}, 'soft': 1.0, 'beyond': 9.0}
        prices = [{'level': 'host', 'price': 0.0}, {'level': 'rack', 'price': price}]
        body = {'members': members, 'policies': [{**near, 'prices': prices}]}
        return group_description.read(body)

    assert group_description.changes(priced(1.0), priced(1.0)) == []
    assert group_description.changes(priced(1.0), priced(3.0)) == [
        'policies: prices or other numbers of the same policies differ'
    ]
