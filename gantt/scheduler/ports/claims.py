# SPDX-License-Identifier: Apache-2.0
"""Claims after they are committed: confirmed, refused, released, expired, adopted, read."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.adoption import GuestOutcome, GuestToAdopt
from gantt.core.claims.claim import Claim
from gantt.core.messages.report import ClaimUpdate
from gantt.core.records.history import ClaimCounts
from gantt.core.resources.host import HostChange


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
