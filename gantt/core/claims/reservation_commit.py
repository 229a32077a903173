# SPDX-License-Identifier: Apache-2.0
"""Group commit of plans and of their reservations: the judgements that every store applies.

Under the lock of its group a plan is compared with the one that is stored, and with the claims that
members of it have.  Under the locks of their hosts reservations are given to the requests that name
them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import (
    CommitStatus,
    RefusalKind,
    RequestDraft,
    RequestOutcome,
)
from gantt.core.claims.reservations import check_plan, check_reservations


def check_plans(
    batch: Iterable[RequestDraft],
    revisions: Mapping[str, int],
    living: Mapping[str, Sequence[Claim]],
    below: Mapping[str, Collection[str]],
) -> dict[str, str]:
    """Return requests whose plan may not be stored, with reasons: it is outdated.

    :param revisions: revisions of the stored plans by group, read under the locks of the groups
    :param living: the live claims of members by group
    :param below: the child zones where members live by group
    """
    reasons: dict[str, str] = {}
    stored: set[str] = set()
    for request in batch:
        plan = request.plan
        if plan is None:
            continue
        created = [(draft.claim.member_name, draft.claim.consumer) for draft in request.claims]
        uuid = plan.group_uuid
        others = [claim for claim in living.get(uuid, ()) if claim.id not in request.lost_claims]
        why = check_plan(plan, created, revisions.get(uuid, 0), others)
        if uuid in stored:
            why = f'group {uuid} was planned by another request just now'
        if set(below.get(uuid, ())) - set(request.below):
            why = f'members of group {uuid} are in other zones below by now'
        if why:
            reasons[request.id] = why
        else:
            stored.add(uuid)
    return reasons


class ReservationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Reservations that a request takes over.

    :ivar taken: indices into its ``taken_reservations``
    :ivar reason: why the first of the others may not be had; '' where it gets all
    :ivar ends: outcome of a request that ends without them
    """

    taken: list[int] = []
    reason: str = ''
    ends: RequestOutcome | None = None


NO_RESERVATIONS = ReservationCheck()


def check_taken_reservations(
    request: RequestDraft,
    reservations: Mapping[str, Claim],
    gone: Collection[str],
    closed: Mapping[int, str],
) -> ReservationCheck:
    """Return the reservations that a request gets; for a plan, whether it ends its own.

    See ``reservations.check_reservations``.  A request that gives reservations back ends where one
    of them is no free reservation by then: its plan states that they end.

    :param reservations: claims by id, as they are under the locks of their hosts
    :param gone: ids of those that earlier requests of the batch get
    :param closed: hosts that nothing is to be built on, and why
    """
    why = _why_not_ended(request, reservations, gone)
    if why:
        ends = RequestOutcome(id=request.id, outcome=CommitStatus.GROUP_CHANGED, reason=why)
        return ReservationCheck(reason=why, ends=ends)
    if not request.taken_reservations:
        return NO_RESERVATIONS
    taken_reservations = request.taken_reservations
    taken, why = check_reservations(
        request.id, taken_reservations, reservations, gone, closed, request.only_project
    )
    if why and (request.whole or not (taken or request.claims)):
        return ReservationCheck(reason=why, ends=_dropped_outcome(request, why))
    return ReservationCheck(taken=taken, reason=why)


def _why_not_ended(
    request: RequestDraft, reservations: Mapping[str, Claim], gone: Collection[str]
) -> str:
    """Return why reservations to be released have changed since the plan was computed; '' if not.

    A create has one by now, or had it, and left it behind under another id.  Else the caller would
    be informed that it is given back.
    """
    for reservation in request.released_reservations:
        claim = reservations.get(reservation.claim_id)
        if claim is None or not claim.is_free_reservation or claim.id in gone:
            named = reservation.claim_id if claim is None else f'of member {claim.member_name!r}'
            return f'the place {named} was taken over or has ended since'
    return ''


def _dropped_outcome(request: RequestDraft, why: str) -> RequestOutcome:
    return RequestOutcome(
        id=request.id,
        outcome=CommitStatus.DROPPED,
        attempt=request.attempt,
        reason=why,
        refused=RefusalKind.RESERVATION,
    )


def increments_group_generation(request: RequestDraft, outcome: RequestOutcome) -> bool:
    """Return whether the outcome of a request voids what others plan for its group."""
    is_planned = request.plan is not None and outcome.outcome is CommitStatus.PLACED
    is_guarded = request.group is not None and request.group.is_guarded
    return is_guarded and (is_planned or bool(outcome.accepted))
