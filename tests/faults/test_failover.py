# SPDX-License-Identifier: Apache-2.0
"""P6: the database fails over to its synchronous standby in the middle of work.

Two schedulers know both servers by one url.  What was answered "placed" is on
the standby, what was not is asked again, and nobody is started anew.
"""

import random
import time

import pytest

from tests.nemesis import hosts, load, postgres
from tests.nemesis.site import Site, until

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql, pytest.mark.timeout(240)]

NAMES = ('one', 'two')
#: How long nobody has promoted the standby.
AWAY_SECONDS = 2.0


def test_the_database_fails_over(rabbit_url, closing, tmp_path):
    pair = closing.enter_context(postgres.pair())
    site = Site(tmp_path, pair.url, rabbit_url)
    closing.callback(site.close)
    hosts.add(site.store, [f'host-{n}' for n in range(10)], VCPU=1_000_000)
    site.start(*NAMES)
    callers = load.Conductors(rabbit_url, attempt_seconds=20.0)
    closing.callback(callers.close)
    rng = random.Random(6)
    requests = [load.a_request(rng, rng.choice((1, 1, 2, 4))) for _ in range(400)]

    ends = []
    asking = callers.start(requests, 16, lambda call: ends.append((time.monotonic(), call)))
    until(lambda: len(ends) >= 100, 'a quarter of them has ended')
    pair.fail()
    failed = time.monotonic()
    time.sleep(AWAY_SECONDS)
    assert all(call.error is None for _, call in ends), 'they are asked again within their budget'
    pair.promote()
    promoted = time.monotonic()
    calls = asking.wait(120)

    assert [call.error for call in calls if call.error] == []
    assert load.broken_promises(site.store, calls) == []
    members = sum(len(request.consumers) for request in requests)
    assert sum(map(len, load.live_claims(site.store).values())) == members
    site.audit()
    after = sorted(at for at, _ in ends if at > promoted)
    assert after, 'the fail-over came after the last of them'
    print(
        f'{len(requests)} requests, {len(after)} of them ended after the promotion, the first '
        f'{after[0] - promoted:.1f} s after it, {after[0] - failed:.1f} s after the crash'
    )
    assert all(site.process(name).poll() is None for name in NAMES)
