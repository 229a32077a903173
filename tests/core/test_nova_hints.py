# SPDX-License-Identifier: Apache-2.0
"""Hints of Nova's that are fields here: understood, or refused where both differ."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
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

GUEST, OTHER = a_guest(1, 2).consumer, an_id(77)


def a_cloud():
    """Return three hosts; a guest of a group on the second."""
    guest = a_guest(1, 2, an_id(5))
    return a_table(a_host(1), a_change(a_host(2), guest), a_host(3), groups={an_id(5): 1})


def placed(**spec):
    return hosts_of(decide(a_cloud(), a_request(3, **spec)))


def test_a_hint_is_as_good_as_the_field():
    assert placed(hints={'same_host': [GUEST]}) == placed(same_host=[GUEST]) == ['cmp-2'] * 3
    away = placed(hints={'different_host': [GUEST]})
    assert away == placed(different_host=[GUEST])
    assert set(away) == {'cmp-1', 'cmp-3'}


def test_a_uuid_in_capitals_is_the_same_one():
    guest = 'ABCDEF01-0000-4000-8000-00000000ABCD'
    spec = RequestSpec(resources={'VCPU': 1}, hints={'same_host': [guest], 'group': [guest]})
    assert spec.same_host == [guest.lower()]
    assert spec.group == GroupRef(uuid=guest.lower())


def test_the_group_may_be_a_hint():
    spec = RequestSpec(resources={'VCPU': 1}, hints={'group': [an_id(5)]})
    assert spec.group == GroupRef(uuid=an_id(5))
    named = GroupRef(uuid=an_id(5), policy=Policy.ANTI_AFFINITY)
    assert msgspec.structs.replace(spec, group=named).group == named


def test_the_member_of_a_plan_may_be_a_hint():
    named = GroupRef(uuid=an_id(5), member='web-2')
    by_hints = {'group': [an_id(5)], 'gantt_member': ['web-2']}
    assert RequestSpec(resources={'VCPU': 1}, hints=by_hints).group == named
    beside = RequestSpec(
        resources={'VCPU': 1},
        hints={'gantt_member': ['web-2']},
        group=GroupRef(uuid=an_id(5), policy=Policy.ANTI_AFFINITY),
    )
    assert beside.group == msgspec.structs.replace(named, policy=Policy.ANTI_AFFINITY)
    assert beside == msgspec.convert(msgspec.to_builtins(beside), RequestSpec)
    both = RequestSpec(resources={'VCPU': 1}, hints=by_hints, group=named)
    assert both.group == named
    without = RequestSpec(resources={'VCPU': 1}, hints={'group': [an_id(5)], 'gantt_member': []})
    assert without.group == GroupRef(uuid=an_id(5))


def test_the_plan_may_be_a_hint_in_place_of_a_group_or_beside_one():
    alone = RequestSpec(
        resources={'VCPU': 1}, hints={'gantt_plan': [an_id(5).upper()], 'gantt_member': ['web']}
    )
    assert alone.group == GroupRef(uuid=an_id(5), member='web')
    assert (alone.plan, alone.is_group_of_plan) == (an_id(5), True)
    assert alone == msgspec.convert(msgspec.to_builtins(alone), RequestSpec)
    assert (alone.without_plan().group, alone.without_plan().hints) == (None, {})
    beside = RequestSpec(
        resources={'VCPU': 1},
        hints={'gantt_plan': [an_id(5)], 'gantt_member': ['web'], 'group': [an_id(6)]},
    )
    assert beside.group == GroupRef(uuid=an_id(6), member='web')
    assert (beside.plan, beside.is_group_of_plan) == (an_id(5), False)
    assert beside.without_plan().group == GroupRef(uuid=an_id(6))
    assert beside.without_plan().hints == {'group': [an_id(6)]}


def test_hints_of_others_stay_what_they_are():
    hints = {'target_cell': ['region!child'], 'same_hosts': ['x'], 'groups': ['y']}
    spec = RequestSpec(resources={'VCPU': 1}, hints=hints)
    assert spec == msgspec.convert(msgspec.to_builtins(spec), RequestSpec)
    assert (spec.hints, spec.same_host, spec.group) == (hints, [], None)


BAD = {
    'no-uuid': ({'hints': {'same_host': [GUEST, 'cmp-1']}}, 'same_host[1]', 'expected a UUID'),
    'empty': ({'hints': {'different_host': ['']}}, 'different_host[0]', 'expected a UUID'),
    'many': ({'hints': {'same_host': [GUEST] * 1001}}, 'same_host', '<= 1000'),
    'differs': (
        {'hints': {'same_host': [GUEST]}, 'same_host': [OTHER]},
        'same_host',
        'and differ',
    ),
    'group-name': ({'hints': {'group': ['web']}}, 'group[0]', 'expected a UUID'),
    'groups': ({'hints': {'group': [GUEST, OTHER]}}, 'group', 'expected one uuid, got 2'),
    'plan-name': ({'hints': {'gantt_plan': ['web']}}, 'gantt_plan[0]', 'expected a UUID'),
    'plans': ({'hints': {'gantt_plan': [GUEST, OTHER]}}, 'gantt_plan', 'expected one uuid, got 2'),
    'member-alone': ({'hints': {'gantt_member': ['web']}}, 'gantt_member', 'its group as well'),
    'members': (
        {'hints': {'group': [GUEST], 'gantt_member': ['a', 'b']}},
        'gantt_member',
        'expected one name, got 2',
    ),
    'no-member': (
        {'hints': {'group': [GUEST], 'gantt_member': ['']}},
        'gantt_member',
        'expected the name of a member',
    ),
    'member-of-two-lines': (
        {'hints': {'group': [GUEST], 'gantt_member': ['a\nb']}},
        'gantt_member',
        'expected the name of a member',
    ),
    'other-member': (
        {
            'hints': {'group': [GUEST], 'gantt_member': ['a']},
            'group': {'uuid': GUEST, 'member': 'b'},
        },
        'gantt_member',
        'and differ',
    ),
    'other-group': (
        {'hints': {'group': [GUEST]}, 'group': {'uuid': OTHER}},
        'group',
        'and differ',
    ),
}


@pytest.mark.parametrize('case', BAD)
@pytest.mark.parametrize('form', ['object', 'json'])
def test_what_cannot_be_meant_is_refused_by_name(case, form):
    spec, field, problem = BAD[case]
    body = {
        'request_id': an_id(1),
        'consumers': [an_id(2)],
        'spec': {'resources': {'VCPU': 1}, **spec},
    }
    with pytest.raises(exceptions.InvalidMessage, match=problem) as caught:
        if form == 'object':
            base.decode(body, SelectDestinations, inside='request')
        else:
            base.decode_json(msgspec.json.encode(body), SelectDestinations, inside='request')
    assert caught.value.kwargs['field'] == f'request.spec.hints.{field}'


def test_both_may_say_the_same():
    both = {'same_host': [OTHER, GUEST], 'hints': {'same_host': [GUEST, OTHER]}}
    assert RequestSpec(resources={'VCPU': 1}, **both).same_host == [OTHER, GUEST]
