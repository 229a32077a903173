# SPDX-License-Identifier: Apache-2.0
"""Bad input through a real broker: each with its answer, nothing else happens."""

import json
import threading
import uuid

import pytest

from gantt import client, exceptions
from gantt.core.messages import base
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost
from gantt.core.messages.request import RequestSpec, SelectDestinations

pytestmark = pytest.mark.rabbit


def a_request(**fields):
    return SelectDestinations(
        request_id=str(uuid.uuid4()),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[str(uuid.uuid4())],
        **fields,
    )


def a_call(method='select_destinations', version='1.0', **args):
    return {'method': method, 'version': version, 'args': args}


def failure_of(wire, call, topic='gantt-scheduler'):
    reply = json.loads(wire.call(call, topic=topic)['oslo.message'])
    assert reply['failure'] is not None, reply
    return json.loads(reply['failure'])


def body(**changes):
    return base.to_builtins(a_request()) | changes


@pytest.mark.parametrize(
    ('call', 'cls', 'field'),
    [
        (a_call(request=body(colour='red')), 'InvalidMessage', 'request.colour'),
        (a_call(request={}), 'InvalidMessage', 'request.request_id'),
        (a_call(request=body(consumers='x')), 'InvalidMessage', 'request.consumers'),
        (a_call(request=body(budget_ms=-5)), 'InvalidMessage', 'request.budget_ms'),
        (a_call(request=body(budget_ms=10**30)), 'InvalidMessage', 'request.budget_ms'),
        (
            a_call(request=body(spec={'resources': {'CUSTOM_NO': 1}})),
            'UnknownResourceClass',
            'request.spec.resources.CUSTOM_NO',
        ),
        (a_call(request=[]), 'InvalidMessage', 'request'),
        (a_call(request=None), 'InvalidMessage', 'request'),
        (a_call(method=7), 'InvalidMessage', 'method'),
        (a_call(method='a' * 100_000), 'InvalidMessage', 'method'),
        (a_call(version='one'), 'InvalidMessage', 'version'),
        (a_call(version=1.0), 'InvalidMessage', 'version'),
        (a_call(version='1.0') | {'args': [1]}, 'InvalidMessage', 'args'),
        (a_call(version='1.0') | {'namespace': 'x'}, 'InvalidMessage', 'method'),
    ],
    ids=lambda v: v if isinstance(v, str) else '',
)
def test_a_bad_field_is_named_to_the_caller(bus, wire, call, cls, field):
    failure = failure_of(wire, call)
    assert (failure['class'], failure['module']) == (cls, 'gantt.exceptions')
    assert failure['kwargs']['field'] == field
    assert len(failure['message']) < 600
    assert not bus.facade.seen


def test_versions_too_new_are_told_with_ours(bus, wire):
    failure = failure_of(wire, a_call(version='2.3', request=body()))
    assert failure['class'] == 'UnsupportedVersion'
    assert failure['kwargs'] == {
        'method': 'select_destinations',
        'version': '2.3',
        'expected': '1.N',
    }


def test_a_payload_of_5_mb_is_refused(bus, wire):
    call = a_call(request=body(spec={'resources': {'VCPU': 1}, 'hints': {'x': ['y' * 5_000_000]}}))
    failure = failure_of(wire, call)
    assert failure['class'] == 'PayloadTooLarge'
    assert failure['kwargs']['limit'] == 1 << 17
    assert not bus.facade.seen


def test_unknown_host_wrong_epoch_and_stale_reports(bus):
    claims, stats = client.ClaimsClient(bus.carrier()), client.StatsClient(bus.carrier())
    report = HostReport(
        name='cmp-1', epoch=1, sequence=5, full=True, inventories={}, running=[], pending=[]
    )
    with pytest.raises(exceptions.NotFound, match="host 'cmp-1'"):
        stats.update_resource_stats(report)
    claims.register_host(RegisterHost(name='cmp-1', boot_nonce='a'))
    assert stats.update_resource_stats(report).outcome == 'applied'
    assert stats.update_resource_stats(report).outcome == 'stale'
    claims.register_host(RegisterHost(name='cmp-1', boot_nonce='b'))
    with pytest.raises(exceptions.StaleEpoch, match=r'epoch 1 .* current one \(2\)'):
        stats.update_resource_stats(report)
    words = ClaimUpdate(name='cmp-1', epoch=9, sequence=1, claim_ids=[str(uuid.uuid4())])
    with pytest.raises(exceptions.StaleEpoch, match='epoch 9'):
        claims.confirm_claims(words)
    assert len(bus.facade.reports) == 1


def test_a_reused_request_id(bus):
    request, scheduler = a_request(), bus.scheduler()
    scheduler.select_destinations(request)
    other = SelectDestinations(
        request_id=request.request_id,
        spec=RequestSpec(resources={'VCPU': 3}),
        consumers=request.consumers,
    )
    with pytest.raises(exceptions.RequestIdReused, match=request.request_id):
        scheduler.select_destinations(other)
    assert len(bus.facade.claims) == 1


def test_unknown_methods_with_call_monitor_leave_no_threads_behind(bus, wire):
    call = a_call(method='nonsense') | {'_timeout': 2}
    failure_of(wire, call)
    before = threading.active_count()
    for _ in range(20):
        failure_of(wire, call)
        failure_of(wire, a_call(version='7.0') | {'_timeout': 2})
    assert threading.active_count() <= before
