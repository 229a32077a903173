# SPDX-License-Identifier: Apache-2.0
"""What the request of a group was answered before, and that a refusal of it is final.

A caller that hears nothing sends its request again, and another process may take the copy while
the first one is still at it.  Who is refused must not have a plan: so before a repeat is refused
the refusal is stored as the request's row.  Either that finds the row of the first copy, whose
answer is the caller's as well, or the commit of the first copy finds the refusal.
"""

from collections.abc import Callable

from gantt import exceptions
from gantt.core.groups import group_answer
from gantt.core.groups.group_answer import GroupAnswer
from gantt.scheduler.groups.plan_drafts import Request
from gantt.scheduler.ports import Recorder, Store, StoredRequest

#: What says that nothing is placed; ``Unavailable`` says that nobody knows.
NotPlaced = exceptions.Refused | exceptions.Conflict


class EarlierAnswers:
    """Answers of groups by the rows of their requests."""

    def __init__(self, store: Store, recorder: Recorder, retry_after_ms: Callable[[], int]) -> None:
        self._store, self._recorder, self._retry_after_ms = store, recorder, retry_after_ms

    def known(self, request: Request) -> GroupAnswer | None:
        """What a repeat is answered; None: it was not answered yet.

        :raises RequestIdReused, RequestCancelled: see there
        :raises Refused, Conflict: as it was answered, as a repeat
        """
        stored = self._store.load_request(request.request_id)
        return None if stored is None or stored.state == 'open' else self._of(request, stored)

    def refused(self, request: Request, error: NotPlaced) -> GroupAnswer:
        """What the first copy of a request was answered that is to be refused.

        :raises Refused, Conflict: ``error``, or that of before; of a repeat no copy is placed then
        :raises Busy: the first copy is being placed
        """
        if request.repeat:
            packed = group_answer.pack_refusal(error)
            stored = self._store.bar_request(request.request_id, request.fingerprint, packed)
        else:
            stored = self._store.load_request(request.request_id)
        if stored is None:
            raise error
        if stored.state == 'open':
            raise self.busy()
        return self._of(request, stored)

    def cancelled(self, request: Request) -> GroupAnswer:
        """A commit has found that a request is not placed any more.

        :raises RequestCancelled: it was taken back
        :raises Refused, Conflict: as another copy was answered
        """
        found = self.known(request)
        if found is None:
            raise exceptions.RequestCancelled(request_id=request.request_id)
        return found

    def busy(self) -> exceptions.Busy:
        """Somebody else is at it."""
        return exceptions.Busy(
            reason='another process is at this request', retry_after_ms=self._retry_after_ms()
        )

    def _of(self, request: Request, stored: StoredRequest) -> GroupAnswer:
        if stored.state == 'cancelled':
            refusal = group_answer.unpack_refusal(stored.answer) if not stored.attempt else None
            if refusal is None:
                raise exceptions.RequestCancelled(request_id=request.request_id)
            if stored.fingerprint != request.fingerprint:
                raise exceptions.RequestIdReused(request_id=request.request_id)
            raise refusal
        if stored.fingerprint != request.fingerprint:
            raise exceptions.RequestIdReused(request_id=request.request_id)
        return self.repeated(request, stored.answer)

    def repeated(self, request: Request, stored: bytes) -> GroupAnswer:
        """A stored answer once more.  :raises RequestIdReused: it is of no group"""
        self._recorder.count('gantt_repeats_total')
        found = group_answer.unpack(stored)
        if found is None:
            raise exceptions.RequestIdReused(request_id=request.request_id)
        return found
