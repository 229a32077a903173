# SPDX-License-Identifier: Apache-2.0
"""What gantt-status asks those that run: do they understand each other?"""

import uuid

import kombu
import pytest
from oslo_upgradecheck.upgradecheck import Code

from gantt.cmd import status
from gantt.rpc import wire as ours
from tests.rabbit.wire import envelope
from tests.rpc.facade import until

pytestmark = pytest.mark.rabbit


def test_schedulers_that_run_understand_this_release(bus):
    assert status.Checks(bus.conf).schedulers().code == Code.SUCCESS


def test_schedulers_of_another_major_version_stop_the_upgrade(bus, monkeypatch):
    monkeypatch.setattr(ours, 'VERSION', '9.0')
    said = status.Checks(bus.conf).schedulers()
    assert said.code == Code.FAILURE
    assert '9.0' in said.details


def test_senders_whose_version_is_not_read_are_named(make_bus, rabbit_url, wire):
    name = f'dead-{uuid.uuid4().hex[:8]}'
    bus = make_bus(dead_letter_queue=name)
    checks = status.Checks(bus.conf)
    try:
        wire.send(b'no json', topic='gantt-stats')
        until(lambda: bus.counts.values.get(('gantt_dead_letters_total', 'kept')) == 1)
        assert checks.agents().code == Code.SUCCESS
        report = {'method': 'update_resource_stats', 'version': '9.0', 'args': {}}
        wire.send(envelope(report), topic='gantt-stats')
        until(lambda: bus.counts.values.get(('gantt_dead_letters_total', 'kept')) == 2)
        said = checks.agents()
        assert said.code == Code.FAILURE
        assert 'update_resource_stats on gantt-stats' in said.details
        assert '9.0' in said.details
    finally:
        with kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1)) as connection:
            connection.channel().queue_delete(name)


def test_nothing_is_said_of_letters_that_nobody_keeps(make_bus):
    assert status.Checks(make_bus().conf).agents().code == Code.SUCCESS
