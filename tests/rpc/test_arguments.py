# SPDX-License-Identifier: Apache-2.0
"""The argument of a call, decoded from its bytes, is what it is by way of dictionaries."""

import copy
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages.report import ClaimUpdate
from gantt.core.messages.request import SelectDestinations
from gantt.rpc import wire
from gantt.rpc.amqp import envelope
from gantt.rpc.call import RpcCall
from tests.rpc.odd import ODD, changed, places, without

UUIDS = [f'00000000-0000-0000-0000-{number:012}' for number in range(8)]
REQUEST = {
    'request_id': UUIDS[0],
    'consumers': UUIDS[1:3],
    'alternates': 2,
    'budget_ms': 30_000,
    'lifecycle': 'host',
    'spec': {
        'resources': {'VCPU': 2, 'MEMORY_MB': 2048},
        'project_id': 'p',
        'purpose': 'create',
        'required_traits': ['HW_CPU_X86_AVX'],
        'any_traits': [['A', 'B'], ['C']],
        'destination': {'host': 'compute-1', 'aggregates': [['ssd']]},
        'group': {'uuid': UUIDS[3], 'policy': 'anti-affinity', 'members': UUIDS[4:6]},
        'flavor': {'name': 'm1', 'extra_specs': {'hw:cpu_policy': 'dedicated'}},
        'image': {'uuid': UUIDS[6], 'properties': {'hw_vif_model': 'virtio'}},
        'hints': {'different_host': [UUIDS[7]], 'query': ['x']},
        'devices': [{'any_of': [{'vendor_id': '8086', 'tags': {'a': None}}], 'count': 1}],
        'networks': {'physical': ['net-1'], 'tunneled': True},
    },
}
CLAIMS = {'name': 'compute-1', 'epoch': 3, 'sequence': 7, 'claim_ids': UUIDS[:3], 'reason': 'x'}
CALLS = [('request', SelectDestinations, REQUEST), ('update', ClaimUpdate, CLAIMS)]


def outcome(message, takes, newer):
    call = RpcCall(message)
    call.parameters, call.newer_minor = takes, newer
    try:
        return wire.argument(call)
    except exceptions.GanttError as e:
        return type(e), str(e), e.kwargs
    except Exception as e:  # a defect, which has to be the same one
        return type(e), str(e)


def both(args, takes, newer=False):
    """By the bytes of a call, and by its dictionary."""
    call = {'method': 'm', 'version': '1.0', 'args': args}
    body = json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(call)})
    plain = envelope.Incoming(None, json.loads(json.dumps(call)))
    return outcome(envelope.decode_message(None, body), takes, newer), outcome(plain, takes, newer)


@given(
    st.sampled_from(CALLS),
    st.integers(0, 1 << 32),
    st.integers(0, 2),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_any_change_of_an_argument_means_the_same_by_both_ways(case, seed, count, newer):
    name, tp, body = case
    draw = random.Random(seed)
    args = {name: copy.deepcopy(body)}
    for _ in range(count):
        path = draw.choice([path for path in places(args) if path] or [(name,)])
        args = args or {name: None}
        kind = draw.randrange(3)
        if kind == 0:
            args = changed(args, path[:-1], without(path))
        elif kind == 1:
            odd = draw.choice([*ODD, 1.0, '7', {'more': 1}, UUIDS[0], UUIDS[0].upper() + 'A'])
            args = changed(args, path, lambda _, odd=odd: odd)
        else:
            args = changed(
                args,
                path[:-1],
                lambda value: value | {'brand_new': 1} if isinstance(value, dict) else value,
            )
    actual, expected = both(args, {name: tp}, newer)
    assert repr(actual) == repr(expected)


@pytest.mark.parametrize(('name', 'tp', 'body'), CALLS, ids=[name for name, *_ in CALLS])
def test_what_is_right_is_decoded_without_a_dictionary(name, tp, body):
    call = {'method': 'm', 'version': '1.0', 'args': {name: body}}
    text = json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(call)})
    message = envelope.decode_message(None, text)
    assert isinstance(outcome(message, {name: tp}, False), tp)
    assert message._message is None and message._args is None


def test_twice_the_same_name_is_the_last_one_by_both_ways():
    text = json.dumps({'request': REQUEST})[:-1] + ', "request": {"request_id": 1}}'
    call = '{"method": "m", "args": %s}' % text  # noqa: UP031
    body = json.dumps({'oslo.version': '2.0', 'oslo.message': call})
    plain = envelope.Incoming(None, json.loads(call))
    takes = {'request': SelectDestinations}
    assert outcome(envelope.decode_message(None, body), takes, False) == outcome(
        plain, takes, False
    )


def test_what_is_read_around_the_arguments_is_what_a_dictionary_has():
    draw = random.Random(7)
    for _ in range(300):
        call = {
            'method': 'm',
            'args': {'a': [1, {'b': 'é'}]},
            'version': '1.1',
            '_msg_id': 'id',
            '_reply_q': 'queue',
            '_timeout': 7,
            '_unique_id': 'u',
            '_context_request_id': 'req-1',
            '_context_project_id': 'p',
        }
        for _ in range(draw.randrange(4)):
            name = draw.choice([*call, 'namespace', 'more'])
            if draw.random() < 0.5:
                call.pop(name, None)
            else:
                call[name] = draw.choice(ODD[:-4])
        text = json.dumps(call)
        message = envelope.decode_message(
            None, json.dumps({'oslo.version': '2.0', 'oslo.message': text})
        )
        assert message.is_whole_text == ('ud83d' not in text)
        plain = envelope.Incoming(None, dict(json.loads(json.dumps(call))))
        for name in (
            *('method', 'version', 'namespace', 'args', 'has_args', 'request_id', 'ctxt'),
            *('message', 'msg_id', 'orig_msg_id', 'reply_q', 'client_timeout', 'unique_id'),
        ):
            assert getattr(message, name) == getattr(plain, name), name
        if message.is_whole_text:  # what is not is kept as it came
            assert json.loads(message.body) == plain.message
