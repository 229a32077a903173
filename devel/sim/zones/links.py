# SPDX-License-Identifier: Apache-2.0
"""Calls from a zone to its child zones: each way takes a while, and calls are counted.

Reading the summary of a zone takes no time and is no call of a request.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import msgspec

from devel.sim.loop import Loop
from devel.sim.zones import placing
from devel.sim.zones.zone import ClaimInTree, SimZone
from gantt import exceptions
from gantt.zones.model.messages import (
    PlacedBelow,
    ZoneAllocated,
    ZoneAllocation,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneInfo,
    ZoneRecord,
    ZoneSummary,
)

#: One way between two zones, in seconds: half of the messages are faster; and the spread of that.
WAY_SECONDS, WAY_SPREAD = 0.003, 0.6
LEASE_SECONDS = 60.0


def unchanged(zone: ZoneRecord, summary: ZoneSummary) -> ZoneSummary:
    """Return the summary of a zone as it is."""
    return summary


class ZoneLinks:
    """The Zones port of all zones of a tree.

    :ivar calls: by consumer, how many calls over all levels its request has caused
    :ivar altered: the change of a summary on its way
    :param loop: the loop whose time passes on the way; None: no time passes
    """

    def __init__(self, loop: Loop | None, rng: random.Random) -> None:
        self._loop, self._rng = loop, rng
        self.zones: dict[str, SimZone] = {}
        self.calls: Counter[str] = Counter()
        self.evaluations = self.allocations = 0
        self.altered: Callable[[ZoneRecord, ZoneSummary], ZoneSummary] = unchanged
        self._claims: dict[str, list[ClaimInTree]] = {}

    def close(self) -> None:
        pass

    # -- summaries of zones -----------------------------------------------------------------
    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        return self.zones[zone.uuid].info()

    def summary(self, zone: ZoneRecord, seconds: float) -> ZoneSummary:
        return self.altered(zone, self.zones[zone.uuid].parts.summary())

    # -- requests ------------------------------------------------------------------------
    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        end = self._now() + seconds
        self.evaluations += 1
        self.calls[body.request.consumers[0]] += 1
        self._travel()
        evaluated = self.zones[zone.uuid].evaluate(body)
        self._travel()
        if self._now() > end:
            raise exceptions.Unavailable(f'zone {zone.name}: no answer within {seconds} s')
        return evaluated

    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        self.allocations += 1
        self.calls[body.request.consumers[0]] += 1
        self._travel()
        below = self.zones[zone.uuid]
        places = below.opened(body.tokens)
        carried_out = placing.carry_out(below, msgspec.structs.replace(body.request, places=places))
        self._travel()
        if not carried_out.is_placed:
            raise exceptions.OfferGone()
        self._claims[key] = carried_out.claims
        members = [
            PlacedBelow(
                consumer=consumer,
                claim_id=claim.claim_id,
                sealed_host=f'{claim.zone.name}/{claim.host}',
                lease_seconds=LEASE_SECONDS,
            )
            for consumer, claim in zip(body.request.consumers, carried_out.claims, strict=True)
        ]
        return ZoneAllocated(key=key, state='placed', members=members)

    def release(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
        assert not claim_id, 'nobody ends one claim of a simulated request'
        for claim in self._claims.pop(key, []):
            claim.zone.release(claim)

    def claims(self, key: str) -> list[ClaimInTree]:
        """Return what was claimed under a key."""
        return self._claims[key]

    def _none(self, zone: ZoneRecord, *_: object) -> NoReturn:
        raise exceptions.Unavailable('links of a simulation lose no answers')

    allocation = capacity = extend = explain = changes = host_digests = _none

    def _now(self) -> float:
        return 0.0 if self._loop is None else self._loop.now

    def _travel(self) -> None:
        if self._loop is not None:
            self._loop.sleep(self._rng.lognormvariate(math.log(WAY_SECONDS), WAY_SPREAD))
