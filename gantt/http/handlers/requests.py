# SPDX-License-Identifier: Apache-2.0
"""Handlers of requests: created, shown, extended, confirmed, released and cancelled.

A write goes through the schedulers, so that there is one path to a claim; a
dry run and a read are answered from this process's cache.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.messages.base import Message, Text
from gantt.core.messages.request import SelectDestinations, Uuids
from gantt.core.records.decision import Answer, answer_for_caller
from gantt.http import request_access, requested_fields
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import Created
from gantt.http.handlers import decisions
from gantt.http.links import Paged, path_of
from gantt.http.log_context import with_trace
from gantt.http.queries import CancelQuery, DryRun, PageOfUuids, page_of
from gantt.insights.explain import redacting
from gantt.insights.views import Change, ClaimView, Explanation, RequestSummary

_UUID_LENGTH = 36
#: The longest budget of a request here, in milliseconds: it occupies one of our threads.
BUDGET_MS_MAX = 60_000


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request.

    :ivar explanation: of a dry run, whose decision is not kept anywhere
    """

    answer: Answer
    explanation: Explanation | None = None


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it stands.

    :ivar state: open | placed | cancelled
    """

    request_id: str
    state: str
    attempt: int
    answer: Answer | None
    claims: list[ClaimView]


class RequestsResponse(Paged, frozen=True, kw_only=True):
    """A page of requests, by id."""

    requests: list[RequestSummary]


class Lease(Message, frozen=True, kw_only=True):
    """Lease of the reserved claims, in seconds from now on."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class Confirmation(Message, frozen=True, kw_only=True):
    """Consumers whose claims are confirmed; none named: all of the request."""

    consumers: Uuids = []


class Return(Message, frozen=True, kw_only=True):
    """Return of the claims of consumers, which end with it; none named: all of the request.

    :ivar reason: is kept with the claims
    """

    consumers: Uuids = []
    reason: Text = ''


def create_request(
    context: HandlerContext, caller: Caller, body: SelectDestinations
) -> Created[Placement] | Placement:
    """Ask for a place for every consumer, claimed.

    Repeating it with the same request id has the effect of one.  With
    ``dry_run`` nothing is claimed and no scheduler is asked.
    """
    project = body.spec.project_id if caller.everywhere else caller.project
    request_access.check_rate(context, caller, project)
    body = request_access.check_request(context, caller, body)
    if caller.trace:
        body = with_trace(caller, body)
    whole = context.policy.allows(decisions.FULL_EXPLANATION_POLICY, caller)
    try:
        if body.dry_run:
            with context.gates.trials.admit(caller):
                # A caller that may not claim gets the answer of a service for its project.
                as_own_service = not caller.everywhere and context.policy.allows(
                    requested_fields.CLAIM_POLICY, caller
                )
                answer, explanation = context.answers.dry_run(body, not whole, as_own_service)
            return Placement(answer=_for_caller(context, caller, answer), explanation=explanation)
        if body.budget_ms > BUDGET_MS_MAX:
            body = msgspec.structs.replace(body, budget_ms=BUDGET_MS_MAX)
        with context.gates.placements.admit(caller, body.spec.project_id):
            answer = _call_schedulers(context, body, whole)
    except exceptions.Refused as e:
        raise request_access.refusal(context, caller, body, e) from None
    context.insights.reload_soon()
    done = Placement(answer=_for_caller(context, caller, answer))
    return Created(done, path_of('requests', body.request_id))


def list_requests(context: HandlerContext, caller: Caller, query: PageOfUuids) -> RequestsResponse:
    """List the requests with claims of the project, or all.

    What was refused is listed with the decisions.
    """
    summaries = context.insights.requests(query.limit + 1, query.marker, caller.project_filter)
    page, marker = page_of(summaries, query.limit, 'request_id')
    return RequestsResponse(requests=page, next_marker=marker)


def _call_schedulers(context: HandlerContext, body: SelectDestinations, whole: bool) -> Answer:
    """Return the schedulers' answer; their refusals are redacted where ``whole`` is not set.

    The decision, once it is kept, shows every caller what it may know.
    """
    try:
        return context.client.select_destinations(body)
    except exceptions.GanttError as e:
        raise (e if whole else redacting.redacted_error(e)) from None


def show_request(context: HandlerContext, caller: Caller, request_id: str) -> RequestView:
    """Show a request with its claims and the answer that was given."""
    return _request_view(context, caller, request_id)


def cancel_request(
    context: HandlerContext, caller: Caller, request_id: str, query: CancelQuery
) -> Change[RequestView]:
    """Take a request back: its reserved claims are released, it stays cancelled."""
    if query.dry_run:
        now = _request_view(context, caller, request_id)
        reserved = _reserved_count(now)
        summary = (
            f'request {now.request_id} would be cancelled, {reserved} reserved claims released'
        )
        return Change(dry_run=True, message=summary, now=now)
    if len(request_id) < _UUID_LENGTH or not caller.everywhere:
        request_id = _request_view(context, caller, request_id).request_id
    # A caller that may cancel everything may cancel a request that has not arrived yet.
    with context.gates.placements.admit(caller):
        context.client.cancel_claims(request_id, query.reason)
    context.insights.reload_soon()
    summary = f'request {request_id} is cancelled'
    return Change(dry_run=False, message=summary, now=_request_view(context, caller, request_id))


def extend_lease(
    context: HandlerContext, caller: Caller, request_id: str, query: DryRun, body: Lease
) -> Change[RequestView]:
    """Lengthen the leases of the reserved claims of a request, never shorten them.

    The schedulers bound how long a lease may be, see ``lease_seconds_max``.
    """
    now = _request_view(context, caller, request_id)
    request_id = now.request_id
    reserved = _reserved_count(now)
    if not reserved:
        raise exceptions.NotFound(kind='request with reserved claims', name=request_id)
    if query.dry_run:
        summary = (
            f'the leases of {reserved} reserved claims would last {body.seconds} s from now on'
        )
        return Change(dry_run=True, message=f'request {request_id}: {summary}', now=now)
    with context.gates.placements.admit(caller):
        context.client.extend_claims(request_id, body.seconds)
    summary = f'request {request_id}: the leases of {reserved} reserved claims are extended'
    return Change(dry_run=False, message=summary, now=_request_view(context, caller, request_id))


def confirm_request(
    context: HandlerContext, caller: Caller, request_id: str, query: DryRun, body: Confirmation
) -> Change[RequestView]:
    """Say that what a request has of pools is in use: its lease ends nothing any more.

    Claims that ended before stay ended: their state says so.
    """
    now = _request_view(context, caller, request_id)
    summary = f'request {now.request_id}: {_live_count(now, body.consumers)} claims'
    if query.dry_run:
        return Change(dry_run=True, message=f'{summary} would be confirmed', now=now)
    with context.gates.placements.admit(caller):
        context.client.confirm_request(now.request_id, body.consumers)
    now = _request_view(context, caller, now.request_id)
    return Change(dry_run=False, message=f'{summary} are confirmed', now=now)


def release_request(
    context: HandlerContext, caller: Caller, request_id: str, query: DryRun, body: Return
) -> Change[RequestView]:
    """Say that what a request has of pools is used no more: its claims end."""
    now = _request_view(context, caller, request_id)
    summary = f'request {now.request_id}: {_live_count(now, body.consumers)} claims'
    if query.dry_run:
        return Change(dry_run=True, message=f'{summary} would be released', now=now)
    with context.gates.placements.admit(caller):
        context.client.release_request(now.request_id, body.consumers, body.reason)
    context.insights.reload_soon()
    now = _request_view(context, caller, now.request_id)
    return Change(dry_run=False, message=f'{summary} are released', now=now)


def _reserved_count(request: RequestView) -> int:
    """Count the reserved claims of a request, here and in child zones."""
    return [claim.state for claim in request.claims].count('reserved')


def _live_count(request: RequestView, consumers: Sequence[str]) -> int:
    """Count the live claims of the consumers of a request, of all where none is named."""
    live = [claim for claim in request.claims if claim.state in ('reserved', 'confirmed')]
    return sum(not consumers or claim.consumer in consumers for claim in live)


def _request_view(context: HandlerContext, caller: Caller, request_id: str) -> RequestView:
    stored, answer, claims = context.insights.request(request_id)
    if not caller.everywhere and not caller.may_see(
        _project_of_request(context, stored.id, claims)
    ):
        raise exceptions.NotFound(kind='request', name=request_id)
    if not context.policy.allows(request_access.HOSTS_POLICY, caller):
        claims = [redacting.redacted_claim(claim) for claim in claims]
    return RequestView(
        request_id=stored.id,
        state=stored.state,
        attempt=stored.attempt,
        answer=None if answer is None else _for_caller(context, caller, answer),
        claims=claims,
    )


def _project_of_request(
    context: HandlerContext, request_id: str, claims: list[ClaimView]
) -> str | None:
    """Return the project of a request, from its claims or else from its stored decision."""
    if claims:
        return claims[0].project_id
    try:
        return context.insights.explain(request_id, public=True).project_id
    except exceptions.NotFound:
        return None


def _for_caller(context: HandlerContext, caller: Caller, answer: Answer) -> Answer:
    """Return an answer, redacted as far as the caller may not read it."""
    shown = answer_for_caller(answer)
    return (
        shown
        if context.policy.allows(request_access.HOSTS_POLICY, caller)
        else redacting.redacted_answer(shown)
    )
