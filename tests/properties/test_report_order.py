# SPDX-License-Identifier: Apache-2.0
"""P7: late, repeated and reordered words never change the outcome.

A host lives two lives, honestly, and is heard in order.  The same messages are
then delivered to another store in any order, some repeatedly, some not at all.
After one fresh report, once the leases ran out, both hold the same rows.
"""

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.builders import CLEAN, a_draft, a_host, changed, claimed, live, uuid_of
from tests.properties.claim_world import a_store

CLAIMS = 5

#: What an agent does next: to a claim (by number), or by itself.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(['build', 'start', 'delete', 'refuse']), st.integers(0, CLAIMS)),
        st.tuples(st.sampled_from(['full', 'delta', 'blind']), st.integers(0, 3)),
    ),
    max_size=12,
)
TRAITS = ['CUSTOM_A', 'CUSTOM_B', 'CUSTOM_C', 'CUSTOM_D']


class Agent:
    """A host that tells the truth and hears every answer; it keeps what it said.

    :ivar lives: per life, its messages as (word, message)
    """

    def __init__(self, store, host, claims):
        self.store = store
        self.host = host
        self.claims = claims
        self.pending, self.running, self.over = [], [], []
        self.outside = 0
        self.traits = []
        self.base = None
        self.lives = [[]]

    def live_through(self, steps):
        for step, number in steps:
            if step in ('full', 'delta', 'blind'):
                self.report(step, number)
            elif number < len(self.claims):
                self.handle(step, self.claims[number])

    def handle(self, step, claim):
        is_known = claim in (*self.pending, *self.running, *self.over)
        if step == 'build' and not is_known:
            claims = self.pending if self.say('confirm', claim) == 'ok' else self.over
            claims.append(claim)
        elif step == 'start' and claim in self.pending:
            self.pending.remove(claim)
            self.running.append(claim)
        elif step == 'delete' and claim in self.running:
            self.running.remove(claim)
            self.over.append(claim)
            self.say('release', claim)
        elif step == 'refuse' and not is_known:
            self.over.append(claim)
            self.say('refuse', claim)

    def say(self, word, claim):
        words = self.host.words(claim)
        self.lives[-1].append((word, words))
        return getattr(self.store.claims, f'{word}_claims')(words).outcomes[0].outcome

    def report(self, kind, number):
        report = self.host.says().listing(self.running, self.pending)
        if kind == 'blind':
            report = report.without_opinion()
        if kind == 'full' or self.base is None:
            self.outside, self.traits = number, TRAITS[:number]
            self.base = self.host.sequence
        else:
            self.outside, self.traits = number, TRAITS[number:]
            report = report.since(self.base)
        message = report.outside(vcpu=self.outside).having(traits=self.traits).build()
        self.lives[-1].append(('report', message))
        fate = self.store.reports.apply_reports([message]).outcomes[0]
        assert (fate.outcome, fate.adopted) == ('applied', [])

    def crash(self):
        self.host.register()
        self.pending, self.base = [], None
        self.lives.append([])


def prepared(store):
    """A host with a few reserved claims."""
    host = a_host().with_room(vcpu=30).on(store)
    draft = a_draft(uuid_of('request'))
    for _ in range(CLAIMS):
        draft = draft.taking(host, vcpu=2).leased(-1)
    return host, claimed(store, draft)


def in_order(kind, first_steps, second_steps):
    """An honest history: its messages, and the rows after it."""
    with a_store(kind) as store:
        agent = Agent(store, *prepared(store))
        agent.live_through(first_steps)
        agent.crash()
        agent.live_through(second_steps)
        agent.pending = []  # builds that are under way are dropped
        agent.report('full', 2)
        outcome = rows_of(store, agent.host)
        assert set(outcome[0]) == {claim.id for claim in agent.running}
        return agent.lives, outcome


def in_disorder(kind, lives, shuffled):
    """The rows after the same messages, delivered as they come."""
    with a_store(kind) as store:
        host, _ = prepared(store)
        first, second = lives
        deliver(store, host, shuffled(first))
        old = host.epoch
        host.register()
        # What the first life said may come even now.
        late = [(word, changed(message, epoch=old)) for word, message in shuffled(first)]
        deliver(store, None, late)
        deliver(store, host, shuffled(second[:-1]))
        deliver(store, None, late)
        deliver(store, host, second[-1:])
        return rows_of(store, host)


def deliver(store, host, messages):
    """Deliver; ``host``: in its current epoch."""
    for word, message in messages:
        if host is not None:
            message = changed(message, epoch=host.epoch)
        if word == 'report':
            assert store.reports.apply_reports([message]).outcomes[0].adopted == []
        else:
            getattr(store.claims, f'{word}_claims')(message)


def rows_of(store, host):
    """What is there once the leases have run out."""
    store.claims.sweep(100)
    assert store.claims.audit() == CLEAN
    row = host.row
    claims = {claim.id: claim.state for claim in live(store)}
    return claims, row.used, row.foreign, row.facts, row.over_committed, row.full_sequence


@st.composite
def orders(draw):
    """A way to deliver messages: shuffled, each up to three times or not at all."""
    rng = draw(st.randoms(use_true_random=False))

    def shuffled(messages):
        many = [message for message in messages for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        rng.shuffle(many)
        return many

    return shuffled


def check(kind, first_steps, second_steps, order):
    lives, outcome = in_order(kind, first_steps, second_steps)
    assert in_disorder(kind, lives, order) == outcome


#: On a real database a failing example is not made smaller: that takes minutes.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
LENIENT = {'deadline': None, 'print_blob': True, 'suppress_health_check': list(HealthCheck)}


@settings(max_examples=100, **LENIENT)
@given(STEPS, STEPS, orders())
def test_any_order_of_a_hosts_words_has_one_outcome(first_steps, second_steps, order):
    check('memory', first_steps, second_steps, order)


@settings(max_examples=10, phases=UNSHRUNK, **LENIENT)
@given(STEPS, STEPS, orders())
def test_any_order_of_a_hosts_words_has_one_outcome_on_sqlite(first_steps, second_steps, order):
    check('sqlite', first_steps, second_steps, order)
