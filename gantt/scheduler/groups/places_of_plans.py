# SPDX-License-Identifier: Apache-2.0
"""Places of plans for the creates of a batch: a cache of them, and which are given away.

A plan and the claims of its members stay cached for a second, so that creates which come one
after another need no read.  The commit finds outdated places under its locks, and the plan is
read anew.  A refusal always rests on what was just read.
"""

from collections.abc import Callable, Iterable, Mapping

import cachetools
import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import is_foreign
from gantt.core.claims.places import GroupPlanRecord, PlaceLetGo, PlaceTaken, taken_over
from gantt.core.groups import group_answer
from gantt.core.groups.member_places import CreateView, MemberPlaces, PlannedMembers, offer
from gantt.core.groups.plan_view import is_host_up
from gantt.core.messages import image_properties, policy_set
from gantt.core.messages.request import (
    GroupRef,
    Lifecycle,
    Purpose,
    RequestKind,
    SelectDestinations,
    name_of,
)
from gantt.core.records.places_seen import PlacesSeen
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import POLICIES, GroupRule
from gantt.core.table.host_table import HostTable
from gantt.scheduler.ports import Clock, GroupPlans

#: Seconds that a plan's claims stay cached, and within which they are not read again.
CACHED_SECONDS, FRESH_SECONDS = 1.0, 0.02
#: Plans that stay cached.
PLANS_MOST = 32


class _ReadPlan:
    """A plan as it was read.

    :ivar key: rule and generation of the group that it goes with: with others it may differ
    :ivar places: None: the group has no plan
    :ivar has_ended: ended places are included
    """

    __slots__ = ('has_ended', 'key', 'places', 'read_at', 'record')

    def __init__(
        self,
        key: object,
        record: GroupPlanRecord | None,
        places: MemberPlaces | None,
        read_at: float,
        *,
        has_ended: bool,
    ) -> None:
        self.key, self.record, self.places, self.read_at = key, record, places, read_at
        self.has_ended = has_ended


class PlacesOfPlans:
    """Cache of places of plans; belongs to the scheduling thread, or to the planner of a trial."""

    def __init__(self, plans: GroupPlans, clock: Clock, stale_after: Callable[[], float]) -> None:
        self._stored_plans, self._clock = plans, clock
        self._stale_after = stale_after
        self._read: cachetools.LRUCache[str, _ReadPlan] = cachetools.LRUCache(PLANS_MOST)
        self._laid: set[str] = set()  # ids of places that plans of this batch take

    @staticmethod
    def may_have(request: SelectDestinations, rules: Mapping[str, GroupRule]) -> bool:
        """Return whether a request may be for places: a create in a group that may have a plan."""
        spec, group = request.spec, request.spec.group
        if group is None or request.lifecycle is not Lifecycle.HOST:
            return False
        if spec.purpose is not Purpose.CREATE or spec.kind is not RequestKind.HOST:
            return False
        rule = rules.get(group.uuid)
        return group.member is not None or (rule is not None and rule.policy == POLICIES)

    @staticmethod
    def as_before(table: HostTable, request: SelectDestinations) -> SelectDestinations:
        """Return a request of a move, with the name of the member that its guest is.

        The caller may name only the description that the guest was created by.
        """
        spec, group = request.spec, request.spec.group
        if group is None or not spec.purpose.is_move or len(request.consumers) > 1:
            return request
        (consumer,) = request.consumers
        for provider_id in table.placed.where(consumer):
            for placed in table.placed.on(provider_id).values():
                is_it = placed.consumer == consumer and placed.group == group.uuid
                if is_it and placed.member not in (None, group.member):
                    named_group = msgspec.structs.replace(group, member=placed.member)
                    spec = msgspec.structs.replace(spec, group=named_group)
                    return msgspec.structs.replace(request, spec=spec)
        return request

    def offered(
        self,
        table: HostTable,
        request: SelectDestinations,
        rule: GroupRule | None,
        *,
        count: int,
        without: Iterable[str] = (),
        spread: int = 1,
        seed: int = 0,
    ) -> PlacesSeen | None:
        """Return the places offered to a create; None: it is placed as any other of its group.

        :param rule: of its group, as it is known
        :param count: consumers that request a place
        :param without: names of hosts to avoid, if there are others
        :param spread: see :class:`CreateView`
        :raises NotFound: its plan is of another project
        :raises DatabaseUnavailable: the plan is not known, and cannot be read
        """
        group = request.spec.group
        assert group is not None, 'it may have places'
        key = (None if rule is None else rule.policies, table.group_generation(group.uuid))
        seen: PlacesSeen | None = None
        # A refused request gets the reason: then ended places count as well.
        for avoided, is_last in ((without, False), ((), True)):
            read_plan = self._known(group.uuid, key, is_last)
            if read_plan.record is None or read_plan.places is None:
                if group.member is None or _is_by_rule(group, group.member, rule):
                    return None
                return _no_plan(group.uuid, group.member)
            _check_project(request, read_plan.record)
            view = self._view(table, request, avoided, spread, seed)
            seen = offer(read_plan.places, request, count, view)
            if seen is not None and (seen.free or seen.replaces):
                break
        return seen

    def takes(
        self, request: SelectDestinations, seen: PlacesSeen, members: Iterable[int]
    ) -> tuple[PlaceTaken, ...]:
        """Return the places that a create takes in the store, one for each of these members."""
        spec = request.spec
        image = image_properties.text_of(spec.image) if spec.image.properties else None
        return tuple(
            PlaceTaken(
                claim_id=place.claim_id,
                group=seen.group,
                member_name=place.name,
                member=member,
                consumer=request.consumers[member],
                provider_ids=tuple(place.allocations),
                project_id=spec.project_id or self._project(seen.group),
                user_id=spec.user_id,
                consumer_type=spec.consumer_type,
                image=image,
                flavor=name_of(spec.flavor),
            )
            for member, place in zip(members, seen.free, strict=True)
        )

    def lay(self, takes: Iterable[PlaceTaken | PlaceLetGo]) -> None:
        """Reserve these places: no other request of the batch gets them."""
        self._laid.update(place.claim_id for place in takes)

    def lift(self, takes: Iterable[PlaceTaken | PlaceLetGo]) -> None:
        """Free these places again, or drop them where the commit has given them away."""
        self._laid.difference_update(place.claim_id for place in takes)

    def committed(self, request_id: str, attempt: int, takes: Iterable[PlaceTaken]) -> None:
        """Note that these places were taken over."""
        now = self._clock.monotonic()
        for taken in takes:
            read_plan = self._read.get(taken.group)
            places = None if read_plan is None else read_plan.places
            claim = None if places is None else places.claims.get(taken.member_name)
            if places is not None and claim is not None and claim.id == taken.claim_id:
                places.note(taken_over(claim, taken, request_id, attempt, now, now))

    def let_go(self, seen: PlacesSeen) -> tuple[PlaceLetGo, ...]:
        """Return the places that end as a create is placed anew."""
        return tuple(
            PlaceLetGo(
                claim_id=place.claim_id,
                group=seen.group,
                member_name=place.name,
                project_id=self._project(seen.group),
            )
            for place in seen.replaces
        )

    def lost(self, takes: Iterable[PlaceTaken | PlaceLetGo]) -> None:
        """Forget the plans of these places: they were unavailable, or have ended."""
        for group in {place.group for place in takes}:
            self._read.pop(group, None)

    def is_owned_by(self, takes: Iterable[PlaceTaken], project: str | None) -> bool:
        """Return whether these places count for a project; without one any do."""
        return project is None or all(self._project(place.group) == project for place in takes)

    # -- inside ------------------------------------------------------------------------
    def _project(self, group: str) -> str | None:
        read_plan = self._read.get(group)
        return (
            None if read_plan is None or read_plan.record is None else read_plan.record.project_id
        )

    def _known(self, uuid: str, key: object, ended: bool) -> _ReadPlan:
        """Return the plan of a group.

        :param ended: read just now, with the ended places
        """
        read_plan, now = self._read.get(uuid), self._clock.monotonic()
        if read_plan is not None and read_plan.key != key:
            read_plan = None
        youngest = FRESH_SECONDS if ended else CACHED_SECONDS
        if (
            read_plan is not None
            and now - read_plan.read_at <= youngest
            and read_plan.has_ended >= ended
        ):
            return read_plan
        self._read[uuid] = read_plan = self._read_anew(uuid, key, now, read_plan, ended)
        return read_plan

    def _read_anew(
        self, uuid: str, key: object, now: float, before: _ReadPlan | None, ended: bool
    ) -> _ReadPlan:
        if before is not None and before.record is not None and before.places is not None:
            record, members = before.record, before.places.members
        else:
            stored = self._stored_plans.load_group_plan(uuid)
            if stored is None:
                return _ReadPlan(key, None, None, now, has_ended=True)
            record, members = stored, members_of(stored)
        claims = self._stored_plans.load_places([uuid], ended=ended)[uuid]
        given_up = group_answer.given_up(record.plan)
        places = MemberPlaces(uuid, record.revision, members, claims, given_up)
        return _ReadPlan(key, record, places, now, has_ended=ended)

    def _view(
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
            current = placed.on(claim.provider_id).get(claim.id)
            if current is not None and current.consumer != claim.consumer:
                return 'another create has just taken it over'
            return ''

        def is_up(claim: Claim) -> bool:
            return is_host_up(table, claim.provider_id, stale_after)

        return CreateView(
            now=table.now,
            laid=self._laid,
            unusable=unusable,
            is_up=is_up,
            spread=spread,
            seed=seed,
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
    project = request.spec.project_id
    if is_foreign(record.project_id, request.only_project) or (
        None not in (project, record.project_id) and project != record.project_id
    ):
        raise group_rule.unknown_group(record.group_uuid)


def _is_by_rule(group: GroupRef, member: str, rule: GroupRule | None) -> bool:
    """Return whether the policies of a group without a plan include a member.

    :param rule: of the group, as it is known; None: it is as in the request
    """
    policies = group.policies
    if rule is not None and rule.policies is not None:
        policies = policy_set.read(rule.policies)
    if policies is None or policies.members:
        return False
    return policies.member_of(member) in policies.names


def _no_plan(uuid: str, member: str) -> PlacesSeen:
    reason = (
        f'server group {uuid} has no plan, or has none any more, that {member!r} could be a member '
        'of; plan it first, or leave the member out'
    )
    return PlacesSeen(group=uuid, revision=0, named=member, why=reason)
