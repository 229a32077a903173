# SPDX-License-Identifier: Apache-2.0
"""The row of a request, open before anything is claimed: whoever has it open goes on alone.

Its consumers stand in ``consumers_on_their_way`` from then on, so that two requests for one of them
meet, wherever each is placed.
"""

from collections.abc import Callable
from typing import NamedTuple

from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.base import NAME_MAX
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.core.records.members import plain
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.zones.keys import may_be_elsewhere
from gantt.scheduler.placing.admission import refusal
from gantt.scheduler.placing.answers import StoredAnswers
from gantt.scheduler.ports import Clock, Recorder, Store
from gantt.scheduler.ports.zones import OpenRequest
from gantt.scheduler.settings import SchedulerSettings

#: Between two looks at a row that another scheduler has open.
LOOK_SECONDS = 0.1
#: By how much a row is open beyond the time of its request.
SPARE_SECONDS = 1.0


class Opening(NamedTuple):
    """The row of a request, open and ours.

    :ivar number: of its attempt
    :ivar token: from which the keys of what it claims in other zones follow
    :ivar fingerprint: of the request as it came
    :ivar order: of what it claims in other zones
    :ivar is_at_once: nobody else had it open, and nothing was ended for it
    :ivar rule: of its group; None: it is of none
    """

    number: int
    token: str
    fingerprint: str
    order: int
    is_at_once: bool = True
    rule: GroupRule | None = None

    def ruled(self, request: SelectDestinations) -> SelectDestinations:
        """The request under the rule of its group: zones below do not have it."""
        return request if self.rule is None else group_rule.with_rule(request, self.rule)


class Ended(Exception):
    """The request is answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class RequestRows:
    """Opens rows.  Any thread.

    :param end_opening: ends what was claimed by an opening that its owner has left
    """

    def __init__(
        self,
        store: Store,
        stored_answers: StoredAnswers,
        recorder: Recorder,
        clock: Clock,
        settings: SchedulerSettings,
        end_opening: Callable[[str], object],
    ) -> None:
        self._store, self._stored, self._recorder = store, stored_answers, recorder
        self._clock, self._settings, self._end_opening = clock, settings, end_opening

    def open(
        self,
        request: SelectDestinations,
        fingerprint: str,
        number: int,
        end: float,
        stays: bool = False,
    ) -> Opening:
        """Make the row of a request ours.

        :param number: of its attempt where nobody has it open
        :param stays: it is for hosts of this zone alone
        :raises Ended: it is answered, or cannot go on
        """
        _check_project(request, stays)
        takes_over: int | None = None
        left_by_others, tries = '', 0
        while True:
            tries += 1
            left = end - self._clock.monotonic()
            if left <= 0:
                why = 'another worker is at this request'
                raise Ended(refusal(request, Outcome.BUSY, why, self._settings.retry_after_ms))
            found = self._store.open_request(
                OpenRequest(
                    id=request.request_id,
                    fingerprint=fingerprint,
                    owner=self._settings.worker,
                    attempt=number,
                    takes_over=takes_over,
                    seconds=left + SPARE_SECONDS,
                    consumers=request.consumers,
                    purpose=request.spec.purpose,
                    stays=stays,
                    group=request.spec.group,
                    project_id=request.spec.project_id,
                    of_parent=request.parent is not None,
                    rule_generation=request.rule_generation,
                )
            )
            outcome = found.outcome
            if outcome is None:
                if left_by_others and may_be_elsewhere(left_by_others):
                    # Nobody settles it any more: what was claimed is ended before anything is.
                    self._end_opening(left_by_others)
                return Opening(
                    number, found.opening, fingerprint, found.order, tries == 1, found.rule
                )
            match outcome.outcome:
                case CommitStatus.REPEAT:
                    self._recorder.count('gantt_repeats_total')
                    raise Ended(plain(self._stored.read(request.request_id, outcome.answer)))
                case CommitStatus.OVERDUE:
                    left_by_others = found.opening
                    takes_over, number = outcome.attempt, outcome.attempt + 1
                    continue
                case CommitStatus.CANCELLED:
                    raise Ended(refusal(request, Outcome.CANCELLED, 'it was cancelled'))
                case CommitStatus.REUSED:
                    raise Ended(refusal(request, Outcome.REUSED, 'used with another body'))
                case CommitStatus.BARRED:
                    raise Ended(refusal(request, Outcome.REFUSED, outcome.reason))
            self._clock.sleep(min(LOOK_SECONDS, left))

    def lost(self, request: SelectDestinations) -> Answer:
        """Why a request is no longer ours: it was cancelled, or its time was over.

        One that is has lost the rule that it was placed under, or a zone.
        """
        stored = self._store.load_request(request.request_id)
        if stored is not None and stored.state == 'cancelled':
            return refusal(request, Outcome.CANCELLED, 'it was cancelled')
        why = 'another worker is at this request'
        if stored is not None and (stored.state, stored.owner) == ('open', self._settings.worker):
            why = 'its server group, or a zone below, is not as it was when it was placed'
            self._store.give_up(request.request_id, stored.owner, stored.attempt)
        return refusal(request, Outcome.BUSY, why, self._settings.retry_after_ms)


def _check_project(request: SelectDestinations, stays: bool) -> None:
    """
    :raises Ended: its project's id is longer than what is stored, and indexed, of claims below
    """
    length = len(request.spec.project_id or '')
    if length > NAME_MAX and not stays:
        why = f'project_id has {length} characters; below it is expected to have {NAME_MAX} at most'
        raise Ended(refusal(request, Outcome.REFUSED, why))
