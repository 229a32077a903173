# SPDX-License-Identifier: Apache-2.0
"""Nova's topic, called as an unmodified nova-conductor calls it."""

import datetime
import logging
import sys
import types
import uuid

import oslo_messaging as om
import pytest

from gantt.core.records.decision import Outcome
from gantt.nova.model.events import GuestDeleted, GuestsListed, GuestsUpdated
from tests.rpc.bus import Bus, load, stored
from tests.rpc.facade import until
from tests.rpc.shape import shape

REPLY = stored('reply-select_destinations')['oslo.message (decoded)']['result']


def hosts_of(result):
    return [[s['nova_object.data']['service_host'] for s in hosts] for hosts in result]


def test_a_boot_is_answered_in_the_form_of_the_captured_reply(bus):
    result = bus.nova().call('boot')
    assert shape(result) == shape(REPLY)


def test_the_allocation_request_names_what_was_claimed(bus):
    first = bus.nova().call('boot')[0][0]['nova_object.data']
    provider = first['compute_node_uuid']
    assert first['allocation_request'] == (
        f'{{"allocations": {{"{provider}": {{"resources": '
        '{"DISK_GB": 1, "MEMORY_MB": 512, "VCPU": 1}}}, '
        f'"mappings": {{"": ["{provider}"]}}}}'
    )


def test_a_multi_create_is_one_list_per_instance_in_order(bus):
    uuids = [str(uuid.uuid4()) for _ in range(3)]
    result = bus.nova().call('boot-multi3', uuids=uuids)
    assert shape(result) == shape(REPLY * 3)
    (answer,) = [a for _, a in bus.facade.placed.values()]
    assert [s[0].consumer for s in answer.selections] == uuids


def test_the_third_of_a_group_avoids_the_hosts_of_the_others(bus):
    result = bus.nova().call('boot-anti-affinity-third')
    assert not set(hosts_of(result)[0]) & {'compute-004', 'compute-001'}


def test_a_forced_host_is_the_only_one(bus):
    assert hosts_of(bus.nova().call('boot-az-host')) == [['compute-003']]
    assert hosts_of(bus.nova().call('boot-host-2.74')) == [['compute-003']]


@pytest.mark.parametrize('capture', ['live-migrate', 'unshelve'])
def test_callers_without_alternates_get_the_chosen_host_only(bus, capture):
    (hosts,) = hosts_of(bus.nova().call(capture))
    assert len(hosts) == 1


def test_a_resize_gets_alternates_and_not_its_source(bus):
    (hosts,) = hosts_of(bus.nova().call('resize'))
    assert len(hosts) == 3
    assert 'compute-004' not in hosts


@pytest.mark.parametrize(
    ('capture', 'sources'),
    [
        ('resize', ['compute-004']),
        ('live-migrate', ['compute-002']),
        ('unshelve', [None]),
        ('boot', []),
    ],
)
def test_a_request_that_says_where_its_guest_is_is_heard_so(bus, capture, sources):
    bus.nova().call(capture)
    assert bus.facade.sources == sources


def test_before_4_5_plain_dictionaries_are_expected(bus):
    result = bus.nova('4.4').call('boot-multi3', count=2, return_objects=False)
    assert result == [{'host': h, 'nodename': h, 'limits': {}} for h in [r['host'] for r in result]]
    assert len(result) == 2


def test_a_refusal_is_novas_own(bus):
    """Only ``nova.exception`` is rebuilt by Nova, and only with arguments it knows."""
    error = refusal_of(bus, resize_to=10_000_000)
    assert error.exc_type == 'NoValidHost'
    assert error.value == 'No valid host was found. 0/5 hosts fit: too little room'


class NovaException(Exception):
    """Takes what Nova's base class of errors takes."""

    def __init__(self, message=None, **kwargs):
        self.kwargs = kwargs
        self.code = kwargs['code']
        super().__init__(message)


def test_a_caller_that_has_the_class_gets_it_rebuilt(bus, monkeypatch):
    package, module = types.ModuleType('nova'), types.ModuleType('nova.exception')
    module.NoValidHost = type('NoValidHost', (NovaException,), {'__module__': 'nova.exception'})
    monkeypatch.setitem(sys.modules, 'nova', package)
    monkeypatch.setitem(sys.modules, 'nova.exception', module)
    with pytest.raises(module.NoValidHost) as caught:
        bus.nova().call('boot', instance_uuids=['x'])
    assert caught.value.code == 500
    assert caught.value.kwargs['reason'].startswith('instance_uuids[0]')


def refusal_of(bus, resize_to=None, **args):
    captured = load('select_destinations-boot')
    if resize_to:
        flavor = captured.args['spec_obj']['nova_object.data']['flavor']['nova_object.data']
        flavor['memory_mb'] = resize_to
        args['spec_obj'] = captured.args['spec_obj']
    with pytest.raises(om.RemoteError) as caught:
        bus.nova().call('boot', **args)
    return caught.value


def test_a_request_that_cannot_be_understood_is_a_refusal_that_says_so(bus):
    error = refusal_of(bus, instance_uuids=['x'])
    assert error.exc_type == 'NoValidHost'
    assert 'instance_uuids[0]' in error.value


def test_novas_retry_of_a_call_is_a_replay(bus):
    conductor, uuids = bus.nova(), [str(uuid.uuid4())]
    first = conductor.call('boot', uuids=uuids, request_id='req-1')
    assert conductor.call('boot', uuids=uuids, request_id='req-1') == first
    assert len(bus.facade.claims) == 1


def test_what_may_pass_is_waited_for(bus):
    bus.facade.moods += [Outcome.BUSY, Outcome.UNKNOWN, Outcome.CONFLICT]
    assert shape(bus.nova().call('boot')) == shape(REPLY)
    assert len(bus.facade.seen) == 4
    assert bus.service.health()['calls_pending'] == 0


def test_what_does_not_pass_within_the_budget_is_no_valid_host_with_its_reason(make_bus):
    bus = make_bus(nova_budget_seconds=1)
    bus.facade.moods += [Outcome.UNKNOWN] * 1000
    error = refusal_of(bus)
    assert (error.exc_type, error.value) == (
        'NoValidHost',
        'No valid host was found. not just now',
    )
    assert bus.facade.moods, 'it would have been placed in the end'
    assert until(lambda: bus.service.health()['calls_pending'] == 0)


def test_the_answer_comes_before_a_monitored_caller_gives_up(bus):
    bus.facade.moods += [Outcome.UNKNOWN] * 1000
    with pytest.raises(om.RemoteError) as caught:
        bus.nova().call('boot', monitor=2)
    assert caught.value.exc_type == 'NoValidHost'


def test_half_a_character_in_a_request_id_makes_an_id_like_any_other(bus):
    uuids = [str(uuid.uuid4())]
    for request_id in ('req-\ud800', 'req-\ud800', 'req-\ud801'):
        assert bus.nova().call('boot', uuids=uuids, request_id=request_id)
    assert len({request.request_id for request in bus.facade.seen}) == 2


def test_a_lease_outlives_a_slow_build(bus):
    bus.nova().call('boot')
    assert bus.facade.seen[0].lease_seconds == 900


@pytest.mark.parametrize('version', ['4.6', '5.0', '3.0', '1.0'])
def test_other_versions_are_refused(bus, version):
    with pytest.raises(om.RemoteError) as caught:
        bus.nova(version).call('boot')
    assert caught.value.exc_type == 'UnsupportedVersion'
    assert '4.0 to 4.5' in caught.value.value


# -- calls that waited while nobody listened ------------------------------------------
def ago(seconds):
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)


def test_a_call_that_was_queued_before_anybody_listened_claims_nothing(bus):
    with pytest.raises(om.RemoteError) as caught:
        bus.nova().call('boot', now=ago(120))
    assert caught.value.exc_type == 'NoValidHost'
    assert 'queued before this scheduler listened' in caught.value.value
    assert not bus.facade.seen


def test_a_clock_that_is_a_little_off_does_no_harm(bus):
    conductor = bus.nova()
    conductor.call('boot', now=ago(70))
    conductor.call('boot', now=ago(-3600))
    assert len(bus.facade.claims) == 2


def test_a_late_step_of_a_long_operation_is_placed(make_bus):
    """Its context is an hour old, but it was sent while somebody listened."""
    bus = make_bus()
    bus.service._peer.methods._attached_at -= 31
    bus.nova().call('live-migrate', now=ago(3600))
    assert len(bus.facade.claims) == 1


# -- broadcasts -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('capture', 'kind'),
    [
        ('update_instance_info', GuestsUpdated),
        ('delete_instance_info', GuestDeleted),
        ('sync_instance_info', GuestsListed),
    ],
)
def test_broadcasts_reach_the_scheduler(bus, capture, kind):
    bus.nova().cast(capture)
    (cast,) = until(lambda: bus.facade.events)
    assert isinstance(cast.event, kind)
    assert cast.id and cast.requested_at


def test_broadcasts_about_aggregates_reach_it_too(bus):
    conductor = bus.nova()
    conductor.cast('update_aggregates')
    conductor.cast('delete_aggregate')
    until(lambda: len(bus.facade.events) == 2)


def test_the_log_says_at_which_broker_nova_s_topic_is(caplog):
    caplog.set_level(logging.INFO, 'gantt.rpc.service')
    Bus().close()
    own, novas = [
        message for message in caplog.messages if message.startswith('Topics are consumed')
    ]
    assert own.startswith(
        'Topics are consumed: topics=gantt-scheduler,gantt-claims,gantt-stats broker='
    )
    assert novas.startswith('Topics are consumed: topics=scheduler broker=')
