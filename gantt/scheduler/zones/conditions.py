# SPDX-License-Identifier: Apache-2.0
"""Conditions of the child zones: what each reports of itself when called, and its problems.

A caller has them queried at once, or takes what is remembered: health is shown without waiting for
another zone.
"""

import concurrent.futures
import enum
import threading
from collections.abc import Callable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.zones.messages import ZoneInfo, ZoneRecord
from gantt.scheduler.ports import Clock
from gantt.scheduler.ports.zones import Zones

#: Timeout of the query of one zone, in seconds.
ANSWER_SECONDS = 3.0
#: Zones that are called at once.
AT_ONCE = 16
#: Maximum age of remembered conditions before they are queried anew, in seconds.
REMEMBERED_SECONDS = 10.0
#: Difference in seconds up to which the clocks of two databases count as equal.
CLOCK_SECONDS = 5.0


class ZoneState(enum.StrEnum):
    """State of a child zone."""

    RESPONDING = 'responding'
    DISABLED = 'disabled'
    UNRESPONSIVE = 'unresponsive'  # no answer, or another zone answers
    FORBIDDEN = 'forbidden'  # it does not admit this one
    UNUSABLE = 'unusable'  # the credential for it cannot be read here
    SCORE_MISMATCH = 'score_mismatch'  # its offers cannot be compared, and do not count


class ZoneCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Condition of a child zone.

    :ivar problem: in words; '': none
    :ivar seconds: until it answered
    :ivar clock_apart: seconds that its database's clock is ahead of ours; negative: behind
    """

    zone: ZoneRecord
    state: ZoneState
    problem: str = ''
    seconds: float = 0.0
    info: ZoneInfo | None = None
    clock_apart: float = 0.0


class ZoneConditions:
    """A reader of the conditions of child zones.  Any thread.

    :param score_set: of this zone
    :param database_now: the clock of this zone's database
    """

    def __init__(
        self,
        zones: Zones,
        children: Callable[[], Sequence[ZoneRecord]],
        score_set: Callable[[], str],
        clock: Clock,
        database_now: Callable[[], float],
    ) -> None:
        self._zones, self._children, self._score_set = zones, children, score_set
        self._clock, self._now = clock, database_now
        self._lock = threading.Lock()
        self._found: list[ZoneCondition] | None = None
        self._found_at = float('-inf')
        self._running: threading.Thread | None = None

    def find_out(self) -> list[ZoneCondition]:
        """Query the conditions of all child zones now, by name."""
        zones = list(self._children())
        if zones:
            with concurrent.futures.ThreadPoolExecutor(min(AT_ONCE, len(zones))) as threads:
                conditions = list(threads.map(self.of, zones))
        else:
            conditions = []
        with self._lock:
            self._found, self._found_at = conditions, self._clock.monotonic()
        return conditions

    def remembered(self) -> list[ZoneCondition] | None:
        """Return the last conditions, some seconds old at most, without waiting; None: none yet."""
        with self._lock:
            is_old = self._clock.monotonic() - self._found_at > REMEMBERED_SECONDS
            if is_old and (self._running is None or not self._running.is_alive()):
                self._running = threading.Thread(
                    target=self._find_out_quietly, name='zone-conditions', daemon=True
                )
                self._running.start()
            return self._found

    def _find_out_quietly(self) -> None:
        try:
            self.find_out()
        except exceptions.GanttError:  # the database is away, which others report
            return

    def of(self, zone: ZoneRecord) -> ZoneCondition:
        """Query the condition of one zone, also of a disabled one."""
        begun = self._clock.monotonic()
        try:
            info = self._zones.discover(zone, ANSWER_SECONDS)
        except exceptions.Misconfigured as e:
            return ZoneCondition(zone=zone, state=ZoneState.UNUSABLE, problem=e.message)
        except exceptions.Unavailable as e:
            return ZoneCondition(zone=zone, state=ZoneState.UNRESPONSIVE, problem=e.message)
        except exceptions.GanttError as e:
            return ZoneCondition(zone=zone, state=ZoneState.FORBIDDEN, problem=e.message)
        seconds = self._clock.monotonic() - begun
        state, problem = ZoneState.RESPONDING, ''
        apart = info.now - self._now()
        apart = 0.0 if abs(apart) <= seconds else apart
        if not zone.enabled:
            state = ZoneState.DISABLED
        elif info.score_set not in (self._score_set(), zone.score_set):
            state = ZoneState.SCORE_MISMATCH
            problem = 'it has other weighers, multipliers or settings: its offers do not count'
        elif abs(apart) > CLOCK_SECONDS:
            where = 'before' if apart > 0 else 'behind'
            problem = f'the clock of its database is {abs(apart):.0f} s {where} ours'
        return ZoneCondition(
            zone=zone, state=state, problem=problem, seconds=seconds, info=info, clock_apart=apart
        )


def summed_up(found: Sequence[ZoneCondition]) -> str:
    """Return the problems of enabled child zones in a line; '': none."""
    unwell = [
        condition
        for condition in found
        if condition.zone.enabled
        and (condition.problem or condition.state is not ZoneState.RESPONDING)
    ]
    if not unwell:
        return ''
    names = '; '.join(
        f'{condition.zone.name} {condition.state.value.replace("_", " ")}: {condition.problem}'
        for condition in unwell
    )
    return f'{len(unwell)} of {len(found)} zones below are not well: {names}'
