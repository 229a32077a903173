# SPDX-License-Identifier: Apache-2.0
"""Claims: resources promised to a consumer on a host."""

import msgspec

from gantt import exceptions
from gantt.http.queries import ClaimsQuery, ReleaseQuery
from gantt.http.world import Caller, World
from gantt.scheduler.views import Change, ClaimView


class Claims(msgspec.Struct, frozen=True):
    """A page of claims, by id."""

    claims: list[ClaimView]
    next_marker: str | None


def list_claims(world: World, caller: Caller, query: ClaimsQuery) -> Claims:
    """List the claims, tombstones included."""
    found = world.insights.claims(
        state=query.state.value if query.state else None,
        host=query.host,
        consumer=query.consumer,
        request_id=query.request_id,
        limit=query.limit + 1,
        marker=query.marker,
    )
    page = found[: query.limit]
    return Claims(claims=page, next_marker=page[-1].id if len(found) > len(page) else None)


def show_claim(world: World, caller: Caller, claim_id: str) -> ClaimView:
    """Show one claim, live or tombstone."""
    return world.insights.claim(claim_id)


def release_claim(
    world: World, caller: Caller, claim_id: str, query: ReleaseQuery
) -> Change[ClaimView]:
    """Force a live claim to end; the guest, if there is one, is not touched.

    A guest that goes on running is adopted by the next report of its host.
    """
    claim = world.insights.claim(claim_id)
    if claim.state not in ('reserved', 'confirmed'):
        raise exceptions.Refused(
            f'claim {claim.id} ended before: it is {claim.state}', claim_id=claim.id
        )
    if query.dry_run:
        said = f'claim {claim.id} on {claim.host} would be released: {query.reason}'
        return Change(dry_run=True, what=said, now=claim)
    result = world.store.force_release(claim.id, query.reason)
    world.insights.offer(result.hosts)
    said = f'claim {claim.id} on {claim.host} is released: {query.reason}'
    return Change(dry_run=False, what=said, now=world.insights.claim(claim.id))
