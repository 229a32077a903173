# SPDX-License-Identifier: Apache-2.0
"""Activity of the last while from the database, summed up: rates, waits, refusals.

The time a scheduler takes to answer is known to its own metrics only; stored records give the
number of decisions, and how long hosts took to confirm.
"""

import collections
import dataclasses
import functools
import math
import statistics
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from gantt import exceptions
from gantt.core.messages.request import RequestKind
from gantt.core.records.decision import MemberDecision, Outcome
from gantt.core.records.decision_codec import StoredDecision, unpack
from gantt.core.records.history import History
from gantt.insights.explain import explaining
from gantt.insights.views import View
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.ports.records import Records
from gantt.scheduler.ports.requests import Claims
from gantt.scheduler.ports.stores import DatabaseStatus

T = TypeVar('T')

#: Number of parts that a window is divided into.
WINDOW_PARTS = 60
#: Maximum number of decisions that are read, newest first.
DECISIONS_MAX = 50_000
REFUSALS_MAX = 100
#: Maximum age in seconds of an answer that is returned again: many watchers cost one query.
CACHE_SECONDS = 5.0
CLAIMS_CACHE_SECONDS = 30.0
_CACHED_REFUSALS_MAX = 1000
_CACHED_WINDOWS_MAX = 100


class Activity(View, frozen=True, kw_only=True):
    """The last while in equal parts, the newest last.

    :ivar end_age_seconds: seconds since the end of the last part
    :ivar known_seconds: part of the window that the stored decisions cover
    :ivar outcomes: outcome -> decisions, by part
    :ivar confirmed: number of claims, by the part that they were created in, that their hosts have
        confirmed since
    :ivar confirm_median_seconds: median time from the creation of a claim to its confirmation,
        None: there was none; and the time that 95 of 100 claims took at most
    :ivar claims: number of stored claims, by state
    :ivar adopted: number of live claims without a request
    """

    window_seconds: float
    part_seconds: float
    end_age_seconds: float
    known_seconds: float
    outcomes: dict[str, list[int]]
    confirmed: list[int]
    confirm_median_seconds: list[float | None]
    confirm_p95_seconds: list[float | None]
    claims: dict[str, int]
    claims_age_seconds: float
    adopted: int


class FilterSum(View, frozen=True, kw_only=True):
    """Hosts that one filter removed over several decisions.

    :ivar remaining: hosts that were left after it
    :ivar decisions: number of decisions in which it removed any host
    :ivar reason: the reason that removed most hosts
    """

    filter: str
    removed: int
    remaining: int
    decisions: int
    reason: str


class RefusedFunnel(View, frozen=True, kw_only=True):
    """Filters that removed the hosts of the latest refused requests.

    :ivar decisions: number of decisions that are summed up
    :ivar truncated: there were more decisions within the window
    :ivar hosts: sum over the decisions of the hosts that each looked at: a host counts once for
        every decision; less what is removed it is ``left`` of the last
    :ivar funnel: filters that removed any host, as they ran
    :ivar pools: number of refusals for want of a pool, which are not among ``decisions``
    """

    window_seconds: float
    decisions: int
    truncated: bool
    hosts: int
    funnel: list[FilterSum]
    pools: int = 0


class _Refusal(msgspec.Struct, frozen=True):
    """A refused decision: hosts, and by filter the number removed and the reason."""

    kind: str
    hosts: int
    steps: list[tuple[str, int, str]]


@dataclasses.dataclass
class _CacheEntry:
    """One cached answer, or the error in place of it."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    computed_at: float = -math.inf
    value: Any = None
    error: exceptions.GanttError | None = None


class TimedCache:
    """A cache of recent answers; one thread at a time computes one.

    Errors of the database are cached too: threads that waited for one need not all try as well.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._entries: collections.defaultdict[object, _CacheEntry] = collections.defaultdict(
            _CacheEntry
        )

    def get(self, key: object, seconds: float, compute: Callable[[], T]) -> tuple[T, float]:
        """Return the answer and its age in seconds.

        :raises GanttError: whatever ``compute`` raises
        """
        if len(self._entries) > _CACHED_WINDOWS_MAX:
            self._entries.clear()
        entry = self._entries[key]
        with entry.lock:
            began = self._now()
            if began - entry.computed_at > seconds:
                try:
                    entry.value = compute()
                    entry.error = None
                    entry.computed_at = began
                except exceptions.Unavailable as e:
                    entry.value, entry.error, entry.computed_at = None, e, self._now()
            if entry.error is not None:
                raise entry.error
            return entry.value, max(0.0, self._now() - entry.computed_at)


class ActivityReader:
    """A summing reader.  All methods may be called from any thread."""

    def __init__(
        self, records: Records, claims: Claims, database: DatabaseStatus, clock: Clock
    ) -> None:
        self._records = records
        self._claims = claims
        self._database = database
        self._cache = TimedCache(clock)
        # Decisions never change.
        self._cached_refusal = functools.lru_cache(_CACHED_REFUSALS_MAX)(self._read_refusal)

    def activity(self, window: int) -> Activity:
        """Return the activity of the last ``window`` seconds."""

        def read() -> History:
            return self._records.history(seconds=window, parts=WINDOW_PARTS, most=DECISIONS_MAX)

        history, age = self._cache.get(('history', window), CACHE_SECONDS, read)
        counts, claims_age = self._cache.get(
            'claims', CLAIMS_CACHE_SECONDS, self._claims.count_claims
        )
        waits = _waits_by_part(history, window)
        return Activity(
            window_seconds=window,
            part_seconds=window / WINDOW_PARTS,
            end_age_seconds=round(age, 3),
            known_seconds=round(history.now - history.since, 3),
            outcomes=history.outcomes,
            confirmed=[len(part) for part in waits],
            confirm_median_seconds=[quantile(part, 0.5) for part in waits],
            confirm_p95_seconds=[quantile(part, 0.95) for part in waits],
            claims=counts.states,
            claims_age_seconds=round(claims_age, 3),
            adopted=counts.adopted,
        )

    def refused(self, window: int) -> RefusedFunnel:
        """Return, by filter, the hosts removed from requests that found no host."""
        return self._cache.get(
            ('refused', window), CACHE_SECONDS, lambda: self._read_refused(window)
        )[0]

    def _read_refused(self, window: int) -> RefusedFunnel:
        outcome = Outcome.NO_VALID_HOST.value
        records = self._records.list_decisions(outcome=outcome, limit=REFUSALS_MAX + 1)
        since = self._database.ping() - window
        ids = [record.id for record in records if record.created_at >= since]
        stored = [self._cached_refusal(decision_id) for decision_id in ids[:REFUSALS_MAX]]
        refusals = [refusal for refusal in stored if refusal.kind == RequestKind.HOST.value]
        hosts = sum(refusal.hosts for refusal in refusals)
        return RefusedFunnel(
            window_seconds=window,
            decisions=len(refusals),
            truncated=len(ids) > REFUSALS_MAX,
            hosts=hosts,
            funnel=_filter_sums(hosts, [refusal.steps for refusal in refusals]),
            pools=len(stored) - len(refusals),
        )

    def _read_refusal(self, decision_id: str) -> _Refusal:
        """Return a stored refusal in short."""
        record = self._records.load_decision(decision_id)
        return _refusal_of(unpack(record[0])) if record else _Refusal(RequestKind.HOST.value, 0, [])


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of sorted values that ``share`` of them are not above; None of none."""
    if not values:
        return None
    return round(values[max(0, math.ceil(share * len(values)) - 1)], 6)


def _waits_by_part(history: History, window: float) -> list[list[float]]:
    parts: list[list[float]] = [[] for _ in range(WINDOW_PARTS)]
    start = history.now - window
    for created_at, seconds in history.waits:
        part = int((created_at - start) / window * WINDOW_PARTS)
        parts[min(WINDOW_PARTS - 1, max(0, part))].append(seconds)
    return [sorted(part) for part in parts]


def _refusal_of(stored: StoredDecision) -> _Refusal:
    """Return the short form of a refusal, of the one member that found no host."""
    decision, kind = stored.decision, stored.request.spec.kind
    failed = [member for member in decision.members if member.selection is None]
    if not failed:
        return _Refusal(kind.value, 0, [])
    member: MemberDecision = failed[-1]
    steps = explaining.funnel(decision.hosts, member)
    return _Refusal(
        kind.value, decision.hosts, [(step.filter, step.removed, step.reason) for step in steps]
    )


def _filter_sums(hosts: int, funnels: Sequence[list[tuple[str, int, str]]]) -> list[FilterSum]:
    """Return filters in the order in which they ran, on the average where it differed."""
    places: dict[str, list[float]] = collections.defaultdict(list)
    counted: collections.Counter[str] = collections.Counter()
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for steps in funnels:
        for place, (name, number, reason) in enumerate(steps):
            places[name].append(place)
            counted[name] += number > 0
            reasons[name][reason] += number
    sums, remaining = [], hosts
    for name in sorted(places, key=lambda name: (statistics.fmean(places[name]), name)):
        removed = reasons[name].total()
        remaining -= removed
        if removed:
            [(reason, _)] = reasons[name].most_common(1)
            sums.append(
                FilterSum(
                    filter=name,
                    removed=removed,
                    remaining=remaining,
                    decisions=counted[name],
                    reason=reason,
                )
            )
    return sums
