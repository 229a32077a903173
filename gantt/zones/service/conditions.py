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
from gantt.scheduler.ports.process import Clock
from gantt.zones.model.messages import ZoneInfo, ZoneRecord
from gantt.zones.ports import ZoneCalls

#: Timeout of the query of one zone, in seconds.
ANSWER_SECONDS = 3.0
#: Zones that are called at once.
CONCURRENT_ZONES_MAX = 16
#: Maximum age of remembered conditions before they are queried anew, in seconds.
CACHE_SECONDS = 10.0
#: Difference in seconds up to which the clocks of two databases count as equal.
CLOCK_DIFFERENCE_MAX_SECONDS = 5.0


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
    """

    zone: ZoneRecord
    state: ZoneState
    problem: str = ''
    seconds: float = 0.0
    info: ZoneInfo | None = None


class ZoneConditions:
    """A reader of the conditions of child zones.  Any thread.

    :param score_set: of this zone
    :param database_now: the clock of this zone's database
    """

    def __init__(
        self,
        zones: ZoneCalls,
        children: Callable[[], Sequence[ZoneRecord]],
        score_set: Callable[[], str],
        clock: Clock,
        database_now: Callable[[], float],
    ) -> None:
        self._zones = zones
        self._children = children
        self._score_set = score_set
        self._clock = clock
        self._now = database_now
        self._lock = threading.Lock()
        self._cached: list[ZoneCondition] | None = None
        self._cached_at = float('-inf')
        self._running: threading.Thread | None = None

    def query_all(self) -> list[ZoneCondition]:
        """Query the conditions of all child zones now, by name."""
        zones = list(self._children())
        if zones:
            with concurrent.futures.ThreadPoolExecutor(
                min(CONCURRENT_ZONES_MAX, len(zones))
            ) as threads:
                conditions = list(threads.map(self.query_zone, zones))
        else:
            conditions = []
        with self._lock:
            self._cached, self._cached_at = conditions, self._clock.monotonic()
        return conditions

    def cached(self) -> list[ZoneCondition] | None:
        """Return the last conditions, some seconds old at most, without waiting; None: none yet."""
        with self._lock:
            is_old = self._clock.monotonic() - self._cached_at > CACHE_SECONDS
            if is_old and (self._running is None or not self._running.is_alive()):
                self._running = threading.Thread(
                    target=self._refresh_cache, name='zone-conditions', daemon=True
                )
                self._running.start()
            return self._cached

    def _refresh_cache(self) -> None:
        try:
            self.query_all()
        except exceptions.GanttError:  # the database is away, which others report
            return

    def query_zone(self, zone: ZoneRecord) -> ZoneCondition:
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
        clock_difference = info.now - self._now()
        clock_difference = 0.0 if abs(clock_difference) <= seconds else clock_difference
        if not zone.enabled:
            state = ZoneState.DISABLED
        elif info.score_set not in (self._score_set(), zone.score_set):
            state = ZoneState.SCORE_MISMATCH
            problem = 'it has other weighers, multipliers or settings: its offers do not count'
        elif abs(clock_difference) > CLOCK_DIFFERENCE_MAX_SECONDS:
            where = 'before' if clock_difference > 0 else 'behind'
            problem = f'the clock of its database is {abs(clock_difference):.0f} s {where} ours'
        return ZoneCondition(zone=zone, state=state, problem=problem, seconds=seconds, info=info)


def problem_summary(conditions: Sequence[ZoneCondition]) -> str:
    """Return the problems of enabled child zones in a line; '': none."""
    with_problems = [
        condition
        for condition in conditions
        if condition.zone.enabled
        and (condition.problem or condition.state is not ZoneState.RESPONDING)
    ]
    if not with_problems:
        return ''
    names = '; '.join(
        f'{condition.zone.name} {condition.state.value.replace("_", " ")}: {condition.problem}'
        for condition in with_problems
    )
    return f'{len(with_problems)} of {len(conditions)} child zones are not well: {names}'
