# SPDX-License-Identifier: Apache-2.0
"""Log lines on answers: a line for each refusal, and one for a whole batch.

Placed requests are in the decision records, by request, consumer and the id that a request has
elsewhere; a line for each of them would cost more than to place them.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gantt.core.records.decision import Answered, Outcome
from gantt.core.records.members import chosen_hosts
from gantt.telemetry import log

#: Refusals of a batch that get a line each, and requests that the line of a batch names.
REFUSALS_MOST, NAMED_MOST = 10, 20


def log_answers(logger: Any, log_each: bool, answers: Sequence[Answered]) -> None:
    """Log lines at INFO about answers that have left together.

    An answer by itself gets its own line, whatever its outcome.

    :param log_each: whether every answer gets a line
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    if log_each or len(answers) == 1:
        single, summed = answers, []
    else:
        refused = [sent for sent in answers if sent.answer.outcome is not Outcome.PLACED]
        single, further = refused[:REFUSALS_MOST], refused[REFUSALS_MOST:]
        # Refusals first: that they are named matters more.
        summed = further + [sent for sent in answers if sent.answer.outcome is Outcome.PLACED]
    for sent in single:
        _log_one(logger, sent)
    if summed:
        _log_batch(logger, answers, summed)


def _log_one(logger: Any, one: Answered) -> None:
    answer = one.answer
    chosen = chosen_hosts(answer)
    facts = log.facts(
        id=answer.decision_id or None,
        origin=one.origin,
        trace=one.trace,
        outcome=answer.outcome.value,
        dry_run=answer.dry_run or None,
        members=len(chosen) or None,
        hosts=chosen[:10] or None,
        oldest_report_age_seconds=answer.age_seconds,
        ms=round(one.seconds * 1000, 3),
        reason=answer.reason or None,
        places=answer.places or None,
    )
    # The request's context would log the same, which takes longer than the line.
    logger.info('Request was decided: %s', facts, extra={'request_id': answer.request_id})


def _log_batch(logger: Any, answers: Sequence[Answered], summed: Sequence[Answered]) -> None:
    """Log the line of a batch.

    :param summed: answers without a line of their own
    """
    slowest = max(answers, key=lambda sent: sent.seconds)
    named = summed[:NAMED_MOST]
    facts = log.facts(
        answers=len(answers),
        **Counter(sent.answer.outcome.value for sent in answers),
        dry_runs=sum(sent.answer.dry_run for sent in answers) or None,
        members=sum(len(sent.answer.selections) for sent in answers) or None,
        oldest_report_age_seconds=max(sent.answer.age_seconds for sent in answers),
        slowest_ms=round(slowest.seconds * 1000, 3),
        slowest=slowest.answer.request_id,
        requests=[sent.answer.request_id for sent in named],
        origins=[sent.origin for sent in named if sent.origin] or None,
        traces=[sent.trace for sent in named if sent.trace] or None,
        not_named=len(summed) - len(named) or None,
    )
    # Of no request: as a line without a context is written.
    logger.info('Requests were decided: %s', facts, extra={'request_id': '-'})
