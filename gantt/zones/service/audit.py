# SPDX-License-Identifier: Apache-2.0
"""The audit over this zone and its child zones: everything is read, then compared.

The rows of this zone are read first, then the claims of each zone, then the rows of this zone
again: so that nothing appears lost or unknown only because it is on its way.  A consumer in two
places is checked a second time before it is a finding.
"""

import concurrent.futures
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.child_claim import HOLDING_STATES, ChildClaim
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import HOPS_MAX
from gantt.zones.model import audit, host_digests
from gantt.zones.model.audit import ClaimRow, DoubleClaim, ReportedClaims
from gantt.zones.model.host_digests import HostDigests
from gantt.zones.model.messages import ClaimBelow, HostDigestsQuery, ZoneRecord
from gantt.zones.ports import ZoneCalls, ZoneStores

#: Timeouts of one call, in seconds.
CALL_SECONDS, DIGESTS_SECONDS = 10.0, 30.0
#: Maximum number of pages of one zone: beyond it the zone is not compared.
PAGES_MAX = 2000
#: Zones that are called at once.
CONCURRENT_ZONES_MAX = 16
#: Maximum number of lines of one kind, and of doubles that are checked again.
LINES_MAX = 200


class AuditedZone(msgspec.Struct, frozen=True, kw_only=True):
    """A child zone that was compared.

    :ivar claims: number of claims of this zone that live there, as it reports
    :ivar hosts: number of hosts of it and its child zones
    :ivar restored: number of the claims that were forgotten here and restored
    :ivar problem: what could not be compared, and why; '': everything was compared
    """

    zone: str
    claims: int = 0
    hosts: int = 0
    restored: int = 0
    problem: str = ''


class ZoneFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings by kind, as of the audit of one database."""

    zones: list[AuditedZone]
    lines: dict[str, list[str]]


class _ZoneReading(msgspec.Struct, kw_only=True):
    """Data read of one zone."""

    zone: ZoneRecord
    reported: ReportedClaims | None = None
    digests: list[HostDigests] = []
    problem: str = ''


class ZoneAudit:
    """Audit of claims and hosts over this zone and its child zones."""

    def __init__(self, stores: ZoneStores, calls: ZoneCalls) -> None:
        self._registry = stores.zones
        self._figures = stores.zone_figures
        self._below = stores.child_claims
        self._zones = calls

    def run(self) -> ZoneFindings:
        """Read and compare all zones.  :raises DatabaseUnavailable:"""
        children = self._registry.child_zones()
        if not children:
            return ZoneFindings(zones=[], lines={})
        own_uuid, salt = (
            self._registry.zone_identity().uuid,
            secrets.token_bytes(host_digests.SALT_BYTES),
        )
        with concurrent.futures.ThreadPoolExecutor(CONCURRENT_ZONES_MAX) as threads:
            results = list(
                threads.map(lambda zone: self._read_zone(zone, own_uuid, salt), children)
            )
        reported = [result.reported for result in results if result.reported is not None]
        own_digests = {
            host.name: host_digests.digests_of(host, own_uuid, salt)
            for host in self._figures.registered_hosts()
        }
        below = {result.zone.name: result.digests for result in results}
        by_name = {zone.name: zone for zone in children}
        doubled = [double.line for double in self._double_claims(reported, by_name)]
        lines = {
            'lost': [line for claims in reported for line in audit.lost_claims(claims)],
            'leaked': [line for claims in reported for line in audit.leaked_claims(claims)],
            'doubled': [*doubled, *audit.double_registrations(own_digests, below, salt)],
        }
        figures = self._figures.claims_to_check()
        zones = [
            AuditedZone(
                zone=result.zone.name,
                claims=_live(result.reported.claims.values()) if result.reported else 0,
                hosts=len(result.digests),
                restored=figures[result.zone.uuid].restored if result.zone.uuid in figures else 0,
                problem=result.problem,
            )
            for result in results
        ]
        return ZoneFindings(
            zones=zones, lines={kind: _first_lines(findings) for kind, findings in lines.items()}
        )

    # -- one zone ----------------------------------------------------------------------
    def _read_zone(self, zone: ZoneRecord, own_uuid: str, salt: bytes) -> _ZoneReading:
        result = _ZoneReading(zone=zone)
        try:
            result.reported = self._reported_claims(zone)
        except exceptions.GanttError as e:
            result.problem = f'its claims are not known: {e.message}'
            return result
        try:
            result.digests, complete = self._digests(zone, own_uuid, salt)
            if not complete:
                result.problem = 'not all of its hosts are known: one of its child zones is silent'
        except exceptions.GanttError as e:
            result.problem = f'its hosts are not known: {e.message}'
        return result

    def _reported_claims(self, zone: ZoneRecord) -> ReportedClaims:
        before = [row for row in self._below.find(child=zone.uuid) if row.state in HOLDING_STATES]
        info = self._zones.discover(zone, CALL_SECONDS)
        claims: dict[str, ClaimBelow] = {}
        since, after, incarnation = 0.0, '', None
        for _ in range(PAGES_MAX):
            page = self._zones.changes(zone, since, CALL_SECONDS, after)
            if incarnation not in (None, page.incarnation):
                raise exceptions.Unavailable('its database was restored while its claims were read')
            incarnation = page.incarnation
            claims.update((claim.claim_id, claim) for claim in page.claims)
            if not page.more or not page.claims:
                break
            since, after = page.revision, page.claims[-1].claim_id
        else:
            raise exceptions.Unavailable(f'it has more than {PAGES_MAX} pages of claims')
        rows_after = self._below.find(child=zone.uuid)
        return ReportedClaims(
            zone=zone.name,
            rows=[_claim_row(row) for row in before],
            rows_after=frozenset(row.claim_id for row in rows_after),
            claims=claims,
            lease_seconds_max=info.lease_seconds_max,
            now=info.now,
        )

    def _digests(
        self, zone: ZoneRecord, own_uuid: str, salt: bytes
    ) -> tuple[list[HostDigests], bool]:
        """Return digests of the hosts of a zone and its descendants, and whether all are known."""
        found_digests: list[HostDigests] = []
        query = HostDigestsQuery(
            salt=salt.hex(), hops=HOPS_MAX - 1, via=[hop_digest(salt.hex(), own_uuid)]
        )
        complete = True
        for _ in range(PAGES_MAX):
            page, more, whole = read_digests_page(self._zones, zone, query, DIGESTS_SECONDS)
            found_digests += page
            complete = complete and whole
            if not more:
                return found_digests, complete
            query = msgspec.structs.replace(query, after=page[-1].registration.hex())
        raise exceptions.Unavailable(f'it has more than {PAGES_MAX} pages of hosts')

    # -- two places ----------------------------------------------------------------------
    def _double_claims(
        self, reported: Sequence[ReportedClaims], by_name: dict[str, ZoneRecord]
    ) -> list[DoubleClaim]:
        places = [(claims.zone, row) for claims in reported for row in audit.live_rows(claims)]
        consumers = {row.consumer for _, row in places}
        places += [('', row) for row in self._figures.live_claims_here(consumers)]
        suspects = audit.double_claims(places)[:LINES_MAX]
        if not suspects:
            return []
        # Each of them lived when it was read: now all of them at once, or it was a move.
        here = {
            row.claim_id
            for row in self._figures.live_claims_here({double.consumer for double in suspects})
        }
        return [
            double
            for double in suspects
            if all(
                self._is_live(by_name[zone], row) if zone else row.claim_id in here
                for zone, row in double.places
            )
        ]

    def _is_live(self, zone: ZoneRecord, row: ClaimRow) -> bool:
        try:
            allocated = self._zones.allocation(zone, row.key, CALL_SECONDS)
        except exceptions.GanttError:
            return True  # it did a moment ago
        return allocated is not None and allocated.state == 'placed'


def hop_digest(salt: str, zone: str) -> str:
    """Return the digest by which a zone detects a query that came through it before."""
    return derived_id('via', salt, zone)


def read_digests_page(
    zones: ZoneCalls, zone: ZoneRecord, query: HostDigestsQuery, seconds: float
) -> tuple[list[HostDigests], bool, bool]:
    """Return a page of a zone's digests, whether more follow, and whether all below it answered.

    :raises Unavailable: no answer, or an inconsistent one
    """
    page = zones.host_digests(zone, query, seconds)
    try:
        found_digests = host_digests.parse_digests(page.digests)
    except ValueError as e:
        raise exceptions.Unavailable(f'zone {zone.name}: {e}') from None
    end = bytes.fromhex(query.after)
    ordered = sorted(found_digests)
    if (
        ordered != found_digests
        or (found_digests and found_digests[0].registration <= end)
        or (page.more and not found_digests)
    ):
        raise exceptions.Unavailable(f'zone {zone.name}: its pages do not follow one another')
    return found_digests, page.more, page.complete


def _claim_row(claim: ChildClaim) -> ClaimRow:
    return ClaimRow(claim.claim_id, claim.consumer, claim.purpose, claim.state, claim.key)


def _live(claims: Iterable[ClaimBelow]) -> int:
    return sum(claim.state in audit.LIVE_STATES for claim in claims)


def _first_lines(lines: list[str]) -> list[str]:
    if len(lines) <= LINES_MAX:
        return lines
    return [*lines[:LINES_MAX], f'and {len(lines) - LINES_MAX} more over zones']
