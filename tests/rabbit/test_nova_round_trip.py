# SPDX-License-Identifier: Apache-2.0
"""Captured messages of Nova sent byte for byte, and the raw replies compared."""

import copy
import datetime
import json
import uuid

import pytest

from tests.rpc.bus import stored
from tests.rpc.shape import shape

pytestmark = pytest.mark.rabbit

REPLY = stored('reply-select_destinations')
REFUSAL = stored('reply-select_destinations-NoValidHost')


def captured(name):
    """A captured call as it was, but sent now and for new instances."""
    message = copy.deepcopy(stored(f'select_destinations-{name}')['oslo.message (decoded)'])
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    message['_context_timestamp'] = now.isoformat()
    message['_context_request_id'] = f'req-{uuid.uuid4()}'
    return message


def ask(wire, message):
    """(envelope, message) of the raw reply."""
    reply = wire.call(message, topic='scheduler', exchange='nova')
    return reply, json.loads(reply['oslo.message'])


def hosts_of(message):
    return [[s['nova_object.data']['service_host'] for s in hosts] for hosts in message['result']]


def test_a_boot(bus, wire):
    reply, message = ask(wire, captured('boot'))
    assert shape(message) == shape(REPLY['oslo.message (decoded)'])
    assert set(message) == set(REPLY['oslo.message (decoded)'])
    assert reply['oslo.version'] == REPLY['oslo.version']
    assert len(message['result'][0]) == 3


def test_a_multi_create(bus, wire):
    _, message = ask(wire, captured('boot-multi3'))
    selection = shape(REPLY['oslo.message (decoded)'])['result']
    assert shape(message)['result'] == selection * 3


def test_a_server_group(bus, wire):
    """Three boots of one group land apart; the hosts of the others come with the call."""
    taken = set()
    for _ in range(3):
        call = captured('boot-anti-affinity-third')
        group = call['args']['spec_obj']['nova_object.data']['instance_group']['nova_object.data']
        group['hosts'] = sorted(taken)
        call['args']['instance_uuids'] = [str(uuid.uuid4())]
        _, message = ask(wire, call)
        ((chosen, *_),) = hosts_of(message)
        assert chosen not in taken
        taken.add(chosen)


def test_a_refusal(bus, wire):
    call = captured('boot')
    flavor = call['args']['spec_obj']['nova_object.data']['flavor']['nova_object.data']
    flavor['memory_mb'] = 10_000_000
    _, message = ask(wire, call)
    theirs = REFUSAL['oslo.message (decoded)']
    assert set(message) == set(theirs)
    assert message['result'] is None
    ours, expected = json.loads(message['failure']), json.loads(theirs['failure'])
    assert list(ours) == list(expected)
    assert (ours['class'], ours['module']) == ('NoValidHost', 'nova.exception')
    reason = '0/5 hosts fit: too little room'
    assert ours['kwargs'] == expected['kwargs'] | {'reason': reason}
    assert ours['args'] == [ours['message']] == [f'No valid host was found. {reason}']
    assert not [line for line in ours['tb'] if 'File' in line]


@pytest.mark.parametrize(
    'name', ['boot-az-host', 'boot-host-2.74', 'live-migrate', 'resize', 'unshelve']
)
def test_other_callers(bus, wire, name):
    _, message = ask(wire, captured(name))
    assert message['failure'] is None
    ((chosen, *others),) = hosts_of(message)
    alternates = {'resize': 2}.get(name, 0)
    assert len(others) == alternates
    if name.startswith('boot-'):
        assert chosen == 'compute-003'


def test_the_call_of_a_conductor_that_gave_up_while_nobody_listened(make_bus, wire):
    """It stays in the queue; whoever comes later must not claim for it."""
    first = make_bus()
    first.close()
    old, new = captured('boot'), captured('boot')
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    old['_context_timestamp'] = then.replace(tzinfo=None).isoformat()
    for message in (old, new):
        message |= {'_msg_id': uuid.uuid4().hex, '_reply_q': wire.reply_q}
        message['_unique_id'] = uuid.uuid4().hex
        body = json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(message)})
        wire.send(body, topic='scheduler', exchange='nova')
    later = make_bus()
    assert json.loads(wire.reply_to(old['_msg_id'])['oslo.message'])['failure']
    assert json.loads(wire.reply_to(new['_msg_id'])['oslo.message'])['failure'] is None
    assert len(later.facade.seen) == 1
