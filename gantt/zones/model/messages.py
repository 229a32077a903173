# SPDX-License-Identifier: Apache-2.0
"""Messages between a parent zone and a child zone: requests and their responses.

The placement request itself is the common one: :class:`SelectDestinations`.  No response names
a host, a descendant zone, or an internal error.
"""

from typing import Annotated

import msgspec

from gantt.core.claims.claim import State
from gantt.core.messages.base import END_PATTERN, LIST_MAX, Message, Name, Text, Uuid, derived_id
from gantt.core.messages.request import HOPS_MAX, PLACES_MAX, Purpose, SelectDestinations
from gantt.core.messages.zone_step import Count, Measure, OneLineText
from gantt.core.records.decision import Outcome

#: Upper bound of the characters of a sealed offer.
TOKEN_MAX = 65_536
Token = Annotated[str, msgspec.Meta(min_length=1, max_length=TOKEN_MAX)]


#: Upper bounds of names in a list of facts, and of shapes in a summary.
FACTS_MAX, SHAPES_MAX = 4096, 64
FactNames = Annotated[list[Text], msgspec.Meta(max_length=FACTS_MAX)]
#: State of a claim, as text.
ClaimState = Annotated[str, msgspec.Meta(pattern=rf'^({"|".join(State)}){END_PATTERN}')]
#: Upper bound of filters, and of rules of a ladder.
NAMES_MAX = 200


class ZoneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Traits, resource classes, availability zones and locations of a zone and its descendants.

    Hosts count in any condition, so that the facts change only with the hosts.

    A list that would be longer than its bound, or that cannot be known, is null.

    :ivar revision: another one after each change
    :ivar traits: that some provider has
    :ivar classes: resource classes of which some provider has an inventory
    :ivar availability_zones: of hosts, the default one included
    :ivar locations: each place in the topology that a host is at or below, site first
    :ivar age: largest age of the facts of descendant zones, in seconds
    """

    revision: OneLineText = ''
    traits: FactNames | None = None
    classes: FactNames | None = None
    availability_zones: FactNames | None = None
    locations: FactNames | None = None
    age: Measure = 0.0


class ZoneSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Free room of a zone and its descendants; counted host by host, and soon outdated.

    :ivar revision: another one after each change
    :ivar facts: revision of the facts
    :ivar fits: shape, such as ``MEMORY_MB:2048,VCPU:1`` -> how many fit
    """

    revision: OneLineText
    facts: OneLineText
    fits: Annotated[dict[Text, Count], msgspec.Meta(max_length=SHAPES_MAX)]


class ZoneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a zone for a parent.

    :ivar name: name by which it is registered with the parent that asks
    :ivar minor: newest minor version of the interface that it serves
    :ivar score_set: names what its scores are made of: those of another set need a scale
    :ivar lease_seconds_max: the longest lease that this parent gets
    :ivar facts: what exists there
    :ivar now: seconds of the clock of its database
    """

    uuid: Uuid
    name: OneLineText
    minor: Count
    score_set: OneLineText
    candidates_max: Count
    lease_seconds_max: Count
    facts: ZoneFacts | None = None
    now: Measure


class ZoneEvaluation(Message, frozen=True, kw_only=True):
    """Ask what a zone has for a request; nothing is claimed and nothing is written.

    :ivar want: largest number of offers
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
    """Number of further members that fit in a zone and its descendants.

    :ivar eligible: hosts that every filter lets pass, of ``hosts``
    :ivar complete: whether all zones below have answered
    """

    count: Count
    eligible: Count
    hosts: Count
    complete: bool = True


class ZoneOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Places that a zone has for a request.

    :ivar token: sealed; what the zone gives for it is judged when it is claimed
    :ivar level: level of the ladder of rules that had to be given up; 0: a perfect match
    :ivar tier: sum of the weighers that are vetoes, with a multiplier of a hundred thousand or
        more; more is better, before the score
    :ivar score: 0 to 1, within a score set
    :ivar fits: number of members of the request that have a place there together
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
    :ivar hosts: number of hosts evaluated, in all zones that answered
    :ivar removed: filter -> hosts that it removed; with ``survivors`` they add up to ``hosts``
    :ivar complete: whether all zones below have answered
    :ivar fits: number of members that have places there in all, over several offers
    """

    outcome: Outcome
    offers: Annotated[list[ZoneOffer], msgspec.Meta(max_length=PLACES_MAX)] = []
    hosts: Count = 0
    survivors: Count = 0
    removed: Annotated[dict[OneLineText, Count], msgspec.Meta(max_length=NAMES_MAX)] = {}
    complete: bool = True
    children: ZonesQueried = ZonesQueried()
    score_set: OneLineText = ''
    fits: Count = 0


class ZoneAllocation(Message, frozen=True, kw_only=True):
    """Claim what was offered: under a key that is the request's id.

    :ivar evaluated: the id under which it was evaluated
    :ivar tokens: in the order in which they are to be tried
    :ivar receipt: sealed by the parent zone for itself; it gets it back with each change
    :ivar order: later ones of a parent zone for one of the consumers are higher, and one that
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
    """The place of one member of a request, in the child zone that answers.

    :ivar sealed_host: encrypted; the zone's own conductor unseals it
    :ivar alternates: other hosts, on which nothing is claimed; sealed likewise
    """

    consumer: Uuid
    claim_id: Uuid
    sealed_host: Token
    lease_seconds: Measure
    alternates: Annotated[list[Token], msgspec.Meta(max_length=PLACES_MAX)] = []


class ZoneAllocated(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an allocation.

    :ivar state: state of its request: ``open``, ``placed`` or ``cancelled``
    """

    key: OneLineText
    state: OneLineText
    members: Annotated[list[PlacedBelow], msgspec.Meta(max_length=LIST_MAX)] = []
    level: Count = 0
    given_up: Annotated[list[OneLineText], msgspec.Meta(max_length=NAMES_MAX)] = []


class ClaimBelow(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of the parent zone that asks, as it is now in the child zone that answers.

    :ivar changed_at: when it changed last, in seconds of the clock of that zone's database
    :ivar group: uuid of its server group there
    :ivar receipt: that came with its allocation
    """

    claim_id: Uuid
    key: OneLineText
    consumer: OneLineText
    state: ClaimState
    changed_at: float = 0.0
    purpose: Purpose = Purpose.CREATE
    group: Uuid | None = None
    receipt: Annotated[str, msgspec.Meta(max_length=TOKEN_MAX)] = ''


class ZoneChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of this parent that have changed since a revision.

    :ivar incarnation: incarnation of the zone's database: where it differs from before, all is to
        be read again
    :ivar revision: revision to query the changes from next time
    :ivar more: whether there are more than these
    """

    incarnation: Count
    revision: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    claims: list[ClaimBelow]
    more: bool = False


class HostDigestsQuery(Message, frozen=True, kw_only=True):
    """Query for the digests of known hosts under a salt, see ``host_digests``.

    :ivar salt: 32 bytes, as hexadecimal digits
    :ivar after: a registration, as hexadecimal digits: those after it
    :ivar hops: levels of descendant zones that are queried as well; 0: hosts of this zone only
    :ivar via: digests of the zones that it has come through
    """

    salt: Annotated[str, msgspec.Meta(max_length=64, pattern=rf'^[0-9a-f]{{64}}{END_PATTERN}')]
    after: Annotated[
        str, msgspec.Meta(max_length=16, pattern=rf'^([0-9a-f]{{16}})?{END_PATTERN}')
    ] = ''
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)] = HOPS_MAX
    via: Annotated[list[Name], msgspec.Meta(max_length=HOPS_MAX)] = []


class HostDigestsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of the hosts of a zone and its descendants, by registration.

    :ivar digests: digests as base64, 32 bytes for each field of a host
    :ivar more: whether there are more than these
    :ivar complete: all child zones have answered
    """

    digests: str
    more: bool
    complete: bool


class UnsealHost(Message, frozen=True, kw_only=True):
    """A call of a conductor to decrypt the host that it is to build on."""

    sealed_host: Token


class ZoneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A direct child zone, as it is registered here.

    :ivar uuid: of the zone, its permanent identity
    :ivar credential: name of a section of the file of credentials that is used to call it; '':
        none, loopback only
    :ivar last_resort: queried only if no other zone has room
    :ivar trusted: it has the same owner, and receives all fields of a request
    :ivar scale: factor of its scores; ``offset``: added to the product
    :ivar synced_incarnation: of this zone's database when all claims of the child were read
        last; 0: never
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
    synced_incarnation: int = 0
    trusted: bool = False


class UnsealedHost(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a sealed host: a claim of this zone, or a host sealed by a descendant zone.

    :ivar host: name of the claim's host; ``topic``: topic of the agent there that builds
    :ivar child: name of the child zone, which unseals ``sealed_host``
    :ivar is_alternate: nothing is claimed there; ``claim_id`` and ``state`` are empty then
    """

    claim_id: str = ''
    consumer: str = ''
    state: str = ''
    host: str = ''
    topic: str = ''
    layout: dict | None = None
    child: str = ''
    sealed_host: str = ''
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


def scoped_id(parent: str, name: str) -> str:
    """Return the local uuid of an allocation or server group of a parent zone.

    So it cannot collide with names of this zone's own callers, or of another parent zone.

    :param parent: name of the parent zone
    """
    return derived_id('of a zone above', parent, name)
