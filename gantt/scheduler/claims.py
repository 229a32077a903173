# SPDX-License-Identifier: Apache-2.0
"""Updates of claims: by computes and callers, and by time.

Every update is one short transaction on the host's row; the touched hosts are
offered to the host table.
"""

import contextlib
import dataclasses
import logging
import random
from collections.abc import Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims import registration
from gantt.core.claims.reconcile import RegistrationOutcome
from gantt.core.messages.report import ClaimUpdate, Registered, RegisterHost
from gantt.core.messages.request import (
    CancelClaims,
    ConfirmRequest,
    ExtendClaims,
    ReleaseRequest,
)
from gantt.core.resources.host import HostRow
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.host_signatures import ForgeryAlarm
from gantt.scheduler.ports.hosts import Reports
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult, Claims, Requests
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)
#: Claims that one line of the log names.
UNREADABLE_CLAIMS_NAMED_MAX = 10


@dataclasses.dataclass(eq=False)
class ClaimUpdates:
    """Operations on claims, except their creation."""

    claims: Claims
    requests: Requests
    reports: Reports
    cache: HostCache
    recorder: Recorder
    settings: SchedulerSettings
    alarm: ForgeryAlarm

    def register_host(self, message: RegisterHost) -> Registered:
        """Register a host; return its epoch and the report interval."""
        (result,) = self.register_hosts([message])
        if isinstance(result, exceptions.GanttError):
            raise result
        return result

    def register_hosts(
        self, messages: Sequence[RegisterHost]
    ) -> list[Registered | exceptions.GanttError]:
        """Register distinct hosts; errors in place of those refused."""
        rows_before = [self.cache.row_of(outcome.name) for outcome in messages]
        outcomes = self.reports.register_hosts(messages)
        self._raise_alarms(rows_before, messages, outcomes)
        registered = [
            outcome for outcome in outcomes if not isinstance(outcome, exceptions.GanttError)
        ]
        if registered:
            self.cache.offer([change for _, change in registered])
            self.recorder.count('gantt_host_registrations_total', len(registered))
        seconds = self.settings.report_seconds
        return [
            outcome
            if isinstance(outcome, exceptions.GanttError)
            else msgspec.structs.replace(outcome[0], report_seconds=seconds)
            for outcome in outcomes
        ]

    def _raise_alarms(
        self,
        before: Sequence[HostRow | None],
        messages: Sequence[RegisterHost],
        outcomes: Sequence[RegistrationOutcome],
    ) -> None:
        """Raise alarms: for hosts refused without proof, and for those from another journal."""
        held_seconds = registration.HELD_REPORT_PERIODS * self.settings.report_seconds
        for row, host_message, outcome in zip(before, messages, outcomes, strict=True):
            if isinstance(outcome, exceptions.NotProven):
                self.alarm.raise_('register_host', outcome)
            if isinstance(outcome, exceptions.GanttError) or row is None:
                continue
            if registration.is_elsewhere(row, host_message, self.cache.database_now, held_seconds):
                self.recorder.count('gantt_host_registration_conflicts_total')
                LOG.warning(
                    'Host was registered from another journal; check whether two agents have its '
                    'name, or another program reports for it: host=%s seconds_after_report=%.0f',
                    host_message.name,
                    max(0.0, self.cache.database_now - row.reported_at),
                )

    def confirm(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """Confirm claims before the compute starts guests: each outcome is ok, or gone."""
        return self._counted('confirm', self.claims.confirm_claims(update))

    def refuse(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """Refuse claims that failed the compute's second check: the two views differ."""
        outcomes = self._counted('refuse', self.claims.refuse_claims(update))
        # For claims released or expired before, the two views do not differ.
        refused = sum(outcome.outcome == 'ok' for outcome in outcomes)
        if refused:
            LOG.warning(
                'Host refused claims, as its own check found that they do not fit: host=%s '
                'count=%d reason=%s',
                update.name,
                refused,
                update.reason,
            )
            self.recorder.count('gantt_claims_refused_total', refused)
        return outcomes

    def release(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """Release claims whose guests the compute has deleted."""
        return self._counted('release', self.claims.release_claims(update))

    def cancel(self, message: CancelClaims) -> dict[str, object]:
        """Cancel a request.  Confirmed claims stay: delete the guest instead."""
        result = self.requests.cancel_request(message.request_id, message.reason)
        return {
            'request_id': message.request_id,
            'state': 'cancelled',
            'claims': _host_names(self._counted('cancel', result)),
        }

    def extend(self, message: ExtendClaims) -> dict[str, object]:
        """Lengthen leases, up to the configured longest."""
        result = self.requests.extend_request(
            message.request_id,
            float(message.seconds),
            self.settings.lease_seconds_max,
            self.settings.plan_lease_seconds_max,
        )
        if not result.outcomes:
            raise exceptions.NotFound(kind='request with reserved claims', name=message.request_id)
        return {
            'request_id': message.request_id,
            'claims': _host_names(self._counted('extend', result)),
        }

    def confirm_request(self, message: ConfirmRequest) -> dict[str, object]:
        """Confirm the use of claims without a host."""
        result = self.requests.confirm_request(message.request_id, message.consumers)
        return {
            'request_id': message.request_id,
            'claims': _host_names(self._counted('confirm', result)),
        }

    def release_request(self, message: ReleaseRequest) -> dict[str, object]:
        """Release claims without a host."""
        result = self.requests.return_request(message.request_id, message.consumers, message.reason)
        with contextlib.suppress(exceptions.Unavailable):
            self.cache.fetch_news()  # a pool's freed amounts are in no result
        return {
            'request_id': message.request_id,
            'claims': _host_names(self._counted('release', result)),
        }

    def sweep(self) -> int:
        """Expire claims not confirmed in time; return their number."""
        result = self.claims.sweep(self.settings.sweep_rows)
        if result.unreadable:
            self.recorder.count('gantt_claims_unreadable_total', len(result.unreadable))
            named_claims = [
                f'{claim_id} ({problem})' for claim_id, problem in result.unreadable.items()
            ]
            LOG.error(
                'Claims past their lease cannot be ended and keep their amounts: count=%d '
                'claims=%s%s',
                len(named_claims),
                '; '.join(named_claims[:UNREADABLE_CLAIMS_NAMED_MAX]),
                '; ...' if len(named_claims) > UNREADABLE_CLAIMS_NAMED_MAX else '',
            )
        return len(self._counted('expire', result))

    def _counted(self, method: str, result: ClaimResult) -> list[ClaimOutcome]:
        self.cache.offer(result.hosts)
        for outcome in result.outcomes:
            self.recorder.count('gantt_claim_updates_total', action=method, outcome=outcome.outcome)
        return result.outcomes


def _host_names(outcomes: Sequence[ClaimOutcome]) -> list[dict[str, object]]:
    return [
        {'claim_id': outcome.claim_id, 'outcome': outcome.outcome, 'state': outcome.state}
        for outcome in outcomes
    ]


def with_jitter(seconds: float) -> float:
    """Return ``seconds`` ± 50 %, so that schedulers do not sweep in step."""
    return seconds * random.uniform(0.5, 1.5)
