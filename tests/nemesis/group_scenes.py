# SPDX-License-Identifier: Apache-2.0
"""Planned groups, and what is done to them in a process that dies; see ``deaths``.

What a planner or a scheduler would commit is taken from a real one, just before its commit, and
committed by the process that dies.  Others of them are asked again: they have tables of their own,
as another process would.  Leases are over when they begin where nobody is to be waited for.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import ClaimColumns, RequestDraft
from gantt.core.claims.reservations import placeholder_consumer
from gantt.core.messages.request import CancelClaims, GroupRef, Lifecycle, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.groups.model.group_answer import GroupAnswer
from gantt.groups.model.place_group import ReleaseGroupPlan
from gantt.groups.service.group_members import GroupMembers
from gantt.groups.service.planner import GroupPlanner
from gantt.scheduler.service import Scheduler
from tests import world
from tests.builders import CLEAN, live, new_uuid
from tests.nemesis.site import Site
from tests.planner import (
    a_change,
    a_description,
    a_member,
    a_plan_request,
    a_planner,
    before_commit,
    place,
)
from tests.plans import a_create, by, created

NAMES = {'web-1', 'web-2', 'db', 'cache'}
#: Of a lease, seconds: it is over, or it is over in a long time.
OVER, LONG = -5.0, 3600.0
#: Longer than what was read of hosts and plans is taken for new.
NEWS = 2.0


class _Drafted(BaseException):
    """What was about to be committed: whoever was at it ends here."""

    def __init__(self, batch: list[RequestDraft]) -> None:
        super().__init__()
        self.batch = batch


class GroupsSite:
    """A database, hosts on it, and those who are asked again: a planner and a scheduler.

    :ivar store: that tests look into
    """

    def __init__(self, site: Site) -> None:
        self.site, self.store, self.database = site, site.store, site.database
        self.world = world.World(site.store, hosts=4, sweep_seconds=1e6, replay_seconds=1e6)
        self.planner = a_planner(self.world)
        watched = before_commit(self.store, _keep)
        self._first = a_planner(self.world, store=watched)
        self._scheduler = self._one_like(self.world.scheduler, watched)

    def _one_like(self, other: Scheduler, store: Any) -> Scheduler:
        pipeline, settings = other.placing.pipeline, other.settings
        scheduler = Scheduler(
            store,
            pipeline,
            self.world.recorder,
            settings,
            self.world.clock,
            make_hook=GroupMembers,
        )
        scheduler.cache.fetch()
        return scheduler

    def close(self) -> None:
        """End what there is."""
        self.site.close()

    # -- what is about to be committed ----------------------------------------------------
    def planned(self, request: Any, lease: float) -> list[RequestDraft]:
        """What a planner commits for a request."""
        return _leased(_until_commit(lambda: self._place(self._first, request)), lease)

    def asked(self, requests: list[SelectDestinations], lease: float) -> list[RequestDraft]:
        """What a scheduler commits for requests that come together; it is forgotten then."""
        scheduler = self._scheduler
        self._scheduler = self._one_like(scheduler, scheduler.stores)
        return _leased(_until_commit(lambda: self._select(scheduler, requests)), lease)

    # -- asked again ----------------------------------------------------------------------
    def place(self, request: Any) -> GroupAnswer:
        """What a planner answers."""
        return self._place(self.planner, request)

    def _place(self, planner: GroupPlanner, request: Any) -> GroupAnswer:
        self.world.clock.advance(NEWS)
        return place(planner, request)

    def select(self, requests: list[SelectDestinations]) -> list[Answer]:
        """What a scheduler answers."""
        return self._select(self.world.scheduler, requests)

    def _select(self, scheduler: Scheduler, requests: list[SelectDestinations]) -> list[Answer]:
        self.world.clock.advance(NEWS)
        scheduler.placing.step()
        handles = [self.world.ask(request, by=scheduler) for request in requests]
        answers = self.world.replies.answers
        for _ in range(50):
            if answers.keys() >= set(handles):
                break
            self.world.clock.advance(0.1)
            scheduler.placing.step()
        return [answers[handle] for handle in handles]

    def hosts_report(self) -> None:
        """They run nothing."""
        for host in self.world.hosts.values():
            host.running.clear()
            host.report()
        self.world.scheduler.report_queue.step()


def _keep(batch: Any) -> None:
    raise _Drafted(list(batch))


def _until_commit(work: Callable[[], object]) -> list[RequestDraft]:
    try:
        answer = work()
    except _Drafted as e:
        return e.batch
    raise AssertionError(f'nothing was committed: {answer}')


def _leased(drafts: list[RequestDraft], seconds: float) -> list[RequestDraft]:
    return [msgspec.structs.replace(draft, lease_seconds=seconds) for draft in drafts]


class GroupScene:
    """A group of four before something is done to it in a process that may die.

    :ivar verb: what it does, with ``arguments``
    :ivar was_repeated: somebody asked again
    """

    verb = 'requests.commit'

    def __init__(self, site: GroupsSite, number: int) -> None:
        self.site, self.store = site, site.store
        self.group = new_uuid()
        self.was_repeated = False
        self.arguments: tuple[Any, ...] = ()
        self.prepare()

    def prepare(self) -> None:
        """Set the scene."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Whether it has happened.  :raises AssertionError: in part"""
        raise NotImplementedError

    def again(self) -> None:
        """Another process is asked for the same; it has happened then, and once."""
        raise NotImplementedError

    def half(self) -> None:
        """A part of it happens, as it must not: whoever looks has to see that."""
        raise NotImplementedError

    # -- see deaths -----------------------------------------------------------------------
    def kept(self, lived: bool = False) -> None:
        """All of it or nothing; all of it where nobody died."""
        assert self.is_done() or not lived, 'it was refused'
        assert self.store.claims.audit() == CLEAN

    def repeated(self) -> None:
        """Asked again it is done, whether it was before or not; asked once more, no more."""
        self.was_repeated = True
        self.again()
        assert self.is_done()
        before = self.claims()
        self.again()
        assert self.claims() == before
        self.kept()

    def free_in_the_end(self) -> None:
        """Nobody comes back, the hosts run nothing, plans are over."""
        if self.was_repeated and self.store.plans.load_group_plan(self.group) is not None:
            self.store.plans.release_plan(self.group, 'over')
        self.store.claims.sweep(100)
        self.site.hosts_report()
        assert live(self.store) == []
        assert self.store.claims.audit() == CLEAN

    # -- looks ------------------------------------------------------------------------------
    def places(self) -> dict[str, Claim]:
        """Live claims by the names of their members, each of which has one at most."""
        claims = self.store.plans.load_reservations([self.group])[self.group]
        names = [claim.member_name or '' for claim in claims]
        assert len(set(names)) == len(names), f'a member has two claims: {names}'
        return dict(zip(names, claims, strict=True))

    def claims(self) -> list[Claim]:
        """All claims, ended ones too, without when they were read last."""
        claims = self.store.plans.load_reservations([self.group], ended=True)[self.group]
        return sorted(claims, key=lambda claim: claim.id)

    def free(self) -> set[str]:
        """Names of members whose places no create has."""
        return {name for name, claim in self.places().items() if claim.is_free_reservation}

    # -- what goes before -------------------------------------------------------------------
    def describe(self, *members: dict[str, Any]) -> dict[str, Any]:
        """The group as it is asked for; three kinds unless told otherwise."""
        members = members or (a_member('web', 2), a_member('db', vcpu=2), a_member('cache'))
        policies = [{'policy': 'anti-affinity', 'of': 'web'}]
        return a_description(*members, policies=policies, uuid=self.group)

    def plan(self, lease: float = LONG) -> dict[str, Claim]:
        """Have it planned; its places."""
        request = a_plan_request(self.describe(), plan_ms=1)
        outcomes = self.store.requests.commit(self.site.planned(request, lease)).outcomes
        assert [outcome.outcome for outcome in outcomes] == ['placed'], outcomes
        places = self.places()
        assert places.keys() == NAMES
        return places

    def create(self, member: str, lease: float) -> str:
        """Have a create take over a place; its consumer."""
        consumer = new_uuid()
        created(self.store, self.places()[member], consumer, lease_seconds=lease)
        return consumer

    def confirm(self, member: str) -> None:
        """The word of its host."""
        claim = self.places()[member]
        assert self.site.world.hosts[claim.host].confirm(claim.id) == ['ok']


class Planning(GroupScene):
    """A group is planned."""

    def prepare(self) -> None:
        self.request = a_plan_request(self.describe(), plan_ms=1)
        self.arguments = (self.site.planned(self.request, OVER),)

    def is_done(self) -> bool:
        places, record = self.places(), self.store.plans.load_group_plan(self.group)
        stored = self.store.requests.load_request(self.request.request_id)
        if record is None:
            assert (places, stored) == ({}, None), 'half a plan'
            return False
        assert self.free() == NAMES, 'half a group'
        assert record.request_id == self.request.request_id and record.revision == 1
        assert stored is not None and stored.state == 'placed'
        return True

    def half(self) -> None:
        (draft,) = self.arguments[0]
        half = ClaimColumns.of(draft.claims[:-1])
        self.store.requests.commit([msgspec.structs.replace(draft, claims=half)])

    def again(self) -> None:
        answer = self.site.place(self.request)
        self.agrees(answer)
        assert self.site.place(self.request) == answer

    def agrees(self, answer: GroupAnswer) -> None:
        """What was answered is what is claimed."""
        assert answer.plan is not None
        answered = {member.name: (member.claim_id, member.host) for member in answer.plan.members}
        stored = {
            name: (claim.id, claim.host)
            for name, claim in self.places().items()
            if name in answered
        }
        assert answered == stored


class Changing(Planning):
    """A group gets a member more, one goes, and one that nobody has created moves."""

    def prepare(self) -> None:
        self.before = self.plan(OVER)
        self.consumer = self.create('web-1', OVER)
        description = self.describe(a_member('web', 3), a_member('db', vcpu=2))
        self.request = a_change(description, revision=1, replace=['db'], plan_ms=1)
        self.arguments = (self.site.planned(self.request, OVER),)

    def is_done(self) -> bool:
        places, record = self.places(), self.store.plans.load_group_plan(self.group)
        assert record is not None
        assert places['web-1'].consumer == self.consumer
        assert places['web-2'].id == self.before['web-2'].id, 'who stands stays'
        if record.revision == 1:
            assert places.keys() == NAMES, 'half a change'
            assert places['db'].id == self.before['db'].id
            return False
        assert (record.revision, record.request_id) == (2, self.request.request_id)
        assert places.keys() == {'web-1', 'web-2', 'web-3', 'db'}, 'half a change'
        assert places['db'].id != self.before['db'].id, 'half a change'
        return True


class Creating(GroupScene):
    """Two creates that name members, one that does not, and one of no group, in one batch."""

    def prepare(self) -> None:
        self.plan()
        spec = {'vcpu': 1, 'ram': 1024, 'disk': 0}
        members = [('web-1', 1), ('db', 2), (None, 1)]
        self.requests = [
            self.asks(member, vcpu=vcpu, group=GroupRef(uuid=self.group, member=member))
            for member, vcpu in members
        ]
        self.requests.append(self.asks('single', **spec))
        self.arguments = (self.site.asked(self.requests, OVER),)
        assert len(self.arguments[0]) == len(self.requests), 'one batch'

    def asks(self, member: str | None, **fields: Any) -> SelectDestinations:
        """A request for one."""
        template = world.a_request(**{'ram': 1024, 'disk': 0, **fields})
        resources = {name: many for name, many in template.spec.resources.items() if many}
        spec = msgspec.structs.replace(template.spec, resources=resources)
        return msgspec.structs.replace(template, spec=spec)

    def is_done(self) -> bool:
        by_consumer = {claim.consumer: claim for claim in live(self.store)}
        consumers = {request.consumers[0] for request in self.requests}
        mine = [by_consumer[consumer] for consumer in consumers & by_consumer.keys()]
        places = self.places()
        assert places.keys() == NAMES
        assert len(by_consumer) == len(NAMES) + (len(mine) == len(consumers)), 'half a batch'
        if not mine:
            assert self.free() == NAMES
            return False
        assert len(mine) == len(consumers), 'half a batch'
        taken = {name: claim for name, claim in places.items() if claim.is_taken}
        assert len(taken) == 3 and {'web-1', 'db'} <= taken.keys()
        assert {claim.consumer for claim in taken.values()} < consumers
        assert taken['web-1'].consumer == self.requests[0].consumers[0]
        assert taken['db'].consumer == self.requests[1].consumers[0]
        return True

    def half(self) -> None:
        self.store.requests.commit(self.arguments[0][1:])

    def again(self) -> None:
        answers = self.site.select(self.requests)
        assert [answer.outcome for answer in answers] == [Outcome.PLACED] * 4, answers
        by_consumer = {claim.consumer: (claim.id, claim.host) for claim in live(self.store)}
        for request, answer in zip(self.requests, answers, strict=True):
            chosen = answer.selections[0][0]
            assert by_consumer[request.consumers[0]] == (chosen.claim_id, chosen.host)

    def free_in_the_end(self) -> None:
        for request in self.requests if self.was_repeated else ():
            self.site.world.scheduler.cancel(CancelClaims(request_id=request.request_id))
        self.store.claims.sweep(100)
        assert self.free() == NAMES, 'each place goes back to its plan'
        self.store.plans.release_plan(self.group, 'over')
        super().free_in_the_end()


class Releasing(GroupScene):
    """A plan is released; a create has one place, a guest runs on another."""

    verb = 'plans.release_plan'

    def prepare(self) -> None:
        self.plan()
        self.consumers = {self.create('web-1', OVER), self.create('db', OVER)}
        self.confirm('db')
        self.arguments = (self.group, 'no longer wanted')

    def is_done(self) -> bool:
        places = self.places()
        assert {places['web-1'].consumer, places['db'].consumer} == self.consumers
        if self.store.plans.load_group_plan(self.group) is not None:
            assert places['web-1'].is_taken
            assert self.free() == {'web-2', 'cache'}, 'half a release'
            return False
        assert places.keys() == {'web-1', 'db'}, 'half a release'
        assert {claim.lifecycle for claim in places.values()} == {Lifecycle.HOST}
        assert {claim.former_reservation for claim in places.values()} == {None}
        return True

    def half(self) -> None:
        self.store.plans.release_plan(self.group, 'no longer wanted', members=['cache'])

    def again(self) -> None:
        was_done = self.is_done()
        try:
            released = self.site.planner.release(ReleaseGroupPlan(group=self.group))
        except exceptions.NotFound:
            assert was_done
        else:
            assert not was_done and len(released['claims']) == len(NAMES)  # type: ignore[arg-type]

    def free_in_the_end(self) -> None:
        if self.store.plans.load_group_plan(self.group) is not None:
            self.store.plans.release_plan(self.group, 'over')
        super().free_in_the_end()


class GivingBack(GroupScene):
    """A create of two members is cancelled."""

    verb = 'requests.cancel_request'

    def prepare(self) -> None:
        places = self.plan(OVER + 60)
        self.before = {name: places[name].id for name in ('web-1', 'web-2')}
        draft = created_both(self.store, places)
        self.consumers = {by.consumer for by in draft.taken_reservations}
        self.arguments = (draft.id, 'no longer wanted')

    def is_done(self) -> bool:
        places = self.places()
        assert places.keys() == NAMES
        if self.free() == NAMES:
            assert {places[name].id for name in self.before}.isdisjoint(self.before.values())
            ended = [self.store.claims.load_claim(claim_id) for claim_id in self.before.values()]
            assert {claim.state for claim in ended if claim is not None} == {State.RELEASED}
            return True
        assert self.free() == NAMES - self.before.keys(), 'half a request'
        assert {places[name].id for name in self.before} == set(self.before.values())
        return False

    def half(self) -> None:
        claim = self.places()['web-1']
        host = self.site.world.hosts[claim.host]
        self.store.claims.refuse_claims(host.words(claim.id, reason='no'))

    def again(self) -> None:
        request_id = self.arguments[0]
        self.site.world.scheduler.cancel(CancelClaims(request_id=request_id))

    def free_in_the_end(self) -> None:
        if not self.is_done():
            self.store.requests.cancel_request(self.arguments[0], 'over')
        self.store.plans.release_plan(self.group, 'over')
        super().free_in_the_end()


def created_both(store: Any, places: dict[str, Claim]) -> RequestDraft:
    """A create that has taken over both of ``web``."""
    draft = a_create(by(places['web-1']), by(places['web-2'])).build()
    assert [outcome.outcome for outcome in store.requests.commit([draft]).outcomes] == ['placed']
    return draft


class Expiring(GroupScene):
    """The plan is over; one create is on its way, one's lease is over too, a guest runs.

    Of another group the plan is not over, and a create's lease is.
    """

    verb = 'claims.sweep'

    def prepare(self) -> None:
        self.other = new_uuid()
        self.group, own = self.other, self.group
        self.plan()
        self.create('web-1', OVER)
        self.group = own
        self.plan(OVER)
        self.consumers = {self.create('web-1', LONG), self.create('db', LONG)}
        self.create('cache', OVER)
        self.confirm('db')
        self.arguments = (100,)

    def is_done(self) -> bool:
        places = self.places()
        assert {places['web-1'].consumer, places['db'].consumer} == self.consumers
        assert places.keys() <= NAMES
        other = self.of_other()
        assert other.keys() == NAMES, 'a place is gone whose plan holds it'
        back = other['web-1']
        assert back.is_taken or back.consumer == placeholder_consumer(self.other, 'web-1')
        return places.keys() == {'web-1', 'db'} and back.is_free_reservation

    def of_other(self) -> dict[str, Claim]:
        """Places of the other group."""
        own, self.group = self.group, self.other
        places = self.places()
        self.group = own
        return places

    def half(self) -> None:
        self.store.plans.release_plan(self.other, 'over', members=['cache'])

    def again(self) -> None:
        self.store.claims.sweep(100)

    def free_in_the_end(self) -> None:
        self.store.claims.sweep(100)
        assert self.is_done()
        self.store.plans.release_plan(self.other, 'over')
        for claim in live(self.store):
            self.store.requests.cancel_request(claim.request_id, 'over')
        super().free_in_the_end()


SCENES = (Planning, Changing, Creating, Releasing, GivingBack, Expiring)
