# SPDX-License-Identifier: Apache-2.0
"""What a request over zones does not wait for: its row, the change feed, a second packet."""

import concurrent.futures
import threading
import time

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.filters.base import Filter
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.tree_request import DeviceAmount, TreeRequest
from gantt.core.records.decision import Outcome
from gantt.zones.client import bounded_network
from gantt.zones.service.offers.local_hosts import OFFER_AGE_MAX_SECONDS
from gantt.zones.service.request_lock import SPARE_SECONDS, PendingZoneRequest
from tests.world import a_request
from tests.zones.tree import until

SECONDS = 20.0


@pytest.fixture
def tree(zone):
    """A zone above one with a host."""
    east = zone('east').hosts(1, 8)
    return zone('top').above(east), east


def test_who_asks_for_offers_does_not_wait_for_the_feed(zone, monkeypatch):
    east = zone('east').hosts(2)
    cache, readers = east.insights.cache, []
    fetch = cache.fetch
    monkeypatch.setattr(
        cache, 'fetch', lambda: (readers.append(threading.current_thread()), fetch())
    )

    def ask():
        assert east.around.evaluator.evaluate(a_request(), 1, SECONDS).choices

    ask()
    until(lambda: len({reader.name for reader in readers}) == 2)  # it has begun
    readers.clear()
    end = time.monotonic() + 3 * OFFER_AGE_MAX_SECONDS
    while time.monotonic() < end:
        ask()
        time.sleep(0.005)
    others = [reader for reader in readers if reader is not threading.current_thread()]
    assert others and len(others) > len(readers) / 2
    east.around.close()
    others[0].join(SECONDS)
    assert not others[0].is_alive()


class Waits(Filter):
    """Has requests for devices wait until somebody else was answered."""

    reason, columns = 'waits', ('ids',)
    begun, answered = threading.Event(), threading.Event()

    def mask(self, hosts, spec):
        if spec.tree is not None:
            self.begun.set()
            assert self.answered.wait(SECONDS / 2)
        return hosts.ids > 0


def test_others_are_looked_at_while_trees_are_searched(zone):
    filters = [f'{__name__}:Waits', *plugin_loader.DEFAULT_FILTERS]
    east = zone('east', pipeline={'filters': filters}).hosts(1)
    devices = TreeRequest(devices=[DeviceAmount(resource_class='VGPU', amount=1)])
    spec = RequestSpec(resources={'VCPU': 1}, tree=devices)
    long = msgspec.structs.replace(a_request(budget_ms=30_000), spec=spec)
    evaluate = east.around.evaluator.evaluate
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        search = threads.submit(evaluate, long, 1, SECONDS)
        assert Waits.begun.wait(SECONDS)
        assert evaluate(a_request(), 1, SECONDS).choices
        Waits.answered.set()
        assert search.result().outcome is Outcome.NO_VALID_HOST


def test_there_is_no_room_only_as_of_a_moment_since_it_was_asked(zone):
    east = zone('east').hosts(1, 1)
    east.around.refresher.close()
    taken, request = a_request(vcpu=1), a_request(vcpu=1)
    assert east.select(taken).outcome is Outcome.PLACED

    def outcome():
        return east.around.evaluator.evaluate(request, 1, SECONDS).outcome

    assert outcome() is Outcome.NO_VALID_HOST
    east.cancel(taken.request_id)
    assert outcome() is Outcome.PLACED


def test_zones_are_asked_while_the_row_of_a_request_is_opened(tree, monkeypatch):
    top, _ = tree
    calls, queried = top.zones.calls, threading.Event()
    evaluate, opened = calls.evaluate, top.store.zone_requests.open_request
    monkeypatch.setattr(calls, 'evaluate', lambda *args: (queried.set(), evaluate(*args))[1])
    seen = []
    monkeypatch.setattr(
        top.store.zone_requests,
        'open_request',
        lambda request: (seen.append(queried.wait(SECONDS)), opened(request))[1],
    )
    request = a_request(vcpu=1, budget_ms=60_000)
    assert top.select(request).outcome is Outcome.PLACED
    assert seen == [True]
    queried.clear()
    monkeypatch.setattr(top.store.zone_requests, 'open_request', opened)
    assert top.select(msgspec.structs.replace(request, repeat=True)).outcome is Outcome.PLACED
    assert not queried.is_set(), 'it has its answer'


def test_what_was_looked_at_before_others_had_left_a_request_is_looked_at_anew(tree, monkeypatch):
    """What they had claimed is in the way until it is ended."""
    top, _ = tree
    calls, queries = top.zones.calls, []
    evaluate = calls.evaluate
    monkeypatch.setattr(calls, 'evaluate', lambda *args: (queries.append(args), evaluate(*args))[1])
    request = a_request(vcpu=1, budget_ms=60_000)
    abandoned = PendingZoneRequest(request, SECONDS, 1, may_go_down=True)
    row = abandoned.as_open_request('worker that is gone', 0.2 - SPARE_SECONDS)
    assert top.store.zone_requests.open_request(row).outcome is None
    assert top.select(request).outcome is Outcome.PLACED
    assert len(queries) == 2


def test_head_and_body_of_a_call_are_sent_together():
    class Line:
        sent: list[bytes] = []

        def write(self, buffer, timeout):
            self.sent.append(bytes(buffer))

        def read(self, most, timeout):
            return b'answer'

    line = Line()
    stream = bounded_network._BoundedStream(line, bounded_network._CallDeadline(), '')
    stream.write(b'head')
    stream.write(b'body')
    assert stream.read(10) == b'answer'
    assert stream.read(10) == b'answer'
    assert line.sent == [b'headbody']
    stream.write(b'x' * (bounded_network.WRITE_BUFFER_BYTES_MAX + 1))
    assert len(line.sent) == 2, 'what is long does not wait'
