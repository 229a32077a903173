# SPDX-License-Identifier: Apache-2.0
"""Quotas as one process knows them: the limits in force, and who is over one.

The limits are few and seldom change: all of them are kept in memory and read again every few
seconds.  What a project has is read when a request that a limit binds is to be committed, once
for a batch and before its transaction, without any lock: see ``core.claims.quota`` for what that
promises.  Requests that no limit binds cost nothing.

A request that goes down is let in before anything is claimed for it, and stands beside what the
database has until its answer is stored, as those of a batch do until it is committed: within one
process no two are let in for what is left for one of them.

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
#: Looks at what a project has, where others of it are let in or placed meanwhile.
TRIES = 8
#: Locks that projects share.
DOORS = 64

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
        self._let_in = LetIn()
        self._doors = [threading.Lock() for _ in range(DOORS)]

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
        return QuotaRound(self.store, self._limits, self._let_in)

    def let_in(self, request: SelectDestinations) -> Excess | None:
        """Let a request in that goes down, until ``leave``; why it may not be, or None.

        :raises DatabaseUnavailable:
        """
        limits = self.current()
        if limits.is_empty:
            return None
        made, members = QuotaRound(self.store, limits, self._let_in), range(len(request.consumers))
        # One after another, those of a project: else each keeps the others from coming to an end.
        with self._doors[hash(request.spec.project_id) % DOORS]:
            return self.counted(made.let_in(request, members, goes_down=True))

    def leave(self, requests: Iterable[SelectDestinations], *, goes_down: bool = False) -> None:
        """What was let in of requests is in the database by now, or nothing is."""
        self._let_in.leave(requests, goes_down)

    def check(self, request: SelectDestinations, is_own_caller: bool) -> None:
        """Whether one request that claims nothing would be let in.

        :raises QuotaExceeded:
        """
        members = range(len(request.consumers))
        found = QuotaRound(self.store, self.current(), self._let_in).would_pass(
            request, members, is_own_caller
        )
        if found is not None:
            raise self.refused(found)

    def excess_of(self, request: SelectDestinations) -> Excess | None:
        """The limit that a request of a service would pass if it came now; None: none does."""
        members = range(len(request.consumers))
        return QuotaRound(self.store, self.current(), self._let_in).would_pass(request, members)

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


class _RequestedUsage:
    """What a request asks for."""

    __slots__ = ('consumers', 'has_paid', 'key', 'resources')

    def __init__(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        has_paid: bool = False,
        goes_down: bool = False,
    ) -> None:
        self.key, self.has_paid = (request.request_id, goes_down), has_paid
        self.resources = request.spec.at_most
        self.consumers = [request.consumers[i] for i in members]

    def demand(self, held: Sequence[Claim]) -> Usage:
        """Beyond what its consumers have."""
        if self.has_paid:
            return Usage(claims_in_flight=len(self.consumers))
        return quota.demand(self.resources, self.consumers, held)

    def covers(self, other: '_RequestedUsage') -> bool:
        """Whether another one is what goes to the own hosts of this one, that goes down."""
        _, goes_down = self.key
        return goes_down and set(other.consumers) <= set(self.consumers)


#: The id of a request, and whether it goes down: what it is carried out for here is another one.
_Key = tuple[str, bool]
_Standing = Mapping[_Key, _RequestedUsage]


class LetIn:
    """Requests that a process has let in, and whose claims the database may not have yet.

    Any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Project -> how many of it were ever let in, and those that have not left.
        self._of: dict[str, tuple[int, _Standing]] = {}
        self._least = 0  # of a project that is not in it
        self._project: dict[_Key, str] = {}

    def of(self, project: str) -> tuple[int, _Standing]:
        """How many of a project were let in so far, and those that have not left."""
        return self._of.get(project) or (self._least, {})

    def enter(self, project: str, request: _RequestedUsage, count: int) -> bool:
        """Let one in, unless more of its project than ``count`` were by now."""
        with self._lock:
            known, others = self.of(project)
            if known != count:
                return False
            self._of[project] = count + 1, {**others, request.key: request}
            self._project[request.key] = project
            if len(self._of) > BUCKETS_MAX:
                self._least = 1 + max(of for of, _ in self._of.values())
                self._of = {name: of for name, of in self._of.items() if of[1]}
            return True

    def leave(self, requests: Iterable[SelectDestinations], goes_down: bool) -> None:
        """What these have is in the database by now, or nothing is."""
        for one in requests if self._project else ():
            key = one.request_id, goes_down
            with self._lock:
                project = self._project.pop(key, None)
                if project is not None:
                    count, others = self._of[project]
                    left = {other: of for other, of in others.items() if other != key}
                    self._of[project] = count, left


class _Known:
    """What a project had when it was read, and whoever stood beside that then, or since.

    :ivar count: of all that were let in, up to the last of these
    """

    __slots__ = ('beside', 'count', 'used')

    def __init__(self, used: Usage, beside: _Standing, count: int) -> None:
        self.used, self.beside, self.count = used, dict(beside), count

    def add(self, standing: _Standing, count: int) -> bool:
        """Whether no one has come and gone since; those that came stand beside it then."""
        new = standing.keys() - self.beside.keys()
        if count - self.count > len(new):
            return False
        self.beside |= standing
        self.count = count
        return True


class QuotaRound:
    """The requests of one commit, held against what their projects have.

    What a project has is read once; each request that is let in counts for those after it.
    """

    def __init__(self, store: Store, limits: Limits, let_in: LetIn) -> None:
        self._store, self._limits, self._let_in = store, limits, let_in
        self._known: dict[str, _Known] = {}

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
        checked = _RequestedUsage(request, members, has_paid)
        return self._checked(request, checked, is_own_caller, ends, enters=False)

    def let_in(
        self,
        request: SelectDestinations,
        members: Sequence[int],
        ends: Iterable[PlaceLetGo] = (),
        *,
        has_paid: bool = False,
        goes_down: bool = False,
    ) -> Excess | None:
        """Count a request for those after it, until it leaves, unless it would pass a limit.

        :return: that limit, as ``would_pass`` has it
        """
        checked = _RequestedUsage(request, members, has_paid, goes_down)
        return self._checked(request, checked, None, ends, enters=True)

    def _checked(
        self,
        request: SelectDestinations,
        checked: _RequestedUsage,
        is_own_caller: bool | None,
        ends: Iterable[PlaceLetGo],
        *,
        enters: bool,
    ) -> Excess | None:
        project = request.spec.project_id
        limits = self._limits_of(request, is_own_caller, checked.has_paid)
        if project is None or not limits:
            return None
        ending = {place.claim_id: place.consumer for place in ends}
        found: Excess | None = None
        is_close = False
        for _ in range(TRIES):
            count, standing = self._let_in.of(project)
            if any(one.covers(checked) for one in standing.values()):
                return None
            if not is_close:
                is_close = self._at_a_glance(project, limits, checked) is not None
            if is_close:
                found, is_sure = self._with_care(project, limits, checked, standing, ending)
                if found is not None:
                    if is_sure:
                        return found
                    continue
            if not enters or self._let_in.enter(project, checked, count):
                return None
        if found is not None:
            return found
        raise exceptions.Busy(
            reason=f'many requests of project {project} are placed at once', retry_after_ms=200
        )

    def _limits_of(
        self, request: SelectDestinations, is_own_caller: bool | None, has_paid: bool
    ) -> dict[str, int]:
        """Name -> limit of what binds a commit of a request."""
        if self._limits.is_empty or request.spec.purpose is Purpose.REBUILD:
            return {}
        # Who may place for all projects says no ``only_project``.
        own = request.only_project is not None if is_own_caller is None else is_own_caller
        limits = self._limits.of(request.spec.project_id, own)
        for name in (quota.SERVER_GROUPS, quota.REQUESTS_PER_MINUTE):
            limits.pop(name, None)
        if has_paid:
            return {name: of for name, of in limits.items() if name == quota.CLAIMS_IN_FLIGHT}
        return limits

    def _at_a_glance(
        self, project: str, limits: Mapping[str, int], checked: _RequestedUsage
    ) -> Excess | None:
        """Whether even twice counted all of it is within the limits."""
        count, standing = self._let_in.of(project)
        known = self._known.get(project)
        if known is None or not known.add(standing, count):
            # Who stands there was looked at before: it may be in the database a moment later.
            known = self._known[project] = _Known(self._read(project), standing, count)
        used = _sum(known.used, known.beside.values())
        return quota.excess(limits, used, checked.demand(()))

    def _with_care(
        self,
        project: str,
        limits: Mapping[str, int],
        checked: _RequestedUsage,
        standing: _Standing,
        ending: Mapping[str, str],
    ) -> tuple[Excess | None, bool]:
        """The limit that would be passed, and whether nothing came to be while that was read.

        Some may be consumers that have a place already, and ask for less than it looked like.  What
        such a one has counts for it only where it had it before the usage was read, and after.
        """
        others = [one for one in standing.values() if one.key != checked.key]
        named = {consumer for one in (*others, checked) for consumer in one.consumers}
        named.update(ending.values())
        before = {one.id for one in self._store.live_claims_of(named)}
        used = self._read(project)
        after = self._store.live_claims_of(named)
        held = [one for one in after if one.id in before]
        going = [one for one in held if one.id in ending and one.project_id == project]
        used = _sum(used, others, held).minus(quota.usage_of(going))
        _, now = self._let_in.of(project)
        is_sure = before == {one.id for one in after} and standing.keys() <= now.keys()
        return quota.excess(limits, used, checked.demand(held)), is_sure

    def _read(self, project: str) -> Usage:
        names = self._limits.of(project, True)
        classes = [n.removeprefix(quota.CLASS) for n in names if n.startswith(quota.CLASS)]
        return self._store.quota_usage([project], classes)[project]


def _sum(used: Usage, let_in: Iterable[_RequestedUsage], held: Sequence[Claim] = ()) -> Usage:
    for one in let_in:
        used = used.plus(one.demand(held))
    return used
