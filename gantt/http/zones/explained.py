# SPDX-License-Identifier: Apache-2.0
"""Explanations of a decision over zones, level by level, without names of zones further down."""

from collections.abc import Mapping

from gantt import exceptions
from gantt.core.records.decision import ZoneStep
from gantt.core.zones.messages import ExplainedShare, ZoneExplanation
from gantt.insights.views import Explanation
from gantt.scheduler.ports import ZoneClaims
from gantt.scheduler.zones.context import ZoneContext

#: Timeout of a child zone's explanation, in seconds.
EXPLAIN_SECONDS = 2.0


def of_zones_below(
    found: Explanation, context: ZoneContext, claims: ZoneClaims
) -> dict[str, ZoneExplanation]:
    """Return the explanations by the child zones that have members of a request, by name.

    Zones that do not answer are left out.
    """
    taken = {step.zone for step in found.zones if step.taken and step.zone}
    if not taken:
        return {}
    keys = {row.child: row.key for row in claims.child_claims(found.request_id)}
    explained: dict[str, ZoneExplanation] = {}
    for zone in context.directory.children():
        if zone.name in taken and zone.uuid in keys:
            try:
                explained[zone.name] = context.calls.explain(
                    zone, keys[zone.uuid], EXPLAIN_SECONDS, found.trace or ''
                )
            except exceptions.GanttError:
                continue  # the lines show that it has not explained itself
    return explained


def explained_below(
    found: Explanation, context: ZoneContext, claims: ZoneClaims, key: str
) -> ZoneExplanation:
    """Return a decision as the parent zone gets it."""
    if found.zones:
        below = of_zones_below(found, context, claims)
        shares = [_share(step, below) for step in found.zones]
        hosts = sum(share.hosts for share in shares)
        survivors = sum(share.survivors for share in shares)
        removed: dict[str, int] = {}
        for share in shares:
            for name, count in share.removed.items():
                removed[name] = removed.get(name, 0) + count
    else:
        shares, hosts = [], found.hosts
        member = found.members[-1] if found.members else None
        survivors = member.survivors if member else 0
        removed = (
            {step.filter: step.removed for step in member.funnel if step.removed} if member else {}
        )
    return ZoneExplanation(
        key=key,
        outcome=found.outcome,
        level=max((member.level for member in found.members), default=0),
        attempts=found.attempts,
        hosts=hosts,
        survivors=survivors,
        removed=removed,
        zones=shares,
    )


def _share(step: ZoneStep, below: Mapping[str, ZoneExplanation]) -> ExplainedShare:
    # The reason why a zone has not answered may name it, or its internal problems.
    reason = step.reason if step.by or step.outcome else 'it has not answered'
    return ExplainedShare(
        is_own=not step.zone,
        round=step.round,
        after=step.after,
        seconds=step.seconds,
        outcome=step.outcome,
        offers=step.offers,
        level=step.level,
        score=step.score,
        hosts=step.hosts,
        survivors=step.survivors,
        removed=step.removed,
        by=step.by,
        reason=reason if not (step.outcome and not step.by) else '',
        taken=step.taken,
        below=below.get(step.zone),
    )
