# SPDX-License-Identifier: Apache-2.0
"""Several schedulers and planners at once at the places of one group."""

import collections
import random

import pytest

from gantt import exceptions
from gantt.db.claims.commit import BatchCommitter
from tests.builders import CLEAN, a_host, commit, generation_of, live, uuid_of
from tests.db.conftest import KINDS, SERVERS
from tests.db.test_concurrency import deadlocks, together
from tests.plans import a_create, a_plan, by, places, planned
from tests.services import PATIENT

GROUP = uuid_of('group')


@pytest.fixture(params=KINDS)
def stores(request, open_store):
    """Three stores on one database; on SQLite one that three threads share."""
    kind = request.param
    first = open_store(kind, timeouts=PATIENT)
    if kind == 'sqlite':
        return [first] * 3
    fast = kind != 'portable'
    return [first, *(open_store(like=first, timeouts=PATIENT, fast=fast) for _ in range(2))]


@pytest.fixture
def hosts(stores):
    return [a_host(f'cmp-{n}').with_room(vcpu=20).on(stores[0]) for n in range(3)]


def on(hosts, names):
    return {name: hosts[n % len(hosts)] for n, name in enumerate(names)}


def test_each_place_has_one_create_whoever_comes_first(stores, hosts):
    names = [f'm-{n}' for n in range(12)]
    place_of = planned(stores[0], on(hosts, names), group=GROUP)
    before = deadlocks(stores[0])

    def create(store, number):
        order = random.Random(number).sample(names, len(names))
        mine = {}
        for start in range(0, len(order), 3):
            drafts = [
                a_create(by(place_of[name]), request_id=uuid_of(number, name))
                for name in order[start : start + 3]
            ]
            for name, outcome in zip(order[start:], commit(store, *drafts).outcomes, strict=False):
                if outcome.outcome == 'placed':
                    mine[name] = outcome.id
        return mine

    won = together(*(lambda s=s, n=n: create(s, n) for n, s in enumerate(stores)))
    counts = collections.Counter(name for mine in won for name in mine)
    assert counts == collections.Counter(names)
    holders = {name: claim.request_id for name, claim in places(stores[0], GROUP).items()}
    assert holders == {name: request for mine in won for name, request in mine.items()}
    assert stores[0].claims.audit() == CLEAN
    assert deadlocks(stores[0]) == before


@pytest.mark.parametrize('is_taken_before', [False, True])
@pytest.mark.parametrize('kind', SERVERS)
def test_a_create_in_the_middle_of_a_plan_has_the_only_place(
    kind, is_taken_before, open_store, monkeypatch
):
    """Between what a plan reads of places that give way and of claims of its members."""
    planner = open_store(kind, timeouts=PATIENT)
    other = open_store(like=planner, timeouts=PATIENT)
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=20).on(planner) for n in range(2)]
    place = planned(planner, {'m': hosts[0]}, group=GROUP)['m']
    first, second = a_create(by(place)), uuid_of('second')
    if is_taken_before:
        assert commit(other, first).outcomes[0].outcome == 'placed'

    def take():
        free = places(other, GROUP)['m']
        assert commit(other, a_create(by(free), request_id=second)).outcomes[0].outcome == 'placed'

    judged = BatchCommitter._plans
    # What others do before claims of members are read, and after.
    before = [lambda: other.requests.cancel_request(first.id, 'no')] if is_taken_before else [take]
    after = [take] if is_taken_before else []

    def among_others(self, tx, commit_batch):
        is_plan = bool(commit_batch.planned_groups())
        if is_plan and before:
            before.pop()()
        living = judged(self, tx, commit_batch)
        if is_plan and after:
            after.pop()()
        return living

    monkeypatch.setattr(BatchCommitter, '_plans', among_others)
    plan = a_plan(GROUP, {'m': hosts[1]}, revision=2, generation=generation_of(planner, GROUP))
    outcome = commit(planner, plan).outcomes[0]
    assert not before and not after
    assert (outcome.outcome, 'has a claim already' in outcome.reason) == ('group_changed', True)
    assert places(planner, GROUP)['m'].request_id == second
    planner.requests.cancel_request(second, 'no')
    assert places(planner, GROUP)['m'].is_free_reservation
    assert planner.claims.audit() == CLEAN


def test_creates_cancels_and_plans_at_once_leave_each_member_one_place(stores, hosts):
    names = [f'm-{n}' for n in range(6)]
    planned(stores[0], on(hosts, names), group=GROUP)
    before = deadlocks(stores[0])

    def create(store, number):
        dice = random.Random(number)
        for turn in range(15):
            claims = store.plans.load_reservations([GROUP])[GROUP]
            place = dice.choice(claims)
            draft = a_create(by(place), request_id=uuid_of(number, turn))
            draft = draft.leased(dice.choice([-1, 100]))
            outcome = commit(store, draft).outcomes[0]
            if outcome.outcome == 'placed' and dice.random() < 0.7:
                store.requests.cancel_request(draft.id, 'no')

    def plan(store):
        dice = random.Random(9)
        for turn in range(10):
            group_plan = store.plans.load_group_plan(GROUP)
            members = on(hosts[turn % 3 :] + hosts, dice.sample(names, 3))
            draft = a_plan(
                GROUP,
                members,
                revision=group_plan.revision + 1,
                generation=generation_of(store, GROUP),
                request_id=uuid_of('plan', turn),
            )
            assert commit(store, draft).outcomes[0].outcome in ('placed', 'group_changed')
            store.plans.extend_plan(GROUP, 5000 + turn, 9000)
            store.claims.sweep(10)

    works = [lambda s=s, n=n: create(s, n) for n, s in enumerate(stores[:2])]
    together(*works, lambda: plan(stores[2]))
    assert sorted(places(stores[0], GROUP)) == names
    assert stores[0].claims.audit() == CLEAN
    assert deadlocks(stores[0]) == before
    while stores[0].claims.sweep(100).outcomes:
        pass
    stores[0].plans.release_plan(GROUP, 'over')
    with pytest.raises(exceptions.NotFound):
        stores[0].plans.release_plan(GROUP, 'over')
    for claim in live(stores[0]):
        stores[0].requests.cancel_request(claim.request_id, 'over')
    assert live(stores[0]) == []
    assert stores[0].claims.audit() == CLEAN
