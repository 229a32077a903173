# SPDX-License-Identifier: Apache-2.0
"""Notifications in nova-scheduler's name, as those who listen to Nova's get them."""

import queue

import kombu
import oslo_messaging as om
import pytest

from gantt.nova.wire import notifier
from gantt.nova.wire import notifier as nova_notifier
from tests.rpc.bus import Bus, Counts, a_conf, load
from tests.rpc.facade import until

pytestmark = pytest.mark.rabbit

EVENTS = [notifier.START, notifier.END]


class Ear:
    """Keeps what it hears."""

    def __init__(self):
        self.heard = queue.Queue()

    def info(self, context, publisher, event, payload, metadata):
        self.heard.put((publisher, event, payload, context))


@pytest.fixture
def listen(rabbit_url):
    """``listen(topic)``: an ear on a topic of Nova's exchange."""
    opened = []

    def ear(topic):
        heard_by = Ear()
        with kombu.Connection(rabbit_url.replace('rabbit:', 'amqp:', 1)) as connection:
            # Others of this vhost may have told of requests of theirs.
            connection.default_channel.queue_delete(f'{topic}.info')
        carrier = om.get_notification_transport(a_conf(rabbit_url), url=rabbit_url)
        listener = om.get_notification_listener(
            carrier, [om.Target(exchange='nova', topic=topic)], [heard_by], executor='threading'
        )
        listener.start()
        opened.append((listener, carrier))
        return heard_by

    yield ear
    for listener, carrier in opened:
        listener.stop()
        listener.wait()
        carrier.cleanup()


@pytest.mark.parametrize(
    ('form', 'topic', 'publisher'),
    [
        ('unversioned', 'notifications', 'scheduler.scheduler-1'),
        ('versioned', 'versioned_notifications', 'nova-scheduler:scheduler-1'),
    ],
)
def test_start_and_end_of_a_request_are_told(rabbit_url, listen, form, topic, publisher):
    ear = listen(topic)
    bus = Bus(rabbit_url, notify='messagingv2', nova_notification_format=form)
    try:
        bus.nova().call('boot-multi3', 3, request_id='req-of-mine')
        heard = [ear.heard.get(timeout=10) for _ in range(2)]
    finally:
        bus.close()
    assert [(sender, event) for sender, event, *_ in heard] == [
        (publisher, event) for event in EVENTS
    ]
    assert not any(context.get('auth_token') for *_, context in heard)
    assert all(context['request_id'] == 'req-of-mine' for *_, context in heard)
    (request,) = bus.facade.seen
    end = heard[1][2]
    named = (
        end['request_spec']['instance_properties']['uuid']
        if form == 'unversioned'
        else end['nova_object.data']['instance_uuid']
    )
    assert named == request.consumers[-1]


def test_a_refusal_has_a_start_and_no_end(rabbit_url, listen):
    ear = listen('notifications')
    bus = Bus(rabbit_url, notify='messagingv2', nova_notification_format='unversioned')
    try:
        bus.facade.room.clear()
        with pytest.raises(om.RemoteError):
            bus.nova().call('boot')
        bus.facade.room['compute-001'] = {'VCPU': 9, 'MEMORY_MB': 9999, 'DISK_GB': 99}
        bus.nova().call('boot')
        heard = [ear.heard.get(timeout=10)[1] for _ in range(3)]
    finally:
        bus.close()
    assert heard == [notifier.START, *EVENTS]


@pytest.mark.parametrize(('form', 'driver'), [('none', 'messagingv2'), ('both', 'noop')])
def test_nothing_is_sent_where_it_is_switched_off(rabbit_url, form, driver):
    bus = Bus(rabbit_url, notify=driver, nova_notification_format=form)
    try:
        bus.nova().call('boot')
        assert not [key for key in bus.counts.values if 'notifications' in key[0]]
    finally:
        bus.close()


def test_what_cannot_be_sent_is_dropped_and_nobody_waits(rabbit_url):
    counts = Counts()
    conf = a_conf(rabbit_url, nova_notification_format='both')
    conf.set_override('driver', ['messagingv2'], 'oslo_messaging_notifications')
    notifier = nova_notifier.NovaNotifier(conf, rabbit_url, 'scheduler-1', counts)
    captured = load('select_destinations-boot')
    for _ in range(nova_notifier.QUEUE_LIMIT + 5):
        notifier.begin_notification(captured.context, captured.args['spec_obj'])
    assert counts.values == {('gantt_nova_notifications_total', 'dropped'): 5}
    notifier.start()
    sent = ('gantt_nova_notifications_total', 'sent')
    until(lambda: counts.values.get(sent) == nova_notifier.QUEUE_LIMIT, 60)
    notifier.stop()
