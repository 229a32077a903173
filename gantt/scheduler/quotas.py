# SPDX-License-Identifier: Apache-2.0
"""Quotas as one process knows them: the limits in force, and who is over one.

The limits are few and seldom change: all of them are kept in memory and read again every few
seconds.  What a project has is read when a request that a limit binds is to be committed, once
for a batch and before its transaction, without any lock: see ``core.claims.quota`` for what that
promises.  Requests that no limit binds cost nothing.

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
from gantt.core.claims.places import PlaceLetGo
from gantt.core.claims.quota import Bucket, Excess, Limits, Usage
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.scheduler.ports import Clock, Store
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)

#: Between two reads of all limits: so late a changed one holds, at most.
REFRESH_SECONDS = 5.0
#: Projects whose rate is remembered; beyond them the one that asked least lately is forgotten.
BUCKETS_MAX = 10_000

Count = Callable[..., None]


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """One limit in force.

    :ivar name: ``claims_in_flight``, ``live_claims``, ``server_groups``, ``planned_places``,
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
    """See the module docstring.  ``limits_of`` and ``take`` may be called from any thread.

    :ivar count: adds one to a counter by its name
    """

    store: Store
    settings: SchedulerSettings
    clock: Clock
    count: Count

    def __post_init__(self) -> None:
        self._limits = Limits(options=self.settings.quotas)  # until they were read
        self._read_at = self._tried_at = float('-inf')
        self._reading = threading.Lock()
        self._buckets: cachetools.LRUCache[str, Bucket] = cachetools.LRUCache(BUCKETS_MAX)
        self._lock = threading.Lock()

    # -- limits ------------------------------------------------------------------
    def read(self) -> None:
        """Read all limits.  :raises DatabaseUnavailable: those of before stay in force"""
        try:
            self._limits = Limits(self.store.quotas(), self.settings.quotas)
            self._read_at = self.clock.monotonic()
        finally:
            self._tried_at = self.clock.monotonic()

    def current(self) -> Limits:
        """The limits, not older than ``REFRESH_SECONDS`` where the database answers.

        Of many callers one reads, and after a read that failed none does for as long: the
        threads of a server do not all wait for a database that is silent.
        """
        is_first = self._tried_at == float('-inf')
        if self._is_due() and self._reading.acquire(blocking=is_first):
            try:
                if self._is_due():
                    self.read()
            except exceptions.Unavailable as e:
                LOG.warning('quotas: %s; the limits that were read last stay in force', e)
            finally:
                self._reading.release()
        return self._limits

    def _is_due(self) -> bool:
        return self.clock.monotonic() - self._tried_at > REFRESH_SECONDS

    def known(self) -> Limits:
        """The limits as they were read last; read now where nobody tried to before."""
        return self.current() if self._tried_at == float('-inf') else self._limits

    def shown(self, project: str) -> QuotaView:
        """The limits of a project as they are now, with what it has.

        :raises DatabaseUnavailable:
        """
        found = Limits(self.store.quotas(), self.settings.quotas).shown(project)
        used: dict[str, int] = {}
        if project != quota.DEFAULT:
            classes = [n.removeprefix(quota.CLASS) for n in found if n.startswith(quota.CLASS)]
            usage = self.store.quota_usage([project], classes)[project]
            used = {name: usage.of(name) for name in found if name != quota.REQUESTS_PER_MINUTE}
            used[quota.SERVER_GROUPS] = self.store.count_groups(project)
            used[quota.PLANNED_PLACES] = self.store.planned_usage(project).places
        return QuotaView(
            project_id=project,
            limits=[
                LimitView(name=name, limit=limit, used=used.get(name), source=source)
                for name, (limit, source) in sorted(found.items())
            ],
        )

    # -- rates ---------------------------------------------------------------------
    def take(self, project: str | None, is_own_caller: bool, limits: Limits) -> Excess | None:
        """Count one request of a project; why it may not be made, or None."""
        if project is None or limits.is_empty:
            return None
        limit = limits.of(project, is_own_caller).get(quota.REQUESTS_PER_MINUTE)
        if limit is None:
            return None
        now = self.clock.monotonic()
        with self._lock:
            found = self._buckets.setdefault(project, Bucket(limit, now)).take(limit, now)
        return self.counted(found)

    # -- what is over a limit ----------------------------------------------------------
    def round(self) -> 'QuotaRound':
        """For the requests of one commit.

        :raises DatabaseUnavailable: no limits were read yet
        """
        if self._read_at == float('-inf'):
            self.read()
        return QuotaRound(self.store, self._limits)

    def check(self, request: SelectDestinations, is_own_caller: bool) -> None:
        """Whether one request that claims nothing would be let in.

        :raises QuotaExceeded:
        """
        members = range(len(request.consumers))
        found = QuotaRound(self.store, self.current()).would_pass(request, members, is_own_caller)
        if found is not None:
            raise self.refused(found)

    def check_groups(self, project: str | None, is_own_caller: bool) -> None:
        """Whether a project may have one more server group.

        :raises QuotaExceeded:
        """
        limit = self.current().of(project, is_own_caller).get(quota.SERVER_GROUPS)
        if project is None or limit is None:
            return
        used = self.store.count_groups(project)
        if used + 1 > limit:
            raise self.refused(Excess(name=quota.SERVER_GROUPS, limit=limit, used=used, asked=1))

    def check_plan(
        self,
        project: str | None,
        is_own_caller: bool,
        wanted: Sequence[tuple[Mapping[str, int], int]],
        given_up: Sequence[Claim] = (),
    ) -> None:
        """Whether a project may have so many more places of plans.

        They are no claims in flight: they wait for a create, and have a limit of their own.

        :param wanted: what one takes, and how many of these
        :param given_up: claims that end when the places are made
        :raises QuotaExceeded:
        """
        limits = self.current().of(project, is_own_caller) if project is not None else {}
        for name in (quota.SERVER_GROUPS, quota.REQUESTS_PER_MINUTE, quota.CLAIMS_IN_FLIGHT):
            limits.pop(name, None)
        if project is None or not limits:
            return
        count = sum(number for _, number in wanted)
        most = limits.pop(quota.PLANNED_PLACES, None)
        if most is not None:
            used = max(0, self.store.planned_usage(project).places - len(given_up))
            if used + count > most:
                found = Excess(name=quota.PLANNED_PLACES, limit=most, used=used, asked=count)
                raise self.refused(found)
        amounts: Counter[str] = Counter()
        for amounts_of_one, number in wanted:
            amounts.update({name: amount * number for name, amount in amounts_of_one.items()})
        classes = [n.removeprefix(quota.CLASS) for n in limits if n.startswith(quota.CLASS)]
        before = self.store.quota_usage([project], classes)[project]
        left = before.minus(quota.usage_of(given_up))
        more = Usage(live_claims=count, amounts=dict(amounts))
        excess = quota.excess(limits, left, more)
        if excess is not None:
            raise self.refused(excess)

    def refused(self, found: Excess) -> exceptions.GanttError:
        """The error for who is over a limit, counted."""
        self.counted(found)
        return found.error()

    def counted(self, found: Excess | None) -> Excess | None:
        """Check the quotas of a request; a refusal is counted by the name of its limit."""
        if found is not None:
            self.count('gantt_quota_refusals_total', limit=found.name)
        return found


class QuotaRound:
    """The requests of one commit, held against what their projects have.

    What a project has is read once; each request that is let in counts for those after it.
    """

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._used: dict[str, Usage] = {}
        self._let_in: dict[str, list[_RequestedUsage]] = {}

    def would_pass(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        is_own_caller: bool | None = None,
        ends: Iterable[PlaceLetGo] = (),
        *,
        has_paid: bool = False,
    ) -> Excess | None:
        """The limit that a request would pass; None: none does.

        :param members: those that have no claim of this request yet
        :param is_own_caller: None: as the request says
        :param ends: places that end with what it is let in for
        :param has_paid: it takes over places of its project, which count for it since they were
            planned: all that it has more by them is claims in flight
        :raises DatabaseUnavailable:
        """
        if self._limits.is_empty:
            return None
        # Who may place for all projects says no ``only_project``.
        own = request.only_project is not None if is_own_caller is None else is_own_caller
        project = request.spec.project_id
        limits = self._limits.of(project, own)
        if not limits:
            return None
        for name in (quota.SERVER_GROUPS, quota.REQUESTS_PER_MINUTE):
            limits.pop(name, None)
        if has_paid:
            limits = {name: of for name, of in limits.items() if name == quota.CLAIMS_IN_FLIGHT}
        if project is None or not limits or request.spec.purpose is Purpose.REBUILD:
            return None
        checked = _RequestedUsage(request, members, has_paid)
        before = self._let_in.get(project, [])
        found = quota.excess(limits, _sum(self._usage(project), before), checked.demand(()))
        if found is None:
            return None
        # Some may be consumers that have a place already, and ask for less than it looked like.
        # Read after the usage: what one gives up in between counts against it, not for it.
        named = {consumer for one in (*before, checked) for consumer in one.consumers}
        ending = {place.claim_id: place.consumer for place in ends}
        held = self._store.live_claims_of({*named, *ending.values()})
        used = _sum(self._usage(project), before, held)
        going = [one for one in held if one.id in ending and one.project_id == project]
        return quota.excess(limits, used.minus(quota.usage_of(going)), checked.demand(held))

    def let_in(
        self, request: SelectDestinations, members: Sequence[int], *, has_paid: bool = False
    ) -> None:
        """Count a request for those after it."""
        project = request.spec.project_id
        if project in self._used:
            self._let_in.setdefault(project, []).append(_RequestedUsage(request, members, has_paid))

    def _usage(self, project: str) -> Usage:
        if project not in self._used:
            names = self._limits.of(project, True)
            classes = [n.removeprefix(quota.CLASS) for n in names if n.startswith(quota.CLASS)]
            self._used |= self._store.quota_usage([project], classes)
        return self._used[project]


class _RequestedUsage:
    """What a request asks for."""

    __slots__ = ('consumers', 'has_paid', 'resources')

    def __init__(
        self, request: SelectDestinations, members: Sequence[int], has_paid: bool = False
    ) -> None:
        self.has_paid = has_paid
        self.resources = request.spec.at_most
        self.consumers = [request.consumers[i] for i in members]

    def demand(self, held: Sequence[Claim]) -> Usage:
        """Beyond what its consumers have."""
        if self.has_paid:
            return Usage(claims_in_flight=len(self.consumers))
        return quota.demand(self.resources, self.consumers, held)


def _sum(used: Usage, let_in: Sequence[_RequestedUsage], held: Sequence[Claim] = ()) -> Usage:
    for one in let_in:
        used = used.plus(one.demand(held))
    return used
