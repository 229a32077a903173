# SPDX-License-Identifier: Apache-2.0
"""One draft of a batch on its way through the group commit, and what drafts have in common."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim, guest_of
from gantt.core.claims.commit import ClaimDraft, CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.place_commit import NO_PLACES
from gantt.core.claims.places import PlaceLetGo, PlaceTaken


def one_of_each_group(drafts: Iterable[RequestDraft]) -> list[RequestDraft]:
    """A draft for each group, ascending by its uuid: the first that may make it, if any does."""
    one: dict[str, RequestDraft] = {}
    makers: set[str] = set()
    for draft in drafts:
        group = draft.group
        if group is not None and group.uuid not in makers:
            if group.may_be_first:
                makers.add(group.uuid)
                one[group.uuid] = draft
            else:
                one.setdefault(group.uuid, draft)
    return [one[key] for key in sorted(one)]


def makers_of(swaps: Iterable[RequestDraft]) -> list[RequestDraft]:
    """Those whose group is to be made where it is not there."""
    return [draft for draft in swaps if draft.group is not None and draft.group.may_be_first]


def owned(draft: RequestDraft) -> Iterator[Claim | PlaceTaken | PlaceLetGo]:
    """What says whose it is, of the claims that a draft makes, takes over or lets go."""
    for made in draft.claims:
        yield made.claim
    yield from draft.takes_places
    yield from draft.lets_go


class BatchEntry:
    """One draft on its way through the book."""

    __slots__ = ('accepted', 'draft', 'outcome', 'fresh', 'places', 'row', 'taken', 'took_over')

    def __init__(self, draft: RequestDraft) -> None:
        self.draft = draft
        self.outcome: RequestOutcome | None = None
        self.fresh = False  # its row was inserted by this transaction
        self.took_over = False
        self.row: Any = None
        self.accepted: list[int] = []
        self.places = NO_PLACES  # as it may take them over
        self.taken: list[int] = []

    def end(self, outcome: CommitStatus, **more: Any) -> None:
        """Nothing of this draft is made."""
        attempt = self.draft.attempt if self.row is None else self.row.attempt
        self.outcome = RequestOutcome(id=self.draft.id, outcome=outcome, attempt=attempt, **more)

    @property
    def is_locked(self) -> bool:
        """Whether it waits for rows that others keep locked."""
        return self.outcome is not None and self.outcome.outcome is CommitStatus.LOCKED

    @property
    def claims_before(self) -> int:
        """Claims that earlier batches made for this attempt."""
        return 0 if self.fresh or self.took_over else self.row.claims

    @property
    def has_effect(self) -> bool:
        """Something of it was made, taken over, or planned."""
        if self.accepted or self.taken:
            return True
        is_placed = self.outcome is not None and self.outcome.outcome is CommitStatus.PLACED
        return is_placed and self.draft.plan is not None

    @property
    def is_whole(self) -> bool:
        """All of this draft was accepted."""
        wanted, places = self.draft.claims, self.draft.takes_places
        return len(self.accepted) == len(wanted) and len(self.taken) == len(places)

    @property
    def claims_made(self) -> int:
        """What its row counts: of the places of a plan it has those only that no create takes."""
        return 0 if self.draft.plan is not None else len(self.accepted)


def inheriting(made: ClaimDraft, theirs: Mapping[str, Sequence[Claim]]) -> ClaimDraft:
    """A draft as its claim takes no more of pools than its consumer needs.

    :param theirs: consumer -> its other live claims
    """
    claim = made.claim
    if not (claim.purpose.is_move and inheritance.of_pools(claim)):
        return made
    there = inheritance.held(theirs.get(guest_of(claim), ()))
    return msgspec.structs.replace(made, claim=inheritance.reduced(claim, there))
