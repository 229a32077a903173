# SPDX-License-Identifier: Apache-2.0
"""Messages between a parent zone and a child zone: requests and their responses.

The placement request itself is the common one: :class:`SelectDestinations`.  No response names
a host, a zone further down, or an internal error.
"""

from typing import Annotated

import msgspec

from gantt.core.claims.claim import State
from gantt.core.messages.base import END, LIST_MAX, Message, Name, Text, Uuid
from gantt.core.messages.request import HOPS_MAX, PLACES_MAX, Purpose, SelectDestinations
from gantt.core.records.decision import Outcome

#: Upper bound of the characters of a sealed offer.
TOKEN_MAX = 65_536
Token = Annotated[str, msgspec.Meta(min_length=1, max_length=TOKEN_MAX)]


#: Bounds of a zone's response: one beyond them cannot be read.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Measure = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Line = Annotated[str, msgspec.Meta(max_length=255)]
#: Upper bounds of names in a list of facts, and of shapes in a summary.
FACTS_MAX, SHAPES_MAX = 4096, 64
FactNames = Annotated[list[Text], msgspec.Meta(max_length=FACTS_MAX)]
#: State of a claim that its zone lost, as its database was restored: it may still be live.
LOST = 'lost'
#: State of a claim, as text.
ClaimState = Annotated[str, msgspec.Meta(pattern=rf'^({"|".join(State)}){END}')]
#: Upper bound of filters, and of rules of a ladder.
NAMES_MAX = 200


class ZoneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that exist in a zone and below it, in any condition: they change with its hosts only.

    A list that would be longer than its bound, or that cannot be known, is null.

    :ivar revision: another one after each change
    :ivar traits: that some provider has
    :ivar classes: resource classes of which some provider has an inventory
    :ivar availability_zones: of hosts, the default one included
    :ivar locations: each place in the topology that a host is at or below, site first
    :ivar age: seconds; so old may be what is in it of zones further down
    """

    revision: Line = ''
    traits: FactNames | None = None
    classes: FactNames | None = None
    availability_zones: FactNames | None = None
    locations: FactNames | None = None
    age: Measure = 0.0


class ZoneSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Free room of a zone and those below it; counted host by host, and soon outdated.

    :ivar revision: another one after each change
    :ivar facts: revision of the facts
    :ivar fits: shape, such as ``MEMORY_MB:2048,VCPU:1`` -> how many fit
    """

    revision: Line
    facts: Line
    fits: Annotated[dict[Text, Count], msgspec.Meta(max_length=SHAPES_MAX)]


class ZoneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a zone for a parent.

    :ivar name: by which it is registered with the parent that asks
    :ivar minor: of the interface, the newest that it serves
    :ivar score_set: names what its scores are made of: those of another set need a scale
    :ivar lease_seconds_max: the longest lease that this parent gets
    :ivar facts: what exists there
    :ivar now: seconds of the clock of its database
    """

    uuid: Uuid
    name: Line
    minor: Count
    score_set: Line
    candidates_max: Count
    lease_seconds_max: Count
    facts: ZoneFacts | None = None
    now: Measure


class ZoneEvaluation(Message, frozen=True, kw_only=True):
    """Ask what a zone has for a request; nothing is claimed and nothing is written.

    :ivar want: offers at most
    :ivar key: of the allocation that the guest came with, which is to be rebuilt where it is: only
        its host is looked at; null: it is no rebuild
    """

    request: SelectDestinations
    want: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)] = 5
    key: Uuid | None = None


class ZoneCapacityOf(Message, frozen=True, kw_only=True):
    """Ask how many more of the one member of a request fit."""

    request: SelectDestinations


class ZoneCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """Number of further members that fit in a zone and those below it.

    :ivar eligible: hosts that every filter lets pass, of ``hosts``
    :ivar complete: everybody below has answered
    """

    count: Count
    eligible: Count
    hosts: Count
    complete: bool = True


class ZoneOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Places that a zone has for a request.

    :ivar token: sealed; what the zone gives for it is judged when it is claimed
    :ivar level: of the ladder of rules, what had to be given up; 0: a perfect match
    :ivar tier: of weighers that count by the million; more is better, before the score
    :ivar score: 0 to 1, within a score set
    :ivar fits: so many members of the request have a place there together
    """

    token: Token
    level: Count
    tier: Measure
    score: Measure
    fits: Count


class ZonesQueried(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of child zones that were queried, by outcome."""

    queried: Count = 0
    answered: Count = 0
    silent: Count = 0
    not_queried: Count = 0


class ZoneEvaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Evaluation of a request by a zone.

    :ivar outcome: ``placed``: there are offers; ``no_valid_host``: there is no room, which is
        final where ``complete``; else why that is not known
    :ivar hosts: that were looked at, in all zones that answered
    :ivar removed: filter -> hosts that it removed; with ``survivors`` they add up to ``hosts``
    :ivar complete: everybody below has answered
    :ivar fits: so many members have places there in all, over several offers
    """

    outcome: Outcome
    offers: Annotated[list[ZoneOffer], msgspec.Meta(max_length=PLACES_MAX)] = []
    hosts: Count = 0
    survivors: Count = 0
    removed: Annotated[dict[Line, Count], msgspec.Meta(max_length=NAMES_MAX)] = {}
    complete: bool = True
    children: ZonesQueried = ZonesQueried()
    score_set: Line = ''
    fits: Count = 0


class ZoneAllocation(Message, frozen=True, kw_only=True):
    """Claim what was offered: under a key that is the request's id.

    :ivar evaluated: the id under which it was evaluated
    :ivar tokens: in the order in which they are to be tried
    :ivar receipt: sealed by the zone above for itself; it gets it back with each change
    :ivar order: later ones of a zone above for one of the consumers have a higher one, and one that
        comes after a later one is refused
    """

    request: SelectDestinations
    evaluated: Uuid
    tokens: Annotated[list[Token], msgspec.Meta(min_length=1, max_length=PLACES_MAX)]
    order: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    receipt: Annotated[str, msgspec.Meta(max_length=TOKEN_MAX)] = ''


class ZoneLease(Message, frozen=True, kw_only=True):
    """Lease of the reserved claims of an allocation, in seconds from now on."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class PlacedBelow(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one member in a zone.

    :ivar place: sealed: the zone's own conductor redeems it for the host
    :ivar alternates: other hosts, on which nothing is claimed; sealed likewise
    """

    consumer: Uuid
    claim_id: Uuid
    place: Token
    lease_seconds: Measure
    alternates: Annotated[list[Token], msgspec.Meta(max_length=PLACES_MAX)] = []


class ZoneAllocated(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an allocation.

    :ivar state: of its request: ``open``, ``placed`` or ``cancelled``
    """

    key: Line
    state: Line
    members: Annotated[list[PlacedBelow], msgspec.Meta(max_length=LIST_MAX)] = []
    level: Count = 0
    given_up: Annotated[list[Line], msgspec.Meta(max_length=NAMES_MAX)] = []


class ClaimBelow(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a parent as it is now.

    :ivar changed_at: when it changed last, in seconds of the clock of that zone's database
    :ivar group: uuid of its server group there
    :ivar receipt: that came with its allocation
    """

    claim_id: Uuid
    key: Line
    consumer: Line
    state: ClaimState
    changed_at: float = 0.0
    purpose: Purpose = Purpose.CREATE
    group: Uuid | None = None
    receipt: Annotated[str, msgspec.Meta(max_length=TOKEN_MAX)] = ''


class ZoneChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of this parent that have changed since a revision.

    :ivar incarnation: of the zone's database: after another one all is to be read again
    :ivar revision: to ask from next time
    :ivar more: there are more than these
    """

    incarnation: Count
    revision: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    claims: list[ClaimBelow]
    more: bool = False


class HostDigestsQuery(Message, frozen=True, kw_only=True):
    """Query for the digests of known hosts under a salt: see ``marks``.

    :ivar salt: 32 bytes, as hexadecimal digits
    :ivar after: a registration, as hexadecimal digits: those behind it
    :ivar hops: zones further down that are asked as well; 0: hosts of this zone only
    :ivar via: digests of the zones that it has come through
    """

    salt: Annotated[str, msgspec.Meta(max_length=64, pattern=rf'^[0-9a-f]{{64}}{END}')]
    after: Annotated[str, msgspec.Meta(max_length=16, pattern=rf'^([0-9a-f]{{16}})?{END}')] = ''
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)] = HOPS_MAX
    via: Annotated[list[Name], msgspec.Meta(max_length=HOPS_MAX)] = []


class HostDigestsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of the hosts of a zone and of those below it, by registration.

    :ivar digests: as base64, 32 bytes for each host
    :ivar more: there are more than these
    :ivar complete: all zones below have answered
    """

    digests: str
    more: bool
    complete: bool


class Redeem(Message, frozen=True, kw_only=True):
    """A sealed place, to be built on."""

    place: Token


class ZoneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A direct child zone, as it is registered here.

    :ivar uuid: of the zone, its permanent identity
    :ivar credential: name of a section of the file of credentials that is used to call it; '':
        none, loopback only
    :ivar last_resort: queried only if no other zone has room
    :ivar trusted: it has the same owner, and receives all fields of a request
    :ivar scale: factor of its scores; ``offset``: added to the product
    :ivar own_incarnation: of this zone's database when its claims below were read last; 0: never
    """

    uuid: Uuid
    name: Name
    url: Text
    credential: Text = ''
    enabled: bool = True
    last_resort: bool = False
    scale: float = 1.0
    offset: float = 0.0
    score_set: str = ''
    incarnation: int = 0
    revision: float = 0.0
    own_incarnation: int = 0
    trusted: bool = False


class RedeemedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a sealed place: a claim of this zone, or a place in a zone further down.

    :ivar host: where the claim is; ``topic``: of the agent there that builds
    :ivar child: name of the zone directly below, which redeems ``place``
    :ivar is_alternate: nothing is claimed there; ``claim_id`` and ``state`` are empty then
    """

    claim_id: str = ''
    consumer: str = ''
    state: str = ''
    host: str = ''
    topic: str = ''
    layout: dict | None = None
    child: str = ''
    place: str = ''
    is_alternate: bool = False


class ParentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A parent zone that may query this zone, as it is registered: a tenant with limits.

    :ivar identity: of its credential: the user's id in the identity service of this zone, or,
        without authentication, the one that it sends from the same machine
    :ivar project_id: project with the quota, rate and rules of its claims
    :ivar lease_seconds_max: the longest lease that it gets
    :ivar trusted: it has the same owner, and may set and read fields limited to operators
    :ivar certificate_sha256: digest of the client certificate that it must present, as hexadecimal
        digits; '': none
    """

    name: Name
    identity: Name
    project_id: Name
    enabled: bool = True
    lease_seconds_max: Annotated[int, msgspec.Meta(ge=5, le=86_400)] = 600
    trusted: bool = False
    certificate_sha256: str = ''


class ExplainedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Step of a zone with one of those where it could place a request: itself, or one below it.

    :ivar is_own: the zone's own hosts
    :ivar round: in which it was queried, from 1; 0: it was not, or is the zone itself
    :ivar by: the strategy that left it out, and why in ``reason``
    :ivar taken: members that have their place there
    """

    is_own: bool
    round: Count
    after: Measure
    seconds: Measure
    outcome: Line
    offers: Count
    level: Count
    score: Measure
    hosts: Count
    survivors: Count
    removed: Annotated[dict[Line, Count], msgspec.Meta(max_length=NAMES_MAX)]
    by: Line
    reason: Text
    taken: Count
    below: 'ZoneExplanation | None' = None


class ZoneExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of an allocation in a zone, without names of its hosts or of zones below it.

    :ivar hosts: that were looked at; ``survivors`` and those of ``removed``, by filter, add up to
        them
    :ivar zones: where it was placed over zones, that zone itself first
    """

    key: Line
    outcome: Line
    level: Count
    attempts: Count
    hosts: Count
    survivors: Count
    removed: Annotated[dict[Line, Count], msgspec.Meta(max_length=NAMES_MAX)]
    zones: Annotated[list[ExplainedShare], msgspec.Meta(max_length=NAMES_MAX)] = []
