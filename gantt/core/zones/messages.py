# SPDX-License-Identifier: Apache-2.0
"""What a parent asks of a zone below it, and what that answers.

The request itself is the one of every other door: :class:`SelectDestinations`.  No answer names
a host, a zone further down, or what went wrong inside.
"""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Message, Name, Text, Uuid
from gantt.core.messages.request import PLACES_MAX, SelectDestinations
from gantt.core.records.decision import Outcome

#: Of one offer, sealed.
TOKEN_MAX = 65_536
Token = Annotated[str, msgspec.Meta(min_length=1, max_length=TOKEN_MAX)]


class ZoneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a zone says of itself to a parent.

    :ivar name: by which it is registered with the parent that asks
    :ivar minor: of the interface, the newest that it serves
    :ivar score_set: names what its scores are made of: those of another set need a scale
    :ivar lease_seconds_max: the longest lease that this parent gets
    """

    uuid: str
    name: str
    minor: int
    score_set: str
    candidates_max: int
    lease_seconds_max: int


class ZoneEvaluation(Message, frozen=True, kw_only=True):
    """Ask what a zone has for a request; nothing is claimed and nothing is written.

    :ivar want: offers at most
    """

    request: SelectDestinations
    want: Annotated[int, msgspec.Meta(ge=1, le=PLACES_MAX)] = 5


class ZoneOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Places that a zone has for a request.

    :ivar token: sealed; what the zone gives for it is judged when it is claimed
    :ivar level: of the ladder of rules, what had to be given up; 0: a perfect match
    :ivar tier: of weighers that count by the million; more is better, before the score
    :ivar score: 0 to 1, within a score set
    :ivar fits: so many members of the request have a place there together
    """

    token: str
    level: int
    tier: float
    score: float
    fits: int


class ZonesQueried(msgspec.Struct, frozen=True, kw_only=True):
    """How many zones directly below were queried, and what became of it."""

    queried: int = 0
    answered: int = 0
    silent: int = 0
    not_queried: int = 0


class ZoneEvaluated(msgspec.Struct, frozen=True, kw_only=True):
    """What a zone has for a request.

    :ivar outcome: ``placed``: there are offers; ``no_valid_host``: there is no room, which is
        final where ``complete``; else why that is not known
    :ivar hosts: that were looked at, in all zones that answered
    :ivar removed: filter -> hosts that it removed; with ``survivors`` they add up to ``hosts``
    :ivar complete: everybody below has answered
    """

    outcome: Outcome
    offers: list[ZoneOffer] = []
    hosts: int = 0
    survivors: int = 0
    removed: dict[str, int] = {}
    complete: bool = True
    children: ZonesQueried = ZonesQueried()
    score_set: str = ''


class ZoneAllocation(Message, frozen=True, kw_only=True):
    """Claim what was offered: under a key that is the request's id.

    :ivar evaluated: the id under which it was evaluated
    :ivar tokens: in the order in which they are to be tried
    """

    request: SelectDestinations
    evaluated: Uuid
    tokens: Annotated[list[Token], msgspec.Meta(min_length=1, max_length=PLACES_MAX)]


class PlacedBelow(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one member in a zone.

    :ivar place: sealed: the zone's own conductor redeems it for the host
    """

    consumer: str
    claim_id: str
    place: str
    lease_seconds: float


class ZoneAllocated(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an allocation.

    :ivar state: of its request: ``open``, ``placed`` or ``cancelled``
    """

    key: str
    state: str
    members: list[PlacedBelow] = []
    level: int = 0
    given_up: list[str] = []


class ClaimBelow(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a parent as it is now."""

    claim_id: str
    key: str
    consumer: str
    state: str


class ZoneChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of this parent that have changed since a revision.

    :ivar incarnation: of the zone's database: after another one all is to be read again
    :ivar revision: to ask from next time
    :ivar more: there are more than these
    """

    incarnation: int
    revision: float
    claims: list[ClaimBelow]
    more: bool = False


class Redeem(Message, frozen=True, kw_only=True):
    """A sealed place, to be built on."""

    place: Token


class ZoneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A zone directly below, as it is registered here.

    :ivar uuid: of the zone: it is the same one as long as it is this one
    :ivar credential: what is used to speak to it: the name of a section of the file of
        credentials; '': none, loopback only
    :ivar last_resort: asked where nothing else has room
    :ivar scale: ``offset``: what its scores are multiplied with, and what is added then
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


class RedeemedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """What a sealed place stands for: a claim of this zone, or a place in one further down.

    :ivar host: where the claim is; ``topic``: of the agent there that builds
    :ivar child: name of the zone directly below, which redeems ``place``
    """

    claim_id: str = ''
    consumer: str = ''
    state: str = ''
    host: str = ''
    topic: str = ''
    layout: dict | None = None
    child: str = ''
    place: str = ''


class ParentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A zone above that may ask here, as it is registered: a tenant with limits.

    :ivar identity: of its credential: the user's id in the identity service of this zone, or,
        where nobody is asked for a token, the one that it gives itself from the same machine
    :ivar project_id: whose quota, rate and rules its claims come under
    :ivar lease_seconds_max: the longest lease that it gets
    """

    name: Name
    identity: Name
    project_id: Name
    enabled: bool = True
    lease_seconds_max: Annotated[int, msgspec.Meta(ge=5, le=86_400)] = 600
