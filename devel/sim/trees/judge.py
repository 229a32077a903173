# SPDX-License-Identifier: Apache-2.0
"""Promises between zones that must hold when the trouble is over, beside the checks of writes."""

from collections.abc import Collection, Iterable, Sequence

from devel.sim.sites import ZoneSite
from devel.sim.trees.watch import LiveClaim, TreeWatch
from gantt.core.claims.claim import LIVE_STATES, LOST_STATE

CLAIMS_OF_PARENT = 'SELECT id FROM claims WHERE live = 1 AND parent_key = ?'
CHILD_CLAIMS = 'SELECT claim_id, child, state, request_id FROM child_claims'


def violations(watch: TreeWatch, sites: Sequence[ZoneSite]) -> list[str]:
    """Return a line for each promise that was not kept."""
    live = {site.name: watch.live(site.name) for site in sites}
    # What a zone has lost is not known to have ended: its parent zones get no report of it.
    lost_ids = {
        row[0]
        for database in watch.databases.values()
        for row in database.rows(CHILD_CLAIMS)
        if row[2] == LOST_STATE
    }
    violated = [*watch.broken]
    for site in sites:
        violated += _known_above(site, watch, live, lost_ids)
    return violated


def _known_above(
    site: ZoneSite,
    watch: TreeWatch,
    live: dict[str, list[LiveClaim]],
    lost: Collection[str],
) -> Iterable[str]:
    """Check that a zone knows what its requests have below, and nothing else."""

    def in_and_below(zone: ZoneSite) -> set[str]:
        return {claim.id for claim in live[zone.name]}.union(*map(in_and_below, zone.below))

    records = watch.databases[site.name].rows(CHILD_CLAIMS)
    for child in site.below:
        live_ids = in_and_below(child)
        states = {row[0]: row[2] for row in records if row[1] == child.uuid}
        for claim_id, state in states.items():
            if claim_id not in lost and (state in LIVE_STATES) != (claim_id in live_ids):
                where = 'lives' if claim_id in live_ids else 'does not live'
                yield f'Z8: {site.name} has {claim_id} in {child.name} as {state}; it {where}'
        of_parent = {
            row[0] for row in watch.databases[child.name].rows(CLAIMS_OF_PARENT, site.name)
        }
        for claim_id in sorted(of_parent - states.keys()):
            yield f'Z8: {site.name} does not know of {claim_id} in {child.name}'
