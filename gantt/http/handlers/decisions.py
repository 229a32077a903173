# SPDX-License-Identifier: Apache-2.0
"""Handlers of decisions: what was chosen, and why everything else was not."""

import msgspec

from gantt import exceptions
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import RawAnswer
from gantt.http.links import Paged
from gantt.http.queries import DecisionsQuery, ExplainQuery, page_of, unknown_marker
from gantt.insights.decision_reader import Replayed
from gantt.insights.replaying import Otherwise
from gantt.insights.views import DecisionSummary, Explanation, view_of

#: A caller that meets it reads every decision with its reasons; others their own, redacted.
FULL_EXPLANATION_POLICY = 'gantt:decisions:explain'


class DecisionsResponse(Paged, frozen=True, kw_only=True):
    """A page of decisions, newest first."""

    decisions: list[DecisionSummary]


def list_decisions(
    context: HandlerContext, caller: Caller, query: DecisionsQuery
) -> DecisionsResponse:
    """List the decisions, newest first."""
    outcome = query.outcome.value if query.outcome else None
    # Else a page, even empty, would reveal that a decision of another project is kept.
    if query.marker and not context.insights.is_decision(query.marker, caller.project_filter):
        raise unknown_marker(query.marker, 'decision')
    summaries = context.insights.decisions(
        outcome=outcome,
        project=caller.project_filter,
        limit=query.limit + 1,
        marker=query.marker,
        consumer=query.consumer,
    )
    page, marker = page_of(summaries, query.limit, 'id')
    if not context.policy.allows(FULL_EXPLANATION_POLICY, caller):
        page = [msgspec.structs.replace(summary, reason='', worker='') for summary in page]
    return DecisionsResponse(decisions=page, next_marker=marker)


def show_decision(
    context: HandlerContext, caller: Caller, decision_id: str, query: ExplainQuery
) -> Explanation | DecisionSummary:
    """Show one decision, by its id, a request id, or a unique prefix of either.

    Else the newest one about a consumer, by its uuid, or of a request to Nova, by its ``req-...``.
    """
    if query.host is not None:
        context.policy.check(FULL_EXPLANATION_POLICY, caller)
    whole = context.policy.allows(FULL_EXPLANATION_POLICY, caller)
    explanation = context.insights.explain(
        decision_id, query.host, public=not whole, project=caller.project_filter
    )
    if not caller.may_see(explanation.project_id):
        raise exceptions.NotFound(kind='decision', name=decision_id)
    if whole and (query.explain or query.format == 'text'):
        explanation = context.answers.explanation(explanation)
    if query.format == 'text':
        text = '\n'.join(explanation.lines) + '\n'
        return RawAnswer(text.encode(), 'text/plain; charset=utf-8')  # type: ignore[return-value]
    if query.explain or query.host is not None:
        return explanation
    return view_of(DecisionSummary, explanation)


def replay_decision(
    context: HandlerContext, caller: Caller, decision_id: str, body: Otherwise
) -> Replayed:
    """Make a decision again on the table that it saw, with other settings where given."""
    with context.gates.trials.admit(caller):
        return context.insights.replay(decision_id, body)
