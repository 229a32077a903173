# SPDX-License-Identifier: Apache-2.0
"""The stories of the model, told to real stores: after each step both agree.

Every story gets a host and requests of its own, so that hundreds of them fit
into one store.
"""

from collections import Counter

import pytest

from tests.builders import CLEAN, Host, a_draft, a_host, changed, report_outcome, uuid_of
from tests.contract.damage import damage_for
from tests.model.claim_model import CONFIRMED, LIVE, NONE, Bounds, World, explore
from tests.nemesis.backup import Backup

#: Steps that only the caller or the compute take: the store does not hear of them.
SILENT = {
    'ask',
    'take back',
    'answer',
    'send report',
    'ask to confirm',
    'start',
    'give up',
    'drop',
    'delete',
}


def worlds_of(bounds, every):
    """Some of the last worlds of an exploration, each with the way to it; every verb is in one."""
    parents = explore(bounds).parents
    inner = {came[0] for came in parents.values() if came is not None}
    leaves = [world for world in parents if world not in inner]
    missing = {came[1][0] for came in parents.values() if came is not None}
    for number, world in enumerate([*leaves[::every], *leaves]):
        way = []
        while (came := parents[world]) is not None:
            way.append((came[1], world))
            world = came[0]
        if adopts(way):
            continue
        verbs = {step[0] for step, _ in way}
        if number * every < len(leaves) or verbs & missing:
            yield way[::-1]
        missing -= verbs
        if not missing and number * every >= len(leaves):
            return


def adopts(way):
    """Whether a report lists a guest without a claim, as where the database went back.

    A store adopts it then, which the model has not.  (The way is from its end.)
    """
    befores = [world for _, world in way[1:]]
    return any(
        step[0] == 'report' and any(before.claims[claim] not in LIVE for claim in step[3])
        for (step, _), before in zip(way, befores, strict=False)
    )


class Replay:
    """One story on one store."""

    def __init__(self, store, hand, name, bounds):
        self.store = store
        self.hand = hand
        self.lifecycle = bounds.lifecycle
        self.host: Host = a_host(name).with_room(vcpu=bounds.room).on(store)
        # The model begins with nothing heard in the first epoch.
        self.host.register()
        self.epochs = {1: self.host.epoch}
        self.drafts = {}
        self.claims = {}

    def run(self, way, seen):
        for step, world in way:
            verb, *arguments = step
            seen[verb] += 1
            if verb not in SILENT:
                getattr(self, verb.replace(' ', '_'))(*arguments)
            self.compare(step, world)

    # -- steps that a store hears --------------------------------------------------
    def reserve(self, claim):
        draft = a_draft(uuid_of('replay', self.host.name, claim)).leased(1000)
        draft = draft.taking(self.host, lifecycle=self.lifecycle)
        self.drafts[claim] = draft
        assert report_outcome(self.store, draft).outcome == 'placed'
        self.claims[claim] = draft.fields['claims'][0].claim

    def repeat(self, claim):
        # A repeat after a cancel that came too late is told of the cancel.
        assert report_outcome(self.store, self.drafts[claim]).outcome in ('repeat', 'cancelled')

    def cancel(self, claim):
        self.store.requests.cancel_request(self.drafts[claim].id, 'taken back')

    def expire(self, claim):
        self.hand.age(self.claims[claim], 2000)
        assert [f.claim_id for f in self.store.claims.sweep(10).outcomes] == [self.claims[claim].id]

    def words(self, claim, epoch, sequence):
        words = self.host.words(self.claims[claim])
        return changed(words, epoch=self.epochs[epoch], sequence=sequence)

    def confirm(self, claim, epoch, sequence):
        outcome = self.store.claims.confirm_claims(self.words(claim, epoch, sequence)).outcomes[0]
        self.said = outcome.outcome

    def refuse(self, claim, epoch, sequence):
        self.store.claims.refuse_claims(self.words(claim, epoch, sequence))

    def release(self, claim, epoch, sequence):
        self.store.claims.release_claims(self.words(claim, epoch, sequence))

    def report(self, epoch, sequence, running, pending):
        report = self.host.facts.at(self.epochs[epoch], sequence).listing(
            [self.claims[claim] for claim in sorted(running)],
            [self.claims[claim] for claim in sorted(pending)],
        )
        outcome = self.store.reports.apply_reports([report.build()]).outcomes[0]
        assert (outcome.outcome, outcome.adopted) == ('applied', [])

    def crash(self):
        self.host.register(last_epoch=self.host.epoch)
        self.epochs[len(self.epochs) + 1] = self.host.epoch

    register = crash

    def back_up(self):
        self.backup = Backup(self.store)

    def put_back(self):
        self.backup.put_back()

    # -- the same as the model ---------------------------------------------------------
    def compare(self, step, world: World):
        for claim, state in enumerate(world.claims):
            stored = (
                self.store.claims.load_claim(self.claims[claim].id)
                if claim in self.claims
                else None
            )
            assert (stored.state if stored else NONE) == state, step
        row = self.store.feed.load_everything().hosts
        mine = next(c for c in row if c.provider_id == self.host.id)
        assert mine.row.used.get('VCPU', 0) == world.used == len(mine.placed), step
        assert (mine.row.epoch, mine.row.sequence) == (
            self.epochs[world.heard[0]],
            world.heard[1],
        ), step
        if step[0] == 'confirm':
            _, claim, *stamp = step
            answers = {m[0] for m in world.said if m[1:] == (claim, *stamp)} & {'ok', 'gone'}
            # An answer that no longer matters is not kept in the model.
            assert not answers or self.said in answers, step
            assert (self.said == 'ok') == (
                world.claims[claim] == CONFIRMED and stamp[0] == world.heard[0]
            ), step


STORIES = {
    'two callers, one place': (Bounds(requests=2, stamps=2), 4),
    'a repeat and a crash': (Bounds(tries=2, stamps=3, crashes=1, room=2), 3),
    'two callers and a crash': (Bounds(requests=2, stamps=2, crashes=1), 30),
    'the database goes back': (Bounds(stamps=2, crashes=1, restores=1), 150),
    'two holds': (Bounds(requests=2, stamps=2, lifecycle='hold'), 4),
    'a plan for two': (Bounds(requests=2, stamps=2, lifecycle='plan'), 4),
}


@pytest.mark.parametrize(
    ('kind', 'share'),
    [
        ('memory', 1),
        ('sqlite', 8),
        pytest.param('postgresql', 60, marks=pytest.mark.postgresql),
        pytest.param('mysql', 60, marks=pytest.mark.mysql),
    ],
)
@pytest.mark.parametrize('name', list(STORIES))
def test_a_real_store_tells_the_stories_of_the_model(make_store, name, kind, share):
    bounds, every = STORIES[name]
    store = make_store(kind)
    seen = Counter()
    count = 0
    for count, way in enumerate(worlds_of(bounds, every * share), 1):
        Replay(store, damage_for(store), f'cmp-{count}', bounds).run(way, seen)
    assert count >= (2 if bounds.restores else 5)
    assert {'reserve', 'confirm', 'report', 'expire', 'cancel'} <= set(seen), seen
    assert store.claims.audit() == CLEAN
