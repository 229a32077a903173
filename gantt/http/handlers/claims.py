# SPDX-License-Identifier: Apache-2.0
"""Handlers of claims: resources promised to a consumer on a host."""

from gantt import exceptions
from gantt.core.claims.claim import LIVE_STATES, LOST_STATE
from gantt.http import request_access
from gantt.http.context import Caller, HandlerContext
from gantt.http.links import Paged
from gantt.http.queries import ClaimsQuery, ReleaseQuery, page_of
from gantt.insights.explain import redacting
from gantt.insights.views import Change, ClaimView

UUID_LENGTH = 36


class ClaimsResponse(Paged, frozen=True, kw_only=True):
    """A page of claims, by id."""

    claims: list[ClaimView]


def list_claims(context: HandlerContext, caller: Caller, query: ClaimsQuery) -> ClaimsResponse:
    """List the claims of the project, or of all, tombstones included."""
    if query.host is not None:
        # The list of a caller's claims on a host reveals where they are.
        context.policy.check(request_access.HOSTS_POLICY, caller)
    if query.lost and query.state is not None:
        raise exceptions.invalid(
            'query.lost',
            f'expected only one of lost and state; what is {query.state.value} is not lost',
        )
    claims = context.insights.claims(
        state=LOST_STATE if query.lost else query.state,
        host=query.host,
        consumer=query.consumer,
        request_id=query.request_id,
        limit=query.limit + 1,
        marker=query.marker,
        project=caller.project_filter,
    )
    page, marker = page_of(claims, query.limit, 'id')
    shown = [_for_caller(context, caller, claim) for claim in page]
    return ClaimsResponse(claims=shown, next_marker=marker)


def show_claim(context: HandlerContext, caller: Caller, claim_id: str) -> ClaimView:
    """Show one claim, live or tombstone."""
    return _for_caller(context, caller, _find_claim(context, caller, claim_id))


def _find_claim(context: HandlerContext, caller: Caller, claim_id: str) -> ClaimView:
    """Return a claim, for callers of one project by whole id only: a prefix could match others'."""
    if not caller.everywhere and len(claim_id) != UUID_LENGTH:
        raise exceptions.NotFound(kind='claim', name=claim_id)
    claim = context.insights.claim(claim_id)
    if not caller.may_see(claim.project_id):
        raise exceptions.NotFound(kind='claim', name=claim_id)
    return claim


def _for_caller(context: HandlerContext, caller: Caller, claim: ClaimView) -> ClaimView:
    """Return a claim, redacted as far as the caller may not read it."""
    return (
        claim
        if context.policy.allows(request_access.HOSTS_POLICY, caller)
        else redacting.redacted_claim(claim)
    )


def release_claim(
    context: HandlerContext, caller: Caller, claim_id: str, query: ReleaseQuery
) -> Change[ClaimView]:
    """Force a live claim to end; the guest, if there is one, is not touched.

    A guest that goes on running is adopted by the next report of its host.
    """
    claim = _find_claim(context, caller, claim_id)
    if claim.state not in (*LIVE_STATES, LOST_STATE):
        raise exceptions.Refused(
            f'claim {claim.id} ended before: it is {claim.state}', claim_id=claim.id
        )
    if claim.child:
        ends = 'cancel its request here, or release it there'
        if claim.state == LOST_STATE:
            ends = 'which does not know it any more; cancel its request here'
        raise exceptions.Refused(
            f'claim {claim.id} is in zone {claim.child}; {ends}', claim_id=claim.id
        )
    if query.dry_run:
        summary = f'claim {claim.id} on {claim.host} would be released: {query.reason}'
        return Change(dry_run=True, message=summary, now=claim)
    result = context.stores.claims.force_release(claim.id, query.reason)
    context.insights.offer(result.hosts)
    summary = f'claim {claim.id} on {claim.host} is released: {query.reason}'
    return Change(dry_run=False, message=summary, now=context.insights.claim(claim.id))
