# SPDX-License-Identifier: Apache-2.0
"""The row of a request, open before anything is claimed: its owner continues alone.

Its consumers are stored in ``consumers_on_their_way`` from then on, so that two requests for one of
them meet, wherever each is placed.
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
from gantt.scheduler.ports import Clock, Recorder, Store
from gantt.scheduler.ports.zones import OpenRequest
from gantt.scheduler.request.answers import StoredAnswers
from gantt.scheduler.request.queue import refusal
from gantt.scheduler.settings import SchedulerSettings

#: Interval between two reads of a row that another scheduler has open, in seconds.
LOOK_SECONDS = 0.1
#: Seconds that a row is open beyond the budget of its request.
SPARE_SECONDS = 1.0


class Opening(NamedTuple):
    """The row of a request, opened by this worker.

    :ivar number: of its attempt
    :ivar token: the keys of its claims in other zones are derived from it
    :ivar fingerprint: of the request as received
    :ivar order: of its claims in other zones
    :ivar is_at_once: no other worker had it open, and nothing was ended for it
    :ivar rule: of its group; None: it has no group
    """

    number: int
    token: str
    fingerprint: str
    order: int
    is_at_once: bool = True
    rule: GroupRule | None = None

    def ruled(self, request: SelectDestinations) -> SelectDestinations:
        """Return the request under the rule of its group, which zones below do not have."""
        return request if self.rule is None else group_rule.with_rule(request, self.rule)


class Ended(Exception):
    """Raised where the request is answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class RequestRows:
    """An opener of rows.  Any thread.

    :param end_opening: ends the claims of an opening that its owner has abandoned
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
        """Open the row of a request for this worker.

        :param number: of its attempt where no other worker has it open
        :param stays: it is for hosts of this zone alone
        :raises Ended: it is answered, or cannot go on
        """
        _check_project(request, stays)
        takes_over: int | None = None
        abandoned, tries = '', 0
        while True:
            tries += 1
            seconds = end - self._clock.monotonic()
            if seconds <= 0:
                why = 'another worker is at this request'
                raise Ended(refusal(request, Outcome.BUSY, why, self._settings.retry_after_ms))
            opened = self._store.open_request(
                OpenRequest(
                    id=request.request_id,
                    fingerprint=fingerprint,
                    owner=self._settings.worker,
                    attempt=number,
                    takes_over=takes_over,
                    seconds=seconds + SPARE_SECONDS,
                    consumers=request.consumers,
                    purpose=request.spec.purpose,
                    stays=stays,
                    group=request.spec.group,
                    project_id=request.spec.project_id,
                    of_parent=request.parent is not None,
                    rule_generation=request.rule_generation,
                )
            )
            outcome = opened.outcome
            if outcome is None:
                if abandoned and may_be_elsewhere(abandoned):
                    # Its owner is lost: the earlier claims are ended before new ones.
                    self._end_opening(abandoned)
                return Opening(
                    number, opened.opening, fingerprint, opened.order, tries == 1, opened.rule
                )
            match outcome.outcome:
                case CommitStatus.REPEAT:
                    self._recorder.count('gantt_repeats_total')
                    raise Ended(plain(self._stored.read(request.request_id, outcome.answer)))
                case CommitStatus.OVERDUE:
                    abandoned = opened.opening
                    takes_over, number = outcome.attempt, outcome.attempt + 1
                    continue
                case CommitStatus.CANCELLED:
                    raise Ended(refusal(request, Outcome.CANCELLED, 'it was cancelled'))
                case CommitStatus.REUSED:
                    raise Ended(refusal(request, Outcome.REUSED, 'used with another body'))
                case CommitStatus.BARRED:
                    raise Ended(refusal(request, Outcome.REFUSED, outcome.reason))
            self._clock.sleep(min(LOOK_SECONDS, seconds))

    def lost(self, request: SelectDestinations) -> Answer:
        """Return why a request is no longer ours: it was cancelled, or its time was over.

        One that is still ours has lost the rule that it was placed under, or a zone.
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
    """Check the length of the project id.

    :raises Ended: it is longer than what is stored, and indexed, of claims below
    """
    length = len(request.spec.project_id or '')
    if length > NAME_MAX and not stays:
        why = f'project_id has {length} characters; below it is expected to have {NAME_MAX} at most'
        raise Ended(refusal(request, Outcome.REFUSED, why))
