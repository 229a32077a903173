# SPDX-License-Identifier: Apache-2.0
"""Bodies that no client of ours would send: swallowed, and the next request is served."""

import json
import pickle

import pytest

from tests.rabbit.test_bad_input import a_call, body
from tests.rabbit.wire import envelope
from tests.rpc.bus import Bus

pytestmark = pytest.mark.rabbit

DEEP = '[' * 100_000 + ']' * 100_000
POISON = [
    pytest.param(b'\xff\xfe not json', {}, id='not-json'),
    pytest.param(b'', {}, id='empty'),
    pytest.param('[]', {}, id='list'),
    pytest.param('7', {}, id='number'),
    pytest.param('null', {}, id='null'),
    pytest.param('"text"', {}, id='text'),
    pytest.param('{}', {}, id='empty-object'),
    pytest.param(json.dumps({'oslo.version': '2.0'}), {}, id='no-message'),
    pytest.param(json.dumps({'oslo.version': '9.0', 'oslo.message': '{}'}), {}, id='new-envelope'),
    pytest.param(json.dumps({'oslo.version': '2.0', 'oslo.message': 'x'}), {}, id='inner-text'),
    pytest.param(json.dumps({'oslo.version': '2.0', 'oslo.message': '[]'}), {}, id='inner-list'),
    pytest.param(json.dumps({'oslo.version': '2.0', 'oslo.message': DEEP}), {}, id='inner-deep'),
    pytest.param(DEEP, {}, id='deep'),
    pytest.param(envelope({'args': {}}), {}, id='no-method'),
    pytest.param(envelope({'method': {'a': 1}, 'args': {}}), {}, id='method-object'),
    pytest.param(envelope({'method': 'select_destinations', 'args': None}), {}, id='no-args'),
    pytest.param(
        envelope(a_call(request=body()) | {'_msg_id': [1], '_reply_q': {'x': 1}}),
        {},
        id='reply-odd',
    ),
    pytest.param(
        envelope(a_call(request={}) | {'_msg_id': 'a', '_reply_q': 'no_such_queue'}),
        {},
        id='reply-queue-missing',
    ),
    pytest.param(
        envelope(a_call(request=body()) | {'_msg_id': 'a', '_reply_q': 'x' * 300}),
        {},
        id='reply-queue-too-long',
    ),
    pytest.param(
        envelope(a_call(method='nope') | {'_msg_id': 'a', '_reply_q': 'q', '_timeout': 'soon'}),
        {},
        id='timeout-odd',
    ),
    pytest.param(
        pickle.dumps({'method': 'select_destinations'}),
        {'content_type': 'application/x-python-serialize'},
        id='pickle',
    ),
    pytest.param('a: [1]', {'content_type': 'application/x-yaml'}, id='yaml'),
    pytest.param(b'\x81\xa1a\x01', {'content_type': 'application/x-msgpack'}, id='msgpack'),
]


@pytest.fixture(scope='module')
def poisoned(rabbit_url):
    """One server for all poison: it must survive every one."""
    new_bus = Bus(rabbit_url, reply_retry_seconds=1)
    yield new_bus
    new_bus.close()


@pytest.mark.parametrize(('poison', 'options'), POISON)
def test_poison_is_swallowed_and_the_next_request_served(poisoned, wire, poison, options):
    claims = len(poisoned.facade.claims)
    for topic in ('gantt-scheduler', 'gantt-stats'):
        wire.send(poison, topic=topic, **options)
    reply = json.loads(wire.call(a_call(request=body()), topic='gantt-scheduler')['oslo.message'])
    assert reply['failure'] is None
    assert len(poisoned.facade.claims) == claims + 1
