# SPDX-License-Identifier: Apache-2.0
"""What gantt-status asks those that run: do they understand each other?"""

import uuid

import kombu
import pytest

from gantt.cmd.checks.broker import check_schedulers, check_senders
from gantt.cmd.checks.results import Severity
from gantt.rpc import wire as ours
from tests.rabbit.wire import envelope
from tests.rpc.facade import until

pytestmark = pytest.mark.rabbit


def test_schedulers_that_run_understand_this_release(bus):
    assert list(check_schedulers(bus.conf)) == [f'they understand version {ours.VERSION}']


def test_schedulers_of_another_major_version_stop_the_upgrade(bus, monkeypatch):
    monkeypatch.setattr(ours, 'VERSION', '9.0')
    finding, *_ = check_schedulers(bus.conf)
    assert finding.severity is Severity.ERROR
    assert '9.0' in finding.why


def test_senders_whose_version_is_not_read_are_named(make_bus, rabbit_url, wire):
    name = f'dead-{uuid.uuid4().hex[:8]}'
    bus = make_bus(dead_letter_queue=name)
    try:
        wire.send(b'no json', topic='gantt-stats')
        until(lambda: bus.counts.values.get(('gantt_dead_letters_total', 'kept')) == 1)
        assert list(check_senders(bus.conf)) == ['none of 1 dead letters is of another version']
        report = {'method': 'update_resource_stats', 'version': '9.0', 'args': {}}
        wire.send(envelope(report), topic='gantt-stats')
        until(lambda: bus.counts.values.get(('gantt_dead_letters_total', 'kept')) == 2)
        finding, *_ = check_senders(bus.conf)
        assert finding.severity is Severity.ERROR
        assert 'update_resource_stats on gantt-stats' in finding.why
        assert '9.0' in finding.why
    finally:
        with kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1)) as connection:
            connection.channel().queue_delete(name)


def test_nothing_is_said_of_letters_that_nobody_keeps(make_bus):
    (note,) = check_senders(make_bus().conf)
    assert note.startswith('skipped: no queue is named')
