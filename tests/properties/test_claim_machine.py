# SPDX-License-Identifier: Apache-2.0
"""The claim protocol as a machine: any order of anything, and what must hold.

The network keeps every message that was ever sent and delivers any of them at
any time, any number of times, or never.  Leases run out whenever the machine
says so.  The compute may crash at any point: what it was asked to confirm is
forgotten, its guests and its journal of finished claims live on.

I1 running guests fit · I2 live claims fit · I3 the counter is their sum ·
I4 a running guest's claim is confirmed · I5 one live claim per request, one
start per claim · I6 a promise ends only by cancel, lease or refusal · I7 after
the leases and one fresh report claims and guests agree.
"""

import contextlib

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gantt.core.claims.claim import State
from gantt.core.claims.commit import CommitStatus
from tests.builders import CLEAN, a_draft, a_host, live, report_outcome, uuid_of
from tests.properties.claim_world import a_store

CORES = 3
#: On a real database a failing example is not made smaller: that takes minutes.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


class Compute:
    """A compute host as it should be: asks before it starts, remembers what it finished."""

    def __init__(self, name, store):
        self.host = a_host(name).with_room(vcpu=CORES).on(store)
        self.asked = {}  # claim id -> (epoch, sequence) of the question
        self.running = {}  # claim id -> claim
        self.journal = {}  # claim id -> how often it was started
        self.finished = set()

    def build(self, claim):
        """A message that asks to confirm, or None where the claim is known already."""
        if claim.id in self.asked or claim.id in self.running or claim.id in self.finished:
            return None
        words = self.host.words(claim)
        self.asked[claim.id] = (words.epoch, words.sequence, claim)
        return words

    def receive(self, words, fate):
        """An answer to one of our questions, maybe an old one."""
        claim_id = words.claim_ids[0]
        question = self.asked.get(claim_id)
        if question is None or question[:2] != (words.epoch, words.sequence):
            return
        del self.asked[claim_id]
        if fate == 'ok':
            self.running[claim_id] = question[2]
            self.journal[claim_id] = self.journal.get(claim_id, 0) + 1
        else:
            self.finished.add(claim_id)

    def delete(self, claim_id):
        self.running.pop(claim_id)
        self.finished.add(claim_id)
        return self.host.words(claim_id)

    def drop(self, claim_id):
        del self.asked[claim_id]
        self.finished.add(claim_id)
        return self.host.words(claim_id)

    def report(self):
        pending = [question[2] for question in self.asked.values()]
        return self.host.says().listing(self.running.values(), pending)

    def crash(self):
        self.asked.clear()
        self.host.register()


#: The newest half of the time, any other now and then.
NUMBERS = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 30))


def newest(things, number):
    """One of them, counted from the last."""
    return things[-1 - number % len(things)]


class Protocol(RuleBasedStateMachine):
    """One caller population, two computes, a store.

    Every rule does something: what there is to choose from is counted off by a
    drawn number, the newest first, because that is where the races are.
    """

    kind = 'memory'

    def __init__(self):
        super().__init__()
        self._stack = contextlib.ExitStack()
        self.store = self._stack.enter_context(a_store(self.kind))
        self.computes = [Compute(name, self.store) for name in ('cmp-1', 'cmp-2')]
        self.drafts, self.claims, self.sent, self.answers = [], [], [], []

    def teardown(self):
        self.heal()
        self._stack.close()

    def compute_of(self, claim):
        return next(c for c in self.computes if c.host.id == claim.provider_id)

    # -- callers ------------------------------------------------------------------
    @rule(
        cores=st.integers(1, 3),
        where=st.integers(0, 1),
        members=st.integers(1, 2),
        whole=st.booleans(),
    )
    def ask(self, cores, where, members, whole):
        draft = a_draft(uuid_of('request', len(self.drafts)), whole=whole).leased(-1)
        for i in range(members):
            draft = draft.taking(self.computes[(where + i) % 2].host, vcpu=cores)
        self.drafts.append(draft)
        self.place(draft)

    @precondition(lambda self: self.drafts)
    @rule(number=NUMBERS)
    def ask_again(self, number):
        self.place(newest(self.drafts, number))

    def place(self, draft):
        """An honest caller repeats what it has no answer to."""
        fate = report_outcome(self.store, draft)
        if fate.outcome is CommitStatus.PARTIAL:
            self.store.requests.give_up(draft.id, 'worker-1', 1)
        ids = {claim.id for claim in self.claims}
        if fate.outcome in (CommitStatus.PLACED, CommitStatus.REPEAT):
            mine = live(self.store, request_id=draft.id)
            self.claims += [claim for claim in mine if claim.id not in ids]

    @precondition(lambda self: self.drafts)
    @rule(number=NUMBERS)
    def cancel(self, number):
        self.store.requests.cancel_request(newest(self.drafts, number).id, 'not needed')

    # -- time ----------------------------------------------------------------------
    @rule(limit=st.integers(1, 3))
    def leases_run_out(self, limit):
        self.store.claims.sweep(limit)

    # -- computes --------------------------------------------------------------------
    @precondition(lambda self: self.claims)
    @rule(number=NUMBERS)
    def build_message_arrives(self, number):
        claim = newest(self.claims, number)
        words = self.compute_of(claim).build(claim)
        if words is not None:
            self.sent.append(('confirm', words))

    @precondition(lambda self: any(c.running for c in self.computes))
    @rule(number=NUMBERS)
    def guest_is_deleted(self, number):
        running = [(c, claim_id) for c in self.computes for claim_id in c.running]
        compute, claim_id = newest(running, number)
        self.sent.append(('release', compute.delete(claim_id)))

    @precondition(lambda self: any(c.asked for c in self.computes))
    @rule(number=NUMBERS)
    def second_check_says_no(self, number):
        asked = [(c, claim_id) for c in self.computes for claim_id in c.asked]
        compute, claim_id = newest(asked, number)
        self.sent.append(('refuse', compute.drop(claim_id)))

    @rule(number=st.integers(0, 1))
    def report_is_sent(self, number):
        self.sent.append(('report', self.computes[number].report().build()))

    @rule(number=st.integers(0, 1))
    def compute_crashes(self, number):
        self.computes[number].crash()

    # -- the network ---------------------------------------------------------------------
    @precondition(lambda self: self.sent)
    @rule(number=st.integers(0, 3))
    def old_news(self, number):
        self.deliver(-1 - number)

    @precondition(lambda self: self.sent)
    @rule(number=NUMBERS)
    def deliver(self, number):
        kind, body = newest(self.sent, number)
        if kind == 'report':
            self.deliver_report(body)
            return
        fates = getattr(self.store.claims, f'{kind}_claims')(body).outcomes
        if kind == 'confirm':
            self.answers.append((body, fates[0].outcome))

    def deliver_report(self, report):
        before = {c.id for c in self.store.claims.list_claims(state='reserved', limit=1000)}
        fate = self.store.reports.apply_reports([report]).outcomes[0]
        assert fate.outcome in ('applied', 'stale', 'gone')
        assert fate.adopted == [], 'a guest ran without a claim'
        after = {c.id: c.state for c in self.store.claims.list_claims(limit=1000)}
        for claim_id in before:
            assert after[claim_id] in (State.RESERVED, State.CONFIRMED), 'I6'

    @precondition(lambda self: self.answers)
    @rule(number=NUMBERS)
    def answer_arrives(self, number):
        words, fate = newest(self.answers, number)
        next(c for c in self.computes if c.host.name == words.name).receive(words, fate)

    @precondition(lambda self: self.claims)
    @rule(number=NUMBERS)
    def all_goes_well(self, number):
        """A whole build at once, so that the machine gets far."""
        self.build_message_arrives(number)
        if self.sent:
            self.deliver(0)
        if self.answers:
            self.answer_arrives(0)

    # -- what must hold ---------------------------------------------------------------------
    @invariant()
    def every_promise_holds(self):
        claims = live(self.store)
        states = {claim.id: claim.state for claim in claims}
        rows = {c.provider_id: c.row for c in self.store.feed.load_everything().hosts}
        for compute in self.computes:
            running = [c.allocations[compute.host.id]['VCPU'] for c in compute.running.values()]
            assert sum(running) <= CORES, 'I1'
            mine = [c for c in claims if c.provider_id == compute.host.id]
            total = sum(c.allocations[compute.host.id]['VCPU'] for c in mine)
            assert total <= CORES, 'I2'
            assert rows[compute.host.id].used.get('VCPU', 0) == total, 'I3'
            for claim_id in compute.running:
                assert states.get(claim_id) is State.CONFIRMED, 'I4'
            assert all(count == 1 for count in compute.journal.values()), 'I5'
        members = [(claim.request_id, claim.member) for claim in claims]
        assert len(members) == len(set(members)), 'I5'

    def heal(self):
        """I7: leases run out, one fresh report each; then the two sides agree."""
        while self.store.claims.sweep(100).outcomes:
            pass
        for compute in self.computes:
            assert compute.host.send(compute.report())[0].outcome == 'applied'
            mine = {claim.id for claim in live(self.store, host=compute.host.name)}
            assert set(compute.running) <= mine, 'I4 after healing'
            assert mine <= set(compute.running) | set(compute.asked), 'I7'
        assert self.store.claims.audit() == CLEAN


class ProtocolOnSqlite(Protocol):
    kind = 'sqlite'


TestProtocolInMemory = Protocol.TestCase
TestProtocolInMemory.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestProtocolOnSqlite = ProtocolOnSqlite.TestCase
TestProtocolOnSqlite.settings = settings(
    max_examples=10,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    phases=UNSHRUNK,
    suppress_health_check=list(HealthCheck),
)
