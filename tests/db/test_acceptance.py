# SPDX-License-Identifier: Apache-2.0
"""Random claims with units, over-full and closed hosts, and whoever claims: all ways agree.

The guards of the one trip, the pessimistic path, the statements that every database understands and
the plain store get the same reports and drafts, and answer and hold the same after each.
"""

import collections
import itertools

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from devel.doubles import ManualClock
from devel.memory_store.stores import memory_stores
from gantt.core.messages.resource_classes import Inventory
from gantt.db.claims.commit_postgresql import PessimisticCommitter
from gantt.db.claims.one_trip import OptimisticBackoff
from tests.builders import CLEAN, a_draft, a_host, live, uuid_of

HOSTS = 2
SETTINGS = {
    'deadline': None,
    'print_blob': True,
    'suppress_health_check': list(HealthCheck),
    # A failing example is short enough to read, and takes minutes to make shorter.
    'phases': (Phase.explicit, Phase.reuse, Phase.generate),
}


@st.composite
def inventories(draw):
    least = draw(st.sampled_from([1, 1, 1, 2]))
    return Inventory(
        total=draw(st.integers(2, 9)),
        min_unit=least,
        max_unit=draw(st.none() | st.integers(least, 6)),
        step_size=draw(st.sampled_from([1, 1, 1, 2, 3])),
        allocation_ratio=draw(st.sampled_from([1.0, 1.0, 4.0])),
    )


facts = st.fixed_dictionaries(
    {'VCPU': inventories(), 'MEMORY_MB': inventories()}, optional={'CUSTOM_X': inventories()}
)
amounts = st.fixed_dictionaries(
    {'vcpu': st.integers(1, 4)},
    optional={'ram': st.integers(1, 6)},
)
takes = st.tuples(
    st.integers(0, HOSTS - 1),
    st.sampled_from(['host'] * 6 + ['plan', 'api', 'api']),
    amounts,
    # Of what else, and of whom.
    st.sampled_from([None] * 6 + [{'CUSTOM_X': 2}]),
    st.sampled_from([None] * 4 + [0, 1, 2]),
    st.sampled_from([None] * 6 + [{'MEMORY_MB': 2}, {'CUSTOM_X': 1}]),
)


def guest(take):
    """Whom it is of; a request has each once."""
    return object() if take[4] is None else take[4]


members = st.lists(takes, min_size=1, max_size=4, unique_by=guest)
drafts = st.tuples(members, st.booleans())
nothing = st.none()
plain = st.tuples(st.integers(0, HOSTS - 1), st.just('host'), amounts, nothing, nothing, nothing)
#: What the one trip takes.
plain_drafts = st.tuples(st.lists(plain, min_size=1, max_size=2), st.just(False))
words = st.one_of(
    st.tuples(st.just('commit'), st.lists(drafts, min_size=1, max_size=3)),
    st.tuples(st.just('commit'), st.lists(drafts, min_size=1, max_size=3)),
    st.tuples(st.just('commit'), st.lists(plain_drafts, min_size=1, max_size=2)),
    st.tuples(st.just('commit'), st.lists(plain_drafts, min_size=1, max_size=2)),
    st.tuples(st.just('report'), st.integers(0, HOSTS - 1), facts, st.sampled_from([0, 0, 3])),
    st.tuples(st.just('close'), st.integers(0, HOSTS - 1), st.booleans()),
    st.tuples(st.just('end'), st.integers(0, 9)),
)
stories = st.tuples(
    st.lists(facts, min_size=HOSTS, max_size=HOSTS), st.lists(words, min_size=3, max_size=9)
)


class Side:
    """One store, with hosts of its own for each story; some are on one database.

    :ivar claims: id -> request and member, which are the same on every side
    """

    def __init__(self, name, store):
        self.name = name
        self.store = store
        self.paths = collections.Counter()

    def begin(self, story, held):
        self.story, self.serial, self.claims = f'{self.name} {story}', 0, {}
        self.hosts = [
            a_host(f'cmp-{n} of {self.story}').having(inventories=has).on(self.store)
            for n, has in enumerate(held)
        ]

    def receive(self, verb, *arguments):
        return getattr(self, verb)(*arguments)

    def commit(self, plans):
        built = [self.draft(*plan).build() for plan in plans]
        if hasattr(self.store.requests, 'committer'):
            self.store.requests.committer.backoff = (
                OptimisticBackoff()
            )  # it is to be tried each time
        result = self.store.requests.commit(built)
        self.paths[result.path.value] += 1
        return [
            (
                outcome.outcome,
                outcome.accepted,
                outcome.refused,
                outcome.reason.replace(self.story, ''),
            )
            for outcome in result.outcomes
        ]

    def draft(self, taken, whole):
        self.serial += 1
        draft = a_draft(uuid_of('request', self.story, self.serial), whole=whole)
        for number, lifecycle, resources, more, guest, beyond in taken:
            consumer = None if guest is None else uuid_of('guest', self.story, guest)
            host = self.hosts[number]
            draft = draft.taking(host, consumer, lifecycle=lifecycle, **resources, **(more or {}))
            if beyond:
                draft = shared(draft, self.hosts[number - 1], beyond)
        for member, drafted in enumerate(draft.fields['claims']):
            self.claims[drafted.claim.id] = self.serial, member
        return draft

    def live(self, *hosts):
        """The live claims there, in an order that is the same on every side."""
        claims = [claim for host in hosts for claim in live(self.store, host=host.name)]
        return sorted(claims, key=lambda claim: self.claims[claim.id])

    def report(self, number, has, outside):
        host = self.hosts[number]
        host.facts = host.facts.having(inventories=has)
        says = host.says().listing([], self.live(host)).outside(vcpu=outside)
        (outcome,) = host.send(says)
        return outcome.outcome, outcome.changed

    def close(self, number, closed):
        name = self.hosts[number].name
        if closed:
            return self.store.hosts.disable_host(name, 'x', 'y').row.disabled
        return self.store.hosts.enable_host(name).row.disabled

    def end(self, number):
        mine = self.live(*self.hosts)
        if not mine:
            return None
        return self.store.claims.force_release(mine[number % len(mine)].id, 'x').outcomes[0].outcome

    def rows(self):
        """What the hosts of this story have become, and who is on them."""
        rows = []
        for host in self.hosts:
            row = host.row
            on = [(self.claims[claim.id], claim.lifecycle) for claim in self.live(host)]
            rows.append((row.used, row.foreign, row.over_committed, row.is_open, on))
        return rows


def shared(draft, host, of):
    *first, last = draft.fields['claims']
    allocations = {**last.claim.allocations, host.id: of}
    claim = msgspec.structs.replace(last.claim, allocations=allocations)
    return draft.having(claims=[*first, msgspec.structs.replace(last, claim=claim)])


def agree(sides, examples):
    """Tell all of them as many stories."""
    numbers = itertools.count()

    @settings(max_examples=examples, **SETTINGS)
    @given(stories)
    def tell(story):
        held, steps = story
        number = next(numbers)
        for side in sides:
            side.begin(number, held)
        for word in steps:
            expected, *others = [side.receive(*word) for side in sides]
            assert all(other == expected for other in others), (word, expected, others)
            expected, *others = [side.rows() for side in sides]
            assert all(other == expected for other in others), (word, expected, others)

    tell()
    for side in sides:
        assert side.store.claims.audit()['over_commit'] == CLEAN['over_commit']


def sides_of(open_store, *kinds):
    sides = [Side('plain', memory_stores(clock=ManualClock()))]
    for kind in kinds:
        first = next((side.store for side in sides if side.name == 'postgresql'), None)
        if kind in ('pessimistic', 'portable') and first is not None:
            store = open_store(like=first, fast=kind == 'pessimistic')
        else:
            store = open_store(kind)
        if kind == 'pessimistic':
            store.requests.committer = PessimisticCommitter(store.database.memory)
        sides.append(Side(kind, store))
    return sides


def test_the_plain_store_and_sqlite_accept_the_same(open_store):
    agree(sides_of(open_store, 'sqlite'), 25)


@pytest.mark.mysql
def test_the_plain_store_and_mariadb_accept_the_same(open_store):
    agree(sides_of(open_store, 'mysql'), 10)


@pytest.mark.postgresql
def test_the_ways_of_postgresql_accept_the_same(open_store):
    sides = sides_of(open_store, 'postgresql', 'pessimistic', 'portable')
    agree(sides, 15)
    # Whatever the stories were, nothing is in the way of this one.
    sides[1].begin('plain', HOSTS * [{'VCPU': Inventory(total=8)}])
    sides[1].commit([([(0, 'host', {'vcpu': 1}, None, None, None)], False)])
    _, at_once, pessimistic, portable = (set(side.paths) for side in sides)
    assert {'optimistic', 'pessimistic'} <= at_once
    assert 'pessimistic' in pessimistic and 'optimistic' not in pessimistic
    assert portable == {'portable'}


@pytest.mark.slow
@pytest.mark.mysql
@pytest.mark.postgresql
def test_all_ways_accept_the_same_for_long(open_store):
    agree(sides_of(open_store, 'sqlite', 'postgresql', 'pessimistic', 'portable', 'mysql'), 60)
