# SPDX-License-Identifier: Apache-2.0
"""Groups without anybody who plans them: a planner may come back, and that it is away is said."""

import contextlib
import time

import amqp
import kombu
import pytest

from gantt import client, exceptions
from gantt.client import calls as client_calls
from gantt.groups import client as groups_client
from gantt.groups.client import PlannerClient
from gantt.rpc import wire
from tests.planner import a_change, a_description, a_plan_request
from tests.rpc.bus import a_conf

GROUP = '7b1d2c52-0b7e-4f0e-8a55-0d8f6a3e9b02'


@pytest.fixture
def channel(rabbit_url):
    with kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1)) as connection:
        opened = connection.channel()
        with contextlib.suppress(amqp.exceptions.NotFound):
            opened.queue_delete(wire.PLANNER_TOPIC)
        yield connection.channel()


@pytest.fixture
def calls(rabbit_url):
    carrier = client.get_transport(a_conf(rabbit_url))
    yield PlannerClient(carrier, attempt_seconds=0.2)
    carrier.cleanup()


def all_calls(calls):
    timing = {'budget_ms': 1_500, 'plan_ms': 1}
    change = a_change(a_description(uuid=GROUP), **timing)
    yield lambda: calls.place_group(a_plan_request(**timing))
    yield lambda: calls.change_group(change)
    yield lambda: calls.show_group_plan(GROUP, timeout=1.5)
    yield lambda: calls.extend_group_plan(GROUP, 600, timeout=1.5)
    yield lambda: calls.release_group_plan(GROUP, timeout=1.5)


def test_where_no_queue_comes_back_that_is_said_before_the_budget_is_spent(
    channel, calls, monkeypatch
):
    monkeypatch.setattr(groups_client, '_QUEUE_SECONDS', 0.0)
    for call in all_calls(calls):
        with pytest.raises(exceptions.Unavailable, match='no gantt-planner listens now') as caught:
            call()
        assert 'the last of' not in str(caught.value)


@pytest.mark.parametrize('queue_seconds, known', [(60.0, ()), (0.0, ('planner-1',))])
def test_a_queue_that_is_gone_may_come_back_within_the_budget(
    channel, calls, monkeypatch, queue_seconds, known
):
    """As after a restart of the broker; for a client that knows a planner, as long as it has."""
    monkeypatch.setattr(groups_client, '_QUEUE_SECONDS', queue_seconds)
    for name in known:
        calls._caller._servers.note(name)
    for call in all_calls(calls):
        problem = 'no gantt-planner listens now.*the last of [2-9] tries'
        with pytest.raises(exceptions.Unavailable, match=problem):
            call()


def test_no_try_begins_when_there_is_no_time_for_its_answer(channel, calls, monkeypatch):
    """A try without time for a confirm blames the broker and hides that no planner listens."""
    monkeypatch.setattr(client_calls.time, 'sleep', lambda _seconds, wait=time.sleep: wait(1.49))
    with pytest.raises(exceptions.Unavailable, match='no gantt-planner listens now') as caught:
        calls.show_group_plan(GROUP, timeout=1.5)
    assert 'the last of' not in str(caught.value)


def test_where_none_runs_any_more_that_is_said_when_the_budget_is_spent(channel, calls):
    exchange = kombu.Exchange('gantt', type='topic', durable=False, auto_delete=False)
    queue = kombu.Queue(wire.PLANNER_TOPIC, exchange, wire.PLANNER_TOPIC, durable=False)
    bound = queue.bind(channel)
    bound.declare()
    try:
        for call in all_calls(calls):
            problem = 'no gantt-planner is running.*the last of [2-9] tries'
            with pytest.raises(exceptions.Unavailable, match=problem):
                call()
    finally:
        bound.delete()
