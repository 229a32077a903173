# SPDX-License-Identifier: Apache-2.0
"""Zones: those around this one, what is claimed below, and the calls to those directly below."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import RequestOutcome
from gantt.core.messages.request import GroupRef, Purpose
from gantt.core.resources.group_rule import GroupRule
from gantt.core.zones.keys import own_name
from gantt.core.zones.marks import RegisteredHost
from gantt.core.zones.messages import (
    LOST,
    ClaimBelow,
    HostMarksPage,
    HostMarksQuery,
    ParentRecord,
    ZoneAllocated,
    ZoneAllocation,
    ZoneCapacity,
    ZoneCapacityOf,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneExplanation,
    ZoneInfo,
    ZoneRecord,
    ZoneSummary,
)

#: States of a claim below that holds its consumer: it lives, or may.
HOLDS = (State.RESERVED.value, State.CONFIRMED.value, LOST)
_STATES = frozenset(State)


class ZoneIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who this zone is.

    :ivar secret: what its offers are sealed with
    :ivar incarnation: of its database
    """

    uuid: str
    secret: bytes
    incarnation: int


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may go down, before anything is claimed for it.

    :ivar attempt: its number where the row is new
    :ivar takes_over: the attempt to replace of a row that is past its deadline
    :ivar seconds: until it is
    :ivar stays: it is for hosts of this zone alone: what its consumers have on them is judged when
        it is committed
    :ivar group: as the request has it
    :ivar project_id: of the request
    :ivar of_parent: it is of a zone above
    :ivar rule_generation: of the rule of the group, as that zone says
    """

    id: str
    fingerprint: str
    owner: str
    attempt: int
    takes_over: int | None = None
    seconds: float
    consumers: Sequence[str]
    purpose: Purpose
    stays: bool = False
    group: GroupRef | None = None
    project_id: str | None = None
    of_parent: bool = False
    rule_generation: int | None = None


class OpenedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of opening a request.

    :ivar outcome: why it is not ours, as for a commit; None: it is, and nothing of it is claimed
    :ivar opening: of whoever has it open, another one each time: the keys of what it claims in
        other zones follow from it
    :ivar order: of the opening: later ones for one of its consumers have a higher one
    :ivar rule: of its group, stored in the same transaction
    """

    outcome: RequestOutcome | None
    opening: str
    order: int = 0
    rule: GroupRule | None = None


class StoredBelow(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that a request of here has in a zone below.

    :ivar child: uuid of the zone
    :ivar key: the request's id there
    :ivar parent: name of the zone above that asked; None: none did
    :ivar state: as of a claim, or ``lost``
    :ivar group: uuid of the server group
    :ivar read_back: it was forgotten here, and the zone knew it
    :ivar resources: class -> the most that was asked for; empty: not known here
    """

    claim_id: str
    child: str
    request_id: str
    key: str
    consumer: str
    purpose: Purpose
    project_id: str | None
    parent: str | None = None
    state: str
    place: str
    group: str | None = None
    read_back: bool = False
    resources: dict[str, int] = {}
    user_id: str | None = None
    consumer_type: str = 'INSTANCE'
    created_at: float = 0.0
    updated_at: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it lives, or may."""
        return self.state in HOLDS

    @property
    def claim(self) -> Claim:
        """As a claim: of a host that is named to nobody here."""
        is_lost, is_known = self.state == LOST, self.state in _STATES
        return Claim(
            id=self.claim_id,
            request_id=self.request_id,
            consumer=self.consumer,
            provider_id=0,
            state=State(self.state) if is_known else State.CONFIRMED,
            purpose=self.purpose,
            allocations={0: self.resources} if self.resources else {},
            group=self.group,
            parent_key=self.parent,
            project_id=self.project_id,
            user_id=self.user_id,
            consumer_type=self.consumer_type,
            created_at=self.created_at,
            updated_at=self.updated_at,
            child=self.child,
            is_lost=is_lost,
            problem='' if is_known or is_lost else f'state: {self.state!r} is not known',
        )


class OwnShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that was split has on hosts of here: claimed under a key of its own.

    :ivar key: the id of the share's request
    :ivar members: id of a claim -> number of its member in the whole request
    :ivar parent: name of the zone above that asked; None: none did
    """

    key: str
    members: dict[str, int]
    parent: str | None = None


class ChangedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a zone above as it is now.

    :ivar at: when it changed last, in seconds of the database's clock
    """

    claim: ClaimBelow
    at: float


class LiveClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Live claims that are of more than one zone.

    :ivar children: uuid of a zone below -> claims of requests of here that live there
    :ivar parents: name of a zone above -> its claims that live here or below
    """

    children: dict[str, int]
    parents: dict[str, int]


class ToLookAt(NamedTuple):
    """Claims in a zone below that somebody is to look at.

    :ivar lost: the zone does not know them any more
    :ivar read_back: live ones that were forgotten here, and of which no caller is known
    :ivar doubled: of consumers that have one for the same purpose here, as of a guest that was
        found running
    """

    lost: int
    read_back: int
    doubled: int


class LiveHere(NamedTuple):
    """A live claim on a host of this zone."""

    claim_id: str
    consumer: str
    purpose: Purpose


class ZoneFigures(Protocol):
    """What is counted and compared over zones."""

    def live_claims_over_zones(self) -> LiveClaims:
        """How many live claims there are by zone."""

    def claims_to_look_at(self) -> dict[str, ToLookAt]:
        """By uuid of a zone below that has some."""

    def registered_hosts(self) -> list[RegisteredHost]:
        """All hosts of this zone, by name."""

    def live_here(self, consumers: Collection[str]) -> list[LiveHere]:
        """Live claims of consumers on hosts of this zone, but for moves."""


class ZoneRegistry(Protocol):
    """Who this zone is, and the zones around it."""

    def zone_identity(self) -> ZoneIdentity:
        """Who this zone is; made by the first call."""

    def child_zones(self) -> list[ZoneRecord]:
        """The zones directly below, by name."""

    def save_child_zone(self, zone: ZoneRecord) -> None:
        """Register one, or write what is set of it; the revision is left.

        :raises Refused: another one has the name, or it has another name
        """

    def remove_child_zone(self, uuid: str) -> None:
        """Forget one.  :raises InUse: claims live there"""

    def parent_zones(self) -> list[ParentRecord]:
        """The zones above that may ask, by name."""

    def save_parent_zone(self, parent: ParentRecord) -> None:
        """Register one, or write what is set of it.  :raises Refused: another has the identity"""

    def remove_parent_zone(self, name: str) -> None:
        """Forget one.  :raises NotFound, InUse: its claims live here or below"""


class DueGiveBack(NamedTuple):
    """An allocation, or one claim of it, that is to end in a zone which has not heard of it.

    :ivar child: uuid of the zone below, or of this one
    :ivar key: the request's id there, or that of the claim
    :ivar tries: with this one
    :ivar seconds: since it is known that it is to end
    """

    child: str
    key: str
    tries: int
    seconds: float


class WaitingGiveBacks(NamedTuple):
    """What zones have not heard of yet.

    :ivar seconds: of the oldest
    """

    number: int
    seconds: float


class LeftRequest(NamedTuple):
    """A request that may have gone down, and whose owner has left it.

    :ivar opening: from which the keys of what it may have claimed follow
    """

    request_id: str
    opening: str


class ZoneGiveBacks(Protocol):
    """Allocations that are to end: as long as their zone has not heard of it they stand here."""

    def add_give_backs(self, pairs: Collection[tuple[str, str]], seconds: float = 0.0) -> None:
        """Have allocations given back, each by zone and key; or claims, by zone and id.

        :param seconds: until the first try
        """

    def due_give_backs(self, limit: int) -> list[DueGiveBack]:
        """Those whose time it is, the oldest first; who gets one tries, others for now do not."""

    def end_give_backs(self, pairs: Collection[tuple[str, str]]) -> None:
        """Their zones have heard of it, or need not any more."""

    def give_backs_waiting(self) -> WaitingGiveBacks:
        """How many there are."""

    def left_requests(self, limit: int) -> list[LeftRequest]:
        """Some that are open beyond their time; called again it looks at others."""

    def leave_request(self, left: LeftRequest) -> None:
        """Forget one that is left still; what it may have claimed is given back."""


class AllocationAbove(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that a zone above has sent, before it is carried out.

    :ivar parent: name of the zone above, by which it has ``key`` and ``receipt``
    :ivar order: in which it has sent those for one of the consumers
    :ivar seconds: until it has claimed, or never will
    """

    parent: str
    key: str
    order: int
    consumers: Collection[str]
    purpose: Purpose
    receipt: str = ''
    seconds: float

    @property
    def request_id(self) -> str:
        """Of the request here that it is."""
        return own_name(self.parent, self.key)


class AllocationOrders(Protocol):
    """In which order a zone above has sent allocations for a consumer."""

    def note_new_allocation(self, wanted: AllocationAbove) -> bool:
        """Note one that nothing is known of, as far as that takes one round trip.

        :return: False: something is known, or is to be looked at statement by statement; then not
            all of it may be noted, and ``note_allocation`` is for the rest
        """

    def note_allocation(self, wanted: AllocationAbove) -> list[str]:
        """Note one before it is carried out.

        :return: requests of here that are those before it for one of its consumers, which are to
            claim nothing more
        :raises NotFound: the zone above is not registered any more
        :raises AllocationOutdated: one that was sent later has come before
        :raises Refused: a consumer has a live claim here that is not of the zone above
        """


class ZoneRequests(Protocol):
    """Requests that may go down, and what is claimed below."""

    def open_request(self, wanted: OpenRequest) -> OpenedRequest:
        """Make the row of a request ours."""

    def finish_request(
        self,
        request_id: str,
        owner: str,
        attempt: int,
        answer: bytes,
        below: Sequence[StoredBelow],
        own: OwnShare | None = None,
        group: GroupRef | None = None,
    ) -> bool:
        """Store the answer of an open request of ours with what it has below; False: it is lost.

        :param own: what it has here under another id; from now on that is the request's as well
        :param group: with the rule that it was placed under; where that holds no more it is lost
        """

    def is_idle_group(self, uuid: str, project: str | None) -> bool:
        """Whether the rule of a group came with a request of a project, and nobody is in it now."""

    def note_rule_above(self, group: GroupRef, project: str | None, declared: int | None) -> None:
        """Store the rule that a zone above says of its group, with the generation that it says.

        :param group: with a rule
        :param project: of the zone above
        :raises Refused: another one holds, of a generation that is not lower, or with members here
        """

    def place_of_group(self, group: str, own: str) -> str:
        """The zone where a group's members are, or are about to be; '': there are none.

        :param own: uuid of this zone
        """

    def decide_group_place(
        self, group: str, own: str, place: str, request_id: str, seconds: float
    ) -> str:
        """Have a request place the members of a group in a zone, unless others do elsewhere.

        :param seconds: until the request has claimed one
        :return: the zone where they are to be
        """

    def claims_below(
        self,
        request_id: str | None = None,
        consumers: Collection[str] = (),
        child: str = '',
        *,
        claim_id: str | None = None,
        state: str | None = None,
        project: str | None = None,
        group: str | None = None,
        marker: str | None = None,
        limit: int | None = None,
    ) -> list[StoredBelow]:
        """Claims in zones below by id, after ``marker``, ended ones included."""

    def note_changes_below(
        self, child: str, changes: ZoneChanges, known: Mapping[str, str], own_incarnation: int
    ) -> None:
        """What became of claims in a zone, and from where to ask next.

        :param known: id of a claim -> its state
        :param own_incarnation: of this zone's database, to which all that lives there is known
        """

    def unknown_below(self, child: str, claims: Collection[ClaimBelow]) -> list[ClaimBelow]:
        """Those that live in a zone, are not known here, and are neither made now nor to end."""

    def read_back(self, rows: Sequence[StoredBelow], answers: Mapping[str, bytes]) -> None:
        """Store claims that were forgotten here.

        :param answers: id of a request, which is that of each row -> its answer
        """

    def end_lost(self, child: str, key: str, claim_id: str = '') -> None:
        """What is lost of an allocation has ended: its zone knows that it is to claim nothing.

        :param claim_id: of this claim alone, of which it knows that it is to end
        """

    def claims_of_parent(
        self, parent: str, since: float, limit: int, after: str = ''
    ) -> list[ChangedClaim]:
        """Claims of a zone above that have changed since, here or below, oldest change first.

        :param after: of those that changed at that very time, the ids behind it
        """


class Zones(Protocol):
    """Calls to a zone directly below.  Each has a bound in seconds, and is made once.

    :raises Unavailable: no answer, or none that can be read: what became of it is not known
    :raises Refused, Conflict: the zone says no
    """

    def close(self) -> None:
        """Close its connections."""

    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        """Who it is."""

    def summary(self, zone: ZoneRecord, seconds: float) -> ZoneSummary:
        """What it has room for."""

    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        """What it has for a request."""

    def capacity(self, zone: ZoneRecord, body: ZoneCapacityOf, seconds: float) -> ZoneCapacity:
        """How many more of a member fit."""

    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        """Claim what it has offered."""

    def allocation(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneAllocated | None:
        """What became of an allocation; None: the zone has never seen it."""

    def give_back(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
        """End an allocation, now and for later: a copy on its way claims nothing.

        :param claim_id: or this claim of it alone, as far as this zone may
        """

    def extend(self, zone: ZoneRecord, key: str, lease_seconds: int, seconds: float) -> None:
        """Have what is reserved of an allocation last so long from now on, if it is allowed."""

    def explain(
        self, zone: ZoneRecord, key: str, seconds: float, trace: str = ''
    ) -> ZoneExplanation:
        """How an allocation was decided.

        :param trace: the id of what it is part of; '': it is not known
        """

    def changes(
        self, zone: ZoneRecord, since: float, seconds: float, after: str = ''
    ) -> ZoneChanges:
        """Claims of ours there that have changed since a revision.

        :param after: the last claim of the page before, whose revision ``since`` is; '': the first
        """

    def marks(self, zone: ZoneRecord, query: HostMarksQuery, seconds: float) -> HostMarksPage:
        """By what its hosts are known, and those of the zones below it, as digests."""
