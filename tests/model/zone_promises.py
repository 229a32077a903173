# SPDX-License-Identifier: Apache-2.0
"""What is promised of placing over zones, and all worlds that there are looked through for it."""

from collections import deque
from typing import NamedTuple

from gantt.core.claims.claim import LIVE_STATES, State
from tests.model.zone_model import PAST, Bounds, Model, Step, World, get, holds, key


class Promises:
    """Each in words that begin with its number."""

    def __init__(self, model: Model) -> None:
        self.model, self.bounds, self.flaw = model, model.bounds, model.flaw

    def broken(self, w: World) -> str:
        """Which promise does not hold here, '' where all do."""
        live = [
            [(claim, record) for claim, record in zone.claims if record.state in LIVE_STATES]
            for zone in (w.top, w.leaf)
        ]
        for room, claims in zip(self.bounds.rooms, live, strict=True):
            if len(claims) > room:
                return 'Z1 more is promised than there is'
        placed = {claim for _, claim in w.placed}
        usable = [
            record.consumer
            for claim, record in live[0] + live[1]
            if record.state is State.CONFIRMED or claim in placed
        ]
        if len(usable) != len(set(usable)):
            return 'Z2 a consumer has two claims that can be confirmed'
        for name, claim in w.placed:
            record = get(w.top.claims, claim) or get(w.leaf.claims, claim)
            if record is None or (record.ended_by == 'cancel' and name not in w.cancelled):
                return 'Z3 the claim of an answer was taken away'
        for claim, _ in live[0] + live[1]:
            if claim.endswith("'"):
                return 'Z4 one key has claimed twice'
            if claim in w.buried and get(w.leaf.claims, claim).state is State.RESERVED:
                return 'Z5 what was given back is claimed again'
        return self.broken_when_heard(w) or self.broken_after_leases(w)

    def broken_when_heard(self, w: World) -> str:
        """Where all has arrived, nothing is claimed that no caller has, before any lease ends.

        A run that was replaced is never heard of again; after a crash of mid leases are waited for.
        """
        if w.crashes:
            return ''
        if not all(self.is_done(w, name) for name in self.model.requests):
            return ''
        now = self.heard(w)
        placed = {claim for _, claim in w.placed}
        for claim, record in (*now.top.claims, *now.leaf.claims):
            if record.state in LIVE_STATES and claim not in placed:
                return 'Z6 a claim is left that nobody has'
        return ''

    def is_done(self, w: World, name: str) -> bool:
        """Whether nobody works on a request any more."""
        row = get(w.top.rows, name)
        first = self.model.requests.index(name) * self.bounds.runs
        phases = {run.phase for run in w.runs[first : first + self.bounds.runs]}
        works = name in w.cancelled and phases - {'idle', 'over'}
        return not works and (row is None or row.state != 'open')

    def heard(self, w: World) -> World:
        """Whatever was to end has been heard of."""
        now, model = w, self.model
        for _ in range(4):
            for name, run in now.mid_runs:
                row = get(now.mid.rows, name)
                if run.phase == 'waits' and (row is None or row.state == 'cancelled'):
                    now = model.say(now, 'del', 'leaf', key(run.token, 'leaf'))
            for message in now.said:
                if message[0] == 'del':
                    for _, after in model.hear_del(now, *message[1:]):
                        now = after
        return now

    def broken_after_leases(self, w: World) -> str:
        """Leases and deadlines run out: only guests are left, and others may be placed."""
        now = w
        if self.flaw != 'no lease':
            for level in ('top', 'leaf'):
                for claim, record in getattr(w, level).claims:
                    if record.state is State.RESERVED:
                        now = self.model.changed(now, level, claim, State.EXPIRED, 'lease')
        now = self.model.follow(self.model.follow(now, 'mid'), 'top')
        records = [record for zone in (now.top, now.leaf) for _, record in zone.claims]
        if any(record.state is State.RESERVED for record in records):
            return 'Z7 a promise is left for ever'
        running = {record.consumer for record in records if record.state is State.CONFIRMED}
        for zone in (now.top, now.mid):
            rows = tuple((name, row._replace(deadline=PAST)) for name, row in zone.rows)
            for consumer, name in zone.way:
                if consumer not in running and holds(zone._replace(rows=rows), name):
                    return 'Z7 a consumer can never be placed again'
        return ''


class Found(NamedTuple):
    """What an exploration found; ``broken``: '' where every promise holds in every world."""

    broken: str
    story: list[Step]
    worlds: int
    parents: dict


def explore(bounds: Bounds, flaw: str | None = None, most: int = 400_000) -> Found:
    """All worlds there can be, breadth first; ends at the first broken promise."""
    model = Model(bounds, flaw)
    promises = Promises(model)
    first = model.first()
    parents: dict[World, tuple[World, Step] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        broken = promises.broken(world)
        if broken:
            return Found(broken, story_of(parents, world), len(parents), parents)
        for step, then in model.steps(world):
            then = model.forget(then)
            if then not in parents:
                parents[then] = (world, step)
                queue.append(then)
        if len(parents) > most:
            raise AssertionError(f'more than {most} worlds within {bounds}')
    return Found('', [], len(parents), parents)


def story_of(parents: dict, world: World) -> list[Step]:
    """The steps from the beginning to a world."""
    story = []
    while (came := parents[world]) is not None:
        world, step = came
        story.append(step)
    return story[::-1]
