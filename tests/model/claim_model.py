# SPDX-License-Identifier: Apache-2.0
"""The claim protocol for one host, explored whole within small bounds.

Three parties and a network.  The network is the set of all that was ever said:
any of it may be heard at any time, in any order, any number of times, or never,
which is loss, repetition, delay and reordering in one.  There is no time: a
lease may run out at any moment.  The compute may crash at any moment: what it
was asking is forgotten; guests and the journal of finished claims live on.  The
database may be put back to what it was at an earlier moment, under all of that:
messages stay on their way, and the compute registers anew.  Of claims that there
were by then no more is promised than that none is kept for ever (their guests are
adopted, which is not in here); of those that are made afterwards everything.

``explore(flaws=...)`` takes out one rule at a time.  A flaw that matters has a
shortest story that ends in a broken promise; the protocol itself has none.

Steps are tuples ``(verb, *arguments)``, so that they can be replayed against a
real store; see ``test_claim_replay.py``.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

NONE, RESERVED, CONFIRMED, RELEASED, EXPIRED, REFUSED = (
    '',
    'reserved',
    'confirmed',
    'released',
    'expired',
    'refused',
)
UNSEEN, ASKING, RUNNING, DONE = 'unseen', 'asking', 'running', 'done'
LIVE = (RESERVED, CONFIRMED)

#: What can be left out, and the promise that breaks then ('': none, it was a luxury).
FLAWS = {
    'look, then write': 'I2',
    'no request id': 'I5',
    'start without confirm': 'I4',
    'reports in any order': 'I4',
    'reports without pending': 'I4',
    'sweeper ends anything': 'I4',
    'confirm revives': 'I2',
    'no epoch': 'I7',
    'epochs come again': 'I7',
    'absence ends promises': 'I6',
    'no journal': 'I5',
    'release counts twice': 'I3',
    'plans are confirmed': 'I7',
    'a hold stays one': 'I7',
    'no late confirms': '',
}

Step = tuple
Message = tuple


class Bounds(NamedTuple):
    """How far to look: more finds nothing new, it only takes longer."""

    requests: int = 1
    tries: int = 1
    stamps: int = 3  # numbered messages of the compute in one epoch
    crashes: int = 0
    room: int = 1
    restores: int = 0
    lifecycle: str = 'host'  # of all claims while they are reserved


class World(NamedTuple):
    """Everything there is."""

    claims: tuple[str, ...]
    used: int
    heard: tuple[int, int]  # (epoch, sequence) of the last message accepted
    guests: tuple[str, ...]  # what the compute does about each claim
    question: tuple[tuple[int, int] | None, ...]  # stamp of what it asked last
    stamp: tuple[int, int]  # of the compute's last message
    starts: tuple[int, ...]
    callers: tuple[tuple[int, int], ...]  # (tries, claim it knows of or -1)
    said: frozenset[Message]
    looks: tuple[int | None, ...]  # flaw: what a scheduler saw before it writes
    crashes: int
    saved: tuple | None = None  # claims, used and heard, as they are put back
    restores: int = 0
    forgotten: frozenset[int] = frozenset()  # claims of the time before


def put(values: tuple, index: int, value: object) -> tuple:
    """The tuple with one place changed."""
    return (*values[:index], value, *values[index + 1 :])


class Model:
    """The protocol, with none or one of its rules left out."""

    def __init__(self, bounds: Bounds, flaw: str | None = None) -> None:
        self.bounds = bounds
        self.flaw = flaw
        self.each = bounds.tries if flaw == 'no request id' else 1

    def first(self) -> World:
        many, requests = self.bounds.requests * self.each, self.bounds.requests
        return World(
            claims=(NONE,) * many,
            used=0,
            heard=(1, 0),
            guests=(UNSEEN,) * many,
            question=(None,) * many,
            stamp=(1, 0),
            starts=(0,) * many,
            callers=((0, -1),) * requests,
            said=frozenset(),
            looks=(None,) * requests,
            crashes=0,
        )

    def steps(self, w: World) -> Iterator[tuple[Step, World]]:
        """Everything that can happen next."""
        yield from self.callers(w)
        for message in w.said:
            yield from getattr(self, f'hear_{message[0]}')(w, *message[1:])
        for claim, state in enumerate(w.claims):
            if state == RESERVED or (self.flaw == 'sweeper ends anything' and state == CONFIRMED):
                yield ('expire', claim), self.end(w, claim, EXPIRED)
        yield from self.compute(w)
        yield from self.backups(w)

    # -- the database goes back ---------------------------------------------------
    def backups(self, w: World) -> Iterator[tuple[Step, World]]:
        if w.restores < self.bounds.restores:
            if w.saved is None:
                yield ('back up',), w._replace(saved=(w.claims, w.used, w.heard))
            else:
                yield ('put back',), self.put_back(w)
        if w.restores and w.stamp[0] > w.heard[0]:
            # It is told that its epoch is gone.
            yield ('register',), self.register(w)

    @staticmethod
    def put_back(w: World) -> World:
        claims, used, heard = w.saved or ((), 0, (0, 0))
        claimed = {i for i, state in enumerate(claims) if state or w.claims[i]}
        return w._replace(
            claims=claims,
            used=used,
            heard=heard,
            saved=None,
            restores=w.restores + 1,
            forgotten=w.forgotten | claimed,
        )

    def register(self, w: World) -> World:
        guests = tuple(UNSEEN if guest == ASKING else guest for guest in w.guests)
        epoch = self.next_epoch(w)
        return w._replace(guests=guests, heard=(epoch, 0), stamp=(epoch, 0))

    def next_epoch(self, w: World) -> int:
        last = w.heard[0] if self.flaw == 'epochs come again' else max(w.heard[0], w.stamp[0])
        return last + 1

    # -- callers ------------------------------------------------------------------
    def callers(self, w: World) -> Iterator[tuple[Step, World]]:
        for request, (tries, answered) in enumerate(w.callers):
            if answered < 0 and tries < self.bounds.tries:
                now = w._replace(callers=put(w.callers, request, (tries + 1, answered)))
                yield ('ask', request), self.say(now, 'select', request, tries)
            elif answered >= 0 and ('cancel', answered) not in w.said:
                yield ('take back', answered), self.say(w, 'cancel', answered)

    def hear_placed(self, w: World, request: int, claim: int) -> Iterator[tuple[Step, World]]:
        tries, answered = w.callers[request]
        if answered < 0:
            now = w._replace(callers=put(w.callers, request, (tries, claim)))
            yield ('answer', request, claim), self.say(now, 'build', claim)

    # -- the store ------------------------------------------------------------------
    def hear_select(self, w: World, request: int, number: int) -> Iterator[tuple[Step, World]]:
        claim = request * self.each + (number if self.each > 1 else 0)
        if w.claims[claim] in LIVE and self.flaw != 'no request id':
            yield ('repeat', request), self.say(w, 'placed', request, claim)
        elif w.claims[claim] != NONE:
            return
        elif self.flaw == 'look, then write':
            yield from self.look_then_write(w, request, claim)
        elif w.used < self.bounds.room:
            yield ('reserve', claim), self.reserve(w, request, claim)

    def look_then_write(self, w: World, request: int, claim: int) -> Iterator[tuple[Step, World]]:
        if w.looks[request] is None:
            yield ('look', request), w._replace(looks=put(w.looks, request, w.used))
        elif w.looks[request] < self.bounds.room:
            now = w._replace(looks=put(w.looks, request, None))
            yield ('reserve', claim), self.reserve(now, request, claim)

    def reserve(self, w: World, request: int, claim: int) -> World:
        now = w._replace(claims=put(w.claims, claim, RESERVED), used=w.used + 1)
        return self.say(now, 'placed', request, claim)

    def hear_cancel(self, w: World, claim: int) -> Iterator[tuple[Step, World]]:
        if w.claims[claim] == RESERVED:
            yield ('cancel', claim), self.end(w, claim, RELEASED)

    def hear_confirm(self, w: World, claim: int, *stamp: int) -> Iterator[tuple[Step, World]]:
        state, step = w.claims[claim], ('confirm', claim, *stamp)
        if stamp[0] != w.heard[0] and self.flaw != 'no epoch':
            yield step, self.say(w, 'gone', claim, *stamp)
        elif state == RESERVED and self.is_planned:
            yield step, self.say(self.accept(w, stamp), 'gone', claim, *stamp)
        elif state in LIVE or (self.flaw == 'confirm revives' and state in (EXPIRED, RELEASED)):
            if self.flaw == 'no late confirms' and stamp < w.heard:
                return
            used = w.used + (0 if state in LIVE else 1)
            now = w._replace(claims=put(w.claims, claim, CONFIRMED), used=used)
            yield step, self.say(self.accept(now, stamp), 'ok', claim, *stamp)
        else:
            yield step, self.say(self.heard_of(w, claim, stamp), 'gone', claim, *stamp)

    def hear_refuse(self, w: World, claim: int, *stamp: int) -> Iterator[tuple[Step, World]]:
        if stamp[0] == w.heard[0]:
            ends = w.claims[claim] == RESERVED and self.host_ends(RESERVED)
            now = self.end(w, claim, REFUSED) if ends else w
            yield ('refuse', claim, *stamp), self.heard_of(now, claim, stamp)

    def hear_release(self, w: World, claim: int, *stamp: int) -> Iterator[tuple[Step, World]]:
        if self.flaw == 'release counts twice':
            now = w._replace(claims=put(w.claims, claim, RELEASED), used=w.used - 1)
            yield ('release', claim, *stamp), self.accept(now, stamp)
        elif self.is_news(w, stamp):
            ends = w.claims[claim] in LIVE and self.host_ends(w.claims[claim])
            now = self.end(w, claim, RELEASED) if ends else w
            yield ('release', claim, *stamp), self.heard_of(now, claim, stamp)

    def hear_report(
        self, w: World, epoch: int, number: int, running: frozenset, pending: frozenset
    ) -> Iterator[tuple[Step, World]]:
        if not self.is_news(w, (epoch, number)):
            return
        now = self.accept(w, (epoch, number))
        for claim, state in enumerate(w.claims):
            if claim in running and state == RESERVED:
                now = now._replace(claims=put(now.claims, claim, CONFIRMED))
            elif claim not in running and claim not in pending:
                may_end = (CONFIRMED, RESERVED) if self.ends_promises else (CONFIRMED,)
                if state in may_end and self.host_ends(state):
                    now = self.end(now, claim, RELEASED)
        yield ('report', epoch, number, running, pending), now

    @property
    def is_planned(self) -> bool:
        """Whether the claims are places of a plan, which no create has taken over."""
        return self.bounds.lifecycle == 'plan' and self.flaw != 'plans are confirmed'

    def host_ends(self, state: str) -> bool:
        """Whether the host's word ends a claim: any that it confirmed, else its own alone."""
        if self.bounds.lifecycle == 'host':
            return True
        stays = self.flaw in ('plans are confirmed', 'a hold stays one')
        return state == CONFIRMED and not stays

    @property
    def ends_promises(self) -> bool:
        return self.flaw == 'absence ends promises'

    def is_news(self, w: World, stamp: tuple[int, ...]) -> bool:
        if self.flaw == 'reports in any order':
            return True
        if self.flaw == 'no epoch':
            return stamp[1] > w.heard[1]
        return stamp[0] == w.heard[0] and stamp > w.heard

    def accept(self, w: World, stamp: tuple[int, ...]) -> World:
        return w._replace(heard=max(w.heard, (stamp[0], stamp[1])))

    def heard_of(self, w: World, claim: int, stamp: tuple[int, ...]) -> World:
        """After words about one claim: numbers are not used up by claims that never were."""
        return w if w.claims[claim] == NONE else self.accept(w, stamp)

    @staticmethod
    def end(w: World, claim: int, state: str) -> World:
        return w._replace(claims=put(w.claims, claim, state), used=w.used - 1)

    # -- the compute ------------------------------------------------------------------
    def compute(self, w: World) -> Iterator[tuple[Step, World]]:
        may_say = w.stamp[1] < self.bounds.stamps
        if may_say:
            running = frozenset(i for i, g in enumerate(w.guests) if g == RUNNING)
            pending = frozenset(i for i, g in enumerate(w.guests) if g == ASKING)
            if self.flaw == 'reports without pending':
                pending = frozenset()
            now, stamp = self.tick(w)
            yield ('send report', *stamp), self.say(now, 'report', *stamp, running, pending)
        for claim, guest in enumerate(w.guests):
            if guest == ASKING:
                # The disk is full: it says so, or has not even a number left for it.
                now, stamp = self.tick(w) if may_say else (w, None)
                now = now._replace(guests=put(now.guests, claim, DONE))
                refused = self.say(now, 'refuse', claim, *stamp) if stamp else now
                yield ('drop', claim), refused
            elif guest == RUNNING and may_say:
                now, stamp = self.tick(w)
                after = UNSEEN if self.flaw == 'no journal' else DONE
                now = now._replace(guests=put(now.guests, claim, after))
                yield ('delete', claim), self.say(now, 'release', claim, *stamp)
        if w.crashes < self.bounds.crashes:
            yield ('crash',), self.crash(w)

    def hear_build(self, w: World, claim: int) -> Iterator[tuple[Step, World]]:
        if w.guests[claim] != UNSEEN:
            return
        if self.flaw == 'start without confirm':
            yield ('start', claim), self.start(w, claim)
        elif w.stamp[1] < self.bounds.stamps:
            now, stamp = self.tick(w)
            now = now._replace(
                guests=put(now.guests, claim, ASKING), question=put(now.question, claim, stamp)
            )
            yield ('ask to confirm', claim, *stamp), self.say(now, 'confirm', claim, *stamp)

    def hear_ok(self, w: World, claim: int, *stamp: int) -> Iterator[tuple[Step, World]]:
        # Only the answer to this very question: an old one may be about a finished life.
        if w.guests[claim] == ASKING and w.question[claim] == stamp:
            yield ('start', claim), self.start(w, claim)

    def hear_gone(self, w: World, claim: int, *stamp: int) -> Iterator[tuple[Step, World]]:
        if w.guests[claim] == ASKING and w.question[claim] == stamp:
            yield ('give up', claim), w._replace(guests=put(w.guests, claim, DONE))

    @staticmethod
    def start(w: World, claim: int) -> World:
        return w._replace(
            guests=put(w.guests, claim, RUNNING), starts=put(w.starts, claim, w.starts[claim] + 1)
        )

    def crash(self, w: World) -> World:
        guests = tuple(UNSEEN if guest == ASKING else guest for guest in w.guests)
        epoch = self.next_epoch(w)
        now = w._replace(guests=guests, crashes=w.crashes + 1)
        if self.flaw == 'no epoch':
            return now._replace(stamp=(w.stamp[0], 0))
        return now._replace(heard=(epoch, 0), stamp=(epoch, 0))

    @staticmethod
    def tick(w: World) -> tuple[World, tuple[int, int]]:
        stamp = (w.stamp[0], w.stamp[1] + 1)
        return w._replace(stamp=stamp), stamp

    # -- the network -------------------------------------------------------------------
    def say(self, w: World, *message: object) -> World:
        return w._replace(said=w.said | {message})

    def forget(self, w: World) -> World:
        """Without the messages that can never have an effect again.

        Sound only where order, epochs and journal are kept, so only then.
        """
        if self.flaw not in (None, 'no late confirms') or w.restores < self.bounds.restores:
            return w
        messages = frozenset(message for message in w.said if self.matters(w, message))
        return w._replace(said=messages) if len(messages) < len(w.said) else w

    def matters(self, w: World, message: Message) -> bool:
        kind, subject = message[0], message[1]
        match kind:
            case 'select':
                return w.claims[subject] in (NONE, *LIVE) and w.callers[subject][1] < 0
            case 'placed':
                return w.callers[subject][1] < 0
            case 'build':
                return w.guests[subject] in (UNSEEN, ASKING)
            case 'confirm':
                return message[2] == w.heard[0] or w.guests[subject] == ASKING
            case 'ok' | 'gone':
                return w.guests[subject] == ASKING and w.question[subject] == message[2:]
            case 'refuse':
                return message[2] == w.heard[0] and w.claims[subject] == RESERVED
            case 'release':
                return self.is_news(w, message[2:])
            case 'report':
                return self.is_news(w, message[1:3])
        return True  # a cancel: that it was said counts

    # -- promises ----------------------------------------------------------------------
    def broken(self, w: World) -> str:
        """Which promise does not hold here, '' where all do."""
        live = [claim for claim, state in enumerate(w.claims) if state in LIVE]
        running = [
            claim
            for claim, guest in enumerate(w.guests)
            if guest == RUNNING and claim not in w.forgotten
        ]
        may_run = LIVE if self.flaw == 'start without confirm' else (CONFIRMED,)
        owners = [claim // self.each for claim in live]
        if len(running) > self.bounds.room:
            return 'I1 more guests run than fit'
        if len(live) > self.bounds.room:
            return 'I2 more is promised than there is'
        if w.used != len(live):
            return 'I3 the counter is not the sum of the live claims'
        if any(w.claims[claim] not in may_run for claim in running):
            return 'I4 a guest runs whose claim is not confirmed'
        starts = [count for claim, count in enumerate(w.starts) if claim not in w.forgotten]
        if any(count > 1 for count in starts) or len(owners) != len(set(owners)):
            return 'I5 one request has two claims, or one claim two starts'
        return self.broken_after_healing(w)

    def broken_after_healing(self, w: World) -> str:
        """Leases run out, one fresh report is heard: then both sides must agree."""
        now = self.register(w) if w.stamp[0] > w.heard[0] else w
        for claim, state in enumerate(w.claims):
            if state == RESERVED:
                now = self.end(now, claim, EXPIRED)
        w = now
        running = frozenset(i for i, guest in enumerate(w.guests) if guest == RUNNING)
        pending = frozenset(i for i, guest in enumerate(w.guests) if guest == ASKING)
        stamp = (w.stamp[0], w.stamp[1] + 1)
        for _, heard in self.hear_report(now, *stamp, running, pending):
            now = heard
        live = {claim for claim, state in enumerate(now.claims) if state in LIVE}
        if running - live - w.forgotten:
            return 'I4 a guest has lost its claim for good'
        if live - running - pending:
            return 'I7 a claim is kept for ever that nobody uses'
        return ''

    def broken_by(self, before: World, step: Step, after: World) -> str:
        """I6: a promise ends by cancel, lease or refusal, and by nothing else."""
        if step[0] == 'report':
            for was, state in zip(before.claims, after.claims, strict=True):
                if was == RESERVED and state not in LIVE:
                    return 'I6 an old report took a promise back'
        return ''


class Found(NamedTuple):
    """What an exploration found.

    :ivar broken: '' where every promise holds in every world
    :ivar story: the steps to the first world where one does not
    :ivar parents: world -> (the world before it, the step)
    """

    broken: str
    story: list[Step]
    parents: dict[World, tuple[World, Step] | None]


def explore(bounds: Bounds, flaw: str | None = None, most: int = 400_000) -> Found:
    """Every world within the bounds, breadth first: the first story is a shortest one."""
    model = Model(bounds, flaw)
    first = model.first()
    parents: dict[World, tuple[World, Step] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        broken = model.broken(world)
        if broken:
            return Found(broken, story_of(parents, world), parents)
        for step, after in model.steps(world):
            broken = model.broken_by(world, step, after)
            if broken:
                return Found(broken, [*story_of(parents, world), step], parents)
            after = model.forget(after)
            if after not in parents:
                parents[after] = (world, step)
                queue.append(after)
        if len(parents) > most:
            raise AssertionError(f'more than {most} worlds within {bounds}')
    return Found('', [], parents)


def story_of(parents: dict[World, tuple[World, Step] | None], world: World) -> list[Step]:
    """The steps from the beginning to a world."""
    story = []
    while (came := parents[world]) is not None:
        world, step = came
        story.append(step)
    return story[::-1]
