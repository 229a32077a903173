# SPDX-License-Identifier: Apache-2.0
"""F26: of three schedulers one is stopped, and the way of one to its database is held.

The others answer those that it had taken, and everybody who comes.
"""

import random

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
def three(a_site, closing, rabbit_url):
    site = a_site('postgresql')
    closing.callback(site.close)
    way = Proxy.of(site.database)
    closing.callback(way.close)
    hosts.add(site.store, [f'room-{n}' for n in range(50)], VCPU=10_000)
    site.start(*NAMES[:2], **hosts.SILENT)
    site.start('three', database=way.url(site.database), **hosts.SILENT)
    callers = load.Conductors(rabbit_url, attempt_seconds=None)
    closing.callback(callers.close)
    return site, way, callers


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
