# SPDX-License-Identifier: Apache-2.0
"""Progress of one draft of a batch through the group commit, and shared helpers for drafts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim, guest_of
from gantt.core.claims.commit import ClaimDraft, CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.place_commit import NO_PLACES
from gantt.core.claims.places import PlaceLetGo, PlaceTaken


def one_of_each_group(drafts: Iterable[RequestDraft]) -> list[RequestDraft]:
    """Return a draft for each group, ascending by uuid: the first that may create it, if any."""
    draft_of_group: dict[str, RequestDraft] = {}
    makers: set[str] = set()
    for draft in drafts:
        group = draft.group
        if group is not None and group.uuid not in makers:
            if group.may_be_first:
                makers.add(group.uuid)
                draft_of_group[group.uuid] = draft
            else:
                draft_of_group.setdefault(group.uuid, draft)
    return [draft_of_group[key] for key in sorted(draft_of_group)]


def makers_of(swaps: Iterable[RequestDraft]) -> list[RequestDraft]:
    """Return the drafts whose group is created if absent."""
    return [draft for draft in swaps if draft.group is not None and draft.group.may_be_first]


def owned(draft: RequestDraft) -> Iterator[Claim | PlaceTaken | PlaceLetGo]:
    """Yield the claims that a draft creates, takes over or lets go, with their owners."""
    for claim_draft in draft.claims:
        yield claim_draft.claim
    yield from draft.takes_places
    yield from draft.lets_go


class BatchEntry:
    """Progress of one draft through a commit batch."""

    __slots__ = ('accepted', 'draft', 'outcome', 'fresh', 'places', 'row', 'taken', 'took_over')

    def __init__(self, draft: RequestDraft) -> None:
        self.draft = draft
        self.outcome: RequestOutcome | None = None
        self.fresh = False  # its row was inserted by this transaction
        self.took_over = False
        self.row: Any = None
        self.accepted: list[int] = []
        self.places = NO_PLACES  # places that it may take over
        self.taken: list[int] = []

    def end(self, outcome: CommitStatus, **more: Any) -> None:
        """Stop this draft: none of it is created."""
        attempt = self.draft.attempt if self.row is None else self.row.attempt
        self.outcome = RequestOutcome(id=self.draft.id, outcome=outcome, attempt=attempt, **more)

    @property
    def is_locked(self) -> bool:
        """True where it waits for rows that others keep locked."""
        return self.outcome is not None and self.outcome.outcome is CommitStatus.LOCKED

    @property
    def claims_before(self) -> int:
        """The number of claims that earlier batches created for this attempt."""
        return 0 if self.fresh or self.took_over else self.row.claims

    @property
    def has_effect(self) -> bool:
        """True where some of it was created, taken over, or planned."""
        if self.accepted or self.taken:
            return True
        is_placed = self.outcome is not None and self.outcome.outcome is CommitStatus.PLACED
        return is_placed and self.draft.plan is not None

    @property
    def is_whole(self) -> bool:
        """True where all of this draft was accepted."""
        claim_drafts, places = self.draft.claims, self.draft.takes_places
        return len(self.accepted) == len(claim_drafts) and len(self.taken) == len(places)

    @property
    def claims_made(self) -> int:
        """The count in its row: of the places of a plan only those that no create takes."""
        return 0 if self.draft.plan is not None else len(self.accepted)


def inheriting(made: ClaimDraft, others_of: Callable[[str], Sequence[Claim]]) -> ClaimDraft:
    """Return a draft whose claim takes no more of pools than its consumer needs.

    :param others_of: returns the other live claims of a consumer
    """
    claim = made.claim
    if not (claim.purpose.is_move and inheritance.of_pools(claim)):
        return made
    held_amounts = inheritance.held(others_of(guest_of(claim)))
    return msgspec.structs.replace(made, claim=inheritance.reduced(claim, held_amounts))
