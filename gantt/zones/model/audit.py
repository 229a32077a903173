# SPDX-License-Identifier: Apache-2.0
"""Audit checks between a zone and its child zones: a line for each finding.

Pure functions of the records of this zone, and of each child zone's report of the claims of this
zone and of the digests of its hosts.  Transient differences are left out: an end that is not noted
here yet, and a reservation that its lease will end.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gantt.core.messages.request import Purpose
from gantt.zones.model import host_digests
from gantt.zones.model.host_digests import HostDigests
from gantt.zones.model.messages import ClaimBelow

#: Time until a claim's end below is noted here, or an unanswered reservation there ends.
GRACE_SECONDS = 80.0
LIVE_STATES = ('reserved', 'confirmed')


class ClaimRow(msgspec.Struct, frozen=True):
    """A live claim of a request of this zone, as it is stored here.

    :ivar key: the request's id in the child zone; '': the claim is on a host of this zone
    """

    claim_id: str
    consumer: str
    purpose: Purpose
    state: str
    key: str = ''


class ReportedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Report of one child zone, and the records of its claims here.

    :ivar rows: live claims there as they were stored here before it was called
    :ivar rows_after: ids of all claims there that are known here, read after it was called
    :ivar claims: claims of this zone as it reports them, by id
    :ivar lease_seconds_max: the longest lease that it grants
    :ivar now: the clock of its database, in seconds
    """

    zone: str
    rows: Sequence[ClaimRow]
    rows_after: frozenset[str]
    claims: Mapping[str, ClaimBelow]
    lease_seconds_max: float
    now: float = 0.0

    def age(self, claim: ClaimBelow) -> float:
        """Return the seconds since a claim changed last."""
        return max(0.0, self.now - claim.changed_at)


class DoubleClaim(msgspec.Struct, frozen=True):
    """A consumer that seems to have two live claims for one purpose, here or below.

    :ivar places: name of the child zone ('': this one) and the claim, for each
    """

    consumer: str
    places: list[tuple[str, ClaimRow]]

    @property
    def line(self) -> str:
        """Line of the audit."""
        where = ' and '.join(f'in zone {zone}' if zone else 'here' for zone, _ in self.places)
        purpose = self.places[0][1].purpose.value
        return f'consumer {self.consumer}: has live claims for {purpose} {where}'


def lost_claims(reported: ReportedClaims) -> Iterator[str]:
    """Yield a line for each claim that is live here, but not in the child zone that has it."""
    for row in reported.rows:
        claim = reported.claims.get(row.claim_id)
        subject = f'claim {row.claim_id} of {row.consumer}: {row.state} as it is known here'
        if claim is None:
            yield f'{subject}, zone {reported.zone} does not know it'
        elif claim.state not in LIVE_STATES and (age := reported.age(claim)) > GRACE_SECONDS:
            yield f'{subject}, {claim.state} in zone {reported.zone} for {age:.0f} s'


def leaked_claims(reported: ReportedClaims) -> Iterator[str]:
    """Yield a line for each claim of this zone that is live in a child zone and not known here."""
    age_max = reported.lease_seconds_max + GRACE_SECONDS
    for claim_id, claim in sorted(reported.claims.items()):
        if claim.state not in LIVE_STATES or claim_id in reported.rows_after:
            continue
        # A reservation ends with its lease, also if its response was lost.
        if claim.state == 'confirmed' or reported.age(claim) > age_max:
            yield (
                f'claim {claim_id} of {claim.consumer}: {claim.state} in zone {reported.zone}, '
                'and not known here'
            )


def live_rows(reported: ReportedClaims) -> list[ClaimRow]:
    """Return the claims that are live both here and there."""
    return [
        row
        for row in reported.rows
        if (claim := reported.claims.get(row.claim_id)) is not None and claim.state in LIVE_STATES
    ]


def double_claims(places: Iterable[tuple[str, ClaimRow]]) -> list[DoubleClaim]:
    """Return consumers with more than one live claim for one purpose, over all zones.

    :param places: name of a child zone ('': this one), and a live claim there
    """
    by_consumer: dict[tuple[str, Purpose], list[tuple[str, ClaimRow]]] = {}
    for zone, row in places:
        by_consumer.setdefault((row.consumer, row.purpose), []).append((zone, row))
    # Two claims in one zone are found by the audit of its own database.
    return [
        DoubleClaim(consumer, claim_places)
        for (consumer, _), claim_places in sorted(by_consumer.items())
        if len({zone for zone, _ in claim_places}) > 1
    ]


def double_registrations(
    own: Mapping[str, HostDigests], below: Mapping[str, Sequence[HostDigests]], salt: bytes
) -> Iterator[str]:
    """Yield a line for each host registered in two zones; hosts of child zones by their digest.

    :param own: digests of this zone's hosts, by name
    :param below: name of a child zone -> digests of hosts there and further down
    """
    names = {first_digests.registration: name for name, first_digests in own.items()}
    for zone, child_digests in below.items():
        for pair in host_digests.find_double_registrations(list(own.values()), child_digests):
            name = names[pair.first.registration]
            yield (
                f'host {name}: is registered here and in zone {zone} or below it, '
                f'with the same {pair.identifier}'
            )
    for (first, first_digests), (second, second_digests) in itertools.combinations(
        below.items(), 2
    ):
        for pair in host_digests.find_double_registrations(first_digests, second_digests):
            digests = f'{pair.first.registration.hex()} and {pair.second.registration.hex()}'
            yield (
                f'host {digests} under {salt.hex()}: is registered in zones {first} and {second} '
                f'or below them, with the same {pair.identifier}'
            )
