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
    """A limit of concurrent calls, see the module docstring.

    :param what: kind of the calls, for the refusal
    :param most: calls inside at once
    :param of_one: those of one project; unidentified callers are bounded with all others only
    """

    def __init__(self, what: str, most: int, of_one: int) -> None:
        self._what = what
        self._most = most
        self._of_one = of_one
        self._inside: collections.Counter[tuple[str, str]] = collections.Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def passing(self, caller: Caller, project: str | None = None) -> Iterator[None]:
        """Occupy a place inside.

        :param project: of the call, where the caller may name any
        :raises Busy: as many are there as may be
        """
        key = _owner(caller, project)
        with self._lock:
            inside, own = self._inside.total(), self._inside[key]
            free = self._most - inside
            if free <= 0 or (key[1] and own >= min(self._of_one, free)):
                whose = f'of this {key[0]} ' if free > 0 else ''
                raise exceptions.Busy(
                    reason=f'{own if free > 0 else inside} {self._what} {whose}are being answered',
                    retry_after_ms=RETRY_AFTER_MS,
                )
            self._inside[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside[key] -= 1
                if not self._inside[key]:
                    del self._inside[key]


def _owner(caller: Caller, project: str | None) -> tuple[str, str]:
    """Return the owner whose room a call takes; callers of one project are one."""
    if project is not None and caller.everywhere:
        return 'project', project
    if caller.project is not None:
        return 'project', caller.project
    return 'caller', caller.user


class QuotaGates(msgspec.Struct, frozen=True):
    """The gates of one process.

    :ivar placements: calls that wait for the schedulers, or for the planner of groups
    :ivar plans: the part that waits for the planner
    :ivar trials: calls that are placed here: dry runs, what-if, capacity, replays
    :ivar evaluations: of parent zones: placed here, and perhaps waiting for child zones
    :ivar waits: calls that wait for an event
    """

    placements: QuotaGate
    plans: QuotaGate
    trials: QuotaGate
    evaluations: QuotaGate
    waits: QuotaGate

    @contextlib.contextmanager
    def planning(self, caller: Caller, project: str | None = None) -> Iterator[None]:
        """Occupy a place while a group is planned.

        :param project: see ``QuotaGate.passing``
        :raises Busy: as many are there as may be
        """
        with self.plans.passing(caller, project), self.placements.passing(caller, project):
            yield


def gates(settings: HttpSettings) -> QuotaGates:
    """Return the gates as configured."""
    return QuotaGates(
        QuotaGate('requests', settings.placements_max, settings.placements_of_one_max),
        QuotaGate('plans of groups', settings.plans_max, settings.plans_max),
        QuotaGate('trials', settings.trials_max, settings.trials_max),
        QuotaGate('evaluations', settings.evaluations_max, settings.evaluations_max),
        QuotaGate('waits for events', settings.waits_max, settings.waits_max),
    )
