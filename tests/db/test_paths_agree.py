# SPDX-License-Identifier: Apache-2.0
"""Random histories: every path through the store ends where the plain one does.

The in-memory store is the reference.  The databases see the same messages in
the same order; fates, usage, generations and what is placed must be the same
after each.  The seed of a failure is in its message.
"""

import random

import pytest

from devel.doubles import ManualClock
from devel.memory_store.stores import memory_stores
from gantt.core.resources import group_rule
from tests.builders import CLEAN, a_host, uuid_of
from tests.builders import a_draft as draft_of
from tests.db.conftest import KINDS
from tests.thorough import stride

HOSTS = 4
CLASSES = ('vcpu', 'ram', 'VGPU')


class History:
    """One store with its hosts; the same words lead to the same ids in each."""

    def __init__(self, store):
        self.store = store
        self.hosts = [
            a_host(f'cmp-{n}').with_room(vcpu=12, ram=8192, VGPU=2).on(store) for n in range(HOSTS)
        ]
        self.ids = {host.id: host.name for host in self.hosts}
        self.drafts = {}

    def play(self, word, *said):
        return getattr(self, word)(*said)

    # -- words: the same random choices for every store -----------------------------
    def batch(self, plans):
        drafts = [self.draft(*plan) for plan in plans]
        result = self.store.requests.commit([draft.build() for draft in drafts])
        for draft, outcome in zip(drafts, result.outcomes, strict=True):
            if outcome.outcome == 'partial':
                last = draft.fields['claims'][-1].claim.member
                self.drafts[draft.id] = (draft.fields.get('attempt', 1), last + 1)
        return (
            [
                (f.id, f.outcome, f.accepted, f.outcome == 'group_changed' or f.attempt, f.answer)
                for f in result.outcomes
            ],
            self.touched(result),
            since_first(result.groups),
        )

    def touched(self, result):
        """The hosts that a commit told of, whole or by their versions alone."""
        host_rows = list(result.hosts)
        if result.stepped:
            rows = (change.row for change in self.store.feed.load_everything().hosts)
            host_rows += [row for row in rows if row.id in result.stepped]
            assert {row.id: row.version for row in host_rows} == result.stepped
        return {row.name: (row.used, row.generation) for row in host_rows}

    def draft(self, name, owner, takes, options):
        draft = draft_of(uuid_of(name)).by(owner)
        if options.get('group'):
            generation = 0
            rule = self.store.groups.load_group(uuid_of(options['group']))
            if rule is not None and not options.get('stale'):
                generation = rule.generation
            draft = draft.planned_at(generation, uuid_of(options['group']))
        if options.get('whole'):
            draft = draft.whole()
        if options.get('unfinished'):
            draft = draft.unfinished()
        if options.get('attempt'):
            draft = draft.attempt(options['attempt'])
        if options.get('late'):
            draft = draft.within(-1)
        made_by, made = self.drafts.get(draft.id, (0, 0))
        # Who has made something since a take-over continues, and says so.
        if options.get('takes_over') and made_by < 2:
            draft = draft.taking_over(options['takes_over'])
        elif made_by and (options.get('continues') or made_by == 2):
            draft = draft.attempt(made_by).continuing(made)
        for number, amounts, seen in takes:
            host = self.hosts[number]
            generation = host.row.generation - (1 if seen == 'stale' else 0) if seen else None
            draft = draft.taking(host, generation=generation, **amounts)
        return draft

    def claims_on(self, host):
        """In an order that does not depend on ids that a store draws."""
        claims = self.store.claims.list_claims(host=host.name, limit=1000)
        return sorted(
            claims, key=lambda c: (c.consumer, c.request_id or '', c.member, c.attempt, c.state)
        )

    def word(self, number, verb, picks):
        host = self.hosts[number]
        claims = self.claims_on(host)
        chosen = [claims[i % len(claims)] for i in picks] if claims else []
        chosen = list({claim.id: claim for claim in chosen}.values())
        if not chosen:
            return None
        return [(f.outcome, f.state) for f in getattr(host, verb)(*chosen)]

    def report(self, number, keep, pending, extra, said):
        host = self.hosts[number]
        claims = [c for c in self.claims_on(host) if c.is_live]
        running = [c for i, c in enumerate(claims) if keep[i % len(keep)]]
        coming = [c for c in claims if c not in running] if pending else []
        strangers = [uuid_of('stranger', number) for number in extra]
        text = host.says().listing([*running, *strangers], coming).having(**said)
        if said.get('running', 1) is None:
            text = text.without_opinion()
        outcome = host.send(text)[0]
        counts = len(outcome.confirmed), len(outcome.released), len(outcome.adopted)
        return outcome.outcome, outcome.changed, counts

    def cancel(self, name):
        result = self.store.requests.cancel_request(uuid_of(name), '')
        state = self.store.requests.load_request(uuid_of(name)).state
        return state, sorted((f.claim_id, f.outcome) for f in result.outcomes)

    def give_up(self, name, owner):
        if any(
            c.state == 'confirmed' for c in self.store.claims.list_claims(request_id=uuid_of(name))
        ):
            return None  # no host is told of the claims of an open request
        result = self.store.requests.give_up(uuid_of(name), owner, 1)
        return sorted((f.claim_id, f.outcome) for f in result.outcomes)

    def restart(self, number):
        self.hosts[number].register()
        return self.hosts[number].epoch

    def disable(self, number, on):
        name = self.hosts[number].name
        row = (
            self.store.hosts.disable_host(name, 'x', 'y')
            if on
            else self.store.hosts.enable_host(name)
        ).row
        return row.disabled

    def state(self):
        """Everything that an outsider can see, without numbers of the store's own."""
        everything = self.store.feed.load_everything()
        return {
            change.row.name: (
                change.row.used,
                change.row.foreign,
                change.row.generation,
                change.row.over_committed,
                change.row.epoch,
                change.row.sequence,
                sorted((p.consumer, p.group or '') for p in change.placed),
            )
            for change in everything.hosts
        }, since_first(everything.groups)


def since_first(groups):
    """Generations without where a store lets a group begin."""
    return {uuid: group_rule.placements_since_first(number) for uuid, number in groups.items()}


class Chance:
    """Random words, made before any store is asked."""

    WEIGHTS = {
        'batch': 10,
        'word': 6,
        'report': 6,
        'cancel': 1,
        'give_up': 2,
        'restart': 0.5,
        'disable': 1,
    }

    def __init__(self, seed):
        self.rnd = random.Random(seed)

    def history(self, length):
        words, weights = list(self.WEIGHTS), list(self.WEIGHTS.values())
        for self.step in range(length):
            word = self.rnd.choices(words, weights)[0]
            yield word, getattr(self, word)()

    def name(self):
        return f'r{self.rnd.randrange(self.step // 2 + 3)}'

    def host(self):
        return self.rnd.randrange(HOSTS)

    def batch(self):
        names = {self.name() for _ in range(self.rnd.randrange(1, 5))}
        return ([self.plan(name) for name in sorted(names)],)

    def plan(self, name):
        rnd = self.rnd
        takes = [
            (self.host(), self.amounts(), rnd.choice([None] * 6 + ['fresh', 'stale']))
            for _ in range(rnd.choice([1, 1, 2, 4]))
        ]
        options = {
            'group': rnd.choice([None, None, None, 'g1', 'g2']),
            'stale': rnd.random() < 0.2,
            'whole': rnd.random() < 0.3,
            'unfinished': rnd.random() < 0.2,
            'late': rnd.random() < 0.3,
            'continues': rnd.random() < 0.4,
        }
        if rnd.random() < 0.15:
            options.update(takes_over=1, continues=False)
        return name, rnd.choice(['w1', 'w1', 'w2']), takes, options

    def amounts(self):
        rnd = self.rnd
        return {name: rnd.choice([1, 2, 5]) for name in rnd.sample(CLASSES, rnd.choice([1, 1, 2]))}

    def word(self):
        verb = self.rnd.choice(['confirm', 'confirm', 'refuse', 'release'])
        return self.host(), verb, [self.rnd.randrange(50) for _ in range(3)]

    def report(self):
        rnd = self.rnd
        fields = rnd.choice(
            [
                {},
                {},
                {'foreign': {'VCPU': rnd.randrange(4)}},
                {'used': {'VCPU': 6, 'VGPU': 1}},
                {'running': None, 'pending': None},
                {'traits': ['CUSTOM_X']},
                {'disabled': rnd.choice(['down', None])},
            ]
        )
        keep = [rnd.random() < 0.8 for _ in range(7)]
        extra = [rnd.randrange(9)] if rnd.random() < 0.15 else []
        return self.host(), keep, rnd.random() < 0.7, extra, fields

    def cancel(self):
        return (self.name(),)

    def give_up(self):
        return self.name(), 'w1'

    def restart(self):
        return (self.host(),)

    def disable(self):
        return self.host(), self.rnd.random() < 0.4


@pytest.mark.parametrize('seed', range(0, 8, stride(2)))
@pytest.mark.parametrize('kind', KINDS)
def test_a_random_history_ends_like_the_plain_store(kind, seed, open_store):
    check(kind, seed, 60, open_store)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(100, 160))
@pytest.mark.parametrize('kind', KINDS)
def test_a_long_random_history_ends_like_the_plain_store(kind, seed, open_store):
    check(kind, seed, 300, open_store)


def same(actual, expected):
    """Equal, but for hosts that the plain store reads back beyond those named."""
    if isinstance(actual, tuple) and len(actual) == 3 and isinstance(actual[1], dict):
        more = {name: expected[1][name] for name in actual[1] if name in expected[1]}
        expected = (expected[0], more, expected[2])
    return actual == expected


def check(kind, seed, length, open_store):
    plain, real = History(memory_stores(clock=ManualClock())), History(open_store(kind))
    for step, (word, arguments) in enumerate(Chance(seed).history(length)):
        where = f'seed {seed}, step {step}: {word} {arguments}'
        expected, actual = plain.play(word, *arguments), real.play(word, *arguments)
        assert same(actual, expected), where
        assert real.state() == plain.state(), where
    expected, actual = plain.store.claims.audit(), real.store.claims.audit()
    assert {k: sorted(v) for k, v in actual.items()} == {k: sorted(v) for k, v in expected.items()}
    assert real.store.claims.audit()['over_commit'] == CLEAN['over_commit']
