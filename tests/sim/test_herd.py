# SPDX-License-Identifier: Apache-2.0
"""A thousand requests of ten zones above, all at once, when an empty zone has just appeared.

Whoever would send all of them to its one best host would have most of them come back.
"""

import collections
import random

import msgspec
import numpy as np
import pytest

from devel.sim.loop import Loop, Process, ProcessClock, TaskThreadPool
from devel.sim.tasks import TaskPool
from devel.sim.zones import stock
from devel.sim.zones.links import ZoneLinks
from devel.sim.zones.placing import carry_out
from devel.sim.zones.run import random_requests
from devel.sim.zones.zone import SimZone, Surroundings
from gantt import exceptions, plugin_loader
from gantt.zones.conf import load_strategies
from gantt.zones.model.strategies import DEFAULT

ABOVE, BELOW, HOSTS = 10, 10, 100
REQUESTS, LOAD = 1000, 0.92
#: How long it takes until all of a burst have begun; and how often zones are read, in seconds.
AT_ONCE, READ_EACH = 0.02, 10.0
#: Of what is sent to the new zone, so much may be refused there.
REFUSED_MOST = 0.05
#: The fullest zone to the mean of all, and the most of a window of requests to one zone.
LOAD_RATIO_MOST, WINDOW, WINDOWS = 1.2, 10.0, 6


class CountedLinks(ZoneLinks):
    """Links that count what is sent to each zone, and what of it is refused there."""

    def __init__(self, loop, rng):
        super().__init__(loop, rng)
        self.sent, self.refused = collections.Counter(), collections.Counter()

    def allocate(self, zone, key, body, seconds):
        self.sent[zone.name] += 1
        try:
            return super().allocate(zone, key, body, seconds)
        except exceptions.OfferGone:
            self.refused[zone.name] += 1
            raise


class Herd:
    """The zones above, those below that are nearly full, and the one that is empty."""

    def __init__(self, seed):
        self.loop = Loop(TaskThreadPool())
        self.process = Process(self.loop, 'herd')
        self.rng = random.Random(f'herd {seed}')
        self.links = CountedLinks(self.loop, random.Random(f'ways {seed}'))
        around = Surroundings(
            clock=ProcessClock(self.process),
            pipeline=plugin_loader.load_pipeline(),
            links=self.links,
            threads=lambda most, _: TaskPool(self.loop, self.process, most),
            strategies=load_strategies(DEFAULT, {}),
            rng=random.Random(f'strategies {seed}'),
        )
        draws = np.random.default_rng(seed)
        self.above = [SimZone(f'above-{n}', around) for n in range(ABOVE)]
        self.below = []
        for n in range(BELOW):
            zone = SimZone(f'below-{n}', around, stock.idle(HOSTS).copy())
            stock.SimSite(zone, 1 - LOAD, 1.0, draws)
            self.below.append(zone)
        self.new = SimZone('new', around, stock.idle(HOSTS).copy())
        self.below.append(self.new)
        self.links.zones = {zone.uuid: zone for zone in (*self.above, *self.below)}
        for zone in self.above:
            for child in self.below[:-1]:
                zone.put_above(child)
            for record in zone.children:
                zone.parts.summaries.read(record)
                self.loop.at(self.rng.uniform(0, READ_EACH), self._read, zone, record)
            zone.put_above(self.new)
            record = zone.children[-1]
            self.loop.at(self.rng.uniform(0, READ_EACH), self._read, zone, record)
        self.placed = self.refused = 0

    def _read(self, zone, record):
        zone.parts.summaries.read(record)
        self.loop.at(READ_EACH, self._read, zone, record)

    def ask(self, requests, seconds):
        """All of them begin within so many seconds from now."""
        for number, request in enumerate(requests):
            at = self.rng.uniform(0, seconds)
            self.loop.at(at, self._begin, self.above[number % ABOVE], request)

    def _begin(self, zone, request):
        self.loop.spawn(self.process, 'request', self._carry_out, zone, request)

    def _carry_out(self, zone, request):
        answer = carry_out(zone, request)
        self.placed += answer.is_placed
        self.refused += not answer.is_placed

    def free(self, zone):
        """Free processors of a zone."""
        return int(zone.table.free_of(zone.table.class_code('VCPU')).sum())


@pytest.fixture
def herd():
    new_herd = Herd(12)
    yield new_herd
    new_herd.loop.close()


def guests(count, seed):
    """Requests for one guest each, of any size."""
    return [
        msgspec.structs.replace(
            order,
            consumers=order.consumers[:1],
            spec=msgspec.structs.replace(order.spec, group=None, required_traits=[]),
        )
        for order in random_requests(count, seed)
    ]


def test_an_empty_zone_is_found_by_all_and_refuses_few(herd):
    herd.ask(guests(REQUESTS, 12), AT_ONCE)
    herd.loop.run(40.0)
    assert herd.loop.defects == []
    assert herd.placed + herd.refused == REQUESTS
    assert herd.refused < REQUESTS / 100
    sent, refused = herd.links.sent['new'], herd.links.refused['new']
    assert sent > REQUESTS / 5, 'it is where the room is'
    assert refused <= REFUSED_MOST * sent, (refused, sent)
    assert all(herd.free(zone) >= 0 for zone in herd.below)


def test_requests_do_not_swing_between_the_empty_zone_and_the_others(herd):
    """In each ten seconds about as many go to it as in those before."""
    counts = []
    for number in range(WINDOWS):
        before = herd.links.sent['new']
        herd.ask(guests(REQUESTS // 10, 100 + number), WINDOW)
        herd.loop.run(herd.loop.now + WINDOW)
        counts.append(herd.links.sent['new'] - before)
    herd.loop.run(herd.loop.now + 10.0)
    assert herd.loop.defects == []
    later = counts[1:]  # by then all have read of it
    assert max(later) <= LOAD_RATIO_MOST * sum(later) / len(later), counts
    assert herd.links.refused['new'] <= REFUSED_MOST * herd.links.sent['new']
    used = [1 - herd.free(zone) / (HOSTS * stock.VCPUS) for zone in herd.below]
    assert max(used) <= LOAD_RATIO_MOST * sum(used) / len(used), used
