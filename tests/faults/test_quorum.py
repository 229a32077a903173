# SPDX-License-Identifier: Apache-2.0
"""F10 on RabbitMQ: three nodes with quorum queues, of which one dies, then one is cut off.

The other two are the majority and go on; the one that is cut off stops serving
(``pause_minority``), so its clients go to the others.
"""

import itertools
import random
import threading
import time

import pytest

from tests.nemesis import hosts, load, rabbit

pytestmark = [
    pytest.mark.rabbit,
    pytest.mark.postgresql,
    pytest.mark.timeout(600),
    pytest.mark.leaves_sockets,
]

NAMES = ('one', 'two')
QUORUM = '?rabbit_quorum_queue=true&rabbit_transient_quorum_queue=true'
#: RabbitMQ 3.10 may not find the leader of a queue again that was made seconds before a crash.
SETTLED_SECONDS = 5.0
BATCHES_MAX = 200


class FaultySite:
    """Schedulers and callers on a cluster of three."""

    def __init__(self, closing, a_site, folder):
        self.nodes = closing.enter_context(rabbit.cluster(folder, 3))
        self.site = a_site()
        self.site.broker = self.nodes.url + QUORUM
        hosts.add(self.site.store, [f'host-{n}' for n in range(20)], VCPU=1_000_000)
        self.site.start(*NAMES, **hosts.SILENT)
        self.callers = load.Conductors(self.site.broker, attempt_seconds=5)
        closing.callback(self.callers.close)
        self.rng = random.Random(7)
        self.records = []
        self._processes = [self.site.process(name).pid for name in NAMES]

    def in_use(self):
        """The node with the most connections."""
        return max(self.nodes.nodes, key=lambda node: node.connections())

    def under_load(self, requests, fault):
        """Ask on and on; ``fault`` befalls the node in use.  It, and the longest silence.

        So many requests are asked before it, likewise after it; and as many times more as it takes.
        """
        node = self.in_use()
        assert node.connections() > 0
        time.sleep(SETTLED_SECONDS)
        ends, happened = [], []
        befalling = threading.Thread(
            target=lambda: (fault(node), happened.append(time.monotonic())), daemon=True
        )
        for batch in range(BATCHES_MAX):
            if batch == 1:
                befalling.start()
            is_last = bool(happened)
            calls = self.callers.ask_all(
                [load.a_request(self.rng, budget_ms=120_000) for _ in range(requests)],
                12,
                lambda _: ends.append(time.monotonic()),
            )
            assert [call.error for call in calls if call.error] == []
            self.records += calls
            if is_last:
                break
        befalling.join(60)
        after = [happened[0], *sorted(at for at in ends if at > happened[0])]
        assert len(after) > requests, 'the load ended before the fault'
        return node, max(b - a for a, b in itertools.pairwise(after))

    def check(self):
        """What was answered is in the database, and nobody was started anew."""
        assert load.broken_promises(self.site.store, self.records) == []
        self.site.audit()
        assert [self.site.process(name).poll() for name in NAMES] == [None, None]
        assert [self.site.process(name).pid for name in NAMES] == self._processes


def _round(faulty_site, requests):
    node, silence = faulty_site.under_load(requests, rabbit.Node.kill)
    print(f'killed: the longest silence {silence:.1f} s')
    node.start()
    faulty_site.nodes.wait_until_whole()
    node, silence = faulty_site.under_load(requests, faulty_site.nodes.cut_off)
    print(f'cut off: the longest silence {silence:.1f} s')
    faulty_site.nodes.join(node)


def test_a_node_is_killed_and_one_is_cut_off(closing, a_site, tmp_path):
    faulty_site = FaultySite(closing, a_site, tmp_path)
    _round(faulty_site, 60)
    faulty_site.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nodes_are_killed_and_cut_off_in_turn(closing, a_site, tmp_path):
    faulty_site = FaultySite(closing, a_site, tmp_path)
    for _ in range(6):
        _round(faulty_site, 500)
    faulty_site.check()
