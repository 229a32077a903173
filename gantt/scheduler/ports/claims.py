# SPDX-License-Identifier: Apache-2.0
"""Claims after they are made: confirmed, refused, released, expired, adopted, read."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.adoption import GuestOutcome, GuestToAdopt
from gantt.core.claims.claim import Claim
from gantt.core.messages.report import ClaimUpdate
from gantt.core.records.history import ClaimCounts
from gantt.core.resources.host import HostChange


class ClaimOutcome(msgspec.Struct, frozen=True, kw_only=True, rename={'outcome': 'fate'}):
    """Answer to a word about one claim: ok | gone (final, unknown, of another host) | kept.

    :ivar reason: why a claim that is live is gone for who asks
    """

    claim_id: str
    outcome: str
    state: str = ''
    reason: str = ''


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Fates of the claims named, and the touched hosts as they are now."""

    outcomes: list[ClaimOutcome]
    hosts: list[HostChange] = []
    #: claim -> why it could not be read: by the sweeper alone, and each time it finds so
    unreadable: dict[str, str] = {}


class Claims(Protocol):
    """What hosts, operators and time do to claims, and claims as readers see them."""

    def confirm_claims(self, words: ClaimUpdate) -> ClaimResult:
        """Reserved -> confirmed; already confirmed is ok; anything else is gone."""

    def refuse_claims(self, words: ClaimUpdate) -> ClaimResult:
        """Reserved -> refused, counted against the host."""

    def release_claims(self, words: ClaimUpdate) -> ClaimResult:
        """Live -> released, for claims of this host, in order of (epoch, sequence)."""

    def sweep(self, limit: int) -> ClaimResult:
        """Expire reserved claims past their lease, at most ``limit``; name those at fault."""

    def force_release(self, claim_id: str, reason: str) -> ClaimResult:
        """An operator's release of a live claim."""

    def adopt_guests(
        self, guests: Sequence[GuestToAdopt], *, dry_run: bool = False
    ) -> list[GuestOutcome]:
        """Claims for guests that run already, fitting or not; fates in the order given."""

    def claims(
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
        """Claims here by id, after ``marker``; of one project or group, or of all."""

    def load_claim(self, claim_id: str) -> Claim | None:
        """One claim, live or tombstone."""

    def live_claims_of(self, consumers: Collection[str]) -> list[Claim]:
        """The live claims that are, or were before they were handed over, of these consumers.

        Those in zones below too, which have a ``child``.
        """

    def count_claims(self) -> ClaimCounts:
        """Claims by state, tombstones included; reads every claim."""

    def audit(self) -> dict[str, list[str]]:
        """Violations of P1 to P4 by query, and rows of providers that contradict each other.

        Keys: ``over_commit``, ``lost``, ``leaked``, ``doubled``, ``providers``; a line each.
        """
