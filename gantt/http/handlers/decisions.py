# SPDX-License-Identifier: Apache-2.0
"""Decisions: what was chosen, and why everything else was not."""

import msgspec

from gantt.http.dispatch import Raw
from gantt.http.queries import DecisionsQuery, ExplainQuery
from gantt.http.world import Caller, World
from gantt.scheduler.views import DecisionSummary, Explanation


class Decisions(msgspec.Struct, frozen=True):
    """A page of decisions, newest first."""

    decisions: list[DecisionSummary]
    next_marker: str | None


def list_decisions(world: World, caller: Caller, query: DecisionsQuery) -> Decisions:
    """List the decisions, newest first."""
    outcome = query.outcome.value if query.outcome else None
    found = world.insights.decisions(outcome=outcome, limit=query.limit + 1, marker=query.marker)
    page = found[: query.limit]
    return Decisions(decisions=page, next_marker=page[-1].id if len(found) > len(page) else None)


def show_decision(
    world: World, caller: Caller, decision_id: str, query: ExplainQuery
) -> Explanation | DecisionSummary:
    """Show one decision, by its id, a request id, or a unique prefix of either."""
    explanation = world.insights.explain(decision_id, query.host)
    if query.format == 'text':
        text = '\n'.join(explanation.lines) + '\n'
        return Raw(text.encode(), 'text/plain; charset=utf-8')  # type: ignore[return-value]
    if query.explain or query.host is not None:
        return explanation
    return DecisionSummary(
        id=explanation.id,
        request_id=explanation.request_id,
        outcome=explanation.outcome,
        reason=explanation.reason,
        project_id=explanation.project_id,
        worker=explanation.worker,
        created_at=explanation.created_at,
        age_seconds=explanation.age_seconds,
    )
