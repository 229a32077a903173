# SPDX-License-Identifier: Apache-2.0
"""Reports on a real broker: none is lost, in whatever company and over a broken connection."""

import contextlib

import kombu
import pytest

from gantt import client, exceptions
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.resource_classes import Inventory
from tests.rabbit.test_broker_away import proxy  # noqa: F401  a fixture
from tests.rpc.bus import Bus, a_conf
from tests.rpc.facade import until

pytestmark = [pytest.mark.rabbit, pytest.mark.leaves_sockets]

MANY = 600


def a_report(sequence: int, *, full: bool = False) -> HostReport:
    content = {'inventories': {'VCPU': Inventory(total=8)}} if full else {'base': 1}
    return HostReport(
        name='h', epoch=1, sequence=sequence, full=full, running=[], pending=[], **content
    )


def test_casts_and_calls_between_them_arrive_in_order(bus):
    carrier = bus.carrier()
    assert client.ClaimsClient(carrier).register_host(RegisterHost(name='h', boot_nonce='a'))
    stats, raw = client.StatsClient(carrier), bus.raw('gantt-stats')
    assert stats.update_resource_stats(a_report(1, full=True)).outcome == 'applied'
    for sequence in range(2, MANY):
        if sequence % 100 == 0:
            assert stats.update_resource_stats(a_report(sequence, full=True)).outcome == 'applied'
        elif sequence % 50 == 0:
            raw.cast({}, 'update_resource_stats', name='h', stats={'epoch': 0})
        else:
            stats.update_resource_stats(a_report(sequence))
    until(lambda: len(bus.facade.reports) >= MANY - 1 - MANY // 100)
    sequences = [report.sequence for report in bus.facade.reports]
    assert sequences == [n for n in range(1, MANY) if n % 100 == 0 or n % 50]
    refused = [
        n for key, n in bus.counts.values.items() if key[0] == 'gantt_rpc_messages_refused_total'
    ]
    assert sum(refused) == MANY // 100


def test_reports_on_their_way_survive_a_connection_that_breaks(proxy, rabbit_url):  # noqa: F811
    bus = Bus(proxy.url)
    carrier = client.get_transport(a_conf(rabbit_url))
    stats = client.StatsClient(carrier)
    for sequence in range(2, MANY):
        if sequence == MANY // 3:
            until(lambda: bus.facade.reports)
            proxy.cut()
        if sequence == MANY // 2:
            proxy.mend()
        with contextlib.suppress(exceptions.Unavailable):
            stats.update_resource_stats(a_report(sequence))
    until(lambda: {r.sequence for r in bus.facade.reports} == set(range(2, MANY)), seconds=30)
    bus.close()
    carrier.cleanup()


def test_nothing_that_was_taken_comes_again_after_a_stop(make_bus, rabbit_url):
    carrier = client.get_transport(a_conf(rabbit_url))
    stats = client.StatsClient(carrier)
    side = kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1))
    for turn in range(5):
        bus = make_bus()
        for sequence in range(2, MANY // 6):
            stats.update_resource_stats(a_report(sequence))
        bus.close()
        _, waiting, _ = side.default_channel.queue_declare('gantt-stats', passive=True)
        side.default_channel.queue_purge('gantt-stats')
        assert len(bus.facade.reports) + waiting == MANY // 6 - 2, f'turn {turn}'
    side.release()
    carrier.cleanup()
