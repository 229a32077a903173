# SPDX-License-Identifier: Apache-2.0
"""What hosts say, in any order and all at once, against real stores.

F12 reports that come late, ten times and shuffled leave the rows that they
leave in order.  F22 the sweeper, claims, confirmations and reports at once on
one host: a million random steps with every promise looked at after each, and
real threads with real agents on real databases.
"""

import collections
import itertools
import random
import threading
import time

import pytest

from devel.memory_store.stores import memory_stores
from gantt.compute.agent.agent import AgentSettings
from gantt.compute.agent.host_agent import HostAgentSettings, with_agent
from gantt.compute.agent.journal import Journal
from gantt.core.claims.claim import State
from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.build import Build
from gantt.core.messages.report import RegisterHost
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    changed,
    claimed,
    live,
    new_uuid,
    report_outcome,
    uuid_of,
)
from tests.compute.hosts_in_memory import Machine, Port, a_delete
from tests.properties.test_claim_machine import CORES, Compute
from tests.properties.test_report_order import CLAIMS, Agent, deliver
from tests.services import PATIENT

SQL = [
    'sqlite',
    pytest.param('postgresql', marks=pytest.mark.postgresql),
    pytest.param('mysql', marks=pytest.mark.mysql),
]


# -- F12 ---------------------------------------------------------------------------------
class Shuffle:
    """Two hosts in one store: one is heard in order, the other in any."""

    numbers = itertools.count()

    def __init__(self, store, rng):
        self.store, self.rng = store, rng
        number = next(self.numbers)
        host, claims = self._prepared(f'order-{number}')
        agent = Agent(store, host, claims)
        agent.live_through(self._steps())
        agent.crash()
        agent.live_through(self._steps())
        agent.pending = []  # builds that are under way are dropped
        agent.report('full', 2)
        self.lives, self.outcome = agent.lives, self._rows(host, claims)
        self._names = {claim.id: at for at, claim in enumerate(claims)}

    def _prepared(self, name):
        host = a_host(name).with_room(vcpu=30).on(self.store)
        draft = a_draft(uuid_of('request', name))
        for _ in range(CLAIMS):
            draft = draft.taking(host, vcpu=2).leased(-1)
        return host, claimed(self.store, draft)

    def _steps(self):
        rng = self.rng
        return [
            (rng.choice(('full', 'delta', 'blind')), rng.randint(0, 3))
            if rng.random() < 0.4
            else (rng.choice(('build', 'start', 'delete', 'refuse')), rng.randint(0, CLAIMS))
            for _ in range(rng.randint(4, 12))
        ]

    def _rows(self, host, claims):
        """What is there once the leases have run out; claims by their number."""
        while self.store.claims.sweep(100).outcomes:
            pass
        row = host.row
        states = [self.store.claims.load_claim(claim.id).state for claim in claims]
        alive = [at for at, state in enumerate(states) if state in ('reserved', 'confirmed')]
        return alive, row.used, row.foreign, row.facts, row.over_committed, row.full_sequence

    def again(self):
        """Another host is told the same, each word ten times, in any order."""
        host, claims = self._prepared(f'disorder-{next(self.numbers)}')
        first, second = [[self._of(step, host, claims) for step in life] for life in self.lives]
        last = second.pop()
        deliver(self.store, host, self._shuffled(first))
        old = host.epoch
        host.register()
        # An hour late: a life ago.
        late = [(word, changed(message, epoch=old)) for word, message in self._shuffled(first)]
        deliver(self.store, host, self._shuffled(second))
        deliver(self.store, None, late)
        deliver(self.store, host, [last] * 10)
        # Repeats, and what was overtaken, come even after the last word.
        deliver(self.store, None, late[:10])
        deliver(
            self.store, host, [step for step in self._shuffled(second)[:10] if step[0] == 'report']
        )
        assert self._rows(host, claims) == self.outcome

    def _shuffled(self, life):
        many = [step for step in life for _ in range(10)]
        self.rng.shuffle(many)
        return many

    def _of(self, step, host, claims):
        """The same word, said by the other host about its own claims."""
        word, message = step
        if word != 'report':
            ids = [claims[self._names[claim_id]].id for claim_id in message.claim_ids]
            return word, changed(message, name=host.name, claim_ids=ids)
        lists = {
            field: None
            if entries is None
            else [
                changed(
                    entry,
                    consumer=claims[self._names[entry.claim_id]].consumer,
                    claim_id=claims[self._names[entry.claim_id]].id,
                )
                for entry in entries
            ]
            for field, entries in (('running', message.running), ('pending', message.pending))
        }
        return word, changed(message, name=host.name, **lists)


def shuffles(make_store, histories, each, seed=12):
    """So many histories, and so many orders of each; the store is a new one each time."""
    began = time.monotonic()
    for number in range(histories):
        store = make_store()
        shuffle = Shuffle(store, random.Random(seed * 1_000_000 + number))
        for _ in range(each):
            shuffle.again()
        assert store.claims.audit() == CLEAN
    print(f'{histories * each} orders, {histories * each / (time.monotonic() - began):.0f}/s')


def test_any_order_of_reports_leaves_the_same_rows():
    shuffles(memory_stores, 20, 10)


@pytest.mark.parametrize('kind', SQL)
def test_any_order_of_reports_leaves_the_same_rows_in_a_database(make_store, kind):
    shuffles(lambda: make_store(kind), 1, 2)


@pytest.mark.slow
@pytest.mark.timeout(3500)
def test_a_hundred_thousand_orders_of_reports_leave_the_same_rows():
    shuffles(memory_stores, 5000, 20)


@pytest.mark.slow
@pytest.mark.timeout(3500)
@pytest.mark.parametrize('kind', SQL)
def test_hundreds_of_orders_of_reports_leave_the_same_rows_in_a_database(make_store, kind):
    store = make_store(kind)
    shuffles(lambda: store, 20, 20)


# -- F22, one step after the other --------------------------------------------------------
#: Steps in one world: older claims only make it slow.
LIFE = 250


class OneHost:
    """Callers, the sweeper and a compute on one host, over a network that keeps everything."""

    def __init__(self, store, rng):
        self.store, self.rng = store, rng
        self.compute = Compute('cmp-1', store)
        self.drafts, self.claims, self.sent, self.answers = [], [], [], []
        self.verbs = [
            (self.ask, 4),
            (self.ask_again, 1),
            (self.cancel, 1),
            (self.sweep, 1),
            (self.build, 6),
            (self.receive, 6),
            (self.answer, 5),
            (self.delete, 2),
            (self.drop, 1),
            (self.report, 3),
            (self.crash, 0.2),
            (self.go_well, 3),
        ]
        self.weights = [weight for _, weight in self.verbs]

    def step(self):
        ((verb, _),) = self.rng.choices(self.verbs, self.weights)
        verb()
        self.look()
        return verb.__name__

    def _one(self, things):
        """The newest more often than others: that is where the races are."""
        at = min(int(self.rng.expovariate(0.4)), len(things) - 1)
        return things[-1 - at]

    def ask(self):
        draft = a_draft(uuid_of('request', len(self.drafts)), whole=self.rng.random() < 0.5)
        draft = draft.leased(-1)
        for _ in range(self.rng.choice((1, 1, 2))):
            draft = draft.taking(self.compute.host, vcpu=self.rng.choice((1, 1, 2)))
        self.drafts.append(draft)
        self._place(draft)

    def ask_again(self):
        if self.drafts:
            self._place(self._one(self.drafts))

    def _place(self, draft):
        outcome = report_outcome(self.store, draft)
        if outcome.outcome is CommitStatus.PARTIAL:
            self.store.requests.give_up(draft.id, 'worker-1', 1)
        ids = {claim.id for claim in self.claims}
        if outcome.outcome in (CommitStatus.PLACED, CommitStatus.REPEAT):
            mine = live(self.store, request_id=draft.id)
            self.claims += [claim for claim in mine if claim.id not in ids]

    def cancel(self):
        if self.drafts:
            self.store.requests.cancel_request(self._one(self.drafts).id, 'not needed')

    def sweep(self):
        self.store.claims.sweep(self.rng.randint(1, 3))

    def build(self):
        if self.claims:
            words = self.compute.build(self._one(self.claims))
            if words is not None:
                self.sent.append(('confirm', words))

    def delete(self):
        if self.compute.running:
            claim_id = self.rng.choice(list(self.compute.running))
            self.sent.append(('release', self.compute.delete(claim_id)))

    def drop(self):
        if self.compute.asked:
            claim_id = self.rng.choice(list(self.compute.asked))
            self.sent.append(('refuse', self.compute.drop(claim_id)))

    def report(self):
        self.sent.append(('report', self.compute.report().build()))

    def crash(self):
        self.compute.crash()

    def receive(self):
        """Anything that was ever said, again perhaps."""
        if not self.sent:
            return
        word, body = self._one(self.sent)
        if word != 'report':
            outcomes = getattr(self.store.claims, f'{word}_claims')(body).outcomes
            if word == 'confirm':
                self.answers.append((body, outcomes[0].outcome))
            return
        reserved = {c.id for c in self.store.claims.list_claims(state='reserved', limit=1000)}
        outcome = self.store.reports.apply_reports([body]).outcomes[0]
        assert outcome.adopted == [], 'a guest ran without a claim'
        assert not reserved & set(outcome.released), 'I6'

    def answer(self):
        if self.answers:
            self.compute.receive(*self._one(self.answers))

    def go_well(self):
        """A whole build at once, so that it gets far."""
        if self.claims:
            words = self.compute.build(self.claims[-1])
            if words is not None:
                self.compute.receive(
                    words, self.store.claims.confirm_claims(words).outcomes[0].outcome
                )

    def look(self):
        claims = {claim.id: claim for claim in live(self.store)}
        host, running = self.compute.host, self.compute.running
        cores = sum(c.allocations[host.id]['VCPU'] for c in claims.values())
        assert sum(c.allocations[host.id]['VCPU'] for c in running.values()) <= CORES, 'I1'
        assert cores <= CORES, 'I2'
        assert host.row.used.get('VCPU', 0) == cores, 'I3'
        for claim_id in running:
            claim = claims.get(claim_id)
            assert claim is not None and claim.state is State.CONFIRMED, 'I4'
        assert all(count == 1 for count in self.compute.journal.values()), 'I5'
        members = [(claim.request_id, claim.member) for claim in claims.values()]
        assert len(members) == len(set(members)), 'I5'

    def heal(self):
        while self.store.claims.sweep(100).outcomes:
            pass
        assert self.compute.host.send(self.compute.report())[0].outcome == 'applied'
        mine = {claim.id for claim in live(self.store)}
        assert set(self.compute.running) <= mine, 'I4'
        assert mine <= set(self.compute.running) | set(self.compute.asked), 'I7'
        assert self.store.claims.audit() == CLEAN


def at_once(steps, seed):
    seen, began, started = collections.Counter(), time.monotonic(), 0
    for life in range(steps // LIFE):
        world = OneHost(memory_stores(), random.Random(seed * 1_000_000 + life))
        try:
            for _ in range(LIFE):
                seen[world.step()] += 1
            world.heal()
            started += len(world.compute.journal)
        except AssertionError as e:
            raise AssertionError(f'life {life} of seed {seed}: {e}') from e
        if life % 400 == 399:
            done = (life + 1) * LIFE
            print(f'{done} steps, {done / (time.monotonic() - began):.0f}/s', flush=True)
    assert len(seen) == 12
    print(f'{steps} steps, {started} guests, {steps / (time.monotonic() - began):.0f}/s')
    assert started > steps / 50


def test_two_thousand_steps_on_one_host():
    at_once(2_000, seed=22)


@pytest.mark.slow
@pytest.mark.timeout(3500)
def test_a_million_steps_on_one_host():
    at_once(1_000_000, seed=23)


# -- F22, at once --------------------------------------------------------------------------
class Crowd:
    """Threads on one host: callers, a conductor, a sweeper, the agent, and old reports again."""

    ROOM = 8

    def __init__(self, store):
        self.store = store
        self.port = Port(store)
        self.machine = Machine(self._is_confirmed)
        self.machine.inventories = dict(a_host().facts.fields['inventories'])
        self.member = with_agent(
            RegisterHost(name='cmp-1', boot_nonce='-'),
            self.port,
            self.machine,
            Journal(),
            HostAgentSettings(full_every=3, terms=AgentSettings(confirm_seconds=5.0)),
            random.Random(1),
        )
        self.member.turn()
        self.row = store.feed.load_everything().hosts[0].row
        self.builds = collections.deque(maxlen=50)
        self.done = collections.Counter()
        self.problems = []
        self._on = True

    def _is_confirmed(self, build):
        return self.store.claims.load_claim(build.claim_id).state is State.CONFIRMED

    def run(self, seconds):
        jobs = [self.claim, self.claim, self.build, self.build, self.sweep, self.report, self.late]
        threads = [
            threading.Thread(target=self._run, args=(job, random.Random(at)), daemon=True)
            for at, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._on = False
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert self.problems == []

    def _run(self, job, rng):
        try:
            while self._on:
                job(rng)
                self.done[job.__name__] += 1
        except BaseException as e:
            self.problems.append(e)
            raise

    def claim(self, rng):
        """Some leases are over before anybody can ask."""
        draft = a_draft(new_uuid()).leased(rng.choice((-1, 0.05, 30)))
        provider, cores = self.row.id, rng.choice((1, 2, 3))
        draft = draft.taking(provider, vcpu=cores)
        report_outcome(self.store, draft)
        for claim in live(self.store, request_id=draft.id):
            self.builds.append(
                Build(
                    claim_id=claim.id,
                    consumer=claim.consumer,
                    host='cmp-1',
                    resources={'VCPU': cores},
                    lease_seconds=5,
                )
            )

    def build(self, rng):
        if not self.builds:
            time.sleep(0.005)
            return
        time.sleep(0.001)
        build = rng.choice(list(self.builds))
        if self.member.agent.build(build).outcome == 'running' and rng.random() < 0.7:
            self.member.agent.delete(a_delete(build))

    def sweep(self, rng):
        self.store.claims.sweep(rng.randint(1, 5))

    def report(self, rng):
        self.member.turn()

    def late(self, rng):
        """What was said before, again."""
        some = list(self.port.reports)[-50:]
        self.store.reports.apply_reports(rng.sample(some, min(3, len(some))))
        words = list(self.port.words)[-50:]
        if words:
            word, message = rng.choice(words)
            getattr(self.store.claims, f'{word}_claims')(message)

    def heal(self):
        time.sleep(0.1)
        for claim in live(self.store):
            if claim.state is State.RESERVED:
                self.store.requests.cancel_request(claim.request_id, 'over')
        while self.store.claims.sweep(100).outcomes:
            pass
        self.member.changed(True)
        self.member.turn()
        mine = {claim.id for claim in live(self.store)}
        assert mine == set(self.machine.running)
        assert self.machine.without_permission == []
        assert max(collections.Counter(self.machine.starts).values(), default=0) <= 1
        assert not any(claim.adopted for claim in self.store.claims.list_claims(limit=100_000))
        assert self.store.claims.audit() == CLEAN
        print(dict(self.done), len(self.machine.starts), 'started')
        assert self.machine.starts


@pytest.mark.parametrize('kind', SQL[1:])
def test_all_at_once_on_one_host_of_a_database(make_store, kind):
    crowd = Crowd(make_store(kind, timeouts=PATIENT))
    crowd.run(2.0)
    crowd.heal()


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['memory', *SQL])
def test_all_at_once_on_one_host_of_a_database_for_a_minute(make_store, kind):
    crowd = Crowd(make_store(kind, timeouts=PATIENT))
    crowd.run(60.0)
    crowd.heal()
