# SPDX-License-Identifier: Apache-2.0
"""Where a request over zones would go: nothing is claimed, and nothing is written."""

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
    """The answer and the decision of a dry run.

    :param shares: who would go where; empty: there is no room
    :param children: the zones directly below
    """
    outcome, reason = Outcome.PLACED, ''
    names = {zone.uuid: zone.name for zone in children}
    taken = {names.get(one.choice.child or '', ''): len(one.members) for one in shares}
    if shares:
        reason = placed_reason(taken)
    else:
        outcome, reason = refusal_of(request, found, 0)
    decision = decision_over_zones(decision_id, request, found, outcome, reason, taken)
    chosen = {
        member: [_selection(request, member, one, n, names)]
        for one in shares
        for n, member in enumerate(one.members)
    }
    answer = Answer(
        request_id=request.request_id,
        decision_id=decision_id,
        outcome=outcome,
        selections=[chosen[member] for member in sorted(chosen)],
        reason=reason if outcome is not Outcome.PLACED else '',
        level=max((one.choice.score.level for one in shares), default=0),
        dry_run=True,
    )
    return answer, decision


def _selection(
    request: SelectDestinations, member: int, share: Share, n: int, names: dict[str, str]
) -> Selection:
    """The zone below or the host here of the n-th member of a share."""
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
