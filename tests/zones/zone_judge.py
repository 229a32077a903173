# SPDX-License-Identifier: Apache-2.0
"""What callers of a tree were answered, held against its faults and against all its databases."""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gantt.db.schema import models
from tests.zones.faulted_zone import (
    ABOVE,
    TIGHT_ROOM,
    Fault,
    FaultedTree,
    FaultedZone,
    above,
)
from tests.zones.zone_callers import NO_ROOM, AskedZone

#: Of what zones that see a place are asked, so much is placed.
SERVED = 0.999
_LIVE = ('reserved', 'confirmed')


class FaultWindow(NamedTuple):
    """When something was at fault: from the moment at which it was, until it was being healed.

    :ivar healed: all of it was well again
    """

    fault: Fault
    begun: float
    ended: float
    healed: float


def confused(asked: Iterable[AskedZone], windows: Sequence[FaultWindow]) -> list[str]:
    """Answers "no room" of zones that could not know it."""
    return [
        f'{window.fault.name}: zone {request.at} has no room for {request.of} {request.wants}'
        for request in asked
        for answer in request.answers
        if answer.code == NO_ROOM
        for window in windows
        if window.fault.blinds(request.at)
        and window.begun + window.fault.known <= answer.begun
        and answer.ended <= window.ended
    ]


def due(asked: Iterable[AskedZone], windows: Sequence[FaultWindow]) -> list[AskedZone]:
    """Requests that have to be placed: their zone is not at fault itself, and sees a place."""
    return [
        request
        for request in asked
        if request.of in ('any', 'own') and not any(_hinders(window, request) for window in windows)
    ]


def _hinders(window: FaultWindow, request: AskedZone) -> bool:
    """Whether the zone that was called could not answer, or not see the only place."""
    if window.healed < request.answers[0].begun or request.answers[-1].ended < window.begun:
        return False
    unseen = window.fault.unseen
    hides = unseen in above(request.wants) and request.at in above(ABOVE.get(unseen, ''))
    return request.at == window.fault.impaired or hides


class TreeJudge:
    """Reads all databases.

    :param asked: everything that was asked
    """

    def __init__(self, tree: FaultedTree, asked: Sequence[AskedZone]) -> None:
        self._zones, self._asked = tree.zones, asked

    def consumers(self) -> set[str]:
        """Who has a place."""
        return {row.consumer for zone in self._zones.values() for row in zone.live_claims()}

    def problems(self) -> list[str]:
        """What is not as it has to be once leases have ended; empty: all is well."""
        live = {name: zone.live_claims() for name, zone in self._zones.items()}
        below = {
            name: [row for row in zone.rows(models.child_claims) if row.state in _LIVE]
            for name, zone in self._zones.items()
        }
        places = {row.id: name for name, rows in live.items() for row in rows}
        problems = []
        many = collections.Counter(row.consumer for rows in live.values() for row in rows)
        problems += [
            f'consumer {consumer} has {n} live claims' for consumer, n in many.items() if n > 1
        ]
        claimed = {
            request.claim_id
            for request in self._asked
            if request.claim_id and not request.is_cancelled
        }
        problems += [
            f'zone {name}: claim {claim} is known to nobody'
            for claim, name in places.items()
            if claim not in claimed
        ]
        problems += [
            f'claim {request.claim_id}, extended at zone {request.at}, does not live'
            for request in self._asked
            if request.is_extended and request.claim_id not in places
        ]
        problems += [
            f'zone {name}: claim {row.claim_id} below is {row.state} and does not live'
            for name, rows in below.items()
            for row in rows
            if row.claim_id not in places
        ]
        noted = {name: {row.claim_id for row in rows} for name, rows in below.items()}
        problems += [
            f'zone {request.at} does not know of its claim {request.claim_id} in '
            f'{places[request.claim_id]}'
            for request in self._asked
            if request.is_extended
            and request.claim_id in places
            and request.at != places[request.claim_id]
            and request.claim_id not in noted[request.at]
        ]
        for name, zone in self._zones.items():
            problems += self._crowded(name, zone, live[name])
        return problems

    @staticmethod
    def _crowded(name: str, zone: FaultedZone, live: Sequence[object]) -> list[str]:
        """Hosts with more than they have; each claim is for one processor."""
        hosts = {row.id: row.name for row in zone.rows(models.providers)}
        many = collections.Counter(hosts[row.provider_id] for row in live)  # type: ignore[attr-defined]
        most = many[f'{name}-tight']
        return [f'host {name}-tight has {most} claims'] if most > TIGHT_ROOM else []
