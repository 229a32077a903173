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
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import HOPS_MAX
from gantt.core.zones import audit, host_digests
from gantt.core.zones.audit import ClaimRow, Double, ReportedClaims
from gantt.core.zones.host_digests import HostDigests
from gantt.core.zones.messages import ClaimBelow, HostDigestsQuery, ZoneRecord
from gantt.scheduler import ports
from gantt.scheduler.ports.zones import HOLDS, StoredBelow, ZoneFigures, ZoneRegistry, Zones

#: Timeouts of one call, in seconds.
CALL_SECONDS, MARKS_SECONDS = 10.0, 30.0
#: Maximum number of pages of one zone: beyond it the zone is not compared.
PAGES_MAX = 2000
#: Zones that are called at once.
AT_ONCE = 16
#: Maximum number of lines of one kind, and of doubles that are checked again.
LINES_MAX = 200


class AuditedZone(msgspec.Struct, frozen=True, kw_only=True):
    """A child zone that was compared.

    :ivar claims: number of claims of this zone that live there, as it reports
    :ivar hosts: number of hosts of it and its child zones
    :ivar read_back: number of the claims that were forgotten here and read back
    :ivar problem: what could not be compared, and why; '': everything was compared
    """

    zone: str
    claims: int = 0
    hosts: int = 0
    read_back: int = 0
    problem: str = ''


class ZoneFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings by kind, as of the audit of one database."""

    zones: list[AuditedZone]
    lines: dict[str, list[str]]


class _Read(msgspec.Struct, kw_only=True):
    """Data read of one zone."""

    zone: ZoneRecord
    reported: ReportedClaims | None = None
    marks: list[HostDigests] = []
    problem: str = ''


class ZoneAudit:
    """The audit, see the module docstring."""

    def __init__(
        self,
        registry: ZoneRegistry,
        figures: ZoneFigures,
        below: ports.ZoneClaims,
        zones: Zones,
    ) -> None:
        self._registry, self._figures = registry, figures
        self._below, self._zones = below, zones

    def run(self) -> ZoneFindings:
        """Read and compare all zones.  :raises DatabaseUnavailable:"""
        children = self._registry.child_zones()
        if not children:
            return ZoneFindings(zones=[], lines={})
        own_uuid, salt = (
            self._registry.zone_identity().uuid,
            secrets.token_bytes(host_digests.SALT_BYTES),
        )
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
            results = list(threads.map(lambda zone: self._read(zone, own_uuid, salt), children))
        reported = [result.reported for result in results if result.reported is not None]
        own_marks = {
            host.name: host_digests.digests_of(host, own_uuid, salt)
            for host in self._figures.registered_hosts()
        }
        below = {result.zone.name: result.marks for result in results}
        by_name = {zone.name: zone for zone in children}
        doubled = [double.line for double in self._doubles(reported, by_name)]
        lines = {
            'lost': [line for claims in reported for line in audit.lost(claims)],
            'leaked': [line for claims in reported for line in audit.leaked(claims)],
            'doubled': [*doubled, *audit.hosts_twice(own_marks, below, salt)],
        }
        figures = self._figures.claims_to_look_at()
        zones = [
            AuditedZone(
                zone=result.zone.name,
                claims=_live(result.reported.claims.values()) if result.reported else 0,
                hosts=len(result.marks),
                read_back=figures[result.zone.uuid].read_back if result.zone.uuid in figures else 0,
                problem=result.problem,
            )
            for result in results
        ]
        return ZoneFindings(
            zones=zones, lines={kind: _first(findings) for kind, findings in lines.items()}
        )

    # -- one zone ----------------------------------------------------------------------
    def _read(self, zone: ZoneRecord, own_uuid: str, salt: bytes) -> _Read:
        result = _Read(zone=zone)
        try:
            result.reported = self._claims(zone)
        except exceptions.GanttError as e:
            result.problem = f'its claims are not known: {e.message}'
            return result
        try:
            result.marks, complete = self._marks(zone, own_uuid, salt)
            if not complete:
                result.problem = 'not all hosts below it are known: a zone there is silent'
        except exceptions.GanttError as e:
            result.problem = f'its hosts are not known: {e.message}'
        return result

    def _claims(self, zone: ZoneRecord) -> ReportedClaims:
        before = [row for row in self._below.child_claims(child=zone.uuid) if row.state in HOLDS]
        info = self._zones.discover(zone, CALL_SECONDS)
        claims: dict[str, ClaimBelow] = {}
        since, after, incarnation = 0.0, '', None
        for _ in range(PAGES_MAX):
            page = self._zones.changes(zone, since, CALL_SECONDS, after)
            if incarnation not in (None, page.incarnation):
                raise exceptions.Unavailable('its database was put back just now')
            incarnation = page.incarnation
            claims.update((claim.claim_id, claim) for claim in page.claims)
            if not page.more or not page.claims:
                break
            since, after = page.revision, page.claims[-1].claim_id
        else:
            raise exceptions.Unavailable(f'it has more than {PAGES_MAX} pages of claims')
        rows_after = self._below.child_claims(child=zone.uuid)
        return ReportedClaims(
            zone=zone.name,
            rows=[_row(row) for row in before],
            rows_after=frozenset(row.claim_id for row in rows_after),
            claims=claims,
            lease_seconds_max=info.lease_seconds_max,
            now=info.now,
        )

    def _marks(
        self, zone: ZoneRecord, own_uuid: str, salt: bytes
    ) -> tuple[list[HostDigests], bool]:
        """Return the marks of a zone's hosts and those below it, and whether all are known."""
        host_marks: list[HostDigests] = []
        query = HostDigestsQuery(
            salt=salt.hex(), hops=HOPS_MAX - 1, via=[via_of(salt.hex(), own_uuid)]
        )
        complete = True
        for _ in range(PAGES_MAX):
            page, more, whole = page_of(self._zones, zone, query, MARKS_SECONDS)
            host_marks += page
            complete = complete and whole
            if not more:
                return host_marks, complete
            query = msgspec.structs.replace(query, after=page[-1].registration.hex())
        raise exceptions.Unavailable(f'it has more than {PAGES_MAX} pages of hosts')

    # -- two places ----------------------------------------------------------------------
    def _doubles(
        self, reported: Sequence[ReportedClaims], by_name: dict[str, ZoneRecord]
    ) -> list[Double]:
        places = [(claims.zone, row) for claims in reported for row in audit.live_rows(claims)]
        consumers = {row.consumer for _, row in places}
        places += [('', row) for row in self._here(consumers)]
        suspects = audit.doubles(places)[:LINES_MAX]
        if not suspects:
            return []
        # Each of them lived when it was read: now all of them at once, or it was a move.
        here = {row.claim_id for row in self._here({double.consumer for double in suspects})}
        return [
            double
            for double in suspects
            if all(
                self._lives(by_name[zone], row) if zone else row.claim_id in here
                for zone, row in double.places
            )
        ]

    def _here(self, consumers: set[str]) -> list[ClaimRow]:
        return [
            ClaimRow(claim.claim_id, claim.consumer, claim.purpose, 'live')
            for claim in self._figures.live_here(consumers)
        ]

    def _lives(self, zone: ZoneRecord, row: ClaimRow) -> bool:
        try:
            allocated = self._zones.allocation(zone, row.key, CALL_SECONDS)
        except exceptions.GanttError:
            return True  # it did a moment ago
        return allocated is not None and allocated.state == 'placed'


def via_of(salt: str, zone: str) -> str:
    """Return the digest by which a zone detects a query for marks that came through it before."""
    return derived_id('via', salt, zone)


def page_of(
    zones: Zones, zone: ZoneRecord, query: HostDigestsQuery, seconds: float
) -> tuple[list[HostDigests], bool, bool]:
    """Return a page of a zone's marks, whether more follow, and whether all below it answered.

    :raises Unavailable: no answer, or an inconsistent one
    """
    page = zones.marks(zone, query, seconds)
    try:
        host_marks = host_digests.read(page.digests)
    except ValueError as e:
        raise exceptions.Unavailable(f'zone {zone.name}: {e}') from None
    end = bytes.fromhex(query.after)
    ordered = sorted(host_marks)
    if (
        ordered != host_marks
        or (host_marks and host_marks[0].registration <= end)
        or (page.more and not host_marks)
    ):
        raise exceptions.Unavailable(f'zone {zone.name}: its pages do not follow one another')
    return host_marks, page.more, page.complete


def _row(one: StoredBelow) -> ClaimRow:
    return ClaimRow(one.claim_id, one.consumer, one.purpose, one.state, one.key)


def _live(claims: Iterable[ClaimBelow]) -> int:
    return sum(claim.state in audit.LIVE for claim in claims)


def _first(lines: list[str]) -> list[str]:
    if len(lines) <= LINES_MAX:
        return lines
    return [*lines[:LINES_MAX], f'and {len(lines) - LINES_MAX} more over zones']
