# SPDX-License-Identifier: Apache-2.0
"""What is refused before anything else sees it: each with its own clear answer."""

import threading
import uuid

import oslo_messaging as om
import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.rpc import wire
from tests.rpc.facade import until


def a_body(**fields):
    request = SelectDestinations(
        request_id=str(uuid.uuid4()),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[str(uuid.uuid4())],
    )
    return base.to_builtins(request) | fields


def told(raw, method, **args):
    """The error that a call is answered with."""
    with pytest.raises(Exception) as caught:
        raw.call({}, method, **args)
    return caught.value


def test_an_unknown_method_is_refused_with_the_known_ones(bus):
    error = told(bus.raw('gantt-scheduler'), 'select_destination', request=a_body())
    assert isinstance(error, exceptions.InvalidMessage)
    assert error.kwargs['field'] == 'method'
    assert 'select_destinations' in error.kwargs['problem']


def test_a_method_of_another_topic_is_unknown(bus):
    error = told(bus.raw('gantt-claims'), 'select_destinations', request=a_body())
    assert error.kwargs['field'] == 'method'


@pytest.mark.parametrize('method', ['_on_incoming', '__init__', '', 'interface'])
def test_names_of_ours_are_not_methods(bus, method):
    assert told(bus.raw('gantt-scheduler'), method).kwargs['field'] == 'method'


def test_a_newer_major_version_is_refused_naming_both(bus):
    error = told(bus.raw('gantt-scheduler', '2.0'), 'select_destinations', request=a_body())
    assert isinstance(error, exceptions.UnsupportedVersion)
    assert error.kwargs == {
        'method': 'select_destinations',
        'version': '2.0',
        'expected': '1.N',
    }


def test_a_newer_minor_version_may_say_more_than_we_know(bus):
    body = a_body(brand_new='x')
    body['spec']['brand_new_too'] = {'deep': [1]}
    raw = bus.raw('gantt-scheduler', f'{wire.MAJOR}.{wire.MINOR + 1}')
    answer = raw.call({}, 'select_destinations', request=body, another_argument=1)
    assert answer['outcome'] == 'placed'


def test_the_same_minor_version_may_not(bus):
    raw = bus.raw('gantt-scheduler')
    error = told(raw, 'select_destinations', request=a_body(brand_new='x'))
    assert error.kwargs['field'] == 'request.brand_new'
    error = told(raw, 'select_destinations', request=a_body(), another_argument=1)
    assert error.kwargs['field'].startswith('args.')


@pytest.mark.parametrize(
    ('change', 'field', 'expected'),
    [
        ({'spec': {}}, 'request.spec.resources', 'missing'),
        ({'spec': {'resources': {'VCPU': '1'}}}, 'request.spec.resources.VCPU', 'a whole number'),
        ({'spec': {'resources': {'VCPU': -1}}}, 'request.spec.resources.VCPU', '>= 1'),
        ({'spec': {'resources': {'VCPU': 2**50}}}, 'request.spec.resources.VCPU', '<='),
        ({'spec': {'resources': {}}}, 'request.spec.resources', 'length'),
        ({'consumers': []}, 'request.consumers', 'length'),
        ({'consumers': ['x']}, 'request.consumers[0]', 'a UUID'),
        ({'budget_ms': 0}, 'request.budget_ms', '>= 1'),
        ({'budget_mss': 1}, 'request.budget_mss', "'budget_ms'"),
        ({'request_id': 7}, 'request.request_id', 'expected text'),
        (
            {'spec': {'resources': {'VCPU': 1}, 'purpose': 'fun'}},
            'request.spec.purpose',
            'create, resize',
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(bus, change, field, expected):
    error = told(bus.raw('gantt-scheduler'), 'select_destinations', request=a_body(**change))
    assert isinstance(error, exceptions.InvalidMessage)
    assert error.kwargs['field'] == field
    assert expected in error.kwargs['problem']
    assert not bus.facade.seen


@pytest.mark.parametrize(
    ('change', 'field'),
    [
        ({'consumers': ['\ud800']}, 'request.consumers[0]'),
        ({'spec': {'resources': {'VCPU': 1}, 'zone': 'a\udfff'}}, 'request.spec.zone'),
        ({'spec': {'resources': {'VCPU': 1, 'X\ud800': 1}}}, 'request.spec.resources'),
        ({'a\udc00': 1}, 'request'),
    ],
)
def test_half_a_character_is_refused_by_the_name_of_its_field(bus, change, field):
    error = told(bus.raw('gantt-scheduler'), 'select_destinations', request=a_body(**change))
    assert isinstance(error, exceptions.InvalidMessage)
    assert error.kwargs['field'] == field
    assert 'lone surrogate' in error.kwargs['problem']
    assert not bus.facade.seen


def test_whole_characters_of_any_plane_are_taken(bus):
    body = a_body(spec={'resources': {'VCPU': 1}, 'availability_zone': 'zürich-\U0001f680'})
    assert bus.raw('gantt-scheduler').call({}, 'select_destinations', request=body)


def test_an_unknown_resource_class_is_refused_by_name(bus):
    body = a_body(spec={'resources': {'CUSTOM_NOBODY': 1}})
    error = told(bus.raw('gantt-scheduler'), 'select_destinations', request=body)
    assert isinstance(error, exceptions.UnknownResourceClass)
    assert error.kwargs['name'] == 'CUSTOM_NOBODY'


@pytest.mark.parametrize('args', [{}, {'req': 1}])
def test_a_missing_argument_is_named(bus, args):
    error = told(bus.raw('gantt-scheduler'), 'select_destinations', **args)
    assert error.kwargs['field'] == 'args.request'


def test_a_request_of_5_mb_is_refused_unread(bus):
    body = a_body(spec={'resources': {'VCPU': 1}, 'hints': {'x': ['y' * 5_000_000]}})
    error = told(bus.raw('gantt-scheduler'), 'select_destinations', request=body)
    assert isinstance(error, exceptions.PayloadTooLarge)
    assert error.kwargs['size'] > 5_000_000
    assert error.kwargs['limit'] == base.REQUEST_BYTES_MAX
    assert bus.counts.values[('gantt_rpc_messages_refused_total', 'gantt.payload_too_large')] == 1


def test_the_limit_is_an_option(make_bus):
    bus = make_bus(payload_bytes_max=4096)
    body = a_body(spec={'resources': {'VCPU': 1}, 'hints': {'x': ['y' * 1000] * 5}})
    error = told(bus.raw('gantt-scheduler'), 'select_destinations', request=body)
    assert error.kwargs['limit'] == 4096


def test_unknown_methods_and_versions_leave_no_threads_behind(bus):
    """A monitored call of an unknown method leaks a thread in the library's dispatcher."""
    calls = [
        bus.raw(topic, version).prepare(call_monitor_timeout=2, timeout=5)
        for topic, version in (('gantt-scheduler', '1.0'), ('gantt-claims', '9.9'))
    ]
    for raw in calls:
        told(raw, 'nonsense')
    before = threading.active_count()
    for _ in range(20):
        for raw in calls:
            told(raw, 'nonsense')
    assert threading.active_count() <= before


def test_monitored_calls_start_no_threads_either(bus):
    raw = bus.raw('gantt-scheduler').prepare(call_monitor_timeout=60, timeout=10)
    raw.call({}, 'select_destinations', request=a_body())
    before = threading.active_count()
    for _ in range(20):
        raw.call({}, 'select_destinations', request=a_body())
    assert threading.active_count() <= before


@pytest.mark.parametrize('seconds', [10**400, -(10**400), 1e400, 'soon', [1]])
def test_a_time_of_nonsense_beside_a_message_is_no_time(bus, seconds):
    body = {'method': 'select_destinations', 'version': '1.0', '_timeout': seconds}
    carrier = bus.carrier()
    for _ in range(3):
        carrier.caller.send('gantt', 'gantt-scheduler', body | {'args': {}})
    answer = bus.raw('gantt-scheduler').call({}, 'select_destinations', request=a_body())
    assert answer['outcome'] == 'placed'
    until(lambda: sum(v for k, v in bus.counts.values.items() if 'refused' in k[0]) == 3)


def test_more_words_than_threads_and_room_are_told_busy(make_bus):
    bus = make_bus(worker_threads=1, worker_queue_limit=1)
    entered, release = threading.Event(), threading.Event()
    real = bus.facade.confirm

    def slow(words):
        entered.set()
        release.wait(60)
        return real(words)

    bus.facade.confirm = slow
    raw = bus.raw('gantt-claims')
    words = {'name': 'cmp-1', 'epoch': 1, 'sequence': 1, 'claim_ids': [str(uuid.uuid4())]}
    raw.cast({}, 'confirm_claims', update=words)
    assert entered.wait(10)
    raw.cast({}, 'confirm_claims', update=words)
    until(lambda: bus.service.health()['waiting_gantt-claims'] == 1)
    error = told(raw, 'confirm_claims', update=words)
    assert not release.is_set()
    assert isinstance(error, exceptions.Busy)
    assert error.kwargs['retry_after_ms'] == 1000
    release.set()


def test_an_error_of_ours_is_not_told_in_detail(bus):
    def broken(host):
        raise ZeroDivisionError('a secret of the database')

    bus.facade.register_host = broken
    error = told(
        bus.raw('gantt-claims'), 'register_host', host={'name': 'cmp-1', 'boot_nonce': 'n'}
    )
    assert isinstance(error, exceptions.Unavailable)
    assert 'secret' not in str(error)


def test_no_line_of_a_traceback_travels(bus):
    error = told(bus.raw('gantt-scheduler'), 'select_destinations', request={})
    assert 'Traceback' not in str(error)
    assert '.py' not in str(error)


def test_a_casted_refusal_is_counted_and_nothing_else(bus):
    bus.raw('gantt-stats').cast({}, 'update_resource_stats', name='cmp-1', stats={'full': 1})
    until(
        lambda: bus.counts.values.get(('gantt_rpc_messages_refused_total', 'gantt.invalid_message'))
    )
    assert not bus.facade.reports


def test_a_caller_that_names_a_dead_reply_queue_holds_nobody_up(bus):
    """A library client that is gone by the time of the answer."""
    raw = bus.raw('gantt-scheduler').prepare(timeout=0.3)
    bus.facade.hold.clear()
    with pytest.raises(om.MessagingTimeout):
        raw.call({}, 'select_destinations', request=a_body())
    bus.facade.hold.set()
    assert bus.raw('gantt-scheduler').call({}, 'select_destinations', request=a_body())
