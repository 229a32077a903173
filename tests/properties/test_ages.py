# SPDX-License-Identifier: Apache-2.0
"""P5 and P11: an answer says how old what it rests on is; "no room" and "do not know" differ.

Hosts report, fall silent and come back; one scheduler decides and reads the
feed only while it can reach the database.  Beside it a book is kept of what it
can know.
"""

import collections
import dataclasses
import random
import uuid

import pytest

from gantt import exceptions
from gantt.core.messages.request import CancelClaims
from gantt.core.records.decision import Outcome
from tests.world import World, a_request

STALE, PERIOD = 180.0, 60.0
STEPS = 60


class Reachable:
    """A feed that may be out of reach.

    Claims are written all the same: a proxy may lose one server of several.
    """

    def __init__(self, feed):
        self.is_away = False
        self._feed = feed

    def __getattr__(self, name):
        if self.is_away and name in ('poll', 'compare', 'load_everything'):
            raise exceptions.DatabaseUnavailable(problem='it is away')
        return getattr(self._feed, name)


class CommitBatch:
    """Two schedulers over some hosts: one hears the reports, the other one decides."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.world = World(hosts=self.rng.randint(1, 4), stale_after_seconds=STALE)
        now = self.now
        self.said = dict.fromkeys(self.world.hosts, now)
        shared = self.world.store
        self.reachable = Reachable(shared.feed)
        self.world.store = dataclasses.replace(shared, feed=self.reachable)
        self.decider = self.world.another_scheduler()
        self.world.store = shared
        self.known, self.read_at = dict(self.said), now
        self.seen = collections.Counter()

    @property
    def now(self):
        return self.world.clock.monotonic()

    def step(self):
        self.world.clock.advance(self.rng.choice((1.0, 20.0, 70.0)))
        for name, host in self.world.hosts.items():
            if self.rng.random() < 0.3:
                host.report()
                self.said[name] = self.now
        self.world.schedulers[0].report_queue.step()
        if self.rng.random() < 0.2:
            self.reachable.is_away = not self.reachable.is_away
        if not self.reachable.is_away:
            self.decider.cache.fetch()
            self.known, self.read_at = dict(self.said), self.now

    def ask(self, ram):
        ids = [str(uuid.UUID(int=self.rng.getrandbits(128), version=4)) for _ in range(2)]
        request = a_request(ram=ram, alternates=0, request_id=ids[0], consumers=ids[1:])
        handle = self.world.ask(request, by=self.decider)
        for _ in range(5):
            self.decider.placing.step()
            if handle in self.world.replies.answers:
                break
        answer = self.world.replies.answers[handle]
        self.seen[answer.outcome] += 1
        return answer

    def look(self):
        ages = {name: self.now - at for name, at in self.known.items()}
        fresh = [name for name, age in ages.items() if age <= STALE]
        small, huge = self.ask(1), self.ask(10**6)
        if small.outcome is Outcome.PLACED:
            host = small.selections[0][0].host
            assert host in fresh, 'a host that was silent for long gets nothing new'
            assert small.age_seconds >= ages[host] - 0.002
            # Not older than the oldest that may be used, or than the last look at the feed.
            oldest = max(ages[name] for name in fresh)
            assert small.age_seconds <= max(oldest, self.now - self.read_at) + 0.002
            self.seen['older than two periods'] += small.age_seconds > 2 * PERIOD
            # What a transaction touched it reads back.
            self.known[host] = self.said[host]
            self.decider.cancel(CancelClaims(request_id=small.request_id))
        else:
            assert not fresh, 'there is room, and it is known'
            assert small.outcome in (Outcome.UNKNOWN, Outcome.FAILED)
        if huge.outcome is Outcome.NO_VALID_HOST:
            assert fresh, '"no room" where nobody knows'
        else:
            assert huge.outcome in (Outcome.UNKNOWN, Outcome.FAILED)
            assert not fresh or self.reachable.is_away, '"do not know" where there is no room'


@pytest.mark.parametrize('first', range(0, 40, 10))
def test_an_answer_is_no_surer_than_what_is_known(first):
    seen = collections.Counter()
    for seed in range(first, first + 10):
        commit_batch = CommitBatch(seed)
        for step in range(STEPS):
            commit_batch.step()
            try:
                commit_batch.look()
            except AssertionError as e:
                raise AssertionError(f'seed {seed}, step {step}: {e}') from e
        seen += commit_batch.seen
    print(dict(seen))
    answers = (Outcome.PLACED, Outcome.NO_VALID_HOST, Outcome.UNKNOWN, 'older than two periods')
    assert min(seen[answer] for answer in answers) > 0
