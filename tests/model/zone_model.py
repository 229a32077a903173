# SPDX-License-Identifier: Apache-2.0
"""Placing over zones, explored whole within small bounds: a parent, a zone, a zone below that.

``top`` has hosts of its own and ``mid`` below it; ``mid`` has ``leaf`` below it and no host.  A run
is a scheduler at work on a request.  It may stop for ever, or for long, between any two steps: a
killed one is a run that takes no more steps, a frozen one takes its next when others are done.
What was sent between zones may arrive at any time, any number of times, or never.  There is no
time: a lease and the deadline of a row may run out at any moment.

Offers are not in here, as they bind nobody: a run tries its own hosts or the zone below, as it
likes.  What happens to a row, whose keys are whose, and how a claim ends is decided by the
functions of production: ``check_request_row``, ``takes_over``, ``request_id_in_zone`` and
``next_state``.

A flaw takes out one rule.  What is promised is in ``zone_promises``, where it is all explored.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

from gantt.core.claims.claim import LIVE_STATES, Event, State, next_state
from gantt.core.claims.commit import ClaimColumns, CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.request_state import check_request_row
from gantt.core.claims.request_state import takes_over as replaces
from gantt.zones.service.share_claimer import request_id_in_zone

#: What can be left out, and the promise that breaks then.
FLAWS = {
    'no second look': 'Z1',
    'finish without looking': 'Z2',
    'an overdue request finishes': 'Z2',
    'a cancel frees the consumer at once': 'Z2',
    'what was given back is taken again': 'Z3',
    'repeats are not keyed': 'Z4',
    'no tombstone': 'Z5',
    'take-over leaves the keys of before': 'Z6',
    'a second opening has the keys of the first': 'Z3',
    'no lease': 'Z7',
    'claims below are not followed': 'Z7',
}

Step = tuple
Pairs = tuple[tuple, ...]
#: Deadlines: the clock stands between them.
PAST, NOW, AHEAD = 0.0, 0.5, 1.0


class Bounds(NamedTuple):
    """How far to look.

    :ivar consumers: of each request
    :ivar runs: of each request, each in another process
    :ivar openings: of the row by one run
    :ivar rooms: of top and of leaf
    :ivar crashes: of mid
    :ivar late: deadlines that may run out before all is done
    :ivar places: that each run tries: its own hosts, the zone below, or both
    """

    consumers: tuple[str, ...] = ('guest',)
    runs: int = 1
    openings: int = 1
    rooms: tuple[int, int] = (1, 1)
    crashes: int = 0
    cancels: int = 0
    late: int = 0
    guests_end: bool = False
    places: tuple[str, ...] = ()


class Row(NamedTuple):
    """Row of a request, as ``check_request_row`` reads it."""

    state: str
    owner: str
    attempt: int
    deadline: float
    token: str
    answer: bytes = b''
    fingerprint: str = 'body'


class Made(NamedTuple):
    """A claim, by the request that made it and how it has ended."""

    request: str
    consumer: str
    state: State = State.RESERVED
    ended_by: str = ''


class Below(NamedTuple):
    """A claim in the zone below, as far as it is known above."""

    request: str
    key: str
    consumer: str
    state: State = State.RESERVED


class Zone(NamedTuple):
    """A database: request id -> row, consumer -> request, claim -> what is known of it."""

    rows: Pairs = ()
    way: Pairs = ()
    below: Pairs = ()
    claims: Pairs = ()


class Run(NamedTuple):
    """Of a request in top, or of a key in mid.

    :ivar phase: idle, ours: the row is; waits: for the zone below; over
    :ivar spent: the zone below was told to end what this opening claims
    """

    phase: str = 'idle'
    openings: int = 0
    attempt: int = 0
    token: str = ''
    spent: bool = False


class World(NamedTuple):
    """Everything there is."""

    top: Zone
    mid: Zone
    leaf: Zone
    runs: tuple[Run, ...]
    mid_runs: Pairs  # key -> Run
    said: frozenset
    placed: frozenset  # (request, claim) that a caller was answered with
    cancelled: frozenset  # requests that their callers took back
    buried: frozenset  # keys whose end leaf has heard of
    crashes: int = 0
    late: int = 0


def get(pairs: Pairs, key: str):
    return next((value for name, value in pairs if name == key), None)


def put(pairs: Pairs, key: str, value: object) -> Pairs:
    """The pairs with one of them changed, added, or (None) left out."""
    rest = [pair for pair in pairs if pair[0] != key]
    return tuple(sorted([*rest, (key, value)] if value is not None else rest))


@functools.cache
def key(token: str, place: str) -> str:
    return request_id_in_zone(token, place)


@functools.cache
def judged(
    row: Row | None, name: str, owner: str, attempt: int, continues: bool, over: int | None
) -> RequestOutcome | None:
    """What the one judge of all stores says."""
    return check_request_row(row, draft_of(name, owner, attempt, continues, over), NOW)


def draft_of(
    name: str, owner: str, attempt: int, continues: bool, over: int | None
) -> RequestDraft:
    return RequestDraft(
        id=name,
        fingerprint='body',
        owner=owner,
        attempt=attempt,
        continues=continues,
        takes_over=over,
        claims=ClaimColumns(),
    )


def holds(zone: Zone, request: str) -> bool:
    """Whether a request still places a consumer, or has placed it."""
    row = get(zone.rows, request)
    if row is not None and row.state == 'open' and row.deadline > NOW:
        return True
    records = (record for pairs in (zone.below, zone.claims) for _, record in pairs)
    return any(record.request == request and record.state in LIVE_STATES for record in records)


class Opened(NamedTuple):
    """What became of opening a row; ``before``: the opening that was replaced."""

    zone: Zone
    is_ours: bool = False
    outcome: str = ''
    answer: bytes = b''
    attempt: int = 0
    before: str = ''


class Model:
    """The protocol, with none or one of its rules left out."""

    def __init__(self, bounds: Bounds, flaw: str | None = None) -> None:
        self.bounds, self.flaw = bounds, flaw
        self.requests = [f'r{n}' for n in range(len(bounds.consumers))]

    def first(self) -> World:
        many = len(self.requests) * self.bounds.runs
        none: frozenset = frozenset()
        return World(Zone(), Zone(), Zone(), (Run(),) * many, (), none, none, none, none)

    def steps(self, w: World) -> Iterator[tuple[Step, World]]:
        """Everything that can happen next."""
        for number in range(len(w.runs)):
            yield from self.run_in_top(w, number)
        for name, run in w.mid_runs:
            yield from self.run_in_mid(w, name, run)
        for message in w.said:
            yield from getattr(self, f'hear_{message[0]}')(w, *message[1:])
        yield from self.time(w)
        yield from self.hosts(w)
        yield from self.callers(w)
        for level in ('top', 'mid'):
            if (now := self.follow(w, level)) != w:
                yield ('follow', level), now

    # -- the row -------------------------------------------------------------------------
    def open(
        self, zone: Zone, name: str, consumer: str, owner: str, attempt: int, token: str
    ) -> Opened:
        """As ``open_request``: it is ours, in the place of an overdue one where need be."""
        row, over, before = get(zone.rows, name), None, ''
        if row is not None:
            verdict = judged(row, name, owner, attempt, False, None)
            if verdict is not None and verdict.outcome is CommitStatus.OVERDUE:
                before, over, attempt = row.token, verdict.attempt, verdict.attempt + 1
                verdict = judged(row, name, owner, attempt, False, over)
                assert replaces(row, draft_of(name, owner, attempt, False, over))
            if verdict is not None:
                return Opened(zone, False, verdict.outcome.value, verdict.answer)
        mine = Row('open', owner, attempt, AHEAD, token)
        now = zone._replace(rows=put(zone.rows, name, mine))
        other = get(zone.way, consumer)
        if other is not None and other != name:
            row = get(zone.rows, other)
            is_overdue = row is not None and row.state == 'open' and row.deadline < NOW
            if is_overdue and self.flaw != 'an overdue request finishes':
                # Whoever has it may be frozen: it is not to finish any more.
                released = row._replace(owner='', attempt=row.attempt + 1)
                now = now._replace(rows=put(now.rows, other, released))
            if holds(now, other):
                return Opened(zone._replace(rows=put(zone.rows, name, None)), outcome='rejected')
        if any(
            record.consumer == consumer and record.state in LIVE_STATES and record.request != name
            for _, record in zone.claims
        ):
            return Opened(zone._replace(rows=put(zone.rows, name, None)), outcome='rejected')
        now = now._replace(way=put(now.way, consumer, name))
        return Opened(now, True, attempt=attempt, before=before)

    def finish(
        self, zone: Zone, name: str, run: Run, owner: str, consumer: str, claim: str, there: str
    ) -> Zone | None:
        """As ``finish_request``; None: the row is no longer ours."""
        row = get(zone.rows, name)
        is_ours = row is not None and row[:3] == ('open', owner, run.attempt)
        if not is_ours and self.flaw != 'finish without looking':
            return None
        answered = Row('placed', owner, run.attempt, AHEAD, '', claim.encode())
        return zone._replace(
            rows=put(zone.rows, name, answered),
            below=put(zone.below, claim, Below(name, there, consumer)),
        )

    def give_up(self, zone: Zone, name: str, run: Run, owner: str) -> Zone:
        row = get(zone.rows, name)
        if row is None or row[:3] != ('open', owner, run.attempt):
            return zone
        way = tuple(pair for pair in zone.way if pair[1] != name)
        return zone._replace(rows=put(zone.rows, name, None), way=way)

    # -- the parent ------------------------------------------------------------------------
    def run_in_top(self, w: World, number: int) -> Iterator[tuple[Step, World]]:
        run = w.runs[number]
        name = self.requests[number // self.bounds.runs]
        consumer = self.bounds.consumers[number // self.bounds.runs]
        owner = f'w{number}'
        if run.phase == 'idle' or (
            run.phase == 'ours' and run.spent and run.openings < self.bounds.openings
        ):
            yield ('open', name, owner), self.open_top(w, number, name, consumer, owner)
        key_below = key(run.token, 'mid')
        tries = self.bounds.places[number] if self.bounds.places else 'both'
        if run.phase == 'ours':
            claimed = self.claimed(w.top, name, consumer, self.bounds.rooms[0])
            claimed = None if tries == 'below' else claimed
            row = get(w.top.rows, name)
            if claimed is not None and judged(row, name, owner, run.attempt, True, None) is None:
                rows = put(claimed.rows, name, row._replace(state='placed', answer=name.encode()))
                now = w._replace(top=claimed._replace(rows=rows))
                yield ('take here', name, owner), self.answer(now, number, name, name)
            again = self.flaw == 'what was given back is taken again'
            if tries != 'here' and (again or not run.spent):
                now = self.say(w, 'put', 'mid', key_below, consumer)
                yield ('ask', name, owner), self.ran(now, number, phase='waits')
            now = w._replace(top=self.give_up(w.top, name, run, owner))
            yield ('give up', name, owner), self.ran(now, number, phase='over')
        elif run.phase == 'waits':
            now = self.say(w, 'del', 'mid', key_below)
            yield ('give back', name, owner), self.ran(now, number, phase='ours', spent=True)
            for message in w.said:
                if message[:3] == ('placed', 'top', key_below):
                    claim = message[3]
                    top = self.finish(w.top, name, run, owner, consumer, claim, key_below)
                    if top is None:
                        now = self.ran(self.say(w, 'del', 'mid', key_below), number, phase='over')
                    else:
                        now = self.answer(w._replace(top=top), number, name, claim)
                    yield ('finish', name, owner), now

    def open_top(self, w: World, number: int, name: str, consumer: str, owner: str) -> World:
        run = w.runs[number]
        token = f'{name}.{number}.{run.openings}'
        if self.flaw == 'a second opening has the keys of the first':
            token = name
        opened = self.open(w.top, name, consumer, owner, 1 + run.openings, token)
        now = w._replace(top=opened.zone)
        if opened.is_ours:
            if opened.before and self.flaw != 'take-over leaves the keys of before':
                now = self.say(now, 'del', 'mid', key(opened.before, 'mid'))
            return self.ran(
                now,
                number,
                phase='ours',
                openings=run.openings + 1,
                attempt=opened.attempt,
                token=token,
                spent=False,
            )
        if opened.outcome == CommitStatus.REPEAT.value:
            return self.answer(now, number, name, opened.answer.decode())
        if opened.outcome == CommitStatus.OPEN.value:
            return now  # it looks again in a moment
        return self.ran(now, number, phase='over')

    @staticmethod
    def ran(w: World, number: int, **changes) -> World:
        runs = [*w.runs]
        run = runs[number]._replace(**changes)
        # What an ended run knew decides nothing.
        runs[number] = Run('over') if run.phase == 'over' else run
        return w._replace(runs=tuple(runs))

    def answer(self, w: World, number: int, name: str, claim: str) -> World:
        now = w._replace(placed=w.placed | {(name, claim)})
        return self.ran(now, number, phase='over')

    # -- the zone between --------------------------------------------------------------------
    def hear_put(self, w: World, level: str, name: str, consumer: str):
        if level == 'leaf':
            yield from self.hear_put_in_leaf(w, name, consumer)
            return
        run = get(w.mid_runs, name) or Run()
        if run.phase not in ('idle', 'over') or run.openings > w.crashes:
            return  # a copy waits for the first, or has its answer
        owner, token = f'm{w.crashes}', f'{name}.{w.crashes}.{run.openings}'
        opened = self.open(w.mid, name, consumer, owner, 1, token)
        now = w._replace(mid=opened.zone)
        if opened.is_ours:
            if opened.before and self.flaw != 'take-over leaves the keys of before':
                now = self.say(now, 'del', 'leaf', key(opened.before, 'leaf'))
            run = Run('waits', run.openings + 1, opened.attempt, token)
            now = now._replace(mid_runs=put(now.mid_runs, name, run))
            now = self.say(now, 'put', 'leaf', key(token, 'leaf'), consumer)
            yield ('pass down', name), now
        elif opened.outcome == CommitStatus.REPEAT.value:
            yield ('repeat', name), self.say(now, 'placed', 'top', name, opened.answer.decode())

    def run_in_mid(self, w: World, name: str, run: Run) -> Iterator[tuple[Step, World]]:
        if run.phase != 'waits':
            return
        owner, key_below = f'm{w.crashes}', key(run.token, 'leaf')
        ended = w._replace(mid_runs=put(w.mid_runs, name, Run('over', run.openings)))
        given_back = self.say(ended, 'del', 'leaf', key_below)
        up = given_back._replace(mid=self.give_up(w.mid, name, run, owner))
        yield ('give back', name), up
        if ('placed', 'mid', key_below, key_below) in w.said:
            consumer = get(w.leaf.claims, key_below).consumer
            mid = self.finish(w.mid, name, run, owner, consumer, key_below, key_below)
            if mid is None:
                yield ('is lost', name), given_back
            else:
                now = ended._replace(mid=mid)
                yield ('finish', name), self.say(now, 'placed', 'top', name, key_below)
        if w.crashes < self.bounds.crashes:
            gone = tuple((name, Run('idle', run.openings)) for name, run in w.mid_runs)
            yield ('mid crashes',), w._replace(mid_runs=gone, crashes=w.crashes + 1)

    # -- the zone with hosts -------------------------------------------------------------------
    def claimed(self, zone: Zone, name: str, consumer: str, room: int) -> Zone | None:
        """A claim under the lock of its host; None: there is no room, or it has one."""
        live = [record for _, record in zone.claims if record.state in LIVE_STATES]
        is_full = len(live) >= room and self.flaw != 'no second look'
        if is_full or any(record.consumer == consumer for record in live):
            return None
        claim = name
        while self.flaw == 'repeats are not keyed' and get(zone.claims, claim):
            claim += "'"
        return zone._replace(claims=put(zone.claims, claim, Made(name, consumer)))

    def hear_put_in_leaf(self, w: World, name: str, consumer: str):
        row = get(w.leaf.rows, name)
        verdict = None if row is None else judged(row, name, 'l', 1, False, None)
        is_repeat = verdict is not None and verdict.outcome is CommitStatus.REPEAT
        if verdict is None or (is_repeat and self.flaw == 'repeats are not keyed'):
            claimed = self.claimed(w.leaf, name, consumer, self.bounds.rooms[1])
            if claimed is not None:
                row = Row('placed', 'l', 1, AHEAD, '', name.encode())
                leaf = claimed._replace(rows=put(claimed.rows, name, row))
                now = w._replace(leaf=leaf)
                yield ('claim', name), self.say(now, 'placed', 'mid', name, name)
        elif is_repeat:
            yield ('repeat', name), self.say(w, 'placed', 'mid', name, verdict.answer.decode())

    def hear_del(self, w: World, level: str, name: str):
        """As ``cancel_request``, and for what is further down."""
        zone = getattr(w, level)
        row = get(zone.rows, name)
        now = w
        if row is not None or self.flaw != 'no tombstone':
            tombstone = Row('cancelled', '', 0, PAST, '')
            zone = zone._replace(rows=put(zone.rows, name, tombstone))
        zone = self.ended(zone, name)
        for _, record in zone.below:
            if record.request == name:
                now = self.say(now, 'del', 'leaf', record.key)
        if level == 'leaf':
            now = now._replace(buried=now.buried | {name})
        yield ('end', level, name), now._replace(**{level: zone})

    def hear_placed(self, w: World, *_: str):
        yield from ()  # whoever waits for it looks

    @staticmethod
    def ended(zone: Zone, request: str) -> Zone:
        """The claims of a request, cancelled."""
        claims = zone.claims
        for claim, record in claims:
            if (
                record.request == request
                and next_state(record.state, Event.CANCEL) is not record.state
            ):
                state = next_state(record.state, Event.CANCEL)
                claims = put(claims, claim, record._replace(state=state, ended_by='cancel'))
        return zone._replace(claims=claims)

    # -- what else happens -----------------------------------------------------------------------
    def time(self, w: World) -> Iterator[tuple[Step, World]]:
        for level in ('top', 'leaf'):
            zone = getattr(w, level)
            for claim, record in zone.claims:
                state = next_state(record.state, Event.EXPIRE)
                if state is not record.state and self.flaw != 'no lease':
                    yield ('expire', claim), self.changed(w, level, claim, state, 'lease')
        if w.late < self.bounds.late:
            for level in ('top', 'mid') if self.bounds.crashes else ('top',):
                zone = getattr(w, level)
                for name, row in zone.rows:
                    if row.state == 'open' and row.deadline > NOW:
                        rows = put(zone.rows, name, row._replace(deadline=PAST))
                        now = w._replace(late=w.late + 1)
                        yield ('late', name), now._replace(**{level: zone._replace(rows=rows)})

    def hosts(self, w: World) -> Iterator[tuple[Step, World]]:
        """A host confirms what its conductor was told of; guests end."""
        placed = {claim for _, claim in w.placed}
        for level in ('top', 'leaf'):
            for claim, record in getattr(w, level).claims:
                if record.state is State.RESERVED and claim.rstrip("'") in placed:
                    state = next_state(record.state, Event.CONFIRM)
                    yield ('confirm', claim), self.changed(w, level, claim, state, '')
                elif record.state is State.CONFIRMED and self.bounds.guests_end:
                    state = next_state(record.state, Event.RELEASE)
                    yield ('guest ends', claim), self.changed(w, level, claim, state, 'host')

    @staticmethod
    def changed(w: World, level: str, claim: str, state: State, by: str) -> World:
        zone = getattr(w, level)
        record = get(zone.claims, claim)._replace(state=state, ended_by=by)
        return w._replace(**{level: zone._replace(claims=put(zone.claims, claim, record))})

    def callers(self, w: World) -> Iterator[tuple[Step, World]]:
        if len(w.cancelled) >= self.bounds.cancels:
            return
        for name in self.requests[: self.bounds.cancels]:
            if name in w.cancelled:
                continue
            now = w._replace(cancelled=w.cancelled | {name})
            tombstone = Row('cancelled', '', 0, PAST, '')
            top = self.ended(w.top._replace(rows=put(w.top.rows, name, tombstone)), name)
            for claim, record in top.below:
                if record.request == name:
                    now = self.say(now, 'del', 'mid', record.key)
                    if self.flaw == 'a cancel frees the consumer at once':
                        state = next_state(record.state, Event.CANCEL)
                        top = top._replace(
                            below=put(top.below, claim, record._replace(state=state))
                        )
            yield ('cancel', name), now._replace(top=top)

    def follow(self, w: World, level: str) -> World:
        """A zone hears what became of claims below."""
        zone = getattr(w, level)
        if self.flaw == 'claims below are not followed':
            return w
        for claim, record in zone.below:
            other = get(w.leaf.claims, claim) if level == 'mid' else get(w.mid.below, claim)
            if other is not None and other.state not in (record.state, State.CONFIRMED):
                below = put(zone.below, claim, record._replace(state=other.state))
                zone = zone._replace(below=below)
        return w._replace(**{level: zone})

    def say(self, w: World, *message: str) -> World:
        return w._replace(said=w.said | {message})

    def forget(self, w: World) -> World:
        """Without messages that can have no effect any more; only where all rules are in force."""
        if self.flaw is not None:
            return w
        waiting = {key(run.token, 'mid') for run in w.runs if run.phase == 'waits'}
        inside = {name for name, run in w.mid_runs if run.phase == 'waits'}
        keys_below = {key(run.token, 'leaf') for name, run in w.mid_runs if name in inside}
        messages = frozenset(
            message for message in w.said if self.matters(w, message, waiting, inside, keys_below)
        )
        return w._replace(said=messages) if len(messages) < len(w.said) else w

    @staticmethod
    def matters(w: World, message: tuple, waiting: set, inside: set, there: set) -> bool:
        kind, level, name = message[:3]
        if kind == 'placed':
            return name in (waiting if level == 'top' else there)
        row = get(getattr(w, level).rows, name)
        if kind == 'del':
            if row is None or row.state != 'cancelled':
                return True
            # A second copy ends what is known below by now.
            return level == 'mid' and any(
                record.request == name
                and ('del', 'leaf', record.key) not in w.said
                and (get(w.leaf.rows, record.key) or row).state != 'cancelled'
                for _, record in w.mid.below
            )
        if row is not None and row.state == 'cancelled':
            return False
        if row is not None and row.state == 'placed':
            return name in (waiting if level == 'mid' else there)
        return True
