# SPDX-License-Identifier: Apache-2.0
"""Zones: those around this one, what is claimed below, and the calls to those directly below."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gantt.core.claims.commit import RequestOutcome
from gantt.core.messages.request import Purpose
from gantt.core.zones.marks import RegisteredHost
from gantt.core.zones.messages import (
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


class ZoneIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who this zone is.

    :ivar secret: what its offers are sealed with
    :ivar incarnation: of its database
    """

    uuid: str
    secret: bytes
    incarnation: int


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may go down, before any zone is asked.

    :ivar attempt: its number where the row is new
    :ivar takes_over: the attempt to replace of a row that is past its deadline
    :ivar seconds: until it is
    """

    id: str
    fingerprint: str
    owner: str
    attempt: int
    takes_over: int | None = None
    seconds: float
    consumers: Sequence[str]
    purpose: Purpose


class OpenedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of opening a request.

    :ivar outcome: why it is not ours, as for a commit; None: it is, and nothing of it is claimed
    :ivar opening: of whoever has it open, another one each time: the keys of what it claims in
        other zones follow from it
    """

    outcome: RequestOutcome | None
    opening: str


class StoredBelow(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that a request of here has in a zone below.

    :ivar child: uuid of the zone
    :ivar key: the request's id there
    :ivar parent: name of the zone above that asked; None: none did
    :ivar group: uuid of the server group
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


class LiveHere(NamedTuple):
    """A live claim on a host of this zone."""

    claim_id: str
    consumer: str
    purpose: Purpose


class ZoneFigures(Protocol):
    """What is counted and compared over zones."""

    def live_claims_over_zones(self) -> LiveClaims:
        """How many live claims there are by zone."""

    def registered_hosts(self) -> list[RegisteredHost]:
        """All hosts of this zone, by name."""

    def live_here(self, consumers: Collection[str]) -> list[LiveHere]:
        """Live claims of consumers on hosts of this zone: no moves, and none that was adopted."""


class ZoneRegistry(Protocol):
    """Who this zone is, and the zones around it."""

    def zone_identity(self) -> ZoneIdentity:
        """Who this zone is; made by the first call."""

    def child_zones(self) -> list[ZoneRecord]:
        """The zones directly below, by name."""

    def save_child_zone(self, zone: ZoneRecord) -> None:
        """Register one, or write what is set of it; the revision is left.

        :raises Refused: another one has the name
        """

    def remove_child_zone(self, uuid: str) -> None:
        """Forget one.  :raises InUse: claims live there"""

    def parent_zones(self) -> list[ParentRecord]:
        """The zones above that may ask, by name."""

    def save_parent_zone(self, parent: ParentRecord) -> None:
        """Register one, or write what is set of it.  :raises Refused: another has the identity"""

    def remove_parent_zone(self, name: str) -> None:
        """Forget one.  :raises NotFound, InUse: its claims live here"""


class ZoneRequests(Protocol):
    """Requests that may go down, and what is claimed below."""

    def open_request(self, wanted: OpenRequest) -> OpenedRequest:
        """Make the row of a request ours."""

    def finish_request(
        self, request_id: str, owner: str, attempt: int, answer: bytes, below: Sequence[StoredBelow]
    ) -> bool:
        """Store the answer of an open request of ours with what it has below; False: it is lost."""

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
        self, request_id: str | None = None, consumers: Collection[str] = (), child: str = ''
    ) -> list[StoredBelow]:
        """Claims in zones below, ended ones included: of a request, of consumers, or of a zone."""

    def note_changes_below(
        self, child: str, changes: ZoneChanges, known: Collection[ClaimBelow]
    ) -> None:
        """What became of claims in a zone, and from where to ask next."""

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

    def give_back(self, zone: ZoneRecord, key: str, seconds: float) -> None:
        """End an allocation, now and for later: a copy on its way claims nothing."""

    def extend(self, zone: ZoneRecord, key: str, lease_seconds: int, seconds: float) -> None:
        """Have what is reserved of an allocation last so long from now on, if it is allowed."""

    def explain(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneExplanation:
        """How an allocation was decided."""

    def changes(
        self, zone: ZoneRecord, since: float, seconds: float, after: str = ''
    ) -> ZoneChanges:
        """Claims of ours there that have changed since a revision.

        :param after: the last claim of the page before, whose revision ``since`` is; '': the first
        """

    def marks(self, zone: ZoneRecord, query: HostMarksQuery, seconds: float) -> HostMarksPage:
        """By what its hosts are known, and those of the zones below it, as digests."""
