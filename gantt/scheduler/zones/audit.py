# SPDX-License-Identifier: Apache-2.0
"""The audit over this zone and those directly below: everything is read, then compared.

What this zone knows is read first, then what each zone says, then what this zone knows again: so
that nothing looks lost or unknown only because it is on its way.  A consumer in two places is
looked at a second time before it is a finding.
"""

import concurrent.futures
import secrets
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import HOPS_MAX
from gantt.core.zones import audit, marks
from gantt.core.zones.audit import ClaimRow, Double, ZoneClaims
from gantt.core.zones.marks import HostMarks
from gantt.core.zones.messages import ClaimBelow, HostMarksQuery, ZoneRecord
from gantt.scheduler.ports import StoredBelow
from gantt.scheduler.ports.zones import HOLDS, ZoneFigures, ZoneRegistry, ZoneRequests, Zones

#: What one call may take.
CALL_SECONDS, MARKS_SECONDS = 10.0, 30.0
#: Pages of one zone: beyond it the zone is not compared.
PAGES_MAX = 2000
#: Zones that are called at once.
AT_ONCE = 16
#: Lines of one kind; doubles that are looked at again.
LINES_MAX = 200


class AuditStore(ZoneFigures, ZoneRegistry, ZoneRequests, Protocol):
    """What is read of the database."""


class AuditedZone(msgspec.Struct, frozen=True, kw_only=True):
    """A zone below that was compared.

    :ivar claims: of this zone that live there, as it says
    :ivar hosts: that it and those below it have
    :ivar read_back: of the claims, those that were forgotten here and read back
    :ivar problem: what could not be compared, and why; '': all was
    """

    zone: str
    claims: int = 0
    hosts: int = 0
    read_back: int = 0
    problem: str = ''


class ZoneFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, by kind as of the audit of one database."""

    zones: list[AuditedZone]
    lines: dict[str, list[str]]


class _Read(msgspec.Struct, kw_only=True):
    """What was read of one zone."""

    zone: ZoneRecord
    reported: ZoneClaims | None = None
    marks: list[HostMarks] = []
    problem: str = ''


class ZoneAudit:
    """See the module docstring."""

    def __init__(self, store: AuditStore, zones: Zones) -> None:
        self._store, self._zones = store, zones

    def run(self) -> ZoneFindings:
        """Compare.  :raises DatabaseUnavailable:"""
        children = self._store.child_zones()
        if not children:
            return ZoneFindings(zones=[], lines={})
        own_uuid, salt = self._store.zone_identity().uuid, secrets.token_bytes(marks.SALT_BYTES)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
            found = list(threads.map(lambda zone: self._read(zone, own_uuid, salt), children))
        reported = [one.reported for one in found if one.reported is not None]
        own = {
            host.name: marks.marks_of(host, own_uuid, salt)
            for host in self._store.registered_hosts()
        }
        below = {one.zone.name: one.marks for one in found}
        by_name = {zone.name: zone for zone in children}
        doubled = [one.line for one in self._doubles(reported, by_name)]
        lines = {
            'lost': [line for one in reported for line in audit.lost(one)],
            'leaked': [line for one in reported for line in audit.leaked(one)],
            'doubled': [*doubled, *audit.hosts_twice(own, below, salt)],
        }
        noted = self._store.claims_to_look_at()
        zones = [
            AuditedZone(
                zone=one.zone.name,
                claims=_live(one.reported.claims.values()) if one.reported else 0,
                hosts=len(one.marks),
                read_back=noted[one.zone.uuid].read_back if one.zone.uuid in noted else 0,
                problem=one.problem,
            )
            for one in found
        ]
        return ZoneFindings(zones=zones, lines={kind: _first(of) for kind, of in lines.items()})

    # -- one zone ----------------------------------------------------------------------
    def _read(self, zone: ZoneRecord, own_uuid: str, salt: bytes) -> _Read:
        found = _Read(zone=zone)
        try:
            found.reported = self._claims(zone)
        except exceptions.GanttError as e:
            found.problem = f'its claims are not known: {e.message}'
            return found
        try:
            found.marks, complete = self._marks(zone, own_uuid, salt)
            if not complete:
                found.problem = 'not all hosts below it are known: a zone there is silent'
        except exceptions.GanttError as e:
            found.problem = f'its hosts are not known: {e.message}'
        return found

    def _claims(self, zone: ZoneRecord) -> ZoneClaims:
        before = [one for one in self._store.claims_below(child=zone.uuid) if one.state in HOLDS]
        info = self._zones.discover(zone, CALL_SECONDS)
        claims: dict[str, ClaimBelow] = {}
        since, after, incarnation = 0.0, '', None
        for _ in range(PAGES_MAX):
            page = self._zones.changes(zone, since, CALL_SECONDS, after)
            if incarnation not in (None, page.incarnation):
                raise exceptions.Unavailable('its database was put back just now')
            incarnation = page.incarnation
            claims.update((one.claim_id, one) for one in page.claims)
            if not page.more or not page.claims:
                break
            since, after = page.revision, page.claims[-1].claim_id
        else:
            raise exceptions.Unavailable(f'it has more than {PAGES_MAX} pages of claims')
        known = self._store.claims_below(child=zone.uuid)
        return ZoneClaims(
            zone=zone.name,
            rows=[_row(one) for one in before],
            rows_after=frozenset(one.claim_id for one in known),
            claims=claims,
            lease_seconds_max=info.lease_seconds_max,
            now=info.now,
        )

    def _marks(self, zone: ZoneRecord, own_uuid: str, salt: bytes) -> tuple[list[HostMarks], bool]:
        """Of its hosts and those below it, and whether all are known."""
        found: list[HostMarks] = []
        query = HostMarksQuery(
            salt=salt.hex(), hops=HOPS_MAX - 1, via=[via_of(salt.hex(), own_uuid)]
        )
        complete = True
        for _ in range(PAGES_MAX):
            read, more, whole = page_of(self._zones, zone, query, MARKS_SECONDS)
            found += read
            complete = complete and whole
            if not more:
                return found, complete
            query = msgspec.structs.replace(query, after=read[-1].registration.hex())
        raise exceptions.Unavailable(f'it has more than {PAGES_MAX} pages of hosts')

    # -- two places ----------------------------------------------------------------------
    def _doubles(
        self, reported: Sequence[ZoneClaims], by_name: dict[str, ZoneRecord]
    ) -> list[Double]:
        places = [(one.zone, row) for one in reported for row in audit.live_rows(one)]
        consumers = {row.consumer for _, row in places}
        places += [('', row) for row in self._here(consumers)]
        suspects = audit.doubles(places)[:LINES_MAX]
        if not suspects:
            return []
        # Each of them lived when it was looked at: now all of them at once, or it was a move.
        here = {row.claim_id for row in self._here({one.consumer for one in suspects})}
        return [
            one
            for one in suspects
            if all(
                self._lives(by_name[zone], row) if zone else row.claim_id in here
                for zone, row in one.places
            )
        ]

    def _here(self, consumers: set[str]) -> list[ClaimRow]:
        return [
            ClaimRow(one.claim_id, one.consumer, one.purpose, 'live')
            for one in self._store.live_here(consumers)
        ]

    def _lives(self, zone: ZoneRecord, row: ClaimRow) -> bool:
        try:
            found = self._zones.allocation(zone, row.key, CALL_SECONDS)
        except exceptions.GanttError:
            return True  # it did a moment ago
        return found is not None and found.state == 'placed'


def via_of(salt: str, zone: str) -> str:
    """By what a zone finds out that a look at marks has come through it before."""
    return derived_id('via', salt, zone)


def page_of(
    zones: Zones, zone: ZoneRecord, query: HostMarksQuery, seconds: float
) -> tuple[list[HostMarks], bool, bool]:
    """A page of marks of a zone, whether there are more, and whether all below it have answered.

    :raises Unavailable: no answer, or none that makes sense
    """
    page = zones.marks(zone, query, seconds)
    try:
        found = marks.read(page.marks)
    except ValueError as e:
        raise exceptions.Unavailable(f'zone {zone.name}: {e}') from None
    end = bytes.fromhex(query.after)
    ordered = sorted(found)
    if ordered != found or (found and found[0].registration <= end) or (page.more and not found):
        raise exceptions.Unavailable(f'zone {zone.name}: its pages do not follow one another')
    return found, page.more, page.complete


def _row(one: StoredBelow) -> ClaimRow:
    return ClaimRow(one.claim_id, one.consumer, one.purpose, one.state, one.key)


def _live(claims: Iterable[ClaimBelow]) -> int:
    return sum(one.state in audit.LIVE for one in claims)


def _first(lines: list[str]) -> list[str]:
    if len(lines) <= LINES_MAX:
        return lines
    return [*lines[:LINES_MAX], f'and {len(lines) - LINES_MAX} more over zones']
