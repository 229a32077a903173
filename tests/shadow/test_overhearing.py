# SPDX-License-Identifier: Apache-2.0
"""What is understood of Nova's messages, and that listening takes nothing from anybody."""

import json
import time
import uuid

import kombu
import oslo_messaging as om
import pytest

from gantt import exceptions
from gantt.core.records.shadow import ObservedBegin, ObservedEnd, ObservedGuests, ObservedRequest
from gantt.nova.wire.tap import BroadcastTap, TapSettings, parse_observation
from gantt.rpc.amqp import transport
from tests.nemesis.proxy import Proxy
from tests.rpc.bus import Bus, a_conf, load, stored

TERMS = TapSettings()
GUEST = '5b32382d-4506-4d79-b51e-7b55cbc183fc'


def on_the_wire(name: str) -> bytes:
    """A captured message as it came."""
    return json.dumps(
        {
            'oslo.version': '2.0',
            'oslo.message': json.dumps(stored(name)['oslo.message (decoded)']),
        }
    ).encode()


def test_a_call_is_a_dry_run_under_an_id_of_its_own():
    word = parse_observation(on_the_wire('select_destinations-boot'), TERMS)
    assert isinstance(word, ObservedRequest)
    context = stored('select_destinations-boot')['oslo.message (decoded)']
    assert word.origin == context['_context_request_id']
    assert word.request.dry_run
    assert word.request.consumers == load('select_destinations-boot').args['instance_uuids']
    assert word.source is None
    again = parse_observation(on_the_wire('select_destinations-boot'), TERMS)
    assert again == word


@pytest.mark.parametrize('name', ['live-migrate', 'resize'])
def test_a_move_says_where_its_guest_is(name):
    word = parse_observation(on_the_wire(f'select_destinations-{name}'), TERMS)
    assert word.source == word.request.spec.ignore_hosts[0]


@pytest.mark.parametrize(
    ('name', 'guests'),
    [
        pytest.param('update_instance_info', 1, id='update'),
        pytest.param('sync_instance_info', 0, id='sync-of-none'),
    ],
)
def test_broadcasts_say_where_guests_are(name, guests):
    word = parse_observation(on_the_wire(name), TERMS)
    assert isinstance(word, ObservedGuests)
    assert word.host == load(name).args['host_name']
    assert len(word.consumers) == guests


@pytest.mark.parametrize(
    ('event', 'kind'),
    [
        pytest.param('scheduler.select_destinations.start', ObservedBegin, id='start'),
        pytest.param('scheduler.select_destinations.end', ObservedEnd, id='end'),
        pytest.param('scheduler.select_destinations.other', None, id='other'),
    ],
)
def test_notices_of_the_scheduler(event, kind):
    guest = str(uuid.uuid4())
    for payload in (
        {'nova_object.data': {'instance_uuid': guest}},
        {'request_spec': {'instance_properties': {'uuid': guest}}},
    ):
        body = {'event_type': event, 'payload': payload, '_context_request_id': 'req-7'}
        word = parse_observation(json.dumps({'oslo.message': json.dumps(body)}), TERMS)
        assert word == (kind(origin='req-7', consumer=guest) if kind else None)


@pytest.mark.parametrize(
    'event, payload',
    [
        (
            'compute_task.build_instances.error',
            {
                'nova_object.data': {
                    'instance_uuid': GUEST,
                    'state': 'error',
                    'reason': {'nova_object.data': {'exception': 'NoValidHost_Remote'}},
                }
            },
        ),
        (
            'compute_task.migrate_server.error',
            {
                'nova_object.data': {
                    'instance_uuid': GUEST,
                    'state': 'active',
                    'reason': {'nova_object.data': {'exception': 'NoValidHost'}},
                }
            },
        ),
        (
            'compute_task.build_instances',
            {
                'instance_id': GUEST,
                'request_spec': {},
                'reason': "{'kwargs': {'reason': '', 'code': 500}, "
                "'message': 'No valid host was found. ', 'class': 'NoValidHost_Remote'}",
            },
        ),
    ],
    ids=['versioned', 'its own', 'unversioned'],
)
def test_a_task_that_found_no_host_says_what_the_scheduler_leaves_out(event, payload):
    assert parse_observation(a_notice(event, payload), TERMS) == ObservedBegin(
        origin='req-7', consumer=GUEST
    )


@pytest.mark.parametrize(
    'payload',
    [
        None,
        {},
        {'instance_id': GUEST, 'reason': 'Exceeded maximum number of retries.'},
        {'reason': 'No valid host was found.'},
        {'nova_object.data': {'instance_uuid': GUEST, 'reason': None}},
        {
            'nova_object.data': {
                'instance_uuid': GUEST,
                'reason': {'nova_object.data': {'exception': 'MaxRetriesExceeded'}},
            }
        },
    ],
)
def test_a_task_that_failed_otherwise_is_passed_over(payload):
    assert parse_observation(a_notice('compute_task.build_instances', payload), TERMS) is None


def a_notice(event: str, payload: object) -> bytes:
    body = {'event_type': event, 'payload': payload, '_context_request_id': 'req-7'}
    return json.dumps({'oslo.message': json.dumps(body)}).encode()


@pytest.mark.parametrize(
    'action',
    [
        'create',
        'rebuild',
        'unshelve',
        'resize_finish',
        'live_migration_post_dest',
    ],
)
def test_notices_of_computes_say_where_guests_are(action):
    guest = str(uuid.uuid4())
    payload = {'nova_object.data': {'uuid': guest, 'host': 'cmp-7', 'display_name': 'x'}}
    heard = parse_observation(a_notice(f'instance.{action}.end', payload), TERMS)
    assert heard == ObservedGuests(host='cmp-7', consumers=[guest])


@pytest.mark.parametrize(
    'action',
    [
        'create',
        'rebuild',
        'unshelve',
        'finish_resize',
        'live_migration.post.dest',
    ],
)
def test_unversioned_notices_of_computes_say_it_too(action):
    guest = str(uuid.uuid4())
    payload = {'instance_id': guest, 'host': 'cmp-7', 'state': 'active'}
    heard = parse_observation(a_notice(f'compute.instance.{action}.end', payload), TERMS)
    assert heard == ObservedGuests(host='cmp-7', consumers=[guest])


@pytest.mark.parametrize(
    ('event', 'payload'),
    [
        pytest.param(
            'instance.create.start', {'nova_object.data': {'uuid': 'u', 'host': 'h'}}, id='begun'
        ),
        pytest.param(
            'instance.delete.end', {'nova_object.data': {'uuid': 'u', 'host': 'h'}}, id='deleted'
        ),
        pytest.param(
            'instance.create.end', {'nova_object.data': {'uuid': 'u', 'host': None}}, id='nowhere'
        ),
        pytest.param('compute.instance.create.end', {'host': 'h'}, id='nobody'),
        pytest.param('compute.instance.create.end', ['u', 'h'], id='no-object'),
    ],
)
def test_notices_that_name_no_place_are_passed_over(event, payload):
    assert parse_observation(a_notice(event, payload), TERMS) is None


@pytest.mark.parametrize(
    'body',
    [
        pytest.param(b'', id='empty'),
        pytest.param(b'\xff\xfe', id='no-text'),
        pytest.param(on_the_wire('update_aggregates'), id='aggregates'),
        pytest.param(on_the_wire('delete_instance_info'), id='delete'),
    ],
)
def test_the_rest_is_passed_over(body):
    assert parse_observation(body, TERMS) is None


@pytest.mark.parametrize(
    ('body', 'terms'),
    [
        pytest.param(b'{"oslo.message": "select_destinations"}', TERMS, id='no-json'),
        pytest.param(b'select_destinations', TERMS, id='no-envelope'),
        pytest.param(
            on_the_wire('select_destinations-boot').replace(b'RequestSpec', b'Request'),
            TERMS,
            id='no-spec',
        ),
        pytest.param(
            on_the_wire('select_destinations-boot'), TapSettings(payload_bytes_max=1000), id='large'
        ),
    ],
)
def test_what_cannot_be_understood_is_refused(body, terms):
    with pytest.raises(exceptions.Refused):
        parse_observation(body, terms)


# -- a broker ------------------------------------------------------------------------------
class Listened:
    """Ears on Nova's exchange, and what they heard."""

    def __init__(self, url: str) -> None:
        self.words: list = []
        self.counts: list = []
        self.carrier = transport.nova_transport(a_conf(url))
        self.tap = BroadcastTap(
            self.carrier,
            'nova',
            'scheduler',
            self.words.append,
            lambda name, **labels: self.counts.append(labels),
            TapSettings(),
        )
        self.tap.start()
        assert self.tap.wait(20)

    def heard(self, kind: type, count: int, seconds: float = 30.0) -> list:
        end = time.monotonic() + seconds
        while len(words := [word for word in self.words if isinstance(word, kind)]) < count:
            assert time.monotonic() < end, f'{len(words)} of {count} heard'
            time.sleep(0.02)
        return words

    def close(self) -> None:
        assert self.tap.stop(10)
        self.carrier.cleanup()


@pytest.fixture
def nova(rabbit_url):
    """Nova's scheduler, played by the one consumer of its topic."""
    bus = Bus(rabbit_url)
    yield bus
    bus.close()


@pytest.fixture
def listened(nova):
    listening = Listened(nova.url)
    yield listening
    listening.close()


@pytest.mark.rabbit
def test_every_call_is_answered_by_who_serves_the_topic_and_heard_beside(nova, listened):
    conductor = nova.nova()
    for _ in range(30):
        guest = str(uuid.uuid4())
        (selections,) = conductor.call('boot', uuids=[guest])
        assert selections
    assert len(nova.facade.seen) == 30
    heard = listened.heard(ObservedRequest, 30)
    assert [request.request.consumers for request in heard] == [
        request.consumers for request in nova.facade.seen
    ]
    assert all(call.request.dry_run for call in heard)
    assert not any(request.dry_run for request in nova.facade.seen)


@pytest.mark.rabbit
def test_every_broadcast_reaches_who_serves_the_topic_and_is_heard_beside(nova, listened):
    conductor = nova.nova()
    for _ in range(5):
        conductor.cast('sync_instance_info')
    assert len(listened.heard(ObservedGuests, 5)) == 5
    end = time.monotonic() + 10
    while len(nova.facade.events) < 5:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert len(nova.facade.events) == 5


@pytest.mark.rabbit
def test_notifications_are_heard(rabbit_url):
    bus = Bus(rabbit_url, notify='messagingv2', nova_notification_format='both')
    listened = Listened(rabbit_url)
    guest = str(uuid.uuid4())
    try:
        bus.nova().call('boot', uuids=[guest])
        assert [end.consumer for end in listened.heard(ObservedEnd, 2)] == [guest, guest]
        assert [begin.consumer for begin in listened.heard(ObservedBegin, 2)] == [guest, guest]
    finally:
        listened.close()
        bus.close()


@pytest.mark.rabbit
def test_after_its_connection_was_cut_it_hears_again(nova):
    proxy = Proxy.of(nova.url)
    listened = Listened(proxy.url(nova.url))
    try:
        conductor = nova.nova()
        conductor.call('boot')
        listened.heard(ObservedRequest, 1)
        proxy.cut()
        end = time.monotonic() + 20
        while not any(isinstance(word, ObservedGuests) for word in listened.words):
            # What is said meanwhile is not received: nobody keeps it.
            conductor.cast('sync_instance_info')
            assert time.monotonic() < end
            time.sleep(0.1)
        conductor.call('boot')
        assert listened.heard(ObservedRequest, 2)
    finally:
        listened.close()
        proxy.close()


@pytest.mark.rabbit
def test_its_queue_is_its_own_and_goes_with_it(nova):
    listened = Listened(nova.url)
    own = kombu.Connection(nova.url.replace('rabbit://', 'amqp://', 1))
    with own, own.channel() as channel:
        # Of the shared queue there is still the one consumer.
        shared = channel.queue_declare('scheduler', passive=True)
        assert shared.consumer_count == 1
    listened.close()
    with pytest.raises(om.exceptions.MessagingTimeout):
        _call_nobody(nova)


def _call_nobody(nova):
    """Nobody but the scheduler ever takes a call: with it gone, nobody answers."""
    nova.stop()
    listened = Listened(nova.url)
    try:
        carrier = om.get_rpc_transport(a_conf(nova.url), url=nova.url)
        client = om.get_rpc_client(
            carrier,
            om.Target(exchange='nova', topic='scheduler', version='4.5'),
            timeout=2,
            retry=1,
        )
        capture = load('select_destinations-boot')
        client.call(capture.context, capture.method, **capture.args)
    finally:
        assert listened.heard(ObservedRequest, 1)
        listened.close()


@pytest.mark.rabbit
def test_what_is_wrong_is_counted_and_listening_goes_on(nova, listened):
    own = kombu.Connection(nova.url.replace('rabbit://', 'amqp://', 1))
    with own, own.channel() as channel:
        # Where only listeners hear it: the scheduler would refuse it as well.
        for body in (b'select_destinations', b'\x00select_destinations'):
            channel.basic_publish(
                channel.prepare_message(body), exchange='nova', routing_key='notifications.info'
            )
    nova.nova().call('boot')
    assert listened.heard(ObservedRequest, 1)
    assert listened.counts.count({'outcome': 'unreadable'}) == 2
