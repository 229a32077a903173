# SPDX-License-Identifier: Apache-2.0
"""Groups that are planned, created, changed and released while processes are killed and frozen.

    storm = Storm(site, broker, groups=50, seed=1)
    storm.run(threads=8, minimum=120.0)     # with trouble, until all groups are through
    storm.settle()                          # without: everybody gets what is theirs

Callers repeat what they were not answered, as it was.  What they were told is what must be there;
:class:`Watcher` looks at groups while all of it happens.
"""

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from gantt import exceptions
from gantt.client.hosts import ClaimsClient
from gantt.core.claims.claim import Claim, State
from gantt.core.messages.report import ClaimUpdate
from gantt.core.messages.request import GroupRef, SelectDestinations
from gantt.core.records.decision import Answer
from gantt.groups.client import PlannerClient
from gantt.groups.model.group_answer import GroupAnswer
from tests.nemesis import hosts, load
from tests.nemesis.site import Site, until
from tests.planner import a_change, a_description, a_member, a_plan_request

SCHEDULERS = ('one', 'two', 'three', 'four')
PLANNERS = ('planner-1', 'planner-2')
#: Of a create that nobody comes for, seconds; of its plan, and of one that nobody comes for.
SHORT, LONG, FORGOTTEN = 6, 3000, 20
#: After so long a caller gives up, and the test fails.
PATIENCE = 240.0
#: Members of a group are apart, so each host has at most one of its ``web``.
HOSTS, ROOM = 12, 90
#: So long a process stands still.
STILL = (0.3, 6.0)
#: Between two deaths or freezes.
PAUSE = (0.2, 1.5)

T = TypeVar('T')


def answered(call: Callable[[], T]) -> T:
    """Return the answer of a call, which is repeated while its outcome is unknown.

    :raises GanttError: it was refused
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except exceptions.Unavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class Agents:
    """The words of hosts, by number, through whatever scheduler answers."""

    def __init__(self, site: Site, carrier: Any) -> None:
        self._claims = ClaimsClient(carrier, timeout=60.0)
        rows = [change.row for change in site.store.feed.load_everything().hosts]
        self._epochs = {row.name: row.epoch for row in rows if row is not None}
        self._said = Counter({name: 1 for name in self._epochs})
        self._lock = threading.Lock()

    def confirm(self, host: str, claim_id: str) -> str:
        """What became of it: ok, gone."""
        with self._lock:
            self._said[host] += 1
            update = ClaimUpdate(
                name=host,
                epoch=self._epochs[host],
                sequence=self._said[host],
                claim_ids=[claim_id],
            )
        (outcome,) = answered(lambda: self._claims.confirm_claims(update))
        return outcome.outcome


class StormGroup:
    """One group, and what its callers were told.

    :ivar revisions: names of the members that it has in each revision of its plan
    :ivar running: member -> consumer, host and claim that a host has confirmed
    :ivar ends: how its plan ends: kept, released, forgotten
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.uuid = rng, load.new_uuid(rng)
        self.web, self.db = rng.randint(2, 6), rng.randint(0, 1)
        self.ends = rng.choice(('kept', 'kept', 'released', 'forgotten'))
        self.revisions = {1: self._names(self.web)}
        self.running: dict[str, tuple[str, str, str]] = {}
        self.is_planned = False
        #: Its plan may be gone from now on.
        self.is_over = False

    def _names(self, web: int) -> frozenset[str]:
        several = [f'web-{n}' for n in range(1, web + 1)] if web > 1 else ['web']
        return frozenset([*several, *(['db'] if self.db else [])])

    def described(self) -> dict[str, Any]:
        """As it is asked for."""
        members = [a_member('web', self.web), *([a_member('db', vcpu=2)] if self.db else [])]
        policies = [{'policy': 'anti-affinity', 'of': 'web'}]
        return a_description(*members, policies=policies, uuid=self.uuid)

    def grow(self) -> None:
        """One more of ``web``, by the next revision."""
        self.web += 1
        self.revisions[2] = self._names(self.web)

    @property
    def names(self) -> frozenset[str]:
        """Of its members as they are to be."""
        return self.revisions[max(self.revisions)]

    def create(self, member: str, name: str, lease: int) -> SelectDestinations:
        """A request for one.

        :param name: by which it asks: that of the member or of its kind
        """
        spec = a_member(member, vcpu=2 if member == 'db' else 1)['spec']
        group = GroupRef(uuid=self.uuid, member=name)
        return load.a_request(self.rng, budget_ms=30_000, lease=lease, group=group, **spec)


class Storm:
    """See the module docstring.

    :ivar broken: what must not be and was seen
    :ivar done: what was done, and how often
    """

    def __init__(self, site: Site, broker: str, groups: int, seed: int) -> None:
        self.site, self.store = site, site.store
        self.rng = random.Random(seed)
        names = [f'host-{n}' for n in range(HOSTS)]
        hosts.add(site.store, names, VCPU=ROOM, MEMORY_MB=ROOM * 1024)
        options: dict[str, Any] = {
            **hosts.SILENT,
            'in_database': {'idle_transaction_seconds': 2},
            'claims': {'sweep_seconds': 0.5},
        }
        site.start(*SCHEDULERS, **options)
        planner = {'plan_seconds': 0.1, 'solver': False}
        site.start(*PLANNERS, command='gantt-planner', planner=planner, **options)
        self.callers = load.Conductors(broker, attempt_seconds=1.0)
        self.planner = PlannerClient(self.callers.carrier, attempt_seconds=1.0)
        self.agents = Agents(site, self.callers.carrier)
        self.groups = [StormGroup(random.Random(self.rng.random())) for _ in range(groups)]
        self.broken: list[str] = []
        self.done: Counter[str] = Counter()
        self._waiting = list(self.groups)
        self.single: list[load.CallRecord] = []
        self._lock = threading.Lock()
        self._over = threading.Event()

    def close(self) -> None:
        """Let go of the broker."""
        self._over.set()
        self.callers.close()

    # -- all at once ------------------------------------------------------------------------
    def run(self, threads: int, minimum: float) -> None:
        """Have all groups through, single requests beside, and processes die meanwhile.

        :param minimum: seconds that it takes at least: some groups may go through again
        """
        end = time.monotonic() + minimum
        beside = [
            threading.Thread(target=self._watched(work), daemon=True)
            for work in (self._trouble, self._singles, self._watch)
        ]
        callers = [
            threading.Thread(target=self._watched(lambda: self._some_groups(end)), daemon=True)
            for _ in range(threads)
        ]
        for thread in [*beside, *callers]:
            thread.start()
        for thread in callers:
            thread.join(minimum + PATIENCE)
        self._over.set()
        for thread in beside:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in [*beside, *callers]), 'somebody hangs'
        assert not self.broken, '\n'.join([*self.broken[:10], str(dict(self.done))])

    def _watched(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Exception:
                self.broken.append(traceback.format_exc())

        return run

    def _count(self, event: str) -> None:
        with self._lock:
            self.done[event] += 1

    def _some_groups(self, end: float) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    if time.monotonic() > end or self.broken:
                        return
                    self._waiting.append(StormGroup(random.Random(self.rng.random())))
                    self.groups.append(self._waiting[-1])
                group = self._waiting.pop()
            self.go_through(group)

    # -- one group ----------------------------------------------------------------------------
    def go_through(self, group: StormGroup) -> None:
        """Plan it, create most of it, change it maybe, and end its plan as it says."""
        lease = FORGOTTEN if group.ends == 'forgotten' else LONG
        group.is_over = group.ends == 'forgotten'
        request = a_plan_request(group.described(), plan_ms=50, lease_seconds=lease)
        try:
            answer = self.asked_twice(group.rng, lambda: self.planner.place_group(request))
        except (exceptions.NoValidHost, exceptions.Conflict):
            self._count('plans without room')
            return
        self._agrees(group, answer, 1)
        group.is_planned = True
        self._count('plans')
        names = sorted(group.names)
        group.rng.shuffle(names)
        for number, member in enumerate(names):
            if number == len(names) // 2 and group.ends == 'kept' and group.rng.random() < 0.5:
                self.grow(group)
            self.come_for(group, member)
        if group.ends == 'released':
            group.is_over = True
            self.release(group)

    def grow(self, group: StormGroup) -> None:
        """A member more."""
        group.grow()
        change = a_change(group.described(), revision=1, plan_ms=50, lease_seconds=LONG)
        try:
            answer = self.asked_twice(group.rng, lambda: self.planner.change_group(change))
        except (exceptions.NoValidHost, exceptions.Conflict):
            self._count('changes without room')
            del group.revisions[2]
            return
        self._agrees(group, answer, 2)
        self._count('changes')

    def release(self, group: StormGroup) -> None:
        """Its free places go; a repeat finds no plan."""
        try:
            answered(lambda: self.planner.release_group_plan(group.uuid))
        except exceptions.NotFound:
            self._count('releases whose answer was lost')
        self._count('releases')

    def asked_twice(self, rng: random.Random, call: Callable[[], T]) -> T:
        """What is answered; now and then it is asked for again, and answered the same."""
        answer = answered(call)
        if rng.random() < 0.3:
            again = answered(call)
            self._count('repeats')
            if _outcome_of(again) != _outcome_of(answer):
                self.broken.append(f'{_outcome_of(answer)}, and then {_outcome_of(again)}')
        return answer

    def _agrees(self, group: StormGroup, answer: GroupAnswer, revision: int) -> None:
        new = [member.name for member in answer.plan.members] if answer.plan else []
        if answer.revision != revision or {*new, *answer.stayed} != group.revisions[revision]:
            self.broken.append(f'group {group.uuid}: told {answer}')

    def come_for(self, group: StormGroup, member: str) -> None:
        """A create, or two at once for one place, and what becomes of the place."""
        lease = group.rng.choice((SHORT, 60))
        kind = member.partition('-')[0]
        names = [group.rng.choice((member, member, kind))]
        names += [member] if group.rng.random() < 0.3 else []
        requests = [group.create(member, name, lease) for name in names]
        answers = self._at_once(group, requests)
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None:
                self._goes_on(group, request, answer)

    def _at_once(
        self, group: StormGroup, requests: list[SelectDestinations]
    ) -> list[Answer | None]:
        answers: list[Answer | None] = [None] * len(requests)
        dice = [random.Random(group.rng.random()) for _ in requests]

        def ask(number: int) -> None:
            try:
                select = self.callers.scheduler.select_destinations
                answers[number] = self.asked_twice(dice[number], lambda: select(requests[number]))
                self._count('creates')
            except (exceptions.Refused, exceptions.Conflict):
                self._count('creates refused')

        threads = [
            threading.Thread(target=self._watched(lambda n=n: ask(n)), daemon=True)  # type: ignore[misc]
            for n in range(len(requests))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def _goes_on(self, group: StormGroup, request: SelectDestinations, answer: Answer) -> None:
        chosen = answer.selections[0][0]
        then = group.rng.choice(('confirm', 'confirm', 'cancel', 'nobody comes'))
        if then == 'confirm':
            outcome = self.agents.confirm(chosen.host, chosen.claim_id or '')
            self._count(f'confirms: {outcome}')
            if outcome == 'ok':
                claim = self.store.claims.load_claim(chosen.claim_id)
                name = claim.member_name or ''
                if name in group.running:
                    self.broken.append(f'group {group.uuid}: {name} runs twice')
                group.running[name] = (chosen.consumer, chosen.host, claim.id)
        elif then == 'cancel':
            answered(lambda: self.callers.scheduler.cancel_claims(request.request_id, timeout=10))
            self._count('cancels')
        else:
            self._count('left to expire')

    # -- beside ---------------------------------------------------------------------------------
    def _singles(self) -> None:
        """Requests of no group on the same hosts; half of them are given back at once."""
        rng = random.Random(self.rng.random())
        while not self._over.is_set():
            spec = a_member('x', vcpu=rng.randint(1, 3))['spec']
            requests = [
                load.a_request(rng, rng.choice((1, 1, 2, 4)), budget_ms=60_000, lease=900, **spec)
                for _ in range(8)
            ]
            calls = self.callers.ask_all(requests, 4)
            for call in calls:
                if call.answer is not None and rng.random() < 0.95:
                    answered(lambda call=call: self.callers.cancel(call))  # type: ignore[misc]
            self.single += calls
            self._count('single requests, by eight')
            self._over.wait(0.2)

    def _trouble(self) -> None:
        """One process after the other is killed or stands still; two at most at a time."""
        rng = random.Random(self.rng.random())
        still: dict[str, float] = {}
        while not self._over.is_set():
            for name in [stopped for stopped, end in still.items() if end < time.monotonic()]:
                self.site.thaw(name)
                del still[name]
            name = rng.choice((*SCHEDULERS, *PLANNERS))
            if len(still) < 2 and name not in still:
                if rng.random() < 0.5:
                    self.site.freeze(name)
                    still[name] = time.monotonic() + rng.uniform(*STILL)
                    self._count('freezes')
                else:
                    self.site.kill(name)
                    self._count('kills')
                    self.site.again(name, command_of(name))
            self._over.wait(rng.uniform(*PAUSE))
        for name in still:
            self.site.thaw(name)

    def _watch(self) -> None:
        while not self._over.is_set():
            self.broken += look(self)
            self._count('looks')
            self._over.wait(0.5)

    # -- without trouble ----------------------------------------------------------------------
    def settle(self) -> None:
        """Every member of a plan that holds is created at last; nothing else is left.

        :raises AssertionError: somebody does not get what is theirs, or something is left over
        """
        for group in self.groups:
            if group.is_planned and group.ends == 'kept':
                for name in sorted(group.names - group.running.keys()):
                    self._create_at_last(group, name)
        until(lambda: not self._reserved_of_groups(), 'what nobody came for is over', 90)
        self.check_answers()

    def _create_at_last(self, group: StormGroup, name: str) -> None:
        until(lambda: place_of(self, group, name).is_free_reservation, f'{name} is free', 90)
        request = group.create(name, name, 60)
        answer = answered(lambda: self.callers.scheduler.select_destinations(request))
        chosen = answer.selections[0][0]
        assert self.agents.confirm(chosen.host, chosen.claim_id or '') == 'ok'
        group.running[name] = (chosen.consumer, chosen.host, chosen.claim_id or '')
        self._count('created at last')

    def _reserved_of_groups(self) -> list[Claim]:
        return [
            claim
            for claim in self.store.claims.list_claims(state='reserved', limit=1000)
            if claim.group
        ]

    def check_answers(self) -> None:
        """The database has what callers were told, and nothing else.

        :raises AssertionError: it has not
        """
        by_id = {c.id: c for claims in load.live_claims(self.store).values() for c in claims}
        for group in self.groups:
            record = self.store.plans.load_group_plan(group.uuid)
            if group.ends == 'released' or not group.is_planned:
                assert record is None
            elif group.ends == 'kept':
                assert group.running.keys() == group.names
            for name, (consumer, host, claim_id) in group.running.items():
                claim = by_id.pop(claim_id)
                has = (claim.member_name, claim.consumer, claim.host, claim.group, claim.state)
                assert has == (name, consumer, host, group.uuid, State.CONFIRMED)
        mine = {call.request.request_id for call in self.single}
        unknown = [claim for claim in by_id.values() if claim.request_id not in mine]
        assert unknown == [], 'nobody was told of these'
        lines = load.broken_promises(self.store, self.single)
        assert [line for line in lines if line[8:44] in mine] == []
        self.site.audit()


def command_of(name: str) -> str:
    """What a process is."""
    return 'gantt-planner' if name in PLANNERS else 'gantt-scheduler'


def place_of(storm: Storm, group: StormGroup, name: str) -> Claim:
    """The one live claim of a member."""
    claims = storm.store.plans.load_reservations([group.uuid])[group.uuid]
    (claim,) = [claim for claim in claims if claim.member_name == name]
    return claim


def look(storm: Storm) -> list[str]:
    """What is wrong at this moment, a line each: half groups, places twice, an audit.

    A plan that holds has a claim for each of its members, whoever has it.
    """
    lines = [f'audit: {line}' for kind in storm.store.claims.audit().values() for line in kind]
    for group in list(storm.groups):
        before = storm.store.plans.load_group_plan(group.uuid)
        claims = storm.store.plans.load_reservations([group.uuid])[group.uuid]
        after = storm.store.plans.load_group_plan(group.uuid)
        counts = Counter(claim.member_name for claim in claims)
        lines += [
            f'group {group.uuid}: {count} live claims of {name}'
            for name, count in counts.items()
            if count > 1
        ]
        if before is None and after is None and claims and not group.is_over:
            lines.append(f'group {group.uuid}: {sorted(map(str, counts))} without a plan')
        if before is None or after is None or before.revision != after.revision or group.is_over:
            continue
        if counts.keys() != group.revisions[before.revision]:
            lines.append(
                f'group {group.uuid}: revision {before.revision} has {sorted(map(str, counts))}, '
                f'not {sorted(group.revisions[before.revision])}'
            )
    return lines


def _outcome_of(answer: Any) -> Any:
    """Return the part of an answer that is the same for all callers."""
    if isinstance(answer, GroupAnswer):
        members = answer.plan.members if answer.plan else []
        return answer.revision, sorted(
            (member.name, member.claim_id, member.host) for member in members
        )
    return [(s[0].claim_id, s[0].consumer, s[0].host) for s in answer.selections]
