# SPDX-License-Identifier: Apache-2.0
"""What computes and callers say about claims, and what time says about them.

Every word is one short transaction on the host's row; the hosts it touched are
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
from gantt.scheduler.host_signatures import Alarm
from gantt.scheduler.ports import ClaimOutcome, ClaimResult, Recorder, Store
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)
#: Claims that one line of the log names.
UNREADABLE_NAMED = 10


@dataclasses.dataclass(eq=False)
class ClaimUpdates:
    """The verbs on claims other than making them."""

    store: Store
    cache: HostCache
    recorder: Recorder
    settings: SchedulerSettings
    alarm: Alarm

    def register_host(self, message: RegisterHost) -> Registered:
        """A host is there; hands out its epoch and says how often to report."""
        (found,) = self.register_hosts([message])
        if isinstance(found, exceptions.GanttError):
            raise found
        return found

    def register_hosts(
        self, messages: Sequence[RegisterHost]
    ) -> list[Registered | exceptions.GanttError]:
        """Register hosts that differ; errors in place of those refused."""
        before = [self.cache.row_of(one.name) for one in messages]
        found = self.store.register_hosts(messages)
        self._look_at(before, messages, found)
        made = [one for one in found if not isinstance(one, exceptions.GanttError)]
        if made:
            self.cache.offer([change for _, change in made])
            self.recorder.count('gantt_registrations_total', len(made))
        seconds = self.settings.report_seconds
        return [
            one
            if isinstance(one, exceptions.GanttError)
            else msgspec.structs.replace(one[0], report_seconds=seconds)
            for one in found
        ]

    def _look_at(
        self,
        before: Sequence[HostRow | None],
        messages: Sequence[RegisterHost],
        found: Sequence[RegistrationOutcome],
    ) -> None:
        """Alarms: who is refused for want of proof, and who comes from another journal."""
        held = registration.HELD_REPORTS * self.settings.report_seconds
        for row, host_message, outcome in zip(before, messages, found, strict=True):
            if isinstance(outcome, exceptions.NotProven):
                self.alarm.raise_('register_host', outcome)
            if isinstance(outcome, exceptions.GanttError) or row is None:
                continue
            if registration.is_elsewhere(row, host_message, self.cache.database_now, held):
                self.recorder.count('gantt_registrations_elsewhere_total')
                LOG.warning(
                    'host %s: it was registered from another journal %.0f s after an agent with '
                    'the last one had reported: are there two agents of that name, or does '
                    'somebody else report for it?',
                    host_message.name,
                    max(0.0, self.cache.database_now - row.reported_at),
                )

    def confirm(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """The compute asks before it starts guests: ok, or gone."""
        return self._counted('confirm', self.store.confirm_claims(update))

    def refuse(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """The compute's second check said no: the two views of the host differ."""
        outcomes = self._counted('refuse', self.store.refuse_claims(update))
        # Of what was released or expired before, the two views do not differ.
        refused = sum(outcome.outcome == 'ok' for outcome in outcomes)
        if refused:
            LOG.warning(
                'host %s refuses %d claims (%s): its own check says that they do not fit',
                update.name,
                refused,
                update.reason,
            )
            self.recorder.count('gantt_disagreements_total', refused)
        return outcomes

    def release(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """The compute says that guests are gone."""
        return self._counted('release', self.store.release_claims(update))

    def cancel(self, message: CancelClaims) -> dict[str, object]:
        """Take a request back.  Confirmed claims stay: delete the guest instead."""
        result = self.store.cancel_request(message.request_id, message.reason)
        return {
            'request_id': message.request_id,
            'state': 'cancelled',
            'claims': _listed(self._counted('cancel', result)),
        }

    def extend(self, message: ExtendClaims) -> dict[str, object]:
        """Lengthen leases, up to the configured longest."""
        result = self.store.extend_request(
            message.request_id,
            float(message.seconds),
            self.settings.lease_seconds_max,
            self.settings.plan_lease_seconds_max,
        )
        if not result.outcomes:
            raise exceptions.NotFound(kind='request with reserved claims', name=message.request_id)
        return {
            'request_id': message.request_id,
            'claims': _listed(self._counted('extend', result)),
        }

    def confirm_request(self, message: ConfirmRequest) -> dict[str, object]:
        """What was asked for without a host is in use."""
        result = self.store.confirm_request(message.request_id, message.consumers)
        return {
            'request_id': message.request_id,
            'claims': _listed(self._counted('confirm', result)),
        }

    def release_request(self, message: ReleaseRequest) -> dict[str, object]:
        """What was asked for without a host is used no more."""
        result = self.store.return_request(message.request_id, message.consumers, message.reason)
        with contextlib.suppress(exceptions.Unavailable):
            self.cache.fetch_news()  # what a pool has again no result tells
        return {
            'request_id': message.request_id,
            'claims': _listed(self._counted('release', result)),
        }

    def sweep(self) -> int:
        """Expire what nobody confirmed in time; how many there were."""
        result = self.store.sweep(self.settings.sweep_rows)
        if result.unreadable:
            self.recorder.count('gantt_claims_unreadable_total', len(result.unreadable))
            named = [f'{one} ({problem})' for one, problem in result.unreadable.items()]
            LOG.error(
                '%d claims past their lease cannot be ended and hold their places: %s%s',
                len(named),
                '; '.join(named[:UNREADABLE_NAMED]),
                '; ...' if len(named) > UNREADABLE_NAMED else '',
            )
        return len(self._counted('expire', result))

    def _counted(self, method: str, result: ClaimResult) -> list[ClaimOutcome]:
        self.cache.offer(result.hosts)
        for outcome in result.outcomes:
            self.recorder.count('gantt_claim_words_total', word=method, fate=outcome.outcome)
        return result.outcomes


def _listed(outcomes: Sequence[ClaimOutcome]) -> list[dict[str, object]]:
    return [{'claim_id': f.claim_id, 'fate': f.outcome, 'state': f.state} for f in outcomes]


def jittered(seconds: float) -> float:
    """``seconds`` ± 50 %, so that schedulers do not sweep in step."""
    return seconds * random.uniform(0.5, 1.5)
