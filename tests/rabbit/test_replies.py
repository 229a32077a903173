# SPDX-License-Identifier: Apache-2.0
"""Replies through a real broker."""

import json
import threading
import time
import uuid

import pytest

from gantt.core.messages import base
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.rpc import wire as wire_format
from tests.rabbit.wire import envelope
from tests.rpc.facade import Facade, until

pytestmark = pytest.mark.rabbit

LOST = ('gantt_rpc_replies_lost_total', 'caller')


@pytest.fixture
def bus(make_bus):
    return make_bus(reply_retry_seconds=3, facade=Facade(5, VCPU=10_000))


def a_call(reply_q, msg_id=None):
    request = SelectDestinations(
        request_id=str(uuid.uuid4()),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[str(uuid.uuid4())],
    )
    return {
        'method': 'select_destinations',
        'version': '1.0',
        'args': {'request': base.to_builtins(request)},
        '_msg_id': msg_id or uuid.uuid4().hex,
        '_reply_q': reply_q,
        '_unique_id': uuid.uuid4().hex,
    }


def answers_in_batches(facade, size):
    """Let the facade hand over answers ``size`` at a time, as the service does."""
    submit, kept = facade.submit, []

    class Batches:
        def __init__(self, replies):
            self.replies = replies

        def send(self, answers):
            kept.extend(answers)
            if len(kept) >= size:
                self.replies.send(list(kept))
                kept.clear()

    def batched(request, handle, replies, spent_ms=0.0, *, stays=False):
        submit(request, handle, Batches(replies), spent_ms)

    facade.submit = batched


def test_every_caller_of_a_batch_gets_its_own_answer(bus, wire):
    answers_in_batches(bus.facade, 20)
    calls = [a_call(wire.reply_q) for _ in range(100)]
    for call in calls:
        wire.send(envelope(call), topic='gantt-scheduler')
    for call in calls:
        reply = json.loads(wire.reply_to(call['_msg_id'])['oslo.message'])
        request = call['args']['request']
        assert reply['ending'] is True
        assert reply['result']['request_id'] == request['request_id']
        answer = wire_format.read_answer(reply['result'])
        assert answer.selections[0][0].consumer == request['consumers'][0]
    assert len(wire.replies) == 100


def test_callers_that_are_gone_do_not_hurt_the_others_of_their_batch(bus, wire):
    """Returned messages are told apart from the ones written with them."""
    answers_in_batches(bus.facade, 10)
    calls = [
        a_call(wire.reply_q if n % 3 else f'reply_{uuid.uuid4().hex}', f'call-{n}')
        for n in range(30)
    ]
    start = time.monotonic()
    for call in calls:
        wire.send(envelope(call), topic='gantt-scheduler')
    there = [c['_msg_id'] for c in calls if c['_reply_q'] == wire.reply_q]
    for msg_id in there:
        wire.reply_to(msg_id)
    assert time.monotonic() - start < 15, 'one after the other takes 30 s'
    until(lambda: bus.counts.values.get(LOST, 0) == 10, 20)
    answered_calls = sorted(json.loads(r['oslo.message'])['_msg_id'] for r in wire.replies)
    assert answered_calls == sorted(there)


def test_a_caller_that_is_gone_holds_up_nobody_and_is_counted(bus, wire):
    for _ in range(20):
        wire.send(envelope(a_call('reply_of_nobody')), topic='gantt-scheduler')
    start = time.monotonic()
    call = a_call(wire.reply_q)
    wire.send(envelope(call), topic='gantt-scheduler')
    wire.reply_to(call['_msg_id'])
    assert time.monotonic() - start < 15, 'one after the other takes 60 s'
    until(lambda: bus.counts.values.get(LOST, 0) == 20, 20)


def test_a_reply_queue_that_comes_back_gets_its_answer(bus, wire):
    """A caller that reconnects after a restart of the broker declares its queue again."""
    call = a_call(f'reply_{uuid.uuid4().hex}')
    wire.send(envelope(call), topic='gantt-scheduler')
    time.sleep(0.2)
    wire.also_reads(call['_reply_q'])
    reply = json.loads(wire.reply_to(call['_msg_id'])['oslo.message'])
    assert reply['result']['outcome'] == 'placed'


def test_many_threads_answer_at_once(bus, wire):
    """Errors are answered by receiving threads while the scheduling thread answers."""
    raw = bus.raw('gantt-scheduler')
    bodies = [a_call('x')['args'] for _ in range(60)]
    outcomes = []

    def ask(body, n):
        method = 'select_destinations' if n % 2 else 'nonsense'
        try:
            outcomes.append(raw.call({}, method, **body)['request_id'])
        except Exception as e:
            outcomes.append(type(e).__name__)

    threads = [threading.Thread(target=ask, args=(body, n)) for n, body in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert outcomes.count('InvalidMessage_Remote') == 30
    expected = {b['request']['request_id'] for n, b in enumerate(bodies) if n % 2}
    assert expected <= set(outcomes)
