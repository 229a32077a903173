# SPDX-License-Identifier: Apache-2.0
"""Groups without anybody who plans them: that is said, and not waited for until the budget ends."""

import contextlib

import amqp
import kombu
import pytest

from gantt import client, exceptions
from gantt.client.planner import PlannerClient
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


def test_where_none_was_ever_started_that_is_said_at_once(channel, calls):
    for call in all_calls(calls):
        with pytest.raises(exceptions.Unavailable, match='no gantt-planner was ever started'):
            call()


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
