# SPDX-License-Identifier: Apache-2.0
"""Quotas in one process: the limits in force, and the checks of requests against them.

The limits are few and seldom change: all of them are kept in memory and read again every few
seconds.  The usage of a project is read when a request that a limit binds is to be committed,
once for a batch and before its transaction, without any lock: see ``core.claims.quota`` for the
guarantees.  Requests that no limit binds cost nothing.

A request that goes to child zones is admitted before anything is claimed for it, and counts next to
the usage in the database until its answer is stored, as those of a batch do until it is committed:
within one process no two are admitted for room that suffices for one of them.

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
from gantt.core.claims.quota import Excess, Limits, TokenBucket, Usage
from gantt.core.claims.reservations import ReplacedReservation
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.scheduler.ports.hosts import Groups
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.ports.requests import Claims, Quotas
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)

#: Seconds between two reads of all limits: the longest delay until a changed one holds.
REFRESH_SECONDS = 5.0
#: Projects whose rate is remembered; beyond them the least recently active is forgotten.
BUCKETS_MAX = 10_000
#: Reads of a project's usage, where others of it are admitted or placed meanwhile.
USAGE_READ_TRIES = 8
#: Number of locks that projects share.
PROJECT_LOCKS = 64

CountOne = Callable[..., None]


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
    """Limits in force, and checks against them.

    Any thread may call ``fresh_limits`` and ``count_request``.

    :ivar count: adds one to a counter by its name
    """

    quotas: Quotas
    claims: Claims
    groups: Groups
    settings: SchedulerSettings
    clock: Clock
    count: CountOne

    def __post_init__(self) -> None:
        self._limits = Limits(options=self.settings.quotas)  # until the stored ones are read
        self._read_at = self._tried_at = float('-inf')
        self._reading = threading.Lock()
        self._buckets: cachetools.LRUCache[str, TokenBucket] = cachetools.LRUCache(BUCKETS_MAX)
        self._lock = threading.Lock()
        self._admitted = AdmittedRequests()
        self._project_locks = [threading.Lock() for _ in range(PROJECT_LOCKS)]

    # -- limits ------------------------------------------------------------------
    def read(self) -> None:
        """Read all limits.  :raises DatabaseUnavailable: the limits read before stay in force"""
        with self._reading:  # else a slow read puts back what a later one has replaced
            self._read()

    def _read(self) -> None:
        try:
            self._limits = Limits(self.quotas.limits(), self.settings.quotas)
            self._read_at = self.clock.monotonic()
        finally:
            self._tried_at = self.clock.monotonic()

    def fresh_limits(self) -> Limits:
        """Return the limits, not older than ``REFRESH_SECONDS`` where the database answers.

        Of many callers one reads, and after a failed read none does for as long: the
        threads of a server do not all wait for a database that is silent.
        """
        is_first = self._tried_at == float('-inf')
        if self._is_due() and self._reading.acquire(blocking=is_first):
            try:
                if self._is_due():
                    self._read()
            except exceptions.Unavailable as e:
                LOG.warning('Limits cannot be read; those read last stay in force: error=%s', e)
            finally:
                self._reading.release()
        return self._limits

    def _is_due(self) -> bool:
        return self.clock.monotonic() - self._tried_at > REFRESH_SECONDS

    def last_limits(self) -> Limits:
        """Return the limits as read last; read now where no caller tried to before."""
        return self.fresh_limits() if self._tried_at == float('-inf') else self._limits

    def quota_view(self, project: str) -> QuotaView:
        """Return the limits of a project as they are now, with its usage.

        :raises DatabaseUnavailable:
        """
        shown_limits = Limits(self.quotas.limits(), self.settings.quotas).shown(project)
        used: dict[str, int] = {}
        if project != quota.DEFAULT_PROJECT:
            usage = _usage_of(self.quotas, project, shown_limits)
            used = {
                name: usage.of(name) for name in shown_limits if name != quota.REQUESTS_PER_MINUTE
            }
            used[quota.SERVER_GROUPS] = self.groups.count_groups(project)
            used[quota.RESERVATIONS] = self.quotas.planned_usage(project).reservations
        return QuotaView(
            project_id=project,
            limits=[
                LimitView(name=name, limit=limit, used=used.get(name), source=source)
                for name, (limit, source) in sorted(shown_limits.items())
            ],
        )

    # -- rates ---------------------------------------------------------------------
    def count_request(
        self, project: str | None, is_own_caller: bool, limits: Limits
    ) -> Excess | None:
        """Count one request of a project; return the limit that forbids it, or None."""
        if project is None or limits.is_empty:
            return None
        limit = limits.of(project, is_own_caller).get(quota.REQUESTS_PER_MINUTE)
        if limit is None:
            return None
        now = self.clock.monotonic()
        with self._lock:
            excess = self._buckets.setdefault(project, TokenBucket(limit, now)).take(limit, now)
        return self.count_refusal(excess)

    # -- what is over a limit ----------------------------------------------------------
    def new_round(self) -> 'QuotaRound':
        """Return a round for the requests of one commit.

        :raises DatabaseUnavailable: no limits were read yet
        """
        if self._read_at == float('-inf'):
            self.read()
        return self._round_with(self._limits)

    def _round_with(self, limits: Limits) -> 'QuotaRound':
        return QuotaRound(self.quotas, self.claims, limits, self._admitted)

    def admit(self, request: SelectDestinations) -> Excess | None:
        """Let in a request to child zones, until ``leave``; return the limit it exceeds, or None.

        :raises DatabaseUnavailable:
        """
        limits = self.fresh_limits()
        if limits.is_empty:
            return None
        members = range(len(request.consumers))
        # Requests of one project in turn: else each keeps the others from coming to an end.
        with self._project_locks[hash(request.spec.project_id) % PROJECT_LOCKS]:
            return self.count_refusal(
                self._round_with(limits).admit(request, members, is_delegated=True)
            )

    def leave(self, requests: Iterable[SelectDestinations], *, is_delegated: bool = False) -> None:
        """Drop admitted requests: the database has their claims by now, or there are none."""
        self._admitted.leave(requests, is_delegated)

    def check(self, request: SelectDestinations, is_own_caller: bool) -> None:
        """Check one request that claims nothing against the limits.

        :raises QuotaExceeded:
        """
        excess = self.excess_of(request, is_own_caller)
        if excess is not None:
            raise self.refusal_error(excess)

    def excess_of(
        self, request: SelectDestinations, is_own_caller: bool | None = None
    ) -> Excess | None:
        """Return the limit that a request would exceed if it came now, or None.

        :param is_own_caller: None: as the request states
        """
        members = range(len(request.consumers))
        return self._round_with(self.fresh_limits()).would_pass(request, members, is_own_caller)

    def check_groups(self, project: str | None, is_own_caller: bool) -> None:
        """Check whether a project may have one more server group.

        :raises QuotaExceeded:
        """
        limit = self.fresh_limits().of(project, is_own_caller).get(quota.SERVER_GROUPS)
        if project is None or limit is None:
            return
        used = self.groups.count_groups(project)
        if used + 1 > limit:
            raise self.refusal_error(
                Excess(name=quota.SERVER_GROUPS, limit=limit, used=used, requested=1)
            )

    def check_plan(
        self,
        project: str | None,
        is_own_caller: bool,
        reservations: Sequence[tuple[Mapping[str, int], int]],
        given_up: Sequence[Claim] = (),
    ) -> None:
        """Check whether a project may have so many more planned reservations.

        They are no claims in flight: they wait for a create, and have a limit of their own.

        :param reservations: amounts of a reservation, and the number of such reservations
        :param given_up: claims that end when the reservations are created
        :raises QuotaExceeded:
        """
        limits = self.fresh_limits().of(project, is_own_caller) if project is not None else {}
        for name in (quota.SERVER_GROUPS, quota.REQUESTS_PER_MINUTE, quota.CLAIMS_IN_FLIGHT):
            limits.pop(name, None)
        if project is None or not limits:
            return
        count = sum(number for _, number in reservations)
        places_max = limits.pop(quota.RESERVATIONS, None)
        if places_max is not None:
            used = max(0, self.quotas.planned_usage(project).reservations - len(given_up))
            if used + count > places_max:
                over_places = Excess(
                    name=quota.RESERVATIONS, limit=places_max, used=used, requested=count
                )
                raise self.refusal_error(over_places)
        amounts: Counter[str] = Counter()
        for place_amounts, number in reservations:
            amounts.update({name: amount * number for name, amount in place_amounts.items()})
        usage_before = _usage_of(self.quotas, project, limits)
        usage_after = usage_before.minus(quota.usage_of(given_up))
        added_usage = Usage(live_claims=count, amounts=dict(amounts))
        excess = quota.first_excess(limits, usage_after, added_usage)
        if excess is not None:
            raise self.refusal_error(excess)

    def refusal_error(self, excess: Excess) -> exceptions.GanttError:
        """Return the error for a request over a limit, counted."""
        self.count_refusal(excess)
        return excess.error()

    def count_refusal(self, excess: Excess | None) -> Excess | None:
        """Count a refusal by the name of its limit, and return it."""
        if excess is not None:
            self.count('gantt_quota_refusals_total', limit=excess.name)
        return excess


class _RequestedUsage:
    """Usage that a request adds."""

    __slots__ = ('consumers', 'has_paid', 'key', 'resources')

    def __init__(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        has_paid: bool = False,
        is_delegated: bool = False,
    ) -> None:
        self.key = (request.request_id, is_delegated)
        self.has_paid = has_paid
        self.resources = request.spec.at_most
        self.consumers = [request.consumers[i] for i in members]

    def demand(self, held: Sequence[Claim]) -> Usage:
        """Return the usage beyond what its consumers hold."""
        if self.has_paid:
            return Usage(claims_in_flight=len(self.consumers))
        return quota.requested_usage(self.resources, self.consumers, held)

    def covers(self, other: '_RequestedUsage') -> bool:
        """Return whether another request is the part of this one for the zone's own hosts."""
        _, is_delegated = self.key
        return is_delegated and set(other.consumers) <= set(self.consumers)


#: The id of a request, and whether it is delegated: its part for local hosts is another request.
_RequestKey = tuple[str, bool]
_UsageByRequest = Mapping[_RequestKey, _RequestedUsage]


class AdmittedRequests:
    """Requests that a process has admitted, and whose claims the database may not have yet.

    Any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Project -> number of its requests ever admitted, and those that have not left.
        self._by_project: dict[str, tuple[int, _UsageByRequest]] = {}
        self._least_count = 0  # count of a project that is not in it
        self._project_of_request: dict[_RequestKey, str] = {}

    def of_project(self, project: str) -> tuple[int, _UsageByRequest]:
        """Return the number of requests of a project so far, and those that have not left."""
        return self._by_project.get(project) or (self._least_count, {})

    def enter(self, project: str, request: _RequestedUsage, count: int) -> bool:
        """Let a request in, unless more of its project than ``count`` were by now."""
        with self._lock:
            entered, admitted = self.of_project(project)
            if entered != count:
                return False
            self._by_project[project] = count + 1, {**admitted, request.key: request}
            self._project_of_request[request.key] = project
            if len(self._by_project) > BUCKETS_MAX:
                self._least_count = 1 + max(entry for entry, _ in self._by_project.values())
                self._by_project = {
                    name: entry for name, entry in self._by_project.items() if entry[1]
                }
            return True

    def leave(self, requests: Iterable[SelectDestinations], is_delegated: bool) -> None:
        """Drop requests: the database has their claims by now, or there are none."""
        for request in requests if self._project_of_request else ():
            key = request.request_id, is_delegated
            with self._lock:
                project = self._project_of_request.pop(key, None)
                if project is not None:
                    count, admitted = self._by_project[project]
                    remaining = {
                        other_key: usage
                        for other_key, usage in admitted.items()
                        if other_key != key
                    }
                    self._by_project[project] = count, remaining


class _ReadUsage:
    """Usage of a project as it was read, and the requests admitted by then, or since.

    :ivar count: number of all admitted requests, up to the last of these
    """

    __slots__ = ('admitted', 'count', 'used')

    def __init__(self, used: Usage, admitted: _UsageByRequest, count: int) -> None:
        self.used = used
        self.admitted = dict(admitted)
        self.count = count

    def add(self, admitted: _UsageByRequest, count: int) -> bool:
        """Add requests admitted since; return False where some came and left in between."""
        new_keys = admitted.keys() - self.admitted.keys()
        if count - self.count > len(new_keys):
            return False
        self.admitted |= admitted
        self.count = count
        return True


class QuotaRound:
    """The requests of one commit, checked against the usage of their projects.

    The usage of a project is read once; each request that is admitted counts for those after it.

    :ivar has_limits: whether any project has one
    """

    def __init__(
        self, quotas: Quotas, claims: Claims, limits: Limits, admitted: AdmittedRequests
    ) -> None:
        self.has_limits = not limits.is_empty
        self._quotas = quotas
        self._claims = claims
        self._limits = limits
        self._admitted = admitted
        self._read_usages: dict[str, _ReadUsage] = {}

    def would_pass(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        is_own_caller: bool | None = None,
    ) -> Excess | None:
        """Return the limit that a request would exceed, or None.

        :param members: indices of members without a claim of this request yet
        :param is_own_caller: None: as the request states
        :raises DatabaseUnavailable:
        """
        limits = self._limits_of(request, is_own_caller, has_paid=False)
        if not limits:
            return None
        return self._checked(request, limits, _RequestedUsage(request, members), (), enters=False)

    def admit(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        ends: Iterable[ReplacedReservation] = (),
        *,
        has_paid: bool = False,
        is_delegated: bool = False,
    ) -> Excess | None:
        """Count a request for those after it, until it leaves, unless it would exceed a limit.

        :param ends: reservations that end with its commit
        :param has_paid: it takes over reservations of its project, which count for it since they
            were planned: they add only claims in flight
        :return: that limit, as ``would_pass`` returns it
        """
        limits = self._limits_of(request, None, has_paid)
        if not limits:
            return None
        checked = _RequestedUsage(request, members, has_paid, is_delegated)
        return self._checked(request, limits, checked, ends, enters=True)

    def _checked(
        self,
        request: SelectDestinations,
        limits: Mapping[str, int],
        checked: _RequestedUsage,
        ends: Iterable[ReplacedReservation],
        *,
        enters: bool,
    ) -> Excess | None:
        project = request.spec.project_id
        assert project is not None, 'no limit binds a request of no project'
        ending_consumers = {place.claim_id: place.consumer for place in ends}
        excess: Excess | None = None
        is_close = False
        for _ in range(USAGE_READ_TRIES):
            count, admitted = self._admitted.of_project(project)
            if any(admitted_request.covers(checked) for admitted_request in admitted.values()):
                return None
            if not is_close:
                is_close = self._check_cached(project, limits, checked) is not None
            if is_close:
                excess, is_sure = self._check_exact(
                    project, limits, checked, admitted, ending_consumers
                )
                if excess is not None:
                    if is_sure:
                        return excess
                    continue
            if not enters or self._admitted.enter(project, checked, count):
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
        spec = request.spec
        if not self.has_limits or spec.project_id is None or spec.purpose is Purpose.REBUILD:
            return {}
        # A caller that may place for all projects sends no ``only_project``.
        is_own = request.only_project is not None if is_own_caller is None else is_own_caller
        limits = self._limits.of(spec.project_id, is_own)
        for name in (quota.SERVER_GROUPS, quota.REQUESTS_PER_MINUTE):
            limits.pop(name, None)
        if has_paid:
            return {name: limit for name, limit in limits.items() if name == quota.CLAIMS_IN_FLIGHT}
        return limits

    def _check_cached(
        self, project: str, limits: Mapping[str, int], checked: _RequestedUsage
    ) -> Excess | None:
        """Return the limit exceeded, with some admitted requests counted twice; None is certain."""
        count, admitted = self._admitted.of_project(project)
        read_usage = self._read_usages.get(project)
        if read_usage is None or not read_usage.add(admitted, count):
            # The admitted requests were read before: the database may have them a moment later.
            read_usage = self._read_usages[project] = _ReadUsage(
                self._read(project), admitted, count
            )
        used = _total_usage(read_usage.used, read_usage.admitted.values())
        return quota.first_excess(limits, used, checked.demand(()))

    def _check_exact(
        self,
        project: str,
        limits: Mapping[str, int],
        checked: _RequestedUsage,
        admitted: _UsageByRequest,
        ending: Mapping[str, str],
    ) -> tuple[Excess | None, bool]:
        """Return the limit that would be exceeded, and whether no claim was created meanwhile.

        Some may be of consumers that have a reservation already, and request less than it seemed.
        The claim of such a consumer counts only where it existed before and after usage was read.
        """
        requested_usages = [
            admitted_usage
            for admitted_usage in admitted.values()
            if admitted_usage.key != checked.key
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
        used = _total_usage(used, requested_usages, lasting).minus(quota.usage_of(ending_claims))
        _, now = self._admitted.of_project(project)
        is_sure = (
            ids_before == {claim.id for claim in claims_after} and admitted.keys() <= now.keys()
        )
        return quota.first_excess(limits, used, checked.demand(lasting)), is_sure

    def _read(self, project: str) -> Usage:
        return _usage_of(self._quotas, project, self._limits.of(project, True))


def _usage_of(quotas: Quotas, project: str, limits: Iterable[str]) -> Usage:
    """Return the usage of a project, with the resource classes that some limits name."""
    classes = [
        name.removeprefix(quota.CLASS_LIMIT_PREFIX)
        for name in limits
        if name.startswith(quota.CLASS_LIMIT_PREFIX)
    ]
    return quotas.quota_usage([project], classes)[project]


def _total_usage(
    used: Usage, admitted: Iterable[_RequestedUsage], held: Sequence[Claim] = ()
) -> Usage:
    for requested in admitted:
        used = used.plus(requested.demand(held))
    return used
