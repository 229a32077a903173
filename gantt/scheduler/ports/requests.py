# SPDX-License-Identifier: Apache-2.0
"""Requests: committed together, given up, cancelled, extended, read."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.scheduler.ports.claims import ClaimResult
from gantt.scheduler.ports.process import Inbox


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

    def bar_request(self, request_id: str, fingerprint: str, answer: bytes) -> StoredRequest | None:
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

        :param consumers: of these consumers; empty: of all of the request
        :raises NotFound, Refused: see ``core.claims.claim.of_caller``
        """

    def return_request(
        self, request_id: str, consumers: Collection[str] = (), reason: str = ''
    ) -> ClaimResult:
        """Release the live claims of a request, as its caller uses them no more.

        :param consumers: of these consumers; empty: of all of the request
        :raises NotFound, Refused: see ``core.claims.claim.of_caller``
        """

    def list_requests(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[RequestLine]:
        """Return requests by id, after ``marker``; those with claims of one project, or all."""
