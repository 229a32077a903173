# SPDX-License-Identifier: Apache-2.0
"""What was told of a request before: a repeat is told the same."""

from gantt import exceptions
from gantt.core.claims.quota import Excess
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.placing.admission import Call, refusal
from gantt.scheduler.placing.planning import Planner
from gantt.scheduler.ports import Recorder, Store, StoredRequest


class Repeats:
    """Looks requests up that never get to a commit, which guards against repeats itself."""

    def __init__(self, store: Store, planner: Planner, recorder: Recorder) -> None:
        self._store, self._planner, self._recorder = store, planner, recorder

    def known(
        self, call: Call, outcome: Outcome, reason: str, excess: Excess | None = None
    ) -> Answer | StoredRequest | None:
        """What is to be told of a call that is to be refused; its row where that is open.

        Its own claims may be what is in the way.  Of a repeat the refusal is kept: its other
        copy may wait at another scheduler, which must not place it when the caller was told no.
        """
        request = call.request
        if call.continues or request.dry_run or request.spec.purpose is Purpose.REBUILD:
            return None
        try:
            if call.repeats:
                kept = self._planner.packed(refusal(request, outcome, reason, excess=excess))
                stored = self._store.bar_request(request.request_id, call.fingerprint, kept)
            else:
                stored = self._store.load_request(request.request_id)
        except exceptions.Unavailable as e:
            return refusal(request, Outcome.FAILED, e.message)
        if stored is None:
            return None
        if stored.state == 'cancelled':
            return self._of_cancelled(request, stored)
        if stored.fingerprint != call.fingerprint:
            return refusal(request, Outcome.REUSED, 'used with another body')
        return stored if stored.state == 'open' else self.placed(stored.answer)

    def placed(self, answer: bytes) -> Answer:
        """What was stored with a request that was placed before."""
        self._recorder.count('gantt_repeats_total')
        return self._planner.stored(answer)

    def cancelled(self, request: SelectDestinations) -> Answer:
        """What is told of a request that is not placed any more: its refusal, if it had one."""
        try:
            return self._of_cancelled(request, self._store.load_request(request.request_id))
        except exceptions.Unavailable:
            return self._of_cancelled(request, None)

    def _of_cancelled(self, request: SelectDestinations, stored: StoredRequest | None) -> Answer:
        was_refused = stored is not None and stored.attempt == 0 and stored.answer
        if stored is not None and was_refused and stored.fingerprint == request.fingerprint:
            return self._planner.stored(stored.answer)
        return refusal(request, Outcome.CANCELLED, 'it was cancelled')
