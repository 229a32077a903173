# SPDX-License-Identifier: Apache-2.0
"""How many calls of a kind may be inside at once, of all and of one caller.

A placement waits for the schedulers with a thread of ours, and what is placed in this
process takes its processor: without a bound either would leave nothing for others, health
included.  Nobody waits at a gate: one call too many is told when to come again.
"""

import collections
import contextlib
import threading
from collections.abc import Iterator

import msgspec

from gantt import exceptions
from gantt.http.settings import HttpSettings
from gantt.http.world import Caller

RETRY_AFTER_MS = 1000


class Gate:
    """See the module docstring.

    :param what: what waits, for the refusal
    :param most: calls inside at once
    :param of_one: of them, of one caller; who is not known is bounded with all others only
    """

    def __init__(self, what: str, most: int, of_one: int) -> None:
        self._what, self._most, self._of_one = what, most, of_one
        self._inside: collections.Counter[tuple[str | None, str]] = collections.Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def passing(self, caller: Caller) -> Iterator[None]:
        """Be inside.

        :raises Busy: as many are there as may be
        """
        key = caller.project, caller.user
        with self._lock:
            inside, own = self._inside.total(), self._inside[key]
            known = caller.project is not None or caller.user
            if inside >= self._most or (known and own >= self._of_one):
                whose = 'of this caller ' if inside < self._most else ''
                count = own if inside < self._most else inside
                raise exceptions.Busy(
                    reason=f'{count} {self._what} {whose}are being answered',
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


class Gates(msgspec.Struct, frozen=True):
    """The gates of one process.

    :ivar placements: wait for the schedulers
    :ivar trials: are placed here: dry runs, what-if, capacity, replays
    """

    placements: Gate
    trials: Gate


def gates(settings: HttpSettings) -> Gates:
    """As it is configured."""
    return Gates(
        Gate('requests', settings.placements_max, settings.placements_of_one_max),
        Gate('trials', settings.trials_max, settings.trials_max),
    )
