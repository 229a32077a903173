# SPDX-License-Identifier: Apache-2.0
"""Limits of concurrent calls of a kind, in all and of one project.

A placement waits for the schedulers with a thread of ours, and a trial in this process takes its
processor: without a bound either would leave nothing for others, health included.  No call waits at
a gate: one call too many is refused with a time to retry.

A project may have as many inside as it leaves free, and no more: so a second one finds room
whatever the first does, and a third what two leave.  The rule is that of dynamic thresholds for
shared buffers: A. K. Choudhury and E. L. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory
Packet Switches", IEEE/ACM Transactions on Networking 6(2), 1998, with alpha = 1.
"""

import collections
import contextlib
import threading
from collections.abc import Iterator

import msgspec

from gantt import exceptions
from gantt.http.caller import Caller
from gantt.http.settings import HttpSettings

RETRY_AFTER_MS = 1000


class QuotaGate:
    """A limit of concurrent calls of a kind, in all and of one project.

    :param call_kind: name of the kind of calls, for the refusal
    :param calls_max: number of calls that may run at once
    :param calls_per_project_max: number of calls of one project that may run at once; unknown
        callers have no such bound
    """

    def __init__(self, call_kind: str, calls_max: int, calls_per_project_max: int) -> None:
        self._call_kind = call_kind
        self._calls_max = calls_max
        self._calls_per_project_max = calls_per_project_max
        self._calls_by_owner: collections.Counter[tuple[str, str]] = collections.Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def admit(self, caller: Caller, project: str | None = None) -> Iterator[None]:
        """Count a call of the caller's project while it runs.

        :param project: project of the call, where the caller may name any
        :raises Busy: as many calls run as may
        """
        key = _owner(caller, project)
        with self._lock:
            inside, own = self._calls_by_owner.total(), self._calls_by_owner[key]
            free = self._calls_max - inside
            if free <= 0 or (key[1] and own >= min(self._calls_per_project_max, free)):
                whose = f'of this {key[0]} ' if free > 0 else ''
                count = own if free > 0 else inside
                raise exceptions.Busy(
                    reason=f'{count} {self._call_kind} {whose}are being answered',
                    retry_after_ms=RETRY_AFTER_MS,
                )
            self._calls_by_owner[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls_by_owner[key] -= 1
                if not self._calls_by_owner[key]:
                    del self._calls_by_owner[key]


def _owner(caller: Caller, project: str | None) -> tuple[str, str]:
    """Return the owner that a call counts for: the named project, the caller's, or its user."""
    if project is not None and caller.everywhere:
        return 'project', project
    if caller.project is not None:
        return 'project', caller.project
    return 'caller', caller.user


class QuotaGates(msgspec.Struct, frozen=True):
    """The gates of one process.

    :ivar placements: calls that wait for the schedulers, or for the planner of groups
    :ivar plans: calls of ``placements`` that wait for the planner
    :ivar trials: calls that are placed here: dry runs, what-if, capacity, replays
    :ivar evaluations: calls of parent zones: placed here, and perhaps waiting for child zones
    :ivar waits: calls that wait for an event
    """

    placements: QuotaGate
    plans: QuotaGate
    trials: QuotaGate
    evaluations: QuotaGate
    waits: QuotaGate

    @contextlib.contextmanager
    def planning(self, caller: Caller, project: str | None = None) -> Iterator[None]:
        """Count a call inside the gates ``placements`` and ``plans`` while its group is planned.

        :param project: see ``QuotaGate.admit``
        :raises Busy: as many calls run as may
        """
        with self.plans.admit(caller, project), self.placements.admit(caller, project):
            yield


def quota_gates(settings: HttpSettings) -> QuotaGates:
    """Return the gates as configured."""
    return QuotaGates(
        QuotaGate('requests', settings.placements_max, settings.placements_of_one_max),
        QuotaGate('plans of groups', settings.plans_max, settings.plans_max),
        QuotaGate('trials', settings.trials_max, settings.trials_max),
        QuotaGate('evaluations', settings.evaluations_max, settings.evaluations_max),
        QuotaGate('waits for events', settings.waits_max, settings.waits_max),
    )
