# SPDX-License-Identifier: Apache-2.0
"""Ports for requests, the claims that they make, and the quotas that bound both."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.adoption import GuestOutcome, GuestToAdopt
from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.core.claims.quota import Limit, ProjectUsage, Usage
from gantt.core.claims.reservations import PlannedUsage
from gantt.core.messages.report import ClaimUpdate
from gantt.core.records.history import ClaimCounts
from gantt.core.resources.host import HostChange
from gantt.scheduler.ports.process import Inbox


class ClaimOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an update of one claim: ok | gone (final, unknown, of another host) | kept.

    :ivar reason: why a live claim is gone for the caller
    """

    claim_id: str
    outcome: str
    state: str = ''
    reason: str = ''


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of the claims named, and the touched hosts as they are now."""

    outcomes: list[ClaimOutcome]
    hosts: list[HostChange] = []
    #: claim -> why it could not be read: set by the sweeper alone, each time it meets one
    unreadable: dict[str, str] = {}


class Claims(Protocol):
    """Operations of hosts, operators and time on claims, and reads of claims."""

    def confirm_claims(self, words: ClaimUpdate) -> ClaimResult:
        """Set reserved -> confirmed; already confirmed is ok; anything else is gone."""

    def refuse_claims(self, words: ClaimUpdate) -> ClaimResult:
        """Set reserved -> refused, counted against the host."""

    def release_claims(self, words: ClaimUpdate) -> ClaimResult:
        """Set live -> released, for claims of this host, in order of (epoch, sequence)."""

    def sweep(self, limit: int) -> ClaimResult:
        """Expire reserved claims past their lease, at most ``limit``; report unreadable ones."""

    def force_release(self, claim_id: str, reason: str) -> ClaimResult:
        """Release a live claim for an operator."""

    def adopt_guests(
        self, guests: Sequence[GuestToAdopt], *, dry_run: bool = False
    ) -> list[GuestOutcome]:
        """Create claims for running guests, fitting or not; return outcomes in the order given."""

    def list_claims(
        self,
        *,
        state: str | None = None,
        host: str | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        project: str | None = None,
        group: str | None = None,
    ) -> list[Claim]:
        """Return claims here by id, after ``marker``; of one project or group, or of all."""

    def load_claim(self, claim_id: str) -> Claim | None:
        """Return one claim, live or tombstone."""

    def live_claims_of(self, consumers: Collection[str]) -> list[Claim]:
        """Return the live claims that are of these consumers, or were before a handover.

        Claims in child zones are included; they have a ``child``.
        """

    def count_claims(self) -> ClaimCounts:
        """Return the numbers of claims by state, tombstones included; reads every claim."""

    def count_claims_on_pools(self) -> int:
        """Return the number of live claims that are on no host; reads these alone."""

    def audit(self) -> dict[str, list[str]]:
        """Return violations of P1 to P4 by query, and rows of providers that contradict each other.

        Keys: ``over_commit``, ``lost``, ``leaked``, ``doubled``, ``providers``; a line each.
        """


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request row as ``get_request`` shows it.

    :ivar wait_seconds: until an open one is past its deadline
    """

    id: str
    state: str  # open | placed | cancelled
    fingerprint: str
    attempt: int  # 0: never placed; a cancelled one may have its refusal as answer then
    owner: str = ''
    wait_seconds: float = 0.0
    answer: bytes = b''
    claims: list[Claim] = []


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request in a list; ``updated_at`` in seconds of the database's clock."""

    id: str
    state: str  # open | placed | cancelled
    attempt: int
    claims: int  # number of claims created
    updated_at: float


class Requests(Protocol):
    """The batch commit and the life cycle of requests.

    :ivar may_refer: an answer may be stored as a reference: decisions are stored here
    """

    may_refer: bool

    def commit(self, batch: Sequence[RequestDraft]) -> CommitResult:
        """Commit a batch of requests; see ``core.claims.commit`` for the rule."""

    def do_meanwhile(self, inbox: Inbox) -> None:
        """Read an inbox while a commit is waited for, where the database allows it."""

    def give_up(self, request_id: str, owner: str, attempt: int) -> ClaimResult:
        """Release everything this attempt of an open request has claimed; delete its row."""

    def load_request(self, request_id: str) -> StoredRequest | None:
        """Return the request row with its claims, or None."""

    def reject_request(
        self, request_id: str, fingerprint: str, answer: bytes
    ) -> StoredRequest | None:
        """Store a refusal, so that no copy is placed any more; return the row where one exists."""

    def cancel_request(self, request_id: str, reason: str) -> ClaimResult:
        """Set a request cancelled (inserting it if need be) and release its reserved claims."""

    def extend_request(
        self, request_id: str, seconds: float, most: float, most_of_plans: float | None = None
    ) -> ClaimResult:
        """Lengthen the leases of its reserved claims to now + seconds, at most ``most``.

        :param most_of_plans: the bound for claims of a plan; None: the same
        """

    def confirm_request(self, request_id: str, consumers: Collection[str] = ()) -> ClaimResult:
        """Confirm the live claims of a request, as its caller uses them.

        :param consumers: consumers whose claims are confirmed; empty: all of the request
        :raises NotFound, Refused: see ``gantt.core.claims.claim.claims_of_caller``
        """

    def return_request(
        self, request_id: str, consumers: Collection[str] = (), reason: str = ''
    ) -> ClaimResult:
        """Release the live claims of a request, as its caller uses them no more.

        :param consumers: consumers whose claims are released; empty: all of the request
        :raises NotFound, Refused: see ``gantt.core.claims.claim.claims_of_caller``
        """

    def list_requests(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[RequestLine]:
        """Return requests by id, after ``marker``; those with claims of one project, or all."""


class Quotas(Protocol):
    """Limits and usage of projects."""

    def limits(self) -> list[Limit]:
        """Return all limits that are stored, by project and name."""

    def set_quotas(self, project: str, limits: Mapping[str, int | None]) -> None:
        """Set limits of a project by their names; None removes one, others stay.

        :raises InvalidMessage: there is no such limit, or it is out of bounds
        :raises Refused: there are too many already
        """

    def quota_usage(
        self, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        """Return the committed usage of each of these projects; see ``core.claims.quota``.

        :param classes: resource classes whose amounts are requested
        """

    def planned_usage(self, project: str) -> PlannedUsage:
        """Return the usage of a project's reservations of plans."""

    def owners_of(self, consumers: Collection[str]) -> dict[str, str | None]:
        """Return the project of each of these consumers that has a stored claim, live or ended."""

    def usages(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[ProjectUsage]:
        """Return projects with live claims by id, after ``marker``; one of them, or all."""
