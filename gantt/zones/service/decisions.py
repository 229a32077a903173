# SPDX-License-Identifier: Apache-2.0
"""Decisions of requests over zones: zones queried, their offers, and why others were skipped."""

from collections.abc import Mapping, Sequence

import msgspec

from gantt.core.claims.commit import DecisionRecord
from gantt.core.claims.quota import Excess
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records import decision_codec
from gantt.core.records.decision import Answer, Decision, Outcome, Selection, ZoneStep
from gantt.zones.model import choice
from gantt.zones.model.choice import ZoneShare
from gantt.zones.model.messages import ZoneRecord
from gantt.zones.service.offers.evaluate import EvaluationResult


def decision_over_zones(
    decision_id: str,
    request: SelectDestinations,
    found: EvaluationResult,
    outcome: Outcome,
    reason: str,
    members_by_zone: Mapping[str, int],
    worker: str = '',
    attempt: int = 1,
) -> Decision:
    """Return the decision of a request over zones.

    :param found: the offers
    :param members_by_zone: name of a zone, '' for this one -> members that have their place there
    """
    return Decision(
        id=decision_id,
        request_id=request.request_id,
        outcome=outcome,
        hosts=found.hosts,
        members=[],
        reason=reason,
        worker=worker,
        project_id=request.spec.project_id,
        attempt=attempt,
        zones=steps_of(found, members_by_zone),
    )


def quota_decision(
    decision_id: str, request: SelectDestinations, excess: Excess, worker: str, attempt: int
) -> Decision:
    """Return the decision of a request that a quota ends: no place was evaluated."""
    return Decision(
        id=decision_id,
        request_id=request.request_id,
        outcome=Outcome.REFUSED,
        hosts=0,
        members=[],
        reason=excess.line,
        cause=excess.cause,
        worker=worker,
        project_id=request.spec.project_id,
        attempt=attempt,
    )


def steps_of(found: EvaluationResult, members_by_zone: Mapping[str, int]) -> list[ZoneStep]:
    """Return the steps of all zones, each with its number of placed members."""
    return [
        msgspec.structs.replace(step, taken=members_by_zone.get(step.zone, 0))
        for step in found.steps
    ]


def record_of(decision: Decision, request: SelectDestinations) -> DecisionRecord:
    """Return the decision as it is stored."""
    is_placed = decision.outcome is Outcome.PLACED
    return DecisionRecord(
        id=decision.id,
        request_id=decision.request_id,
        outcome=decision.outcome.value,
        project_id=decision.project_id,
        reason=decision.reason,
        worker=decision.worker,
        packed=decision_codec.pack(decision, request),
        origin=request.origin,
        kind=request.spec.kind.value,
        consumers=[] if is_placed else list(request.consumers),
    )


def placed_reason(members_by_zone: Mapping[str, int]) -> str:
    """Return the places of the members, in words."""
    names = sorted('this zone' if not name else f'zone {name}' for name in members_by_zone)
    return f'placed in {", ".join(names)}'


def refusal_of(
    request: SelectDestinations, found: EvaluationResult, lost: int
) -> tuple[Outcome, str]:
    """Return the outcome and reason of a request without a place: "no room" if all zones report so.

    :param lost: offers that no longer held when they were claimed
    """
    outcome, member_count = found.outcome, len(request.consumers)
    if outcome is Outcome.PLACED:
        outcome = Outcome.NO_VALID_HOST if found.complete else Outcome.UNKNOWN
    is_rebuilt = request.spec.purpose is Purpose.REBUILD  # the one host that it names
    if is_rebuilt or outcome not in (Outcome.NO_VALID_HOST, Outcome.UNKNOWN):
        reason = found.reason
    elif choice.is_whole(request) and member_count > 1:
        reason = f'no one place has room for all {member_count} members together'
    else:
        reason = _no_room_reason(found, member_count)
    if lost:
        reason += f'; {lost} offers were gone when they were taken'
    if found.silent:
        reason += f'; not known: zone {", ".join(found.silent)} has not answered'
    refused = [step.zone for step in found.steps if step.zone and step.outcome == Outcome.REFUSED]
    if refused:
        reason += f'; zone {", ".join(refused)} has refused it'
    partly_silent = [step.zone for step in found.steps if step.below and step.below[2]]
    if partly_silent:
        reason += f'; not known: not all child zones of {", ".join(partly_silent)} have answered'
    elif outcome is Outcome.UNKNOWN:
        reason += _why_undecided(found)
    return outcome, reason


def _why_undecided(found: EvaluationResult) -> str:
    """Return why zones that have answered do not know whether there is room."""
    undecided = [step.zone for step in found.steps if step.outcome == Outcome.UNKNOWN.value]
    names = ', '.join(filter(None, undecided))
    line = f'; not known: {names} cannot say what all of its child zones have' if names else ''
    return f'{line}; not known: {found.reason}' if '' in undecided and found.reason else line


def _no_room_reason(found: EvaluationResult, member_count: int) -> str:
    """Return the number of evaluated hosts, and the filters that removed some, the most first."""
    # Zones of other owners have no number of hosts for this one.
    quiet = [step.zone for step in found.steps if step.zone and step.outcome and not step.hosts]
    places = found.children.answered + 1 - len(quiet)
    for_all = f' for all {member_count} members' if member_count > 1 else ''
    line = (
        f'none of {found.hosts} host{"s" * (found.hosts != 1)} in {places} '
        f'zone{"s" * (places != 1)} has room{for_all}'
    )
    if quiet:
        line += f', nor has zone {", ".join(quiet)}, which names none'
    ruled_out = sum(1 for step in found.steps if step.strategy and not step.round)
    if ruled_out:
        line += f'; {ruled_out} more zone{"s" * (ruled_out > 1)} without what it needs'
    removals = sorted(found.removed.items(), key=lambda removal: (-removal[1], removal[0]))
    return line + (
        f': {", ".join(f"{name} removed {n}" for name, n in removals)}' if removals else ''
    )


def dry_run_result(
    request: SelectDestinations,
    found: EvaluationResult,
    shares: Sequence[ZoneShare],
    children: Sequence[ZoneRecord],
    decision_id: str,
) -> tuple[Answer, Decision]:
    """Return the answer and the decision of a dry run.

    :param shares: members with their places; empty: there is no room
    :param children: the child zones
    """
    outcome, reason = Outcome.PLACED, ''
    names = {zone.uuid: zone.name for zone in children}
    members_by_zone = {
        names.get(share.choice.child or '', ''): len(share.members) for share in shares
    }
    if shares:
        reason = placed_reason(members_by_zone)
    else:
        outcome, reason = refusal_of(request, found, 0)
    decision = decision_over_zones(decision_id, request, found, outcome, reason, members_by_zone)
    chosen = {
        member: [_selection(request, member, share, n, names)]
        for share in shares
        for n, member in enumerate(share.members)
    }
    answer = Answer(
        request_id=request.request_id,
        decision_id=decision_id,
        outcome=outcome,
        selections=[chosen[member] for member in sorted(chosen)],
        reason=reason if outcome is not Outcome.PLACED else '',
        level=max((share.choice.score.level for share in shares), default=0),
        dry_run=True,
    )
    return answer, decision


def _selection(
    request: SelectDestinations, member: int, share: ZoneShare, n: int, names: dict[str, str]
) -> Selection:
    """Return the child zone or the host here of the n-th member of a share."""
    child = share.choice.child
    return Selection(
        host='' if child else share.choice.place.hosts[n],
        node='',
        uuid='',
        provider_id=0,
        consumer=request.consumers[member],
        resources=request.spec.resources,
        child=names.get(child or '', ''),
    )
