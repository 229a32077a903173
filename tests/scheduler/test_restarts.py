# SPDX-License-Identifier: Apache-2.0
"""All hosts start again at once: all are back soon, and every guest has its claim.

The production agents over played machines, the production scheduler over the store in
memory, and a clock in our hands.
"""

import heapq
import logging

import pytest

from gantt import exceptions
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.farm import FakeHost, FarmPlan
from tests.builders import CLEAN
from tests.world import World, a_request

#: In how many seconds the scheduler takes a message of each host; else it says "busy".
ROUND_SECONDS = 10
#: Nobody may look as if it were down because of the herd.
DOWN_SECONDS = 180


class Line:
    """The scheduler as hosts reach it: so many messages in each second."""

    def __init__(self, world: World, most: int) -> None:
        self._world = world
        self._most = most
        self._second, self._taken = -1, 0
        self.refused = 0

    def _admit(self) -> None:
        second = int(self._world.clock.monotonic())
        if second != self._second:
            self._second, self._taken = second, 0
        self._taken += 1
        if self._taken > self._most:
            self.refused += 1
            raise exceptions.Busy(reason='a herd', retry_after_ms=500)

    def register(self, message):
        self._admit()
        return self._world.scheduler.register_host(message)

    def report(self, report):
        self._admit()
        future = self._world.scheduler.report_queue.submit(report, notify=report.full)
        self._world.scheduler.report_queue.step()
        return str(future.result(0).outcome) if future is not None else None

    def _say(self, word, words):
        fates = getattr(self._world.scheduler, word)(words)
        return {fate.claim_id: fate.outcome for fate in fates}

    def confirm(self, words):
        return self._say('confirm', words)

    def refuse(self, words):
        return self._say('refuse', words)

    def release(self, words):
        return self._say('release', words)


class Site:
    """The hosts, and when each one's next turn is."""

    def __init__(self, count: int) -> None:
        self.world = World()
        self.line = Line(self.world, count // ROUND_SECONDS)
        self.hosts = [FakeHost(FarmPlan(count=count), number) for number in range(count)]
        self.by_name = {host.name: host for host in self.hosts}

    def boot(self) -> float:
        """All of them at once; seconds until the last one has registered and reported."""
        settings = HostAgentSettings(level=logging.DEBUG)
        clock, start = self.world.clock, self.world.clock.monotonic()
        due = []
        for number, host in enumerate(self.hosts):
            host.die()
            due.append((start, number, host.boot(self.line, settings)))
        while due:
            at, number, member = heapq.heappop(due)
            clock.advance(max(0.0, at - clock.monotonic()))
            assert clock.monotonic() - start < DOWN_SECONDS, f'{len(due)} hosts are not back'
            wait = member.turn()
            if not member.reports:
                heapq.heappush(due, (clock.monotonic() + wait, number, member))
        self.world.turn()
        return clock.monotonic() - start

    def place(self, guests: int) -> None:
        """Claims, and the guests started under them."""
        for _ in range(guests // 50):
            answer = self.world.select(a_request(50, budget_ms=60_000))
            for chosen, *_ in answer.selections:
                agent = self.by_name[chosen.host].host_agent.agent
                assert agent.build(chosen.build()).outcome == 'running'


@pytest.mark.parametrize(
    ('count', 'guests'),
    [
        pytest.param(500, 250, id='500'),
        pytest.param(10_000, 5000, id='10000', marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_all_hosts_start_again_and_keep_their_guests(count, guests):
    site = Site(count)
    site.boot()
    site.place(guests)
    store = site.world.store
    before = {c.id: c for c in store.claims.list_claims(limit=guests + 1)}
    epochs = {h.row.name: h.row.epoch for h in store.feed.load_everything().hosts}
    assert len(before) == guests
    seconds = site.boot()
    assert seconds < DOWN_SECONDS
    assert site.line.refused, 'it was no herd'
    after = {c.id: c for c in store.claims.list_claims(limit=2 * guests)}
    assert after.keys() == before.keys()
    assert {str(claim.state) for claim in after.values()} == {'confirmed'}
    assert not any(claim.adopted for claim in after.values())
    rows = [h.row for h in store.feed.load_everything().hosts]
    assert {row.name: row.epoch for row in rows} == {n: e + 1 for n, e in epochs.items()}
    assert all(row.sequence for row in rows)
    assert store.claims.audit() == CLEAN
    assert site.world.scheduler.cache.working.count_stale(DOWN_SECONDS) == 0
