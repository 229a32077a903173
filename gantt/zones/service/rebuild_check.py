# SPDX-License-Identifier: Apache-2.0
"""Rebuilds: the host of a guest is checked in the zone where the guest lives.

No parent zone knows the host of a guest below.  The child zone finds it by the key of the
allocation that the guest came with, and queries on where that went further down.  Nothing is
claimed.
"""

import msgspec

from gantt import exceptions
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import State
from gantt.core.messages.request import Destination, SelectDestinations
from gantt.core.records.decision import Outcome, ZoneStep
from gantt.scheduler.ports.process import Clock
from gantt.zones.model.messages import ZoneEvaluated, ZoneEvaluation, ZoneRecord, ZonesQueried
from gantt.zones.ports import ZoneCalls, ZoneStores
from gantt.zones.service import delegation
from gantt.zones.service.directory import ZoneDirectory
from gantt.zones.service.offers.evaluate import EvaluationResult, request_for_children
from gantt.zones.service.offers.queries import call_while_busy, zone_failure
from gantt.zones.service.zone_affinity import live_child_claims


class RebuildCheck:
    """Check whether guests that are rebuilt still fit on their hosts, in any zone.  Any thread.

    :param directory: the zones around this one
    """

    def __init__(
        self, stores: ZoneStores, calls: ZoneCalls, clock: Clock, directory: ZoneDirectory
    ) -> None:
        self._requests = stores.requests
        self._claims = stores.claims
        self._child_claims = stores.child_claims
        self._zones = calls
        self._clock = clock
        self._directory = directory

    def child_of_guest(self, request: SelectDestinations) -> tuple[ZoneRecord, ChildClaim] | None:
        """Return the child zone of a request's guest, and its claim there; None: it is here.

        :raises Refused: there are several guests
        """
        # Of a move there are two: it runs where it is confirmed.
        rows = sorted(
            live_child_claims(self._child_claims, self._claims, request.consumers),
            key=lambda row: row.state != State.CONFIRMED.value,
        )
        if not rows:
            return None
        if len(request.consumers) > 1:
            raise exceptions.Refused(
                'a guest in a child zone is rebuilt by a request of its own; expected one consumer'
            )
        return self._child_zone(rows[0]), rows[0]

    def evaluate(
        self, zone: ZoneRecord, key: str, request: SelectDestinations, seconds: float
    ) -> ZoneEvaluated:
        """Return a child zone's evaluation of the host of a guest that came under a key.

        :raises GanttError: it does not answer
        """
        below = request_for_children(request, self._directory.own_uuid(), seconds)
        body = ZoneEvaluation(request=delegation.request_for_zone(zone, below), want=1, key=key)
        end = self._clock.monotonic() + seconds
        try:
            return call_while_busy(
                self._clock, end, lambda remaining: self._zones.evaluate(zone, body, remaining)
            )
        except exceptions.GanttError as e:
            what = 'the zone where the guest runs has not said whether its host fits'
            raise zone_failure(zone, what, e) from None

    def request_under_key(
        self, key: str, parent: str, request: SelectDestinations
    ) -> SelectDestinations | tuple[ZoneRecord, ChildClaim]:
        """Return a parent zone's request, for the host of the guest that it has under a key.

        Or return the child zone that has the guest.

        :raises NotFound: the parent zone has no such guest
        """
        [consumer] = request.consumers
        stored = self._requests.load_request(key)
        for claim in stored.claims if stored is not None else ():
            if claim.consumer == consumer and claim.is_live and claim.parent_key == parent:
                before = request.spec.destination or Destination()
                destination = msgspec.structs.replace(before, host=claim.host)
                spec = msgspec.structs.replace(request.spec, destination=destination)
                return msgspec.structs.replace(request, spec=spec, hops=0)
        for claim_row in self._child_claims.find(key):
            if claim_row.consumer == consumer and claim_row.holds and claim_row.parent == parent:
                return self._child_zone(claim_row), claim_row
        raise exceptions.NotFound(kind='allocation', name=key)

    def _child_zone(self, row: ChildClaim) -> ZoneRecord:
        zone = self._directory.child(row.child)
        if zone is None:
            raise exceptions.Unavailable(f'the zone of consumer {row.consumer} is not known now')
        return zone


def evaluation_result(zone: ZoneRecord, found: ZoneEvaluated) -> EvaluationResult:
    """Return the evaluation of the one child zone, for the decision."""
    is_placed = found.outcome is Outcome.PLACED
    step = ZoneStep(
        zone=zone.name,
        round=1,
        outcome=found.outcome.value,
        hosts=found.hosts,
        survivors=found.survivors,
        removed=found.removed,
        taken=int(is_placed),
    )
    return EvaluationResult(
        [],
        found.outcome,
        '' if is_placed else f'the host of the guest in zone {zone.name} does not fit',
        found.hosts,
        found.survivors,
        found.removed,
        ZonesQueried(queried=1, answered=1),
        found.complete,
        found.score_set,
        (),
        (step,),
    )
