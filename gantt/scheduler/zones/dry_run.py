# SPDX-License-Identifier: Apache-2.0
"""Result of a dry run over zones: nothing is claimed, and nothing is written."""

from collections.abc import Sequence

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Decision, Outcome, Selection
from gantt.core.zones.choice import Share
from gantt.core.zones.messages import ZoneRecord
from gantt.scheduler.zones.decisions import decision_over_zones, placed_reason, refusal_of
from gantt.scheduler.zones.offers.evaluate import Evaluated


def would_be(
    request: SelectDestinations,
    found: Evaluated,
    shares: Sequence[Share],
    children: Sequence[ZoneRecord],
    decision_id: str,
) -> tuple[Answer, Decision]:
    """Return the answer and the decision of a dry run.

    :param shares: members with their places; empty: there is no room
    :param children: the child zones
    """
    outcome, reason = Outcome.PLACED, ''
    names = {zone.uuid: zone.name for zone in children}
    taken = {names.get(share.choice.child or '', ''): len(share.members) for share in shares}
    if shares:
        reason = placed_reason(taken)
    else:
        outcome, reason = refusal_of(request, found, 0)
    decision = decision_over_zones(decision_id, request, found, outcome, reason, taken)
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
    request: SelectDestinations, member: int, share: Share, n: int, names: dict[str, str]
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
