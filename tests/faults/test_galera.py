# SPDX-License-Identifier: Apache-2.0
"""F10 on Galera: three nodes, written through all of them, of which one dies or is cut off.

Each scheduler has a node of its own, the worst way to use a cluster: two of them
that write the same host meet only at COMMIT.  What was answered "placed" is on
every node afterwards.
"""

import itertools
import random
import time

import pytest

from gantt.stores import stores_for_url
from tests.nemesis import galera, hosts, load
from tests.nemesis.site import Site, until
from tests.services import UNHURRIED

pytestmark = [pytest.mark.rabbit, pytest.mark.mysql, pytest.mark.timeout(400)]

NAMES = ('one', 'two', 'three')
HOSTS = [f'host-{n}' for n in range(12)]


class Cloud:
    """Three nodes, a scheduler at each, and callers."""

    def __init__(self, closing, rabbit_url, folder):
        self.nodes = closing.enter_context(galera.cluster())
        self.site = Site(folder, self.nodes[0].url, rabbit_url)
        closing.callback(self.site.close)
        hosts.add(self.site.store, HOSTS, VCPU=1_000_000)
        for name, node in zip(NAMES, self.nodes, strict=True):
            self.site.start(name, database=node.url, **hosts.SILENT)
        self.callers = load.Conductors(rabbit_url, attempt_seconds=2.0)
        closing.callback(self.callers.close)
        self.rng = random.Random(10)
        self.records = []

    def under_load(self, requests, fault):
        """Ask, let ``fault`` happen after a fifth; seconds until the first answer after it."""
        ends = []
        asking = self.callers.start(
            [
                load.a_request(self.rng, self.rng.choice((1, 1, 2, 4)), budget_ms=120_000)
                for _ in range(requests)
            ],
            12,
            lambda call: ends.append(time.monotonic()),
        )
        until(lambda: len(ends) >= requests // 5, 'a fifth has ended', 90)
        fault()
        happened = time.monotonic()
        calls = asking.wait(200)
        assert [call.error for call in calls if call.error] == []
        after = sorted(at for at in ends if at > happened)
        assert after, 'the load ended before the fault'
        self.records += calls
        return after[0] - happened, max(b - a for a, b in itertools.pairwise([happened, *after]))

    def check(self):
        """Every node has what was answered, and the audit finds nothing on any of them."""
        for node in self.nodes:
            node.wait_until_synced()
        for node in self.nodes:
            store = stores_for_url(node.url, timeouts=UNHURRIED)
            assert load.broken_promises(store, self.records) == []
            store.database.close()
            self.site.audit(database=node.url)
        assert all(self.site.process(name).poll() is None for name in NAMES)


def test_a_node_is_killed(rabbit_url, closing, tmp_path):
    cloud = Cloud(closing, rabbit_url, tmp_path)
    first, silence = cloud.under_load(150, cloud.nodes[1].kill)
    print(f'killed: the first answer after {first:.1f} s, the longest silence {silence:.1f} s')
    print(f'synced {cloud.nodes[1].start():.1f} s after its start')
    cloud.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nodes_are_killed_twenty_times_and_cut_off(rabbit_url, closing, tmp_path):
    """In turn; each is back before the next one goes.  Cut off: two of three go on."""
    cloud = Cloud(closing, rabbit_url, tmp_path)
    for number in range(20):
        node = cloud.nodes[number % len(cloud.nodes)]
        first, silence = cloud.under_load(150, node.kill)
        back = node.start()
        print(f'killed {number}: first {first:.1f} s, silence {silence:.1f} s, synced {back:.1f} s')
    for node in cloud.nodes:
        first, silence = cloud.under_load(150, node.cut_off)
        node.join()
        node.wait_until_synced()
        print(f'cut off {node.number}: first {first:.1f} s, silence {silence:.1f} s')
    cloud.check()
