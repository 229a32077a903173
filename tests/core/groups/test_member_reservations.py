# SPDX-License-Identifier: Apache-2.0
"""Places of a plan that a create is offered: against plain reading of the rules, and by name."""

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from gantt.core.claims.claim import Claim, FormerReservation, State
from gantt.core.claims.reservations import placeholder_consumer
from gantt.core.messages.request import GroupRef, Lifecycle, RequestSpec, SelectDestinations
from gantt.groups.model import group_description
from gantt.groups.model.member_reservations import (
    CreateView,
    MemberReservations,
    PlannedMembers,
    offered_reservations,
)
from tests.core.builders import an_id
from tests.thorough import examples

GROUP, NOW = an_id(1, 9), 1000.0
SMALL, LARGE = {'resources': {'VCPU': 1}}, {'resources': {'VCPU': 4}}


def a_claim(name, number, *, spec=SMALL, taken=None, state=State.RESERVED, until=2000.0, **fields):
    """Return the claim of a member; ``taken``: by that consumer."""
    lifecycle = Lifecycle.HOST if state is State.CONFIRMED else Lifecycle.PLAN
    former = None
    if taken is not None and state is State.RESERVED:
        former = FormerReservation(consumer=placeholder_consumer(GROUP, name), lease_until=until)
    return Claim(
        id=an_id(number, 8),
        request_id=an_id(1, 7),
        consumer=taken or placeholder_consumer(GROUP, name),
        provider_id=number,
        state=state,
        lifecycle=lifecycle,
        lease_until=until,
        allocations={number: spec['resources']},
        group=GROUP,
        member_name=name,
        former_reservation=former,
        updated_at=float(number),
        **fields,
    )


def places_of(body, claims, alternatives=None):
    description = group_description.read(body)
    return MemberReservations(GROUP, 1, PlannedMembers(description, alternatives or {}), claims)


ONE = (an_id(1, 3),)


def a_create(member=None, spec=SMALL, consumers=ONE):
    body = {**spec, 'group': msgspec.to_builtins(GroupRef(uuid=GROUP, member=member))}
    return SelectDestinations(
        request_id=an_id(5, 5),
        spec=msgspec.convert(body, RequestSpec),
        consumers=list(consumers),
    )


def view(assumed=(), unusable=(), up=(), **fields):
    return CreateView(
        now=NOW,
        assumed=set(assumed),
        unusable=lambda claim: 'it is down' if claim.id in unusable else '',
        is_up=lambda claim: claim.id in up,
        **fields,
    )


def names_of(seen):
    return [place.name for place in seen.free]


def test_the_place_of_a_member_whose_host_was_lost_is_for_a_create():
    body = {'members': [{'name': 'db', 'spec': SMALL}]}
    guest = a_claim('db', 1, taken=an_id(4, 3), state=State.CONFIRMED, created_at=10.0)
    healed = a_claim('db', 2, created_at=500.0)
    late = a_claim('db', 3, taken=an_id(5, 3), state=State.CONFIRMED, created_at=600.0)
    assert names_of(
        offered_reservations(places_of(body, [healed, guest]), a_create('db'), 1, view())
    ) == ['db']
    seen = offered_reservations(places_of(body, [late, healed]), a_create('db'), 1, view())
    assert seen.free == [] and 'was created before' in seen.why
    places = places_of(body, [healed, guest])
    seen = offered_reservations(
        places, a_create('db'), 1, view(up=[guest.id])
    )  # its host is back, it runs
    assert seen.free == [] and f'as consumer {guest.consumer}, and runs' in seen.why


def test_a_member_that_was_alone_keeps_its_place_where_there_are_more_of_it():
    body = {'members': [{'name': 'db', 'count': 3, 'spec': SMALL}]}
    claims = [a_claim('db', 1), a_claim('db-2', 2), a_claim('db-7', 3)]
    places = places_of(body, claims)
    assert names_of(offered_reservations(places, a_create('db-7'), 1, view())) == ['db-7']
    three = [an_id(i, 3) for i in range(3)]
    seen = offered_reservations(places, a_create('db', consumers=three), 3, view())
    assert names_of(seen) == ['db-2', 'db', 'db-7']
    released = places_of(body, [a_claim('db-9', 4, state=State.RELEASED)])
    assert 'no place in the plan' in offered_reservations(released, a_create('db-1'), 1, view()).why


def test_a_place_is_compared_with_the_alternative_that_was_planned():
    body = {'members': [{'name': 'a', 'count': 2, 'spec': LARGE, 'alternatives': [SMALL]}]}
    claims = [a_claim('a-1', 1, spec=LARGE), a_claim('a-2', 2, spec=SMALL)]
    for alternatives in ({'a-1': 0, 'a-2': 1}, {}):
        places = places_of(body, claims, alternatives)
        assert names_of(offered_reservations(places, a_create(spec=SMALL), 1, view())) == ['a-2']
        assert names_of(offered_reservations(places, a_create('a', LARGE), 1, view())) == ['a-1']
        seen = offered_reservations(places, a_create('a-1', SMALL), 1, view())
        assert seen.planned.resources == {'VCPU': 4}


def test_who_loses_races_is_offered_another_of_the_free_ones():
    body = {'members': [{'name': 'a', 'count': 4, 'spec': SMALL}]}
    places = places_of(body, [a_claim(f'a-{i}', i) for i in range(1, 5)])
    offered = {
        names_of(offered_reservations(places, a_create('a'), 1, view(spread=3, seed=seed)))[0]
        for seed in range(30)
    }
    assert offered == {'a-1', 'a-2', 'a-3'}
    assert names_of(offered_reservations(places, a_create('a'), 1, view(seed=17))) == ['a-1']


MEMBERS = [('a', 3, SMALL), ('b', 2, LARGE), ('c', 2, SMALL)]
NAMES = [f'{name}-{i}' for name, count, _ in MEMBERS for i in range(1, count + 1)]
SPEC_OF = {f'{name}-{i}': spec for name, count, spec in MEMBERS for i in range(1, count + 1)}
CONSUMERS = [an_id(i, 3) for i in range(3)]
STATES = st.sampled_from(['free', 'free', 'taken', 'mine', 'created', 'ended', 'none', 'expired'])


@st.composite
def situations(draw):
    """Draw states of all members, a create, and the other facts."""
    states = {name: draw(STATES) for name in NAMES}
    member = draw(st.sampled_from([None, None, 'a', 'b', 'c', *NAMES, 'z']))
    spec = draw(st.sampled_from([SMALL, LARGE, {'resources': {'VCPU': 9}}]))
    count = draw(st.integers(1, 3))
    policy = draw(st.sampled_from(['refuse', 'replan']))
    others = draw(st.sampled_from(['refused', 'allowed']))
    assumed = draw(st.sets(st.sampled_from(NAMES), max_size=2))
    down = draw(st.sets(st.sampled_from(NAMES), max_size=2))
    return states, member, spec, count, policy, others, assumed, down


def _claims(states):
    claims = []
    for number, (name, state) in enumerate(states.items(), 1):
        fields = {
            'free': {},
            'taken': {'taken': an_id(number, 4)},
            'mine': {'taken': CONSUMERS[0]} if list(states.values()).count('mine') == 1 else {},
            'created': {'taken': an_id(number, 4), 'state': State.CONFIRMED},
            'ended': {'state': State.RELEASED},
            'expired': {'until': NOW - 1},
        }.get(state)
        if fields is not None:
            claims.append(a_claim(name, number, spec=SPEC_OF[name], **fields))
    return claims


@settings(max_examples=examples(400))
@given(situations())
def test_what_is_offered_is_what_the_rules_say(situation):
    states, member, spec, count, policy, others, assumed, down = situation
    body = {
        'members': [{'name': n, 'count': c, 'spec': s} for n, c, s in MEMBERS],
        'on_difference': policy,
        'others': others,
    }
    claims = _claims(states)
    ids = {claim.member_name: claim.id for claim in claims}
    places = places_of(body, claims)
    create = a_create(member, spec, CONSUMERS[:count])
    seen = offered_reservations(
        places,
        create,
        count,
        view({ids.get(n) for n in assumed}, {ids.get(n) for n in down}),
    )
    # The rules, read plainly.
    is_mine = {c.member_name for c in claims if c.consumer == CONSUMERS[0]}
    open_to_it = [
        name
        for name in NAMES
        if (states[name] in ('free', 'mine')) and name not in assumed and name not in down
    ]
    about = [n for n in NAMES if member is None or n == member or n.rpartition('-')[0] == member]
    fitting = [n for n in open_to_it if n in about and SPEC_OF[n] == spec]
    fitting.sort(key=lambda n: (n not in is_mine, NAMES.index(n)))
    if len(fitting) >= count:
        assert names_of(seen) == fitting[:count]
        return
    if member is None and others == 'allowed':
        assert seen is None
        return
    assert not seen.free
    instead = [n for n in about if n in open_to_it or (states[n] in ('free', 'mine') and n in down)]
    instead = [n for n in instead if n not in assumed]
    if member is not None and policy == 'replan' and len(instead) >= count and about:
        assert len(seen.replaces) == count
        assert {place.name for place in seen.replaces} <= set(instead)
        return
    assert not seen.replaces
    assert seen.why or seen.planned is not None
    if member is not None and len(about) < count:
        assert 'has no member' in seen.why or 'and the request has' in seen.why
