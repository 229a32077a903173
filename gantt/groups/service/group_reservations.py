# SPDX-License-Identifier: Apache-2.0
"""Cache of the reservations of group plans, from which creates of a batch are offered some.

A plan and the claims of its members stay cached for a second, so that creates which come one
after another need no read.  The commit finds outdated reservations under its locks, and the plan is
read anew.  A refusal always rests on what was just read.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import cachetools
import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import is_foreign
from gantt.core.claims.reservations import (
    GroupPlanRecord,
    ReplacedReservation,
    TakenReservation,
    reservation_taken_over,
)
from gantt.core.messages import image_properties, policy_set
from gantt.core.messages.keys import nova_hints
from gantt.core.messages.request import (
    GroupRef,
    Lifecycle,
    Purpose,
    RequestKind,
    SelectDestinations,
    name_of,
)
from gantt.core.records.decision import OfferedReservations
from gantt.core.records.members import replaced_guests
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import POLICIES_POLICY, GroupRule
from gantt.core.table.host_table import HostTable
from gantt.groups.model import group_answer
from gantt.groups.model.group_answer import is_host_up
from gantt.groups.model.group_limits import GroupLimits
from gantt.groups.model.member_reservations import (
    CreateView,
    MemberReservations,
    PlannedMembers,
    offered_reservations,
)
from gantt.scheduler.ports.group_plans import GroupPlans
from gantt.scheduler.ports.process import Clock

#: Seconds that a plan's claims stay cached, and within which they are not read again.
CACHED_SECONDS, FRESH_SECONDS = 1.0, 0.02
#: Plans that stay cached.
CACHED_PLANS_MAX = 32


class _CachedPlan:
    """Plan of a group and the claims of its members, as they were read.

    :ivar key: rule and generation of the group that it goes with: with others it may differ
    :ivar reservations: None: the group has no plan
    :ivar has_ended: ended reservations are included
    """

    __slots__ = ('has_ended', 'key', 'read_at', 'record', 'reservations')

    def __init__(
        self,
        key: object,
        record: GroupPlanRecord | None,
        reservations: MemberReservations | None,
        read_at: float,
        *,
        has_ended: bool,
    ) -> None:
        self.key = key
        self.record = record
        self.reservations = reservations
        self.read_at = read_at
        self.has_ended = has_ended


class GroupReservations:
    """Cache of reservations; belongs to the scheduling thread, or to the planner of a dry run."""

    def __init__(self, plans: GroupPlans, clock: Clock, stale_after: Callable[[], float]) -> None:
        self._stored_plans = plans
        self._clock = clock
        self._stale_after = stale_after
        self._cached_plans: cachetools.LRUCache[str, _CachedPlan] = cachetools.LRUCache(
            CACHED_PLANS_MAX
        )
        # Reservations that plans of this batch take, by the ids of their claims.
        self._assumed_taken: dict[str, TakenReservation | ReplacedReservation] = {}

    @staticmethod
    def may_have_reservation(request: SelectDestinations, rules: Mapping[str, GroupRule]) -> bool:
        """Return whether a request is a create in a group that may have a plan."""
        spec, group = request.spec, request.spec.group
        if group is None or request.lifecycle is not Lifecycle.HOST:
            return False
        if spec.purpose is not Purpose.CREATE or spec.kind is not RequestKind.HOST:
            return False
        if spec.plan is not None:
            return True
        rule = rules.get(group.uuid)
        return group.member is not None or (rule is not None and rule.policy == POLICIES_POLICY)

    def offer_without_plan(
        self, table: HostTable, request: SelectDestinations, rules: Mapping[str, GroupRule]
    ) -> OfferedReservations | None:
        """Return the offer where the plan that a hint names is not there; None: it is.

        A create is refused.  Any other request has the hints of the create, and goes on without.
        A plan of another project is answered as one that was never made.

        :raises DatabaseUnavailable: the plan is not known, and cannot be read
        """
        uuid = request.spec.plan
        assert uuid is not None, 'a hint names it'
        key = self._key(table, uuid, rules.get(uuid))
        record: GroupPlanRecord | None = None
        # Whether a plan was released is known from its reservations where one may be offered.
        if self.may_have_reservation(request, rules):
            record = self._cached_plan(uuid, key, ended=False).record
        if record is None:
            record = self._cached_plan(uuid, key, ended=True).record
        if record is not None and not _is_hidden(request, record):
            return None
        if request.spec.purpose is Purpose.CREATE:
            return _offer_by_unknown_hint(uuid)
        note = f'hints.{nova_hints.PLAN_HINT} is ignored: group {uuid} has no plan any more'
        return OfferedReservations(group=uuid, revision=0, note=note)

    @staticmethod
    def offer_in_two_groups(request: SelectDestinations, group: str) -> OfferedReservations:
        """Return the offer where the group beside the plan has policies at levels as well.

        A member is in one of such groups; of Nova's groups only the policy holds beside a plan.
        """
        uuid, field = request.spec.plan or '', f'hints.{nova_hints.PLAN_HINT}'
        because = f'server group {group} has policies of its own here'
        if request.spec.purpose is not Purpose.CREATE:
            note = f'{field} is ignored: {because}'
            return OfferedReservations(group=uuid, revision=0, note=note)
        why = f'{field}: {because}; expected it or that group, or a group with a policy of Nova'
        return OfferedReservations(group=uuid, revision=0, why=why)

    @staticmethod
    def with_member_name(table: HostTable, request: SelectDestinations) -> SelectDestinations:
        """Return a request of a move, with the name of the member that its guest is.

        The caller may name only the description that the guest was created by.
        """
        spec, group = request.spec, request.spec.group
        if group is None or not spec.purpose.is_move or len(request.consumers) > 1:
            return request
        (consumer,) = request.consumers
        for provider_id in table.placed.providers_of(consumer):
            for placed in table.placed.on_provider(provider_id).values():
                is_it = placed.consumer == consumer and placed.group == group.uuid
                if is_it and placed.member not in (None, group.member):
                    named_group = msgspec.structs.replace(group, member=placed.member)
                    hints = {k: v for k, v in spec.hints.items() if k != nova_hints.MEMBER_HINT}
                    spec = msgspec.structs.replace(spec, group=named_group, hints=hints)
                    return msgspec.structs.replace(request, spec=spec)
        return request

    def offered_reservations(
        self,
        table: HostTable,
        request: SelectDestinations,
        rule: GroupRule | None,
        *,
        count: int,
        without: Iterable[str] = (),
        spread: int = 1,
        seed: int = 0,
        limits: GroupLimits | None = None,
    ) -> OfferedReservations | None:
        """Return the reservations offered to a create; None: it is placed as any consumer.

        :param rule: rule of its group, as it is known
        :param count: consumers that request a reservation
        :param without: names of hosts to avoid, if there are others
        :param spread: see :class:`CreateView`
        :param limits: by another group that it is in
        :raises NotFound: its plan is of another project
        :raises DatabaseUnavailable: the plan is not known, and cannot be read
        """
        group = request.spec.group
        assert group is not None, 'it may have places'
        key = self._key(table, group.uuid, rule)
        seen: OfferedReservations | None = None
        # A refused request gets the reason: then ended reservations count as well.
        for avoided, is_last in ((without, False), ((), True)):
            cached = self._cached_plan(group.uuid, key, is_last)
            if cached.record is None or cached.reservations is None:
                if request.spec.plan is not None:
                    return _offer_by_unknown_hint(group.uuid)
                if group.member is None or _includes_member(group, group.member, rule):
                    return None
                return _offer_without_plan(group.uuid, group.member)
            _check_project(request, cached.record)
            view = self._create_view(table, request, avoided, spread, seed)
            if limits is not None:
                view = _limited_view(view, limits)
            seen = offered_reservations(cached.reservations, request, count, view)
            if seen is not None and (seen.free or seen.replaces):
                break
        return seen

    def hosts_just_taken(self, table: HostTable, uuid: str, consumers: Iterable[str]) -> list[str]:
        """Return the host of each consumer that has taken over a reservation of a plan just now.

        The table shows that only when the feed has brought it.
        """
        wanted, taken_by = set(consumers), dict[str, Collection[int]]()
        for taken in self._assumed_taken.values():
            if isinstance(taken, TakenReservation) and taken.consumer in wanted:
                taken_by[taken.consumer] = taken.provider_ids
        cached = self._cached_plans.get(uuid)
        if cached is not None and cached.reservations is not None:
            reservations = cached.reservations
            for consumer in wanted:
                name = reservations.member_taken_by(consumer)
                if name is not None:
                    taken_by[consumer] = [reservations.claims[name].provider_id]
        rows = (
            table.row_of_id(provider_id)
            for consumer, provider_ids in taken_by.items()
            for provider_id in provider_ids
            if provider_id not in table.placed.providers_of(consumer)
        )
        return [table.names[row] for row in rows if row is not None]

    def taken_reservations(
        self, request: SelectDestinations, seen: OfferedReservations, members: Iterable[int]
    ) -> tuple[TakenReservation, ...]:
        """Return the offered reservations of these members, as a commit takes them over."""
        spec = request.spec
        image = image_properties.text_of(spec.image) if spec.image.properties else None
        return tuple(
            TakenReservation(
                claim_id=reservation.claim_id,
                group=seen.group,
                member_name=reservation.name,
                member=member,
                consumer=request.consumers[member],
                provider_ids=tuple(reservation.allocations),
                project_id=spec.project_id or self._project_of_plan(seen.group),
                user_id=spec.user_id,
                consumer_type=spec.consumer_type,
                image=image,
                flavor=name_of(spec.flavor),
            )
            for member, reservation in zip(members, seen.free, strict=True)
        )

    def assume_taken(self, taken: Iterable[TakenReservation | ReplacedReservation]) -> None:
        """Assume that reservations are used: no other request of the batch is offered them."""
        self._assumed_taken.update((reservation.claim_id, reservation) for reservation in taken)

    def forget_taken(self, taken: Iterable[TakenReservation | ReplacedReservation]) -> None:
        """Assume no longer that reservations are used: they are free again, or were taken over."""
        for reservation in taken:
            self._assumed_taken.pop(reservation.claim_id, None)

    def note_committed(
        self, request_id: str, attempt: int, taken: Iterable[TakenReservation]
    ) -> None:
        """Note that these reservations were taken over."""
        now = self._clock.monotonic()
        for reservation in taken:
            cached = self._cached_plans.get(reservation.group)
            cached_reservations = None if cached is None else cached.reservations
            claim = (
                None
                if cached_reservations is None
                else cached_reservations.claims.get(reservation.member_name)
            )
            if (
                cached_reservations is not None
                and claim is not None
                and claim.id == reservation.claim_id
            ):
                cached_reservations.note(
                    reservation_taken_over(claim, reservation, request_id, attempt, now, now)
                )

    def replaced_reservations(self, seen: OfferedReservations) -> tuple[ReplacedReservation, ...]:
        """Return the offered reservations that end as the create is placed elsewhere."""
        return tuple(
            ReplacedReservation(
                claim_id=reservation.claim_id,
                group=seen.group,
                member_name=reservation.name,
                project_id=self._project_of_plan(seen.group),
            )
            for reservation in seen.replaces
        )

    def invalidate(self, taken: Iterable[TakenReservation | ReplacedReservation]) -> None:
        """Drop the cached plans of these reservations: they were not available, or have ended."""
        for group in {reservation.group for reservation in taken}:
            self._cached_plans.pop(group, None)

    def is_owned_by(self, taken: Iterable[TakenReservation], project: str | None) -> bool:
        """Return whether these reservations count for a project; without one any do."""
        return project is None or all(
            self._project_of_plan(reservation.group) == project for reservation in taken
        )

    # -- inside ------------------------------------------------------------------------
    def _project_of_plan(self, group: str) -> str | None:
        cached = self._cached_plans.get(group)
        return None if cached is None or cached.record is None else cached.record.project_id

    @staticmethod
    def _key(table: HostTable, uuid: str, rule: GroupRule | None) -> object:
        return (None if rule is None else rule.policies, table.group_generation(uuid))

    def _cached_plan(self, uuid: str, key: object, ended: bool) -> _CachedPlan:
        """Return the plan of a group.

        :param ended: read just now, with the ended reservations
        """
        cached, now = self._cached_plans.get(uuid), self._clock.monotonic()
        if cached is not None and cached.key != key:
            cached = None
        youngest = FRESH_SECONDS if ended else CACHED_SECONDS
        if cached is not None and now - cached.read_at <= youngest and cached.has_ended >= ended:
            return cached
        self._cached_plans[uuid] = cached = self._load_plan(uuid, key, now, cached, ended)
        return cached

    def _load_plan(
        self, uuid: str, key: object, now: float, before: _CachedPlan | None, ended: bool
    ) -> _CachedPlan:
        known = None if before is None or before.reservations is None else before.record
        record = known
        if record is None or ended:  # a plan may be released, and its group keep its rule
            record = self._stored_plans.load_group_plan(uuid)
            if record is None:
                return _CachedPlan(key, None, None, now, has_ended=True)
        if known is not None and known.request_id == record.request_id:
            assert before is not None and before.reservations is not None, 'it is known'
            members = before.reservations.members
        else:
            members = members_of(record)
        claims = self._stored_plans.load_reservations([uuid], ended=ended)[uuid]
        replaced = replaced_guests(record.plan)
        reservations = MemberReservations(uuid, record.revision, members, claims, replaced)
        return _CachedPlan(key, record, reservations, now, has_ended=ended)

    def _create_view(
        self,
        table: HostTable,
        request: SelectDestinations,
        without: Iterable[str],
        spread: int,
        seed: int,
    ) -> CreateView:
        spec = request.spec
        ruled_out, locked = frozenset(spec.ignore_hosts), frozenset(without)
        only = frozenset(() if spec.destination is None else spec.destination.hosts)
        stale_after = self._stale_after()
        placed, oldest_report = table.placed, table.now - stale_after

        def unusable(claim: Claim) -> str:
            row = table.row_of_id(claim.provider_id)
            if row is None:
                return 'its host is gone'
            if not table.enabled[row]:
                return 'its host is closed'
            if table.reported_at[row] < oldest_report:
                return f'its host has been silent for {table.now - table.reported_at[row]:.0f} s'
            name = table.names[row]
            if name in ruled_out or (only and name not in only):
                return 'the request rules its host out'
            if name in locked:
                return 'its host is locked by another process'
            current = placed.on_provider(claim.provider_id).get(claim.id)
            if current is not None and current.consumer != claim.consumer:
                return 'another create has just taken it over'
            return ''

        def is_up(claim: Claim) -> bool:
            return is_host_up(table, claim.provider_id, stale_after)

        return CreateView(
            now=table.now,
            assumed=self._assumed_taken,
            unusable=unusable,
            is_up=is_up,
            spread=spread,
            seed=seed,
        )


def _limited_view(view: CreateView, limits: GroupLimits) -> CreateView:
    """Return a view without the hosts that another group rules out."""
    unusable = view.unusable
    return view._replace(
        unusable=lambda claim: unusable(claim) or limits.problem_of(claim.host),
        problem_with_others=limits.problem_with_others,
    )


def members_of(record: GroupPlanRecord) -> PlannedMembers:
    """Return the members of a stored plan.

    :raises PlanUnreadable: by this release
    """
    plan = group_answer.read_plan(record)
    decided = plan.decided
    planned = () if decided is None or decided.plan is None else decided.plan.members
    return PlannedMembers(plan.description, {member.name: member.alternative for member in planned})


def _check_project(request: SelectDestinations, record: GroupPlanRecord) -> None:
    """Check that a request may see a plan.

    :raises NotFound: the plan is of another project, whose groups are hidden from this one
    """
    if _is_hidden(request, record):
        raise group_rule.unknown_group(record.group_uuid)


def _is_hidden(request: SelectDestinations, record: GroupPlanRecord) -> bool:
    """Return whether a plan is of another project than a request."""
    project = request.spec.project_id
    return is_foreign(record.project_id, request.only_project) or (
        None not in (project, record.project_id) and project != record.project_id
    )


def _includes_member(group: GroupRef, member: str, rule: GroupRule | None) -> bool:
    """Return whether the policies of a group without a plan include a member.

    :param rule: of the group, as it is known; None: it is as in the request
    """
    policies = group.policies
    if rule is not None and rule.policies is not None:
        policies = policy_set.read(rule.policies)
    if policies is None or policies.members:
        return False
    return policies.member_of(member) in policies.names


def _offer_by_unknown_hint(uuid: str) -> OfferedReservations:
    why = (
        f'hints.{nova_hints.PLAN_HINT}: expected the uuid of a planned group of this project, got '
        f'{uuid}, which has no plan, or has none any more; plan it first, or leave the hint out'
    )
    return OfferedReservations(group=uuid, revision=0, why=why)


def _offer_without_plan(uuid: str, member: str) -> OfferedReservations:
    reason = (
        f'server group {uuid} has no plan, or has none any more, that {member!r} could be a member '
        'of; plan it first, or leave the member out'
    )
    return OfferedReservations(group=uuid, revision=0, named=member, why=reason)
