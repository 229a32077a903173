# SPDX-License-Identifier: Apache-2.0
"""Promises that must hold in a tree when the trouble is over, checked from outside."""

from collections.abc import Collection, Iterable, Sequence

from devel.sim import judge
from devel.sim.trees.callers import TreeCallers
from devel.sim.trees.plan import TreeFaultPlan
from devel.sim.trees.sites import ZoneSite
from devel.sim.trees.watch import LiveClaim, TreeWatch
from gantt.core.claims.claim import LIVE
from gantt.core.zones.messages import LOST
from gantt.scheduler.zones.share_claimer import RESOLVE_SECONDS

#: After its budget a request queries the state of an allocation, then has it end.
LATE_SECONDS = judge.LATE_SECONDS + 2 * RESOLVE_SECONDS
OF_PARENT = 'SELECT id FROM claims WHERE live = 1 AND parent_key = ?'
BELOW = 'SELECT claim_id, child, state, request_id FROM child_claims'


def violations(
    plan: TreeFaultPlan,
    watch: TreeWatch,
    sites: Sequence[ZoneSite],
    callers: Sequence[TreeCallers],
) -> list[str]:
    """Return a line for each promise that was not kept."""
    live = {site.name: watch.live(site.name) for site in sites}
    # What a zone has lost is not known to have ended: its parent zones get no report of it.
    lost_ids = {row[0] for site in sites for row in site.database.rows(BELOW) if row[2] == LOST}
    violated = [*watch.broken]
    for site in sites:
        audit = site.database.stores.claims.audit()
        violated += [
            f'audit of {site.name}, {k}: {line}' for k, lines in audit.items() for line in lines
        ]
        violated += _guests_have_claims(site, live[site.name])
        violated += _claims_have_guests(site, live[site.name])
        violated += _known_above(site, live, lost_ids)
        for process in site.all_processes:
            # Who was frozen has answered when it could.
            if process.alive and not process.frozen_until:
                violated += judge.nobody_waits(process, LATE_SECONDS)
    for caller in callers:
        if not watch.restored:
            violated += caller.broken
            violated += judge.one_outcome(caller)
    return violated


def _guests_have_claims(site: ZoneSite, live: Iterable[LiveClaim]) -> Iterable[str]:
    confirmed = {(claim.host, claim.consumer) for claim in live if claim.state == 'confirmed'}
    for host in site.hosts:
        yield from host.machine.wrong
        for guest in host.machine.running.values():
            if (host.name, guest.consumer) not in confirmed:
                yield f'P2: guest {guest.claim_id} runs on {host.name} without a live claim'


def _claims_have_guests(site: ZoneSite, live: Iterable[LiveClaim]) -> Iterable[str]:
    running = {
        (host.name, guest.consumer)
        for host in site.hosts
        for guest in host.machine.running.values()
    }
    for claim in live:
        if (claim.host, claim.consumer) not in running:
            yield f'Z7: claim {claim.id} on {claim.host} is {claim.state}, and nothing runs'


def _known_above(
    site: ZoneSite, live: dict[str, list[LiveClaim]], lost: Collection[str]
) -> Iterable[str]:
    """Check that a zone knows what its requests have below, and nothing else."""

    def of(one: ZoneSite) -> set[str]:
        return {claim.id for claim in live[one.name]}.union(*map(of, one.below))

    records = site.database.rows(BELOW)
    for child in site.below:
        live_ids = of(child)
        states = {row[0]: row[2] for row in records if row[1] == child.uuid}
        for claim_id, state in states.items():
            if claim_id not in lost and (state in LIVE) != (claim_id in live_ids):
                where = 'lives' if claim_id in live_ids else 'does not live'
                yield f'Z8: {site.name} has {claim_id} in {child.name} as {state}; it {where}'
        of_parent = {row[0] for row in child.database.rows(OF_PARENT, site.name)}
        for claim_id in sorted(of_parent - states.keys()):
            yield f'Z8: {site.name} does not know of {claim_id} in {child.name}'
