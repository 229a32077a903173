# SPDX-License-Identifier: Apache-2.0
"""Quotas in one process: the limits in force, and the checks of requests against them.

The limits are few and seldom change: all of them are kept in memory and read again every few
seconds.  The usage of a project is read when a request that a limit binds is to be committed,
once for a batch and before its transaction, without any lock: see ``core.claims.quota`` for the
guarantees.  Requests that no limit binds cost nothing.

A request that goes to child zones is let in before anything is claimed for it, and counts beside
the usage in the database until its answer is stored, as those of a batch do until it is committed:
within one process no two are let in for room that suffices for one of them.

Rates are counted by each process for itself.
"""

import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import cachetools
import msgspec

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.claim import Claim
from gantt.core.claims.quota import Bucket, Excess, Limits, Usage
from gantt.core.claims.reservations import ReplacedReservation
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.scheduler.ports import (
    Claims,
    Clock,
    GroupPlans,
    Groups,
    Quotas,
)
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)

#: Seconds between two reads of all limits: the longest delay until a changed one holds.
REFRESH_SECONDS = 5.0
#: Projects whose rate is remembered; beyond them the least recently active is forgotten.
BUCKETS_MAX = 10_000
#: Reads of a project's usage, where others of it are let in or placed meanwhile.
TRIES = 8
#: Number of locks that projects share.
DOORS = 64

Count = Callable[..., None]


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """One limit in force.

    :ivar name: ``claims_in_flight``, ``live_claims``, ``server_groups``, ``reservations``,
        ``requests_per_minute``, or ``class:`` and a resource class
    :ivar limit: -1: none
    :ivar used: null where nothing is counted: of rates, and of the defaults
    :ivar source: project | default (stored for all projects) | options (of the configuration)
    """

    name: str
    limit: int
    used: int | None
    source: str


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a project, by name.

    :ivar project_id: ``default``: of every project that has none of its own
    """

    project_id: str
    limits: list[LimitView]


@dataclasses.dataclass(eq=False)
class QuotaChecks:
    """Checks of quotas, see the module docstring.  Any thread may call ``limits_of`` and ``take``.

    :ivar count: adds one to a counter by its name
    """

    quotas: Quotas
    claims: Claims
    groups: Groups
    plans: GroupPlans
    settings: SchedulerSettings
    clock: Clock
    count: Count

    def __post_init__(self) -> None:
        self._limits = Limits(options=self.settings.quotas)  # until the stored ones are read
        self._read_at = self._tried_at = float('-inf')
        self._reading = threading.Lock()
        self._buckets: cachetools.LRUCache[str, Bucket] = cachetools.LRUCache(BUCKETS_MAX)
        self._lock = threading.Lock()
        self._let_in = LetIn()
        self._doors = [threading.Lock() for _ in range(DOORS)]

    # -- limits ------------------------------------------------------------------
    def read(self) -> None:
        """Read all limits.  :raises DatabaseUnavailable: the limits read before stay in force"""
        try:
            self._limits = Limits(self.quotas.limits(), self.settings.quotas)
            self._read_at = self.clock.monotonic()
        finally:
            self._tried_at = self.clock.monotonic()

    def current(self) -> Limits:
        """Return the limits, not older than ``REFRESH_SECONDS`` where the database answers.

        Of many callers one reads, and after a failed read none does for as long: the
        threads of a server do not all wait for a database that is silent.
        """
        is_first = self._tried_at == float('-inf')
        if self._is_due() and self._reading.acquire(blocking=is_first):
            try:
                if self._is_due():
                    self.read()
            except exceptions.Unavailable as e:
                LOG.warning('Limits cannot be read; those read last stay in force: error=%s', e)
            finally:
                self._reading.release()
        return self._limits

    def _is_due(self) -> bool:
        return self.clock.monotonic() - self._tried_at > REFRESH_SECONDS

    def known(self) -> Limits:
        """Return the limits as read last; read now where no caller tried to before."""
        return self.current() if self._tried_at == float('-inf') else self._limits

    def shown(self, project: str) -> QuotaView:
        """Return the limits of a project as they are now, with its usage.

        :raises DatabaseUnavailable:
        """
        shown_limits = Limits(self.quotas.limits(), self.settings.quotas).shown(project)
        used: dict[str, int] = {}
        if project != quota.DEFAULT:
            classes = [
                name.removeprefix(quota.CLASS)
                for name in shown_limits
                if name.startswith(quota.CLASS)
            ]
            usage = self.quotas.quota_usage([project], classes)[project]
            used = {
                name: usage.of(name) for name in shown_limits if name != quota.REQUESTS_PER_MINUTE
            }
            used[quota.SERVER_GROUPS] = self.groups.count_groups(project)
            used[quota.RESERVATIONS] = self.plans.planned_usage(project).reservations
        return QuotaView(
            project_id=project,
            limits=[
                LimitView(name=name, limit=limit, used=used.get(name), source=source)
                for name, (limit, source) in sorted(shown_limits.items())
            ],
        )

    # -- rates ---------------------------------------------------------------------
    def take(self, project: str | None, is_own_caller: bool, limits: Limits) -> Excess | None:
        """Count one request of a project; return the limit that forbids it, or None."""
        if project is None or limits.is_empty:
            return None
        limit = limits.of(project, is_own_caller).get(quota.REQUESTS_PER_MINUTE)
        if limit is None:
            return None
        now = self.clock.monotonic()
        with self._lock:
            excess = self._buckets.setdefault(project, Bucket(limit, now)).take(limit, now)
        return self.counted(excess)

    # -- what is over a limit ----------------------------------------------------------
    def round(self) -> 'QuotaRound':
        """Return a round for the requests of one commit.

        :raises DatabaseUnavailable: no limits were read yet
        """
        if self._read_at == float('-inf'):
            self.read()
        return QuotaRound(self.quotas, self.claims, self._limits, self._let_in)

    def let_in(self, request: SelectDestinations) -> Excess | None:
        """Let in a request to child zones, until ``leave``; return the limit it passes, or None.

        :raises DatabaseUnavailable:
        """
        limits = self.current()
        if limits.is_empty:
            return None
        quota_round, members = (
            QuotaRound(self.quotas, self.claims, limits, self._let_in),
            range(len(request.consumers)),
        )
        # Requests of one project in turn: else each keeps the others from coming to an end.
        with self._doors[hash(request.spec.project_id) % DOORS]:
            return self.counted(quota_round.let_in(request, members, goes_down=True))

    def leave(self, requests: Iterable[SelectDestinations], *, goes_down: bool = False) -> None:
        """Drop requests let in: the database has their claims by now, or there are none."""
        self._let_in.leave(requests, goes_down)

    def check(self, request: SelectDestinations, is_own_caller: bool) -> None:
        """Check one request that claims nothing against the limits.

        :raises QuotaExceeded:
        """
        members = range(len(request.consumers))
        excess = QuotaRound(self.quotas, self.claims, self.current(), self._let_in).would_pass(
            request, members, is_own_caller
        )
        if excess is not None:
            raise self.refused(excess)

    def excess_of(self, request: SelectDestinations) -> Excess | None:
        """Return the limit that a request of a service would pass if it came now, or None."""
        members = range(len(request.consumers))
        return QuotaRound(self.quotas, self.claims, self.current(), self._let_in).would_pass(
            request, members
        )

    def check_groups(self, project: str | None, is_own_caller: bool) -> None:
        """Check whether a project may have one more server group.

        :raises QuotaExceeded:
        """
        limit = self.current().of(project, is_own_caller).get(quota.SERVER_GROUPS)
        if project is None or limit is None:
            return
        used = self.groups.count_groups(project)
        if used + 1 > limit:
            raise self.refused(
                Excess(name=quota.SERVER_GROUPS, limit=limit, used=used, requested=1)
            )

    def check_plan(
        self,
        project: str | None,
        is_own_caller: bool,
        wanted: Sequence[tuple[Mapping[str, int], int]],
        given_up: Sequence[Claim] = (),
    ) -> None:
        """Check whether a project may have so many more planned reservations.

        They are no claims in flight: they wait for a create, and have a limit of their own.

        :param wanted: amounts of a reservation, and the number of such reservations
        :param given_up: claims that end when the reservations are created
        :raises QuotaExceeded:
        """
        limits = self.current().of(project, is_own_caller) if project is not None else {}
        for name in (quota.SERVER_GROUPS, quota.REQUESTS_PER_MINUTE, quota.CLAIMS_IN_FLIGHT):
            limits.pop(name, None)
        if project is None or not limits:
            return
        count = sum(number for _, number in wanted)
        places_max = limits.pop(quota.RESERVATIONS, None)
        if places_max is not None:
            used = max(0, self.plans.planned_usage(project).reservations - len(given_up))
            if used + count > places_max:
                over_places = Excess(
                    name=quota.RESERVATIONS, limit=places_max, used=used, requested=count
                )
                raise self.refused(over_places)
        amounts: Counter[str] = Counter()
        for place_amounts, number in wanted:
            amounts.update({name: amount * number for name, amount in place_amounts.items()})
        classes = [
            name.removeprefix(quota.CLASS) for name in limits if name.startswith(quota.CLASS)
        ]
        usage_before = self.quotas.quota_usage([project], classes)[project]
        usage_after = usage_before.minus(quota.usage_of(given_up))
        added_usage = Usage(live_claims=count, amounts=dict(amounts))
        excess = quota.excess(limits, usage_after, added_usage)
        if excess is not None:
            raise self.refused(excess)

    def refused(self, found: Excess) -> exceptions.GanttError:
        """Return the error for a request over a limit, counted."""
        self.counted(found)
        return found.error()

    def counted(self, found: Excess | None) -> Excess | None:
        """Count a refusal by the name of its limit, and return it."""
        if found is not None:
            self.count('gantt_quota_refusals_total', limit=found.name)
        return found


class _RequestedUsage:
    """Usage that a request adds."""

    __slots__ = ('consumers', 'has_paid', 'key', 'resources')

    def __init__(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        has_paid: bool = False,
        goes_down: bool = False,
    ) -> None:
        self.key = (request.request_id, goes_down)
        self.has_paid = has_paid
        self.resources = request.spec.at_most
        self.consumers = [request.consumers[i] for i in members]

    def demand(self, held: Sequence[Claim]) -> Usage:
        """Return the usage beyond what its consumers hold."""
        if self.has_paid:
            return Usage(claims_in_flight=len(self.consumers))
        return quota.demand(self.resources, self.consumers, held)

    def covers(self, other: '_RequestedUsage') -> bool:
        """Return whether another request is the part of this one for the zone's own hosts."""
        _, goes_down = self.key
        return goes_down and set(other.consumers) <= set(self.consumers)


#: The id of a request, and whether it goes down: its part for the own hosts is another request.
_Key = tuple[str, bool]
_Standing = Mapping[_Key, _RequestedUsage]


class LetIn:
    """Requests that a process has let in, and whose claims the database may not have yet.

    Any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Project -> number of its requests ever let in, and those that have not left.
        self._of: dict[str, tuple[int, _Standing]] = {}
        self._least = 0  # count of a project that is not in it
        self._project: dict[_Key, str] = {}

    def of(self, project: str) -> tuple[int, _Standing]:
        """Return the number of a project's requests let in so far, and those that have not left."""
        return self._of.get(project) or (self._least, {})

    def enter(self, project: str, request: _RequestedUsage, count: int) -> bool:
        """Let a request in, unless more of its project than ``count`` were by now."""
        with self._lock:
            entered, requests_let_in = self.of(project)
            if entered != count:
                return False
            self._of[project] = count + 1, {**requests_let_in, request.key: request}
            self._project[request.key] = project
            if len(self._of) > BUCKETS_MAX:
                self._least = 1 + max(entry for entry, _ in self._of.values())
                self._of = {name: entry for name, entry in self._of.items() if entry[1]}
            return True

    def leave(self, requests: Iterable[SelectDestinations], goes_down: bool) -> None:
        """Drop requests: the database has their claims by now, or there are none."""
        for request in requests if self._project else ():
            key = request.request_id, goes_down
            with self._lock:
                project = self._project.pop(key, None)
                if project is not None:
                    count, requests_let_in = self._of[project]
                    remaining = {
                        other_key: usage
                        for other_key, usage in requests_let_in.items()
                        if other_key != key
                    }
                    self._of[project] = count, remaining


class _Known:
    """Usage of a project as it was read, and the requests let in beside it then, or since.

    :ivar count: of all requests let in, up to the last of these
    """

    __slots__ = ('beside', 'count', 'used')

    def __init__(self, used: Usage, beside: _Standing, count: int) -> None:
        self.used = used
        self.beside = dict(beside)
        self.count = count

    def add(self, standing: _Standing, count: int) -> bool:
        """Add requests let in since; return False where some came and left in between."""
        new_keys = standing.keys() - self.beside.keys()
        if count - self.count > len(new_keys):
            return False
        self.beside |= standing
        self.count = count
        return True


class QuotaRound:
    """The requests of one commit, checked against the usage of their projects.

    The usage of a project is read once; each request that is let in counts for those after it.
    """

    def __init__(self, quotas: Quotas, claims: Claims, limits: Limits, let_in: LetIn) -> None:
        self._quotas = quotas
        self._claims = claims
        self._limits = limits
        self._let_in = let_in
        self._known: dict[str, _Known] = {}

    def would_pass(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        is_own_caller: bool | None = None,
        ends: Iterable[ReplacedReservation] = (),
        *,
        has_paid: bool = False,
    ) -> Excess | None:
        """Return the limit that a request would pass, or None.

        :param members: indices of members without a claim of this request yet
        :param is_own_caller: None: as the request states
        :param ends: reservations that end with its commit
        :param has_paid: it takes over reservations of its project, which count for it since they
            were planned: they add only claims in flight
        :raises DatabaseUnavailable:
        """
        checked = _RequestedUsage(request, members, has_paid)
        return self._checked(request, checked, is_own_caller, ends, enters=False)

    def let_in(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        ends: Iterable[ReplacedReservation] = (),
        *,
        has_paid: bool = False,
        goes_down: bool = False,
    ) -> Excess | None:
        """Count a request for those after it, until it leaves, unless it would pass a limit.

        :return: that limit, as ``would_pass`` returns it
        """
        checked = _RequestedUsage(request, members, has_paid, goes_down)
        return self._checked(request, checked, None, ends, enters=True)

    def _checked(
        self,
        request: SelectDestinations,
        checked: _RequestedUsage,
        is_own_caller: bool | None,
        ends: Iterable[ReplacedReservation],
        *,
        enters: bool,
    ) -> Excess | None:
        project = request.spec.project_id
        limits = self._limits_of(request, is_own_caller, checked.has_paid)
        if project is None or not limits:
            return None
        ending_consumers = {place.claim_id: place.consumer for place in ends}
        excess: Excess | None = None
        is_close = False
        for _ in range(TRIES):
            count, standing = self._let_in.of(project)
            if any(let_in_request.covers(checked) for let_in_request in standing.values()):
                return None
            if not is_close:
                is_close = self._at_a_glance(project, limits, checked) is not None
            if is_close:
                excess, is_sure = self._with_care(
                    project, limits, checked, standing, ending_consumers
                )
                if excess is not None:
                    if is_sure:
                        return excess
                    continue
            if not enters or self._let_in.enter(project, checked, count):
                return None
        if excess is not None:
            return excess
        raise exceptions.Busy(
            reason=f'many requests of project {project} are placed at once', retry_after_ms=200
        )

    def _limits_of(
        self, request: SelectDestinations, is_own_caller: bool | None, has_paid: bool
    ) -> dict[str, int]:
        """Return name -> limit of the limits that bind a commit of a request."""
        if self._limits.is_empty or request.spec.purpose is Purpose.REBUILD:
            return {}
        # A caller that may place for all projects sends no ``only_project``.
        is_own = request.only_project is not None if is_own_caller is None else is_own_caller
        limits = self._limits.of(request.spec.project_id, is_own)
        for name in (quota.SERVER_GROUPS, quota.REQUESTS_PER_MINUTE):
            limits.pop(name, None)
        if has_paid:
            return {name: limit for name, limit in limits.items() if name == quota.CLAIMS_IN_FLIGHT}
        return limits

    def _at_a_glance(
        self, project: str, limits: Mapping[str, int], checked: _RequestedUsage
    ) -> Excess | None:
        """Return the limit passed where all let in is counted, perhaps twice; None is certain."""
        count, standing = self._let_in.of(project)
        known_usage = self._known.get(project)
        if known_usage is None or not known_usage.add(standing, count):
            # The requests let in were read before: the database may have them a moment later.
            known_usage = self._known[project] = _Known(self._read(project), standing, count)
        used = _sum(known_usage.used, known_usage.beside.values())
        return quota.excess(limits, used, checked.demand(()))

    def _with_care(
        self,
        project: str,
        limits: Mapping[str, int],
        checked: _RequestedUsage,
        standing: _Standing,
        ending: Mapping[str, str],
    ) -> tuple[Excess | None, bool]:
        """Return the limit that would be passed, and whether no claim was created during the read.

        Some may be of consumers that have a reservation already, and request less than it seemed.
        The claim of such a consumer counts only where it existed before and after usage was read.
        """
        requested_usages = [
            let_in_usage for let_in_usage in standing.values() if let_in_usage.key != checked.key
        ]
        named_consumers = {
            consumer
            for requested in (*requested_usages, checked)
            for consumer in requested.consumers
        }
        named_consumers.update(ending.values())
        ids_before = {claim.id for claim in self._claims.live_claims_of(named_consumers)}
        used = self._read(project)
        claims_after = self._claims.live_claims_of(named_consumers)
        lasting = [claim for claim in claims_after if claim.id in ids_before]
        ending_claims = [
            claim for claim in lasting if claim.id in ending and claim.project_id == project
        ]
        used = _sum(used, requested_usages, lasting).minus(quota.usage_of(ending_claims))
        _, now = self._let_in.of(project)
        is_sure = (
            ids_before == {claim.id for claim in claims_after} and standing.keys() <= now.keys()
        )
        return quota.excess(limits, used, checked.demand(lasting)), is_sure

    def _read(self, project: str) -> Usage:
        limit_names = self._limits.of(project, True)
        classes = [
            name.removeprefix(quota.CLASS) for name in limit_names if name.startswith(quota.CLASS)
        ]
        return self._quotas.quota_usage([project], classes)[project]


def _sum(used: Usage, let_in: Iterable[_RequestedUsage], held: Sequence[Claim] = ()) -> Usage:
    for requested in let_in:
        used = used.plus(requested.demand(held))
    return used
