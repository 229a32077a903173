# SPDX-License-Identifier: Apache-2.0
"""Requests: whether one may go on, by the row that all schedulers share."""

from typing import Protocol

from gantt.core.claims.commit import Fate, RequestDraft, RequestFate


class Row(Protocol):
    """The row of a request, whatever store it is read from."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def deadline(self) -> float: ...

    @property
    def answer(self) -> bytes | None: ...


def judge_request(row: Row | None, draft: RequestDraft, now: float) -> RequestFate | None:
    """Why a request may not go on whose row the commit did not insert; None: it may.

    :param row: as read under its lock; None: it is gone
    :param now: of the clock that deadlines are of
    """
    if row is None:
        return RequestFate(id=draft.id, fate=Fate.LOST, attempt=draft.attempt)
    wait = row.deadline - now
    is_ours = row.owner == draft.owner
    if row.state == 'cancelled':
        found = Fate.CANCELLED  # it may have come before the request did
    elif row.fingerprint != draft.fingerprint:
        found = Fate.REUSED
    elif row.state == 'placed':
        answer = bytes(row.answer or b'')
        return RequestFate(id=draft.id, fate=Fate.REPEAT, attempt=row.attempt, answer=answer)
    elif draft.continues:
        if is_ours and row.attempt == draft.attempt:
            return None
        found = Fate.LOST
    elif draft.takes_over is not None and is_ours and row.attempt == draft.takes_over + 1:
        return None  # taken over by an earlier batch that placed nothing
    # One of ours that we do not continue is of a commit that was taken for lost: nobody
    # works on it, and nobody knows of its claims.
    elif wait > 0 and not is_ours:
        return RequestFate(id=draft.id, fate=Fate.OPEN, attempt=row.attempt, wait_seconds=wait)
    elif takes_over(row, draft):
        return None
    else:
        found = Fate.OVERDUE
    return RequestFate(id=draft.id, fate=found, attempt=row.attempt)


def takes_over(row: Row | None, draft: RequestDraft) -> bool:
    """Whether a request that may go on replaces an attempt, whose claims are to be released."""
    return row is not None and not draft.continues and row.attempt == draft.takes_over
