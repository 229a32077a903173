# SPDX-License-Identifier: Apache-2.0
"""What is wrong between a zone and those directly below it: a line for each finding.

Pure: it gets what was read here, and what each zone below reported of the claims of this one and of
the marks of its hosts.  What only looks wrong while things move is left out: an end that is not
noted here yet, and a reservation that its lease will end.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gantt.core.messages.request import Purpose
from gantt.core.zones import marks
from gantt.core.zones.marks import HostMarks
from gantt.core.zones.messages import ClaimBelow

#: Until what has ended below is noted here, or what was reserved there and never answered ends.
GRACE_SECONDS = 80.0
LIVE = ('reserved', 'confirmed')


class ClaimRow(msgspec.Struct, frozen=True):
    """A live claim of a request of here, as it stands here.

    :ivar key: the request's id in the zone below; '': the claim is on a host of this zone
    """

    claim_id: str
    consumer: str
    purpose: Purpose
    state: str
    key: str = ''


class ZoneClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What one zone below reported, and what was known of it here.

    :ivar rows: live claims there as they stood here before it was called
    :ivar rows_after: ids of all claims there that are known here, read after it was called
    :ivar claims: of this zone, as it says, by id
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
        """Seconds since a claim changed last."""
        return max(0.0, self.now - claim.changed_at)


class Double(msgspec.Struct, frozen=True):
    """A consumer that seems to have two live claims for one purpose, here or below.

    :ivar places: name of the zone below ('': this one) and the claim, for each
    """

    consumer: str
    places: list[tuple[str, ClaimRow]]

    @property
    def line(self) -> str:
        """As the audit shows it."""
        where = ' and '.join(f'in zone {zone}' if zone else 'here' for zone, _ in self.places)
        purpose = self.places[0][1].purpose.value
        return f'consumer {self.consumer}: has live claims for {purpose} {where}'


def lost(reported: ZoneClaims) -> Iterator[str]:
    """Claims that live as this zone knows it, and not as the zone does where they are to be."""
    for row in reported.rows:
        there = reported.claims.get(row.claim_id)
        words = f'claim {row.claim_id} of {row.consumer}: {row.state} as it is known here'
        if there is None:
            yield f'{words}, zone {reported.zone} does not know it'
        elif there.state not in LIVE and (age := reported.age(there)) > GRACE_SECONDS:
            yield f'{words}, {there.state} in zone {reported.zone} for {age:.0f} s'


def leaked(reported: ZoneClaims) -> Iterator[str]:
    """Claims of this zone that live in a zone below, and that this one knows nothing of."""
    most = reported.lease_seconds_max + GRACE_SECONDS
    for claim_id, there in sorted(reported.claims.items()):
        if there.state not in LIVE or claim_id in reported.rows_after:
            continue
        # What is reserved ends with its lease: so an answer that was never heard of is ended.
        if there.state == 'confirmed' or reported.age(there) > most:
            yield (
                f'claim {claim_id} of {there.consumer}: {there.state} in zone {reported.zone}, '
                'and not known here'
            )


def live_rows(reported: ZoneClaims) -> list[ClaimRow]:
    """Claims that live here and there."""
    return [
        row
        for row in reported.rows
        if (there := reported.claims.get(row.claim_id)) is not None and there.state in LIVE
    ]


def doubles(places: Iterable[tuple[str, ClaimRow]]) -> list[Double]:
    """Consumers with more than one live claim for one purpose, over all zones.

    :param places: name of a zone below ('': this one), and a live claim there
    """
    by_consumer: dict[tuple[str, Purpose], list[tuple[str, ClaimRow]]] = {}
    for zone, row in places:
        by_consumer.setdefault((row.consumer, row.purpose), []).append((zone, row))
    # Two of one place are found by the audit of its own database.
    return [
        Double(consumer, of)
        for (consumer, _), of in sorted(by_consumer.items())
        if len({zone for zone, _ in of}) > 1
    ]


def hosts_twice(
    own: Mapping[str, HostMarks], below: Mapping[str, Sequence[HostMarks]], salt: bytes
) -> Iterator[str]:
    """Hosts that are registered in two places; those of other zones are named by their digest.

    :param own: of this zone, by name
    :param below: name of a zone below -> marks of hosts there and further down
    """
    names = {one.registration: name for name, one in own.items()}
    for zone, theirs in below.items():
        for found in marks.twice(list(own.values()), theirs):
            name = names[found.first.registration]
            yield (
                f'host {name}: is registered here and in zone {zone} or below it, '
                f'with the same {found.by}'
            )
    for (first, one), (second, other) in itertools.combinations(below.items(), 2):
        for found in marks.twice(one, other):
            digests = f'{found.first.registration.hex()} and {found.second.registration.hex()}'
            yield (
                f'host {digests} under {salt.hex()}: is registered in zones {first} and {second} '
                f'or below them, with the same {found.by}'
            )
