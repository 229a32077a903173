# SPDX-License-Identifier: Apache-2.0
"""Writes to the database that matter: a process may die at each, and the trace has its effect."""

from collections.abc import Callable, Mapping
from typing import Any

from gantt.core.claims.commit import CommitResult
from gantt.core.messages.report import ClaimUpdate
from gantt.scheduler.ports.hosts import ReportResult
from gantt.scheduler.ports.requests import ClaimResult

#: Returns what a write did, from its arguments and its result; '' where it did nothing.
Summary = Callable[[tuple[Any, ...], Any], str]


def _nothing(args: tuple[Any, ...], result: Any) -> str:
    return ''


def _commit(args: tuple[Any, ...], result: CommitResult) -> str:
    return ', '.join(
        f'{draft.id[:8]}.{draft.attempt} {outcome.outcome.value}'
        + ''.join(
            f' {draft.claims[i].claim.id[:8]}@{draft.claims[i].claim.host}'
            for i in outcome.accepted
        )
        + ''.join(f' takes {draft.taken_reservations[i].claim_id[:8]}' for i in outcome.taken)
        for draft, outcome in zip(args[0], result.outcomes, strict=True)
    )


def _register_hosts(args: tuple[Any, ...], result: Any) -> str:
    return ', '.join(
        f'{message.name} refused'
        if isinstance(registered, Exception)
        else f'{message.name} epoch {registered[0].epoch}'
        for message, registered in zip(args[0], result, strict=True)
    )


def _apply_reports(args: tuple[Any, ...], result: ReportResult) -> str:
    return ', '.join(
        f'{report.name} {report.epoch}.{report.sequence} {outcome.outcome}'
        + ''.join(f' +{claim_id[:8]}' for claim_id in outcome.confirmed)
        + ''.join(f' -{claim_id[:8]}' for claim_id in outcome.released)
        + ''.join(f' adopted {claim_id[:8]}' for claim_id in outcome.adopted)
        for report, outcome in zip(args[0], result.outcomes, strict=True)
    )


def _reject(args: tuple[Any, ...], result: Any) -> str:
    return f'{args[0][:8]}: {"rejected" if result is None else result.state}'


def _cancel(args: tuple[Any, ...], result: ClaimResult) -> str:
    return f'{args[0][:8]}: {_outcomes(args, result)}'


def _outcomes(args: tuple[Any, ...], result: ClaimResult) -> str:
    return ' '.join(f'{outcome.claim_id[:8]}={outcome.outcome}' for outcome in result.outcomes)


def _of_subject(args: tuple[Any, ...], result: ClaimResult) -> str:
    subject = args[0].name if isinstance(args[0], ClaimUpdate) else args[0][:8]
    return f'{subject} {_outcomes(args, result)}'


WRITES: Mapping[str, Summary] = {
    'commit': _commit,
    'give_up': _of_subject,
    'reject_request': _reject,
    'cancel_request': _cancel,
    'extend_request': _of_subject,
    'confirm_request': _of_subject,
    'return_request': _of_subject,
    'register_hosts': _register_hosts,
    'apply_reports': _apply_reports,
    'confirm_claims': _of_subject,
    'refuse_claims': _of_subject,
    'release_claims': _of_subject,
    'sweep': _outcomes,
    'extend_plan': _of_subject,
    'release_plan': _of_subject,
    # Of requests over zones.
    'open_request': lambda args, result: (
        f'{args[0].id[:8]} {"ours" if result.outcome is None else result.outcome.outcome.value} '
        f'{result.lock_token[:8]}'
    ),
    'finish_request': lambda args, result: (
        f'{args[0][:8]} {result} ' + ' '.join(f'{share.claim_id[:8]}' for share in args[4])
    ),
    'note_child_changes': lambda args, result: ' '.join(
        f'{change.claim_id[:8]}={change.state}' for change in args[1].claims
    ),
    'decide_group_zone': _nothing,
    'add_releases': _nothing,
    'end_releases': _nothing,
    'end_lost': _nothing,
    'note_allocation': _nothing,
    'restore': _nothing,
    'end_abandoned_request': _nothing,
}
