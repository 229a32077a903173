# SPDX-License-Identifier: Apache-2.0
"""A refusal names the place as the sender wrote it, and the expected value."""

import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.report import HostReport
from gantt.core.messages.request import CancelClaims, SelectDestinations

UUID = '00000000-0000-4000-8000-000000000001'


def refusal(tp, body, inside):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        base.decode(body, tp, inside=inside)
    return caught.value.kwargs['field'], caught.value.kwargs['problem']


def request(**spec):
    return {'request_id': UUID, 'consumers': [UUID], 'spec': {'resources': {'VCPU': 1}, **spec}}


@pytest.mark.parametrize(
    ('spec', 'field', 'said'),
    [
        ({'resources': {'VCPU': 1, 'MEMORY_MB': -1}}, 'request.spec.resources.MEMORY_MB', '>= '),
        ({'resources': {'VCPU': 'two'}}, 'request.spec.resources.VCPU', 'expected a whole number'),
        ({'resources': {'DISK_GB': 2**50}}, 'request.spec.resources.DISK_GB', '<= '),
        ({'purpose': 'resise'}, 'request.spec.purpose', 'one of create, resize, migrate'),
        ({'group': {'uuid': UUID, 'policy': 'near'}}, 'request.spec.group.policy', 'affinity'),
        ({'group': {'uuid': 'web'}}, 'request.spec.group.uuid', 'expected a UUID'),
        ({'group': {'uuid': UUID, 'polici': 'affinity'}}, 'request.spec.group.polici', 'policy'),
        ({'ignore_hosts': ['a\nb']}, 'request.spec.ignore_hosts[0]', 'without control characters'),
        ({'ignore_hosts': ['a', 3]}, 'request.spec.ignore_hosts[1]', 'expected text'),
    ],
)
def test_of_a_request(spec, field, said):
    where, problem = refusal(SelectDestinations, request(**spec), 'request')
    assert where == field
    assert said in problem


@pytest.mark.parametrize(
    ('fields', 'field'),
    [
        ({'running': [{'consumer': UUID}, {'consumer': 'x'}]}, 'stats.running[1].consumer'),
        (
            {'running': [{'consumer': UUID, 'resources': {'VCPU': 1, 'PCPU': -2}}]},
            'stats.running[0].resources.PCPU',
        ),
        ({'inventories': {'VCPU': {'total': 'no'}}}, 'stats.inventories.VCPU.total'),
        ({'inventories': {'PCPU': {'total': 1}, 'VCPU': 3}}, 'stats.inventories.VCPU'),
        ({'inventories': {'VCPU': {'total': 3, 'totl': 3}}}, 'stats.inventories.VCPU.totl'),
        ({'inventories': {'VCPU': {}}}, 'stats.inventories.VCPU.total'),
        ({'traits': ['CUSTOM_FAST '], 'inventories': {}}, 'stats.traits[0]'),
        ({'traits': ['CUSTOM_FAST', '\u00a0CUSTOM_FAST'], 'inventories': {}}, 'stats.traits[1]'),
        ({'aggregates': [' rack-1'], 'inventories': {}}, 'stats.aggregates[0]'),
        ({'name': 'cmp-1 ', 'inventories': {}}, 'stats.name'),
    ],
)
def test_of_a_report(fields, field):
    body = {'name': 'cmp-1', 'epoch': 1, 'sequence': 1, 'full': True, 'running': [], 'pending': []}
    assert refusal(HostReport, body | fields, 'stats')[0] == field


def test_the_same_of_json():
    body = b'{"request_id": "%s", "consumers": ["%s"], "spec": {"resources": {"VCPU": 1.5}}}'
    with pytest.raises(exceptions.InvalidMessage) as caught:
        base.decode_json(body % (UUID.encode(), UUID.encode()), SelectDestinations, inside='body')
    assert caught.value.kwargs['field'] == 'body.spec.resources.VCPU'


#: JSON that is wrong after its first field that does not fit, too.
BROKEN = [
    pytest.param(b'[1', 'not valid JSON', id='cut-list'),
    pytest.param(b'{"request_id": 1, "x"', 'not valid JSON', id='cut-object'),
    pytest.param(b'{"request_id": 1, "x": "\xff"}', 'not valid JSON', id='no-utf-8'),
    pytest.param(b'{"request_id": 1} x', 'not valid JSON', id='more-behind-it'),
    pytest.param(b'[' * 100_000, 'nested too deeply', id='deep-list'),
    pytest.param(b'{"request_id": 1, "spec": ' + b'[' * 100_000, 'deeply', id='deep-field'),
    pytest.param(b'{"a":' * 100_000, 'nested too deeply', id='deep-unknown'),
]


@pytest.mark.parametrize('tp', [SelectDestinations, HostReport])
@pytest.mark.parametrize(('body', 'said'), BROKEN)
def test_what_is_no_json_is_refused_wherever_it_breaks(tp, body, said):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        base.decode_json(body, tp, inside='body')
    assert caught.value.kwargs['field'] == 'body'
    assert said in caught.value.kwargs['problem']


def test_that_names_are_left_out_is_said():
    problem = refusal(CancelClaims, {'request_id': request()['request_id'], 'zzz': 1}, 'request')[1]
    assert problem.startswith('unknown field; known: request_id, reason')
    assert 'more' not in problem
    report = {'name': 'cmp-1', 'epoch': 1, 'sequence': 1, 'full': True, 'running': []}
    problem = refusal(HostReport, report | {'zzz': 1}, 'stats')[1]
    more = len(HostReport.__struct_fields__) - base.NAMED_FIELDS_MAX
    assert problem.endswith(f' and {more} more')


def test_half_of_a_surrogate_pair_in_the_place_of_another_type_is_refused():
    with pytest.raises(exceptions.InvalidMessage, match='request: expected text of whole'):
        base.decode({'spec': '\ud800'}, SelectDestinations, inside='request')
