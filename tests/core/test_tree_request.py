# SPDX-License-Identifier: Apache-2.0
"""Groups and devices of a request: their meaning, and refusals by field."""

import uuid

import pytest

from gantt import exceptions
from gantt.core.messages import base, request
from gantt.core.messages.request import SelectDestinations

ONE = str(uuid.uuid4())


def asked(**tree: object) -> SelectDestinations:
    spec = {'resources': {'VCPU': 1}, 'tree': tree}
    body = {'request_id': ONE, 'spec': spec, 'consumers': [ONE]}
    message = base.decode(body, SelectDestinations, inside='request')
    request.check(message)
    return message


def test_devices_stand_for_groups_that_lie_apart() -> None:
    tree = asked(devices=[{'resource_class': 'VGPU', 'count': 2, 'amount': 500}]).spec.tree
    assert tree is not None
    groups = list(tree.expanded())
    assert [group.suffix for group in groups] == ['device1-1', 'device1-2']
    assert all(group.group.resources == {'VGPU': 500} for group in groups)
    assert list(tree.distinct()) == [{'device1-1', 'device1-2'}]


def test_an_isolating_policy_is_about_groups() -> None:
    group = {'resources': {'VGPU': 1}}
    tree = asked(groups={'a': group, 'b': group}, group_policy='isolate').spec.tree
    assert tree is not None and list(tree.distinct()) == [{'a', 'b'}]
    tree = asked(groups={'a': group, 'b': group}, group_policy='none').spec.tree
    assert tree is not None and not list(tree.distinct())


VGPU = {'resources': {'VGPU': 1}}


@pytest.mark.parametrize(
    ('tree', 'field'),
    [
        ({}, 'request.spec.tree.groups'),
        ({'groups': {'a': VGPU, 'b': VGPU}}, 'request.spec.tree.group_policy'),
        ({'groups': {'a b': VGPU}}, 'request.spec.tree.groups'),
        ({'groups': {'': VGPU}}, 'request.spec.tree.groups'),
        ({'groups': {'a': {'resources': {'': 1}}}}, 'request.spec.tree.groups.a.resources'),
        ({'groups': {'a': {'resources': {}}}}, 'request.spec.tree.groups.a.resources'),
        ({'groups': {'a': VGPU}, 'same_subtree': [['b']]}, 'request.spec.tree.same_subtree[0]'),
        ({'groups': {'a': {'resources': {'NO': 1}}}}, 'request.spec.tree.groups.a.resources.NO'),
        ({'devices': [{'resource_class': 'X'}]}, 'request.spec.tree.devices[0].resource_class'),
        ({'devices': [{'resource_class': 'VGPU', 'count': 65}]}, 'request.spec.tree.devices[0]'),
        ({'devices': [{'resource_class': 'VGPU', 'count': 64}] * 2}, 'request.spec.tree.groups'),
        ({'root_required': ['A'], 'root_forbidden': ['A']}, 'request.spec.tree.root_forbidden'),
        (
            {'groups': {'a': VGPU | {'required_traits': ['A'], 'forbidden_traits': ['A']}}},
            'request.spec.tree.groups.a.forbidden_traits',
        ),
        (
            {'groups': {'a': VGPU | {'any_traits': [['A'], []]}}},
            'request.spec.tree.groups.a.any_traits[1]',
        ),
        (
            {'groups': {'a': VGPU | {'member_of': [[]]}}},
            'request.spec.tree.groups.a.member_of[0]',
        ),
        (
            {'groups': {'device1': VGPU}, 'devices': [{'resource_class': 'VGPU'}]},
            'request.spec.tree.groups',
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(tree: dict, field: str) -> None:
    with pytest.raises(exceptions.GanttError) as refused:
        asked(**tree)
    assert str(refused.value.kwargs['field']).startswith(field)


def test_a_request_for_pools_has_no_tree() -> None:
    spec = {'resources': {'DISK_GB': 1}, 'kind': 'pool', 'tree': {'groups': {'a': VGPU}}}
    body = {'request_id': ONE, 'spec': spec, 'consumers': [ONE]}
    with pytest.raises(exceptions.InvalidMessage, match=r'spec\.tree'):
        request.check(base.decode(body, SelectDestinations, inside='request'))
