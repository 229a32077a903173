# SPDX-License-Identifier: Apache-2.0
"""Zones: those around this one, claims in child zones, and calls to these zones."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.commit import RequestOutcome
from gantt.core.messages.request import GroupRef, Purpose
from gantt.core.messages.zone_step import ZoneExplanation
from gantt.core.resources.group_rule import GroupRule
from gantt.scheduler.ports.stores import Stores
from gantt.zones.model.audit import ClaimRow
from gantt.zones.model.host_digests import RegisteredHost
from gantt.zones.model.messages import (
    ClaimBelow,
    HostDigestsPage,
    HostDigestsQuery,
    ParentRecord,
    ZoneAllocated,
    ZoneAllocation,
    ZoneCapacity,
    ZoneCapacityOf,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneInfo,
    ZoneRecord,
    ZoneSummary,
    scoped_id,
)


class ZoneIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of this zone.

    :ivar secret: key that its offers are sealed with
    :ivar incarnation: of its database
    """

    uuid: str
    secret: bytes
    incarnation: int


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may go to child zones, before anything is claimed for it.

    :ivar attempt: its number where the row is new
    :ivar takes_over: the attempt to replace where the row is past its deadline
    :ivar seconds: until its deadline
    :ivar stays: it is for hosts of this zone only: claims of its consumers on them are checked at
        the commit
    :ivar group: as in the request
    :ivar project_id: of the request
    :ivar of_parent: it comes from a parent zone
    :ivar rule_generation: of the rule of the group, as the parent zone states
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
    """Result of locking a request: its row is opened.

    :ivar outcome: why this worker has no lock on it, as for a commit; None: it has, and nothing is
        claimed yet
    :ivar lock_token: id of this lock, new each time: the keys of its claims in other zones
        follow from it
    :ivar order: order of the lock: later locks for one of its consumers have a higher one
    :ivar rule: of its group, stored in the same transaction
    """

    outcome: RequestOutcome | None
    lock_token: str
    order: int = 0
    rule: GroupRule | None = None


class LocalShare(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a split request on the local hosts: claimed under a key of its own.

    :ivar key: the id of the share's request
    :ivar members: id of a claim -> number of its member in the whole request
    :ivar parent: name of the parent zone that sent the request; None: it is of this zone
    """

    key: str
    members: dict[str, int]
    parent: str | None = None


class LiveClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of live claims that concern more than one zone.

    :ivar children: uuid of a child zone -> claims of this zone's requests that live there
    :ivar parents: name of a parent zone -> its claims that live here or in child zones
    """

    children: dict[str, int]
    parents: dict[str, int]


class ClaimsToCheck(NamedTuple):
    """Numbers of claims in a child zone that an operator should check.

    :ivar lost: the zone does not know them any more
    :ivar restored: live ones whose records were lost here, and that have no known caller
    :ivar doubled: claims of consumers that have one for the same purpose here, as of a guest that
        was found running
    """

    lost: int
    restored: int
    doubled: int


class ZoneFigures(Protocol):
    """Counts and comparisons over zones."""

    def live_claims_over_zones(self) -> LiveClaims:
        """Return the numbers of live claims by zone."""

    def claims_to_check(self) -> dict[str, ClaimsToCheck]:
        """Return the claims to check, by uuid of each child zone that has some."""

    def registered_hosts(self) -> list[RegisteredHost]:
        """Return all hosts of this zone, by name."""

    def live_claims_here(self, consumers: Collection[str]) -> list[ClaimRow]:
        """Return live claims of consumers on hosts of this zone, except for moves."""


class ZoneRegistry(Protocol):
    """Identity of this zone, and the zones around it."""

    def zone_identity(self) -> ZoneIdentity:
        """Return the identity of this zone; the first call creates it."""

    def child_zones(self) -> list[ZoneRecord]:
        """Return the child zones, by name."""

    def save_child_zone(self, zone: ZoneRecord) -> None:
        """Register a child zone, or write its settings; the revision is left.

        :raises Refused: another one has the name, or it has another name
        """

    def remove_child_zone(self, uuid: str) -> None:
        """Remove a child zone.  :raises InUse: claims live there"""

    def parent_zones(self) -> list[ParentRecord]:
        """Return the parent zones that may send requests, by name."""

    def save_parent_zone(self, parent: ParentRecord) -> None:
        """Register a parent, or write its settings.  :raises Refused: another has the identity"""

    def remove_parent_zone(self, name: str) -> None:
        """Remove a parent zone.  :raises NotFound, InUse: its claims live here or in child zones"""


class DueRelease(NamedTuple):
    """An allocation, or one claim of it, to be ended in a zone that does not know of it yet.

    :ivar child: uuid of the child zone, or of this one
    :ivar key: the request's id there, or that of the claim
    :ivar tries: including this one
    :ivar seconds: since it is known that it must end
    """

    child: str
    key: str
    tries: int
    seconds: float


class WaitingReleases(NamedTuple):
    """Releases that zones have not received yet.

    :ivar seconds: age of the oldest
    """

    number: int
    seconds: float


class AbandonedRequest(NamedTuple):
    """A request that may have gone to child zones, and whose owner has abandoned it.

    :ivar lock_token: determines the keys of possible claims
    """

    request_id: str
    lock_token: str


class ZoneReleases(Protocol):
    """Outbox of allocations to be ended, stored until their zone has been informed."""

    def add_releases(self, pairs: Collection[tuple[str, str]], seconds: float = 0.0) -> None:
        """Add allocations to be released, each by zone and key; or claims, by zone and id.

        :param seconds: until the first try
        """

    def due_releases(self, limit: int) -> list[DueRelease]:
        """Return due releases, oldest first; only the caller that gets a release tries it."""

    def end_releases(self, pairs: Collection[tuple[str, str]]) -> None:
        """Drop releases: their zones have received them, or need not any more."""

    def waiting_releases(self) -> WaitingReleases:
        """Return the number of waiting releases, and the age of the oldest."""

    def abandoned_requests(self, limit: int) -> list[AbandonedRequest]:
        """Return some requests open beyond their deadline; a repeated call returns others."""

    def end_abandoned_request(self, abandoned: AbandonedRequest) -> None:
        """End the lock of an abandoned request; its possible claims are released."""


class ParentAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that a parent zone has sent, before it is carried out.

    :ivar parent: name of the parent zone, which knows it by ``key`` and ``receipt``
    :ivar order: its place among those sent for one of the consumers
    :ivar consumers: uuids of the consumers, such as guests, that it claims for
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
        """Id of the request here that carries it out."""
        return scoped_id(self.parent, self.key)


class AllocationOrders(Protocol):
    """The order in which a parent zone has sent allocations for a consumer."""

    def note_new_allocation(self, allocation: ParentAllocation) -> bool:
        """Store an allocation that nothing is known of, if one round trip suffices.

        :return: False: something is known, or must be checked statement by statement; then not
            all of it may be noted, and ``note_allocation`` handles the rest
        """

    def note_allocation(self, allocation: ParentAllocation) -> list[str]:
        """Store an allocation before it is carried out.

        :return: requests here of earlier allocations for one of its consumers, which must
            claim nothing more
        :raises NotFound: the parent zone is not registered any more
        :raises AllocationOutdated: one that was sent later has arrived before
        :raises Refused: a consumer has a live claim here that is not of the parent zone
        """


class ZoneRequests(Protocol):
    """Requests that may go to child zones."""

    def open_request(self, opening: OpenRequest) -> OpenedRequest:
        """Acquire the row of a request for this worker."""

    def finish_request(
        self,
        request_id: str,
        owner: str,
        attempt: int,
        answer: bytes,
        child_claims: Sequence[ChildClaim],
        own: LocalShare | None = None,
        group: GroupRef | None = None,
    ) -> bool:
        """Store the answer of a request that this worker has open, with its claims in child zones.

        :param own: its part here under another id; from now on that is the request's as well
        :param group: with the rule it was placed under; where that holds no more it is lost
        :return: False: the request is lost, to another worker or as its group has changed
        """

    def note_parent_rule(self, group: GroupRef, project: str | None, declared: int | None) -> None:
        """Store the rule that a parent zone states of its group, with its generation.

        :param group: with a rule
        :param project: of the parent zone
        :raises Refused: another one holds, of a generation that is not lower, or with members here
        """

    def zone_of_group(self, group: str, own: str) -> str:
        """Return the zone where a group's members are, or are about to be; '': there are none.

        :param own: uuid of this zone
        """

    def decide_group_zone(
        self, group: str, own: str, place: str, request_id: str, seconds: float
    ) -> str:
        """Have a request place the members of a group in a zone, unless others do elsewhere.

        :param seconds: until the request has claimed one
        :return: the zone that the members belong in
        """


class UnknownClaims(NamedTuple):
    """Live claims of a child zone without a record here.

    :ivar forgotten: claims that are neither new nor to end
    :ivar undecided: ids of confirmed ones whose request is open here or is to be given back, as
        after this database was restored from a copy of that time; what becomes of them is known
        once the request has ended
    """

    forgotten: list[ClaimBelow]
    undecided: set[str]


class ZoneClaims(Protocol):
    """Claims in child zones, and claims of parent zones."""

    def note_child_changes(
        self,
        child: str,
        changes: ZoneChanges,
        state_of_claim: Mapping[str, str],
        synced_incarnation: int,
    ) -> None:
        """Note changes of claims in a zone, and the revision to continue from.

        :param state_of_claim: id of a claim -> its state
        :param synced_incarnation: of this zone's database, whose records include all claims there
        """

    def unknown_child_claims(self, child: str, claims: Collection[ClaimBelow]) -> UnknownClaims:
        """Return live claims of a zone without a record here."""

    def restore(self, rows: Sequence[ChildClaim], answers: Mapping[str, bytes]) -> None:
        """Store claims whose records were lost here.

        :param answers: id of each row's request -> its answer
        """

    def end_lost(self, child: str, key: str, claim_id: str = '') -> None:
        """End the lost claims of an allocation: its zone knows that it must claim nothing.

        :param claim_id: only this claim, which the zone knows must end
        """

    def claims_of_parent(
        self, parent: str, since: float, limit: int, after: str = ''
    ) -> list[ClaimBelow]:
        """Return claims of a parent zone changed since, here or in child zones, oldest first.

        :param after: skips, among those changed at that very time, ids up to this one
        """


class ZoneCalls(Protocol):
    """Calls to a child zone.  Each has a bound in seconds, and is sent once.

    :raises Unavailable: no readable answer: the effect of the call is not known
    :raises Refused, Conflict: the zone refuses
    """

    def close(self) -> None:
        """Close the connections to child zones."""

    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        """Return the zone's identity."""

    def summary(self, zone: ZoneRecord, seconds: float) -> ZoneSummary:
        """Return a summary of its free capacity."""

    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        """Return its offers for a request."""

    def capacity(self, zone: ZoneRecord, body: ZoneCapacityOf, seconds: float) -> ZoneCapacity:
        """Return how many more of a member fit."""

    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        """Claim an offer of the zone."""

    def allocation(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneAllocated | None:
        """Return the state of an allocation; None: the zone has never seen it."""

    def release(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
        """End an allocation, now and for later: a copy on its way claims nothing.

        :param claim_id: only this claim of it, as far as this zone may
        """

    def extend(self, zone: ZoneRecord, key: str, lease_seconds: int, seconds: float) -> None:
        """Extend the lease of an allocation's reserved claims, counted from now, if allowed."""

    def explain(
        self, zone: ZoneRecord, key: str, seconds: float, trace: str = ''
    ) -> ZoneExplanation:
        """Return how an allocation was decided.

        :param trace: the id of the trace that it is part of; '': it is not known
        """

    def changes(
        self, zone: ZoneRecord, since: float, seconds: float, after: str = ''
    ) -> ZoneChanges:
        """Return claims of this zone there that have changed since a revision.

        :param after: the last claim of the page before, whose revision ``since`` is; '': the first
        """

    def host_digests(
        self, zone: ZoneRecord, query: HostDigestsQuery, seconds: float
    ) -> HostDigestsPage:
        """Return digests of its hosts and those of its descendants."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZoneStores(Stores):
    """The stores of a process in a tree of zones."""

    zones: ZoneRegistry
    zone_requests: ZoneRequests
    zone_claims: ZoneClaims
    zone_figures: ZoneFigures
    zone_releases: ZoneReleases
    orders: AllocationOrders
