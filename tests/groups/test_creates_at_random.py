# SPDX-License-Identifier: Apache-2.0
"""Creates of planned members in any order, from several schedulers, with all that may end them."""

import random

import pytest

from gantt.core.messages.request import CancelClaims
from gantt.core.records.decision import Outcome
from tests.builders import CLEAN
from tests.groups.planned import LARGE, SPEC, a_body, plan
from tests.scheduler.stores import followed, store_of
from tests.world import World, new_uuid

WEB, DB = [f'web-{n}' for n in range(1, 5)], ['db-1', 'db-2']
NAMES = [*WEB, *DB]


class Creates:
    """Callers of a planned group, and what they do next, drawn from a seed.

    :ivar asked: handle of a create -> its request
    :ivar live: answered requests that nothing has ended yet
    """

    def __init__(self, world, group, seed):
        self.world, self.group, self.rng = world, group, random.Random(seed)
        self.asked, self.requests, self.live = {}, [], []

    def step(self):
        """One thing, and then everything that is due."""
        act = self.rng.choice(
            [self.create, self.create, self.create, self.repeat, self.cancel, self.confirm]
            + [self.refuse, self.lapse, self.turn, self.turn]
        )
        act()

    def create(self, **top):
        member = self.rng.choice([None, 'web', 'db', *NAMES])
        spec = LARGE if member is not None and member.startswith('db') else SPEC
        count = self.rng.choice([1, 1, 1, 2]) if member in ('web', None) else 1
        request = self.group.request(member, count=count, spec=spec, lease_seconds=60, **top)
        self.requests.append(request)
        self._ask(request)

    def repeat(self):
        if self.requests:
            self._ask(self.rng.choice(self.requests))

    def _ask(self, request):
        by = self.rng.choice(self.world.schedulers)
        self.asked[self.world.ask(request, by=by)] = request

    def turn(self):
        self.world.turn()
        for handle, answer in self.world.replies.answers.items():
            request = self.asked.pop(handle, None)
            if request is None:
                continue
            assert answer.outcome in (Outcome.PLACED, Outcome.REFUSED, Outcome.CANCELLED), answer
            if answer.outcome is Outcome.PLACED:
                self.live.append((request, answer))

    def _any_live(self):
        return self.live.pop(self.rng.randrange(len(self.live))) if self.live else None

    def cancel(self):
        if self.requests:
            request = self.rng.choice(self.requests)
            message = CancelClaims(request_id=request.request_id, reason='no more')
            self.world.scheduler.cancel(message)
            self.live = [pair for pair in self.live if pair[0].request_id != request.request_id]

    def _claims_of(self, pair):
        request, answer = pair
        for selections in answer.selections:
            claim = self.world.store.claims.load_claim(selections[0].claim_id)
            if claim.request_id == request.request_id and claim.is_taken:
                yield claim

    def confirm(self):
        pair = self._any_live()
        for claim in self._claims_of(pair) if pair else ():
            assert self.world.hosts[claim.host].confirm(claim.id) == ['ok']

    def refuse(self):
        pair = self._any_live()
        for claim in self._claims_of(pair) if pair else ():
            host = self.world.hosts[claim.host]
            self.world.scheduler.refuse(host.words(claim.id, reason='no'))

    def lapse(self):
        """Leases of creates end, hosts report; the plan goes on."""
        self.world.turn(seconds=20, times=4)
        for host in self.world.hosts.values():
            host.report(running=None, pending=None)


def place_of(world, group, name):
    """The live claim of a member."""
    claims = world.store.plans.load_reservations([group.uuid])[group.uuid]
    return next(claim for claim in claims if claim.member_name == name)


def check(world, group):
    """Every member has one claim, on the host that was planned for it; nobody has two places."""
    claims = world.store.plans.load_reservations([group.uuid])[group.uuid]
    assert sorted(claim.member_name for claim in claims) == sorted(group.claims)
    for claim in claims:
        assert claim.host == group.hosts[claim.member_name]
        is_created = claim.state == 'confirmed' and claim.lifecycle == 'host'
        assert is_created or claim.is_free_reservation or claim.is_taken
    consumers = [claim.consumer for claim in claims]
    assert len(consumers) == len(set(consumers))
    assert world.audit() == CLEAN


#: Of each kind of store a seed; of the one in memory more.
SEEDS = [
    ('memory', 1),
    ('memory', 2),
    ('sqlite', 3),
    pytest.param('postgresql', 4, marks=pytest.mark.postgresql),
    pytest.param('mysql', 5, marks=pytest.mark.mysql),
    *(pytest.param('memory', seed, marks=pytest.mark.slow) for seed in range(6, 40)),
]


@pytest.mark.parametrize(('kind', 'seed'), SEEDS)
def test_each_member_is_where_it_was_planned_whatever_happens(kind, seed, make_store):
    world = World(store_of(kind, make_store), hosts=5)
    world.another_scheduler()
    body = a_body(
        {'name': 'web', 'count': 4, 'spec': SPEC},
        {'name': 'db', 'count': 2, 'spec': LARGE},
        policies=[{'policy': 'anti-affinity', 'of': 'web'}],
    )
    group = plan(world, body, lease_seconds=50_000)
    creates = Creates(world, group, seed)
    for number in range(40):
        creates.step()
        if not number % 5:
            check(world, group)
    # Those that are left are created at last, each at its place.
    world.turn(seconds=20, times=8)
    for host in world.hosts.values():
        host.report(running=None, pending=None)
    world.turn(times=12)
    for name in NAMES:
        claim = place_of(world, group, name)
        if claim.is_taken:
            world.scheduler.cancel(CancelClaims(request_id=claim.request_id))
            claim = place_of(world, group, name)
        if claim.state != 'confirmed':
            assert claim.is_free_reservation
            spec = LARGE if name in DB else SPEC
            answer = world.select(group.request(name, spec=spec, consumers=[new_uuid()]))
            assert answer.outcome is Outcome.PLACED, answer
            assert world.hosts[claim.host].confirm(claim.id) == ['ok']
    check(world, group)
    states = {
        claim.state for claim in world.store.plans.load_reservations([group.uuid])[group.uuid]
    }
    assert states == {'confirmed'}
    followed(world)
