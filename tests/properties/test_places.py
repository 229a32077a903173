# SPDX-License-Identifier: Apache-2.0
"""The life of places of plans: whatever happens in whatever order, no create has another's place.

Places are planned, taken over, asked for again, confirmed, refused, released, cancelled, extended,
swept; hosts report, operators end claims, workers die, other requests come.  The SQL store does
what the plain one does, and what is seen of each place obeys the rules that stand here:

- it is there once, on its host, with its amounts, from its plan to its end;
- a create gets it where nobody has it, or an older request for the same consumer;
- it lives on for its plan where its create ends, unless the plan holds it no more, or an operator
  ends it, or its guest was confirmed;
- what has ended stays ended.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.claims.claim import State
from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.base import derived_id
from tests.builders import CLEAN, generation_of, uuid_of
from tests.plans import a_create, a_plan, by
from tests.properties.claim_world import a_store
from tests.properties.test_stores_agree import LENIENT, SMALL, WORDS, Side, sorted_lines

GROUPS = (uuid_of('planned', 0), uuid_of('planned', 1))
MEMBERS = ('a', 'b', 'c')
HOWS = st.sampled_from(['cancel', 'refuse', 'release', 'confirm'])
LEASES = st.sampled_from([-1, 1000])

PLAN_WORDS = st.one_of(
    st.tuples(st.just('plan'), SMALL, SMALL, LEASES, st.booleans()),
    st.tuples(st.just('take'), SMALL, SMALL, LEASES),
    st.tuples(st.just('take'), SMALL, SMALL, LEASES),
    st.tuples(st.just('take_two'), SMALL, SMALL, st.booleans(), st.booleans()),
    st.tuples(st.just('take_over_again'), SMALL, SMALL),
    st.tuples(st.sampled_from(['again', 'cancel', 'give_up', 'extend']), SMALL),
    st.tuples(st.sampled_from(['confirm', 'refuse', 'release', 'force']), SMALL, st.booleans()),
    st.tuples(st.just('end_create'), SMALL, HOWS),
    st.tuples(st.just('end_create'), SMALL, HOWS),
    st.tuples(st.just('sweep'), SMALL),
    st.tuples(st.just('extend_plan'), SMALL),
    st.tuples(st.just('release_plan'), SMALL, SMALL),
)
#: Most of what happens is about places.
ALL_WORDS = st.integers(0, 3).flatmap(lambda n: WORDS if n == 0 else PLAN_WORDS)
#: What may end a place that no create has, and one that a create has.
ENDS_FREE = {'sweep', 'cancel', 'force', 'plan', 'release_plan', 'again'}
REPORTS = {'report', 'delta', 'stranger', 'room', 'register'}  # what runs has a claim
ENDS_TAKEN = {
    *('sweep', 'cancel', 'force', 'refuse', 'release', 'give_up', 'take_over', 'take_over_again'),
    *('take', 'take_two', 'place', 'again', 'end_create'),
}


def kind_of(claim):
    """What a place is to who looks at it."""
    if not claim.is_live:
        return 'ended'
    if claim.is_taken:
        return 'taken'
    return 'free' if claim.is_free_reservation else 'guest'


class PlannedSide(Side):
    """One store with its hosts, plans and creates."""

    def __init__(self, store):
        super().__init__(store)
        self.seen = {}  # id -> the place as it was seen last
        self.plans = 0

    # -- plans and creates ------------------------------------------------------------
    def plan(self, number, size, lease, is_late):
        group = GROUPS[number % len(GROUPS)]
        plan = self.store.plans.load_group_plan(group)
        revision = 1 if plan is None else plan.revision + (0 if is_late else 1)
        names = MEMBERS[: 1 + size % len(MEMBERS)]
        self.plans += 1
        draft = a_plan(
            group,
            {name: self.host(number + i) for i, name in enumerate(names)},
            revision=revision,
            generation=generation_of(self.store, group),
            seconds=lease,
            request_id=uuid_of('plan', self.plans),
        )
        self.drafts.append(draft)
        return self.outcome(draft)

    def place_named(self, number):
        """Any place that there ever was, those that live first."""
        seen = sorted(self.seen.values(), key=lambda claim: (claim.is_live, claim.id))
        return seen[-1 - number % len(seen)] if seen else None

    def consumer(self, number):
        return uuid_of('created', number)

    def create(self, places, consumers, request=None, **fields):
        takes = [by(place, number) for place, number in zip(places, consumers, strict=True)]
        request = request or uuid_of('create', len(self.drafts))
        return a_create(*takes, request_id=request, **fields)

    def take(self, number, guest, lease):
        place = self.place_named(number)
        if place is None:
            return None
        draft = self.create([place], [self.consumer(guest)], lease_seconds=lease)
        self.drafts.append(draft)
        before = self.store.claims.load_claim(place.id)
        outcome = self.outcome(draft)
        now = self.store.claims.load_claim(place.id)
        if outcome[0] is CommitStatus.PLACED:
            assert kind_of(before) == 'free' or before.consumer == self.consumer(guest)
            assert (now.request_id, now.consumer) == (draft.id, self.consumer(guest))
        elif outcome[0] is not CommitStatus.REPEAT:
            assert now == before
        return outcome

    def take_two(self, number, guest, whole, is_open):
        places = [self.place_named(number), self.place_named(number + 1)]
        if None in places or places[0].id == places[1].id:
            return None
        consumers = [self.consumer(guest), self.consumer(guest + 1)]
        draft = self.create(places, consumers, whole=whole, completes=not is_open)
        draft = draft.within(-1 if is_open else 100)
        self.drafts.append(draft)
        return self.outcome(draft)

    def take_over_again(self, number, guest):
        draft, place = self.draft(number), self.place_named(guest)
        if draft is None or place is None:
            return None
        again = self.create([place], [self.consumer(guest)], request=draft.id)
        return self.outcome(again.by('worker-2').taking_over(1))

    def end_create(self, number, how):
        taken = [claim for claim in self.seen.values() if kind_of(claim) == 'taken']
        if not taken:
            return None
        claim = taken[-1 - number % len(taken)]
        if how == 'cancel':
            return self.said(self.store.requests.cancel_request(claim.request_id, 'test').outcomes)
        host = next(host for host in self.hosts if host.id == claim.provider_id)
        return self.said(getattr(host, how)(claim))

    def extend_plan(self, number):
        group = GROUPS[number % len(GROUPS)]
        return self.said(self.store.plans.extend_plan(group, 2000, 2000).outcomes)

    def release_plan(self, number, size):
        group = GROUPS[number % len(GROUPS)]
        members = MEMBERS[: size % len(MEMBERS)]
        return self.said(self.store.plans.release_plan(group, 'test', members).outcomes)

    # -- what must hold ---------------------------------------------------------------
    def look(self, word):
        """Each place after a word, against what it was before it."""
        claims = {claim.id: claim for claim in self.store.claims.list_claims(limit=1000)}
        now = {claim.id: claim for claim in claims.values() if claim.member_name is not None}
        assert self.seen.keys() <= now.keys(), 'a place is gone'
        for place_id, claim in now.items():
            before = self.seen.get(place_id)
            if before is not None:
                again = now.get(derived_id('place again', place_id))
                self.compare(word, before, claim, again)
        self.seen.update({place_id: now[place_id] for place_id in sorted(now)})
        taken = [claim for claim in now.values() if kind_of(claim) == 'taken']
        assert len({claim.consumer for claim in taken}) == len(taken)
        # A guest that runs although its claim ended is its member again, whoever has its place now.
        claimed = [claim for claim in now.values() if claim.is_live and not claim.adopted]
        names = [(claim.group, claim.member_name) for claim in claimed]
        assert len(set(names)) == len(names), 'a member has two places'

    def compare(self, word, before, now, again):
        assert (now.provider_id, now.allocations) == (before.provider_id, before.allocations)
        was, is_now = kind_of(before), kind_of(now)
        step = f'{word[0]}: {was} -> {is_now}'
        if was == 'ended':
            assert now == before, step
        elif was == 'guest':
            assert is_now in ('guest', 'ended'), step
        elif was == 'free' and is_now != 'free':
            allowed = {'ended': ENDS_FREE, 'guest': REPORTS}.get(is_now)
            assert allowed is None or word[0] in allowed, step
        elif was == 'taken' and is_now == 'ended':
            assert word[0] in ENDS_TAKEN, step
            held = before.former_reservation.lease_until > now.updated_at
            assert (again is not None) == (held and word[0] != 'force'), step
            if again is not None:
                self.check_again(before, again, step)
        elif was == 'taken':
            assert is_now in ('taken', 'guest'), step
            assert (
                now.former_reservation in (None, before.former_reservation)
                or word[0] == 'extend_plan'
            ), step
        if is_now == 'taken':
            assert now.state is State.RESERVED

    def check_again(self, before, again, step):
        held = before.former_reservation
        assert kind_of(again) == 'free', step
        for name in ('provider_id', 'allocations', 'group', 'member_name', 'lifecycle'):
            assert getattr(again, name) == getattr(before, name), step
        for name in ('request_id', 'consumer', 'lease_until', 'project_id', 'flavor'):
            assert getattr(again, name) == getattr(held, name), step

    def rows(self):
        """All that can be seen of places and plans, beside the rest."""
        claims = [
            (c.id, c.request_id, c.member, c.lifecycle, c.member_name, c.flavor, c.project_id)
            + (
                (c.former_reservation.request_id, c.former_reservation.consumer)
                if c.former_reservation
                else ()
            )
            for c in self.store.claims.list_claims(limit=1000)
        ]
        plans = [(p.group_uuid, p.request_id, p.revision) for p in self.store.plans.group_plans(10)]
        places = {
            group: [(c.member_name, c.id) for c in held]
            for group, held in self.store.plans.load_reservations(GROUPS, ended=True).items()
        }
        return super().rows(), claims, plans, places, self.store.quotas.planned_usage('p2')


def check(words):
    with a_store('memory') as plain, a_store('sqlite') as real:
        expected, actual = PlannedSide(plain), PlannedSide(real)
        for word in words:
            assert expected.receive(word) == actual.receive(word), word
            expected.look(word)
            actual.look(word)
            assert expected.rows() == actual.rows(), word
            audit = sorted_lines(plain.claims.audit())
            assert audit == sorted_lines(real.claims.audit()), word
            # A stranger may be asked for again elsewhere; nothing else may be found.
            assert {**audit, 'doubled': []} == CLEAN, word


FIRST = st.tuples(st.just('plan'), SMALL, SMALL, LEASES, st.booleans())


@settings(max_examples=10, **LENIENT)
@given(FIRST, st.lists(ALL_WORDS, min_size=10, max_size=25))
def test_places_are_had_by_one_and_never_lost(first, words):
    check([first, *words])


@pytest.mark.slow
@settings(max_examples=600, **LENIENT)
@given(FIRST, st.lists(ALL_WORDS, min_size=15, max_size=60))
def test_places_are_had_by_one_and_never_lost_for_long(first, words):
    check([first, *words])
