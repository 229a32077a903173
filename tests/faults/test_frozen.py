# SPDX-License-Identifier: Apache-2.0
"""F26: of three schedulers one is stopped, and the way of one to its database is held.

The others answer those that it had taken, and everybody who comes.
"""

import contextlib
import logging
import random
import time

import pytest

from gantt.client.calls import NoAnswer
from tests.nemesis import hosts, load
from tests.nemesis.proxy import Proxy
from tests.nemesis.site import until

pytestmark = [
    pytest.mark.rabbit,
    pytest.mark.postgresql,
    pytest.mark.timeout(300),
    pytest.mark.leaves_sockets,
]

NAMES = ('one', 'two', 'three')
#: What a caller has for its request: enough to ask four times.
BUDGET_MS = 10_000
#: Chance may lead all four to the one that is stopped, as long as it takes any.
UNANSWERED_MOST = 0.05


@pytest.fixture
def three(a_site, rabbit_url):
    with contextlib.ExitStack() as closing:
        site = a_site('postgresql')
        closing.callback(site.close)
        way = Proxy.of(site.database)
        closing.callback(way.close)
        hosts.add(site.store, [f'room-{n}' for n in range(50)], VCPU=10_000)
        site.start(*NAMES[:2], **hosts.SILENT)
        site.start('three', database=way.url(site.database), **hosts.SILENT)
        callers = load.Conductors(rabbit_url, attempt_seconds=None)
        closing.callback(callers.close)
        yield site, way, callers


def test_others_answer_for_one_that_stands_still(three):
    site, way, callers = three
    rng = random.Random(26)

    def ask(count=60):
        requests = [load.a_request(rng, 1, budget_ms=BUDGET_MS) for _ in range(count)]
        return callers.ask_all(requests, threads=12)

    calls = ask()
    site.freeze('one')
    try:
        calls += ask()
    finally:
        site.thaw('one')
    calls += ask()
    way.hold()
    try:
        calls += ask()
        until(lambda: 'are left to other schedulers' in site.log('three'), 'it says so', 60)
        assert site.metric('three', 'gantt_rpc_pauses_total') >= 1
        calls += ask()
    finally:
        way.mend()
    until(lambda: 'calls are accepted again' in site.log('three'), 'it goes on', 60)
    calls += ask()
    lost = [call.error for call in calls if call.error]
    assert {type(error) for error in lost} <= {NoAnswer}
    assert len(lost) <= UNANSWERED_MOST * len(calls), lost
    assert load.broken_promises(site.store, calls) == []
    site.audit()


@pytest.mark.parametrize(
    'seconds',
    [
        4.0,  # longer than callers wait for a first answer
        pytest.param(60.0, marks=pytest.mark.slow),  # the broker takes it for dead meanwhile
    ],
)
def test_one_that_stands_still_in_the_middle_of_load_goes_on_and_harms_nobody(
    three, caplog, seconds
):
    """Calls are answered once by others; what it sends after the thaw changes nothing."""
    site, _, callers = three
    rng = random.Random(27)
    requests = [load.a_request(rng, 2, budget_ms=120_000) for _ in range(300)]
    caplog.set_level(logging.INFO, 'gantt.client.calls')
    asking = callers.start(requests, threads=24)
    until(lambda: len(asking.records) >= 60, 'some calls have ended', 60)
    site.freeze('one')
    began = time.monotonic()
    try:
        calls = list(asking.wait(120))
        assert ' try=1 ' in caplog.text, 'the frozen one holds calls'
        while time.monotonic() - began < seconds:
            more = [load.a_request(rng, 1, budget_ms=120_000) for _ in range(20)]
            calls += callers.ask_all(more, threads=4)
            requests += more
            time.sleep(0.2)
    finally:
        site.thaw('one')
    more = [load.a_request(rng, 1, budget_ms=120_000) for _ in range(60)]
    calls += callers.ask_all(more, threads=12)
    requests += more
    assert [call.error for call in calls if call.error] == []
    ids = [call.request.request_id for call in calls]
    assert sorted(ids) == sorted(request.request_id for request in requests)
    again = callers.ask_all([call.request for call in calls], threads=12)
    assert load.unlike(calls, again) == []
    assert site.stop('one') == 0, 'it works again, and ends without an error'
    assert load.broken_promises(site.store, calls) == []
    site.audit()
