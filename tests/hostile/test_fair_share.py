# SPDX-License-Identifier: Apache-2.0
"""No project takes the places of another by asking more: H2, M3, M9."""

import collections
import contextlib
import gc
import socket
import threading
import time
import tracemalloc
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devel.doubles import ManualClock
from devel.memory_store.stores import memory_stores
from gantt import exceptions
from gantt.core.fair_queue import IDLE_MAX, FairQueue
from gantt.core.records.decision import Outcome
from gantt.core.records.retention import Piece, pieces_to_delete
from gantt.db.records import purge
from gantt.http import fair_tasks
from gantt.http.context import Caller
from gantt.http.gates import QuotaGate
from gantt.http.server import HttpServer
from gantt.scheduler import recorder
from gantt.scheduler.request import queue
from gantt.telemetry.metrics import MetricRegistry
from tests.builders import a_decision
from tests.conftest import READERS
from tests.world import Replies, World, a_request

WEIGHTS = {'red': 1, 'blue': 2, 'green': 4}


class Reference:
    """The same as slowly and plainly as it can be said: the least start of all that wait.

    Starts are exact fractions, and nobody is ever forgotten.
    """

    def __init__(self):
        self.now = Fraction(0)
        self.ends = {}
        self.came = 0
        self.waiting = []  # [owner, item, cost]
        self.touched = {}

    def put(self, owner, item, cost):
        if not any(entry[0] == owner for entry in self.waiting):
            self.ends[owner] = max(self.ends.get(owner, Fraction(0)), self.now)
        self.waiting.append((owner, item, cost))

    def starts(self):
        """Of each owner who waits: when its first item is due."""
        return {owner: self.ends[owner] for owner, _, _ in self.waiting}

    def pop(self, owner):
        """Take the first of an owner, who is one of those that are next."""
        starts = self.starts()
        assert starts[owner] == min(starts.values()), 'another was to be served first'
        taken = next(entry for entry in self.waiting if entry[0] == owner)
        self.waiting.remove(taken)
        self.now = max(self.now, self.ends[owner])
        self.ends[owner] += Fraction(taken[2], WEIGHTS[owner])
        if not self.waiting:
            self.now, self.ends = Fraction(0), {}
        return taken[1]


STEPS = st.lists(
    st.one_of(st.tuples(st.sampled_from(sorted(WEIGHTS)), st.integers(1, 9)), st.just(None)),
    max_size=60,
)


def a_queue():
    return FairQueue(WEIGHTS)


def popped(queue):
    item = queue.first()
    assert queue.pop(item[2]) is item
    return item


@pytest.mark.finding('H2', 'who waits is served by weight, not by arrival')
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_who_is_next_is_who_a_plain_reference_says(steps):
    queue, reference = a_queue(), Reference()
    served = collections.defaultdict(list)
    expected = collections.defaultdict(list)
    for number, step in enumerate(steps):
        if step is not None:
            owner, cost = step
            item = (owner, number, cost)
            queue.put(owner, item)
            reference.put(owner, item, cost)
            expected[owner].append(item)
        elif len(queue):
            item = popped(queue)
            assert reference.pop(item[0]) is item
            served[item[0]].append(item)
        assert len(queue) == len(reference.waiting)
        assert queue.owners <= len(WEIGHTS)
    while len(queue):  # whatever waits is served at once
        item = popped(queue)
        assert reference.pop(item[0]) is item
        served[item[0]].append(item)
    assert served == expected
    with pytest.raises(IndexError):
        queue.pop()


@pytest.mark.finding('H2', 'who waits is served by weight, not by arrival')
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=120, max_size=120), st.integers(1, 100))
def test_who_always_waits_gets_its_share_within_one_item_of_each(costs, times):
    queue = a_queue()
    for number, cost in enumerate(costs):
        owner = sorted(WEIGHTS)[number // 40]
        queue.put(owner, (owner, number, cost))
    share = dict.fromkeys(WEIGHTS, 0.0)
    remaining = dict.fromkeys(WEIGHTS, 40)
    for _ in range(times):
        owner, _, cost = popped(queue)
        share[owner] += cost / WEIGHTS[owner]
        remaining[owner] -= 1
        if not all(remaining.values()):
            break
        for name in WEIGHTS:
            for other in WEIGHTS:
                assert share[name] - share[other] <= 9 / WEIGHTS[name] + 9 / WEIGHTS[other]


@pytest.mark.finding('H2', 'the projects that are remembered are bounded')
def test_owners_who_have_nothing_here_are_forgotten():
    queue = FairQueue()
    for number in range(20 * IDLE_MAX):
        queue.put(f'p{number}', number)
        if number % 300 == 0:
            queue.put('always', number)
        queue.pop(100.0)
        assert queue.owners <= len(queue) + IDLE_MAX + 1
        assert len(queue._heap) <= 2 * queue.owners + IDLE_MAX + 1


@pytest.mark.finding('H2', 'who waits is served by weight, not by arrival')
def test_what_was_not_served_is_first_again_and_costs_nothing():
    queue = a_queue()
    items = [('red', number, 5) for number in range(3)]
    other = ('blue', 3, 1)
    for item in [*items, other]:
        queue.put(item[0], item)
    assert [popped(queue) for _ in range(2)] == [items[0], other]
    queue.put_back('red', items[0], refund=5)
    assert queue.has_returned('red', items[0])
    assert [popped(queue) for _ in range(3)] == items


# -- the queue of a scheduler ------------------------------------------------------------
def of(project, **fields):
    return a_request(project_id=project, **fields)


def outcomes(world, handles):
    return [world.replies.answers[h].outcome for h in handles if h in world.replies.answers]


@pytest.mark.finding('H2', 'who waits is served by weight, not by arrival')
def test_a_flood_of_one_project_is_not_placed_before_what_another_asks():
    world = World(hosts=20, claims_per_commit=4)
    flood = [world.ask(of('red')) for _ in range(40)]
    few = [world.ask(of('blue')) for _ in range(2)]
    world.turn()
    assert outcomes(world, few) == [Outcome.PLACED] * 2
    assert len(outcomes(world, flood)) == 2
    world.turn(times=12)
    assert outcomes(world, flood) == [Outcome.PLACED] * 40


@pytest.mark.finding('H2', 'who waits is served by weight, not by arrival')
def test_places_are_given_by_the_weights_of_projects():
    world = World(hosts=40, claims_per_commit=5, project_weights={'blue': 4.0})
    red = [world.ask(of('red')) for _ in range(40)]
    blue = [world.ask(of('blue')) for _ in range(40)]
    world.turn(times=6)
    assert len(outcomes(world, blue)) == 24
    assert len(outcomes(world, red)) == 6


@pytest.mark.finding('H2', 'requests with many members and large bodies hold nobody up')
def test_large_requests_count_by_their_members_and_do_not_fill_the_batches():
    world = World(hosts=40, claims_per_commit=10)
    for _ in range(20):
        world.ask(of('red', count=10))
    few = [world.ask(of('blue')) for _ in range(3)]
    world.turn(times=2)
    assert outcomes(world, few) == [Outcome.PLACED] * 3


@pytest.mark.finding('H2', 'no project fills the queue so that another is refused')
def test_in_a_full_queue_who_has_most_gives_way_newest_first():
    world = World(hosts=10, queue_limit=10, retry_after_ms=750)
    flood = [world.ask(of('red')) for _ in range(14)]
    assert outcomes(world, flood) == [Outcome.BUSY] * 4
    few = [world.ask(of('blue')) for _ in range(7)]
    assert outcomes(world, few) == [Outcome.BUSY] * 2
    assert [h in world.replies.answers for h in few] == [False] * 5 + [True] * 2
    assert [h in world.replies.answers for h in flood] == [False] * 5 + [True] * 9
    assert all(a.retry_after_ms == 750 for a in world.replies.answers.values())
    # Nobody can be pushed below its share by who has its own.
    late = world.ask(of('red'))
    assert outcomes(world, [late]) == [Outcome.BUSY]
    assert world.scheduler.placing.admission.depth == 10
    world.turn(times=3)
    assert outcomes(world, [*flood[:5], *few[:5]]) == [Outcome.PLACED] * 10
    door = world.scheduler.placing.admission
    assert (door.depth, door.projects, door._bytes) == (0, 0, 0)


@pytest.mark.finding('H2', 'no project fills the queue so that another is refused')
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from(['red', 'blue', 'green', 'grey']), st.integers(1, 4)), max_size=80
    )
)
def test_nobody_is_refused_who_has_less_than_its_share(steps):
    limit, weights, replies = 12, {'blue': 2.0}, Replies()
    door = queue.Admission(limit, 500, ManualClock(), weights)
    for step in steps:
        if isinstance(step, int):
            for call in door.drain(step, 1 << 20, 0.0, 0.0):
                door.leave(call)
            continue
        before = {project: held.count for project, held in door._size_by_project.items()}
        total = sum(weights.get(name, 1.0) for name in {*before, step})
        share = {name: limit * weights.get(name, 1.0) / total for name in {*before, step}}
        handle = (step, object())
        refused = [refusal.handle for refusal in door.submit(of(step), handle, replies)]
        assert len(refused) <= 1
        assert door.depth <= limit
        for project, _ in refused:
            assert door.depth == limit
            if project == step:
                assert refused == [handle]
                assert before.get(step, 0) + 1 > share[step]
            else:
                assert before[project] > share[project]
                assert before[project] / share[project] > (before.get(step, 0) + 1) / share[step]
    while door.depth:
        for call in door.drain(2, 1 << 20, 0.0, 0.0):
            door.leave(call)
    assert (door.projects, door._bytes) == (0, 0)


@pytest.mark.finding('H2', 'no project fills the queue so that another is refused')
def test_large_bodies_of_one_project_leave_room_for_those_of_another(monkeypatch):
    monkeypatch.setattr(queue, 'QUEUED_BYTES_MAX', 100_000)
    world = World(hosts=4)
    large = {'hints': {'any': ['x' * 1000] * 15}}
    flood = [world.ask(of('red', **large)) for _ in range(20)]
    assert len(outcomes(world, flood)) == 14
    few = [world.ask(of('blue', **large)) for _ in range(2)]
    assert outcomes(world, few) == []
    assert len(outcomes(world, flood)) == 16
    assert world.scheduler.placing.admission._bytes <= 100_000
    world.turn(times=4)
    assert outcomes(world, few) == [Outcome.PLACED] * 2


@pytest.mark.finding('H2', 'no project fills the queue so that another is refused')
def test_requests_that_wait_for_the_database_give_way_as_well():
    world = World(hosts=2, queue_limit=6)
    world.scheduler.cache.note_went_back('a test says so')
    flood = [world.ask(of('red')) for _ in range(6)]
    assert world.scheduler.placing.step() == 6
    assert outcomes(world, flood) == []
    few = [world.ask(of('blue')) for _ in range(3)]
    assert outcomes(world, few) == []
    assert [h in world.replies.answers for h in flood] == [False] * 3 + [True] * 3
    world.turn(times=30)
    assert outcomes(world, [*flood[:3], *few]) == [Outcome.PLACED] * 6


@pytest.mark.finding('H2', 'who is answered "busy" has claimed nothing')
def test_what_a_batch_failed_with_after_its_commit_gives_way_to_nobody(monkeypatch):
    world = World(hosts=2, queue_limit=4)
    placing = world.scheduler.placing
    settle = placing._cache.commit_applied

    def fail(*_args):
        monkeypatch.setattr(placing._cache, 'commit_applied', settle)
        raise RuntimeError('a test says so')

    monkeypatch.setattr(placing._cache, 'commit_applied', fail)
    flood = [world.ask(of('red')) for _ in range(4)]
    with pytest.raises(RuntimeError) as e:
        placing.step()
    placing._recover_from_failure(e.value)
    few = [world.ask(of('blue')) for _ in range(2)]
    assert outcomes(world, flood) == []
    assert outcomes(world, few) == [Outcome.BUSY] * 2
    world.turn(times=30)
    assert outcomes(world, flood) == [Outcome.PLACED] * 4
    assert len(world.store.claims.list_claims()) == 4


# -- the threads of the API --------------------------------------------------------------
@pytest.mark.finding('H2', 'no project takes all threads of the API')
def test_a_project_leaves_as_much_of_a_gate_as_it_has_whoever_asks_for_it():
    gate = QuotaGate('requests', 12, 12)
    flood = [gate.admit(Caller(project='red', user=f'user-{n}')) for n in range(12)]
    entered = []
    for passage in flood:
        try:
            passage.__enter__()
        except exceptions.Busy as e:
            assert 'of this project' in e.kwargs['reason']
        else:
            entered.append(passage)
    assert len(entered) == 6
    others = [gate.admit(Caller(project=name)) for name in ('blue', 'green', 'grey')]
    for passage in others:
        passage.__enter__()
    for passage in [*entered, *others]:
        passage.__exit__(None, None, None)
    with gate.admit(Caller(project='red')):
        pass


@pytest.mark.finding('H2', 'what services place counts for whom it is placed')
def test_what_a_service_places_for_a_project_has_the_room_of_that_project():
    gate = QuotaGate('requests', 4, 4)
    nova = Caller(project='service', user='nova', everywhere=True)
    with gate.admit(nova, 'red'), gate.admit(nova, 'red'):
        with pytest.raises(exceptions.Busy), gate.admit(nova, 'red'):
            pass
        with gate.admit(nova, 'blue'):
            pass


class Slow:
    """An application whose one thread stands still until it may go on."""

    def __init__(self):
        self.begun, self.go_on, self.order = threading.Semaphore(0), threading.Event(), []

    def __call__(self, environ, start_response):
        token = environ['HTTP_X_AUTH_TOKEN']
        environ[fair_tasks.PROJECT_KEY] = token.partition('-')[0]
        size = len(environ['wsgi.input'].read())
        self.order.append((environ[fair_tasks.PROJECT_KEY], size))
        self.begun.release()
        if token.endswith('-waits'):
            assert self.go_on.wait(60)
        start_response('200 OK', [('Content-Length', '0')])
        return [b'']


class Callers:
    """Connections to a server of few threads."""

    def __init__(self, threads=1, app=None):
        self.app = app or Slow()
        self.server = HttpServer(self.app, '127.0.0.1', 0, threads=threads)
        self.server.start()
        self.open = contextlib.ExitStack()

    def ask(self, token, body=b''):
        line = socket.create_connection(('127.0.0.1', self.server.port), timeout=60)
        self.open.enter_context(line)
        head = f'POST / HTTP/1.1\r\nHost: a\r\nX-Auth-Token: {token}\r\n'
        line.sendall(f'{head}Content-Length: {len(body)}\r\n\r\n'.encode())
        line.sendall(body)
        return line

    def until_waiting(self, count):
        end = time.monotonic() + 60
        while self.server._server.task_dispatcher.queue.waiting < count:
            assert time.monotonic() < end
            time.sleep(0.01)

    def until_idle(self):
        """An answer is there before its thread is free."""
        end = time.monotonic() + 60
        while self.server._server.task_dispatcher.queue._begun_by_owner:
            assert time.monotonic() < end
            time.sleep(0.01)

    def close(self):
        if isinstance(self.app, Slow):
            self.app.go_on.set()
        self.open.close()
        self.server.stop(10)


@pytest.fixture
def callers():
    clients = Callers()
    yield clients
    clients.close()


@pytest.mark.finding('H2', 'no project takes all threads of the API')
def test_projects_take_turns_at_the_threads_of_the_api(callers):
    for token in ('red-1', 'red-waits', 'blue-1'):
        callers.app.go_on.set()
        assert callers.ask(token).recv(100).startswith(b'HTTP/1.1 200')
    callers.until_idle()
    callers.app.go_on.clear()
    callers.ask('red-waits')
    for _ in range(4):
        assert callers.app.begun.acquire(timeout=60)
    flood = [callers.ask('red-1') for _ in range(12)]
    callers.until_waiting(12)
    # New tokens are no new owners: they are one together, and so is who has none.
    unknown = [callers.ask(f'red-new-{n}') for n in range(6)]
    few = [callers.ask('blue-1') for _ in range(2)]
    callers.until_waiting(20)
    callers.app.go_on.set()
    for line in [*flood, *unknown, *few]:
        assert line.recv(100).startswith(b'HTTP/1.1 200')
    order = [project for project, _ in callers.app.order[4:]]
    assert len(order) == 20
    assert [at for at, project in enumerate(order) if project == 'blue'][1] <= 6


@pytest.mark.finding('H2', 'no project takes all threads of the API')
def test_a_project_has_half_of_the_threads_of_the_api_at_most():
    clients = Callers(threads=4)
    try:
        clients.app.go_on.set()
        for token in ('red-waits', 'blue-1'):
            assert clients.ask(token).recv(100).startswith(b'HTTP/1.1 200')
        clients.until_idle()
        clients.app.go_on.clear()
        flood = [clients.ask('red-waits') for _ in range(6)]
        clients.until_waiting(4)
        for _ in range(3):
            assert clients.ask('blue-1').recv(100).startswith(b'HTTP/1.1 200')
        assert [project for project, _ in clients.app.order[2:]].count('red') == 2
        clients.app.go_on.set()
        for line in flood:
            assert line.recv(100).startswith(b'HTTP/1.1 200')
    finally:
        clients.close()


@pytest.mark.finding('H2', 'no project takes all threads of the API')
def test_while_one_project_floods_a_burst_of_another_waits_and_is_not_refused():
    gate, guarded, refused = QuotaGate('requests', 12, 8), Slow(), []

    def app(environ, start_response):
        project = environ['HTTP_X_AUTH_TOKEN'].partition('-')[0]
        try:
            with gate.admit(Caller(project=project)):
                return guarded(environ, start_response)
        except exceptions.Busy:
            environ[fair_tasks.PROJECT_KEY] = project
            refused.append(project)
            start_response('503 Busy', [('Content-Length', '0')])
            return [b'']

    clients = Callers(threads=16, app=app)
    try:
        guarded.go_on.set()
        for token in ('red-waits', 'blue-waits'):
            assert clients.ask(token).recv(100).startswith(b'HTTP/1.1 200')
        clients.until_idle()
        guarded.go_on.clear()
        guarded.order.clear()
        flood = [clients.ask('red-waits') for _ in range(40)]
        clients.until_waiting(34)
        burst = [clients.ask('blue-waits') for _ in range(12)]
        clients.until_waiting(34 + 9)
        for _ in range(2 + 6 + 3):
            assert guarded.begun.acquire(timeout=60)
        begun = collections.Counter(project for project, _ in guarded.order)
        assert begun == {'red': 6, 'blue': 3}
        guarded.go_on.set()
        for line in [*burst, *flood]:
            assert line.recv(100).startswith(b'HTTP/1.1 200')
        assert refused == []
        begun = collections.Counter(project for project, _ in guarded.order)
        assert begun == {'red': 40, 'blue': 12}
    finally:
        guarded.go_on.set()
        clients.close()


@pytest.mark.finding('H2', 'under overload projects are served by weight, not by arrival')
def test_a_large_body_counts_as_several_threads():
    body = b'x' * (2 * fair_tasks.BODY_BYTES_PER_THREAD + 1)
    clients = Callers(threads=16)
    try:
        clients.app.go_on.set()
        assert clients.ask('red-waits').recv(100).startswith(b'HTTP/1.1 200')
        clients.until_idle()
        clients.app.go_on.clear()
        clients.app.order.clear()
        lines = [clients.ask('red-waits', body) for _ in range(5)]
        clients.until_waiting(3)
        lines += [clients.ask('blue-waits')]
        while len(clients.app.order) < 3:
            assert clients.app.begun.acquire(timeout=60)
        assert sorted(clients.app.order) == [('blue', 0), ('red', len(body)), ('red', len(body))]
        clients.app.go_on.set()
        for line in lines:
            assert line.recv(100).startswith(b'HTTP/1.1 200')
    finally:
        clients.close()


@pytest.mark.finding('H2', 'under overload projects are served by weight, not by arrival')
def test_connections_that_wait_are_not_looked_at_and_count(callers):
    sockets = callers.server._server._map
    callers.ask('red-waits')
    assert callers.app.begun.acquire(timeout=60)
    alone = len(dict(sockets)), len(sockets)
    lines = [callers.ask('red-1') for _ in range(20)]
    callers.until_waiting(20)
    assert (len(list(sockets.items())), len(sockets)) == (alone[0], alone[1] + 20)
    lines.pop(0).close()  # gone before it was its turn
    callers.app.go_on.set()
    for line in lines:
        assert line.recv(100).startswith(b'HTTP/1.1 200')
        line.close()
    end = time.monotonic() + 60
    while len(sockets) >= alone[1]:  # the first of all is closed as well
        callers.open.close()
        assert time.monotonic() < end
        time.sleep(0.01)
    assert sockets._unpolled == {}


@pytest.mark.finding('H3', 'bodies, queues and what is kept are bounded in bytes')
def test_bodies_that_wait_for_a_thread_of_the_api_are_not_in_memory(callers):
    body = b'x' * 120_000
    callers.ask('red-waits')
    assert callers.app.begun.acquire(timeout=60)
    gc.collect()
    tracemalloc.start()
    try:
        lines = [callers.ask('red-1', body) for _ in range(40)]
        callers.until_waiting(40)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 40 * len(body) / 4
    callers.app.go_on.set()
    for line in lines:
        assert line.recv(100).startswith(b'HTTP/1.1 200')
    assert callers.app.order[1:] == [('red', len(body))] * 40


# -- what is kept ------------------------------------------------------------------------
KEEP = {'tombstone_seconds': 1e6, 'request_seconds': 1e6}


def save(store, *projects, size=10):
    """A decision of each; their ids."""
    decisions = [a_decision(project_id=project, packed=b'x' * size) for project in projects]
    for decision in decisions:
        store.records.save_decisions([decision])
    return [decision.id for decision in decisions]


def stay(store):
    return {decision.id for decision in store.records.list_decisions(limit=1000)}


@pytest.mark.finding('M9', 'no project flushes the decisions of another')
@pytest.mark.parametrize('kind', READERS)
def test_decisions_that_are_too_many_go_from_who_has_most_oldest_first(kind, make_store):
    store = make_store(kind)
    few = save(store, 'blue', 'blue', None)
    flood = save(store, *['red'] * 12)
    assert store.retention.purge(decisions=10, limit=100, **KEEP) == 5
    assert stay(store) == {*few, *flood[5:]}
    more = save(store, *['blue'] * 4)
    # Red has 7 and blue 6 of them now: they end with as many each.
    assert store.retention.purge(decisions=9, limit=2, **KEEP) == 2
    assert store.retention.purge(decisions=9, limit=100, **KEEP) == 3
    assert stay(store) == {few[2], *[*few[:2], *more][-4:], *flood[-4:]}
    assert store.retention.purge(decisions=9, limit=100, **KEEP) == 0
    assert store.retention.purge(decisions=0, limit=100, **KEEP) == 9
    assert save(store, 'red') and store.retention.purge(decisions=9, limit=100, **KEEP) == 0


@pytest.mark.finding('M9', 'no project flushes the decisions of another')
@pytest.mark.parametrize('kind', READERS)
def test_decisions_of_too_many_bytes_go_from_who_has_most_of_them(kind, make_store, monkeypatch):
    monkeypatch.setattr(purge, 'PIECE_BYTES_MAX', 1)
    store = make_store(kind)
    few = save(store, *['blue'] * 5, size=100)
    large = save(store, *['red'] * 3, size=4000)
    assert store.retention.purge(decisions=1000, decision_bytes=9000, limit=100, **KEEP) == 1
    assert stay(store) == {*few, *large[1:]}


@pytest.mark.finding('M9', 'no project flushes the decisions of another')
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from('abcd'), st.integers(1, 5)), max_size=40),
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(0, 60)),
)
def test_who_has_less_than_an_equal_part_loses_nothing(rows, most, most_bytes):
    held = collections.defaultdict(list)
    for number, (owner, size) in enumerate(rows):
        held[owner].append(Piece(number, 1, size))
    gone = pieces_to_delete(held, most, most_bytes, 1000)
    remaining = {owner: pieces[gone.get(owner, 0) :] for owner, pieces in held.items()}
    count = sum(map(len, remaining.values()))
    size = sum(piece.bytes for pieces in remaining.values() for piece in pieces)
    assert count <= most
    assert most_bytes is None or size <= most_bytes
    if most_bytes is None and held:
        assert count == min(most, len(rows)), 'more went than had to'
        for owner, number in gone.items():
            assert len(held[owner]) - number + 1 >= most / len(held)
            assert all(len(remaining[owner]) + 1 >= len(other) for other in remaining.values())
    assert sum(pieces_to_delete(held, most, most_bytes, 3).values()) == min(3, sum(gone.values()))


@pytest.mark.finding('M9', 'no project flushes the decisions of another')
def test_decisions_that_wait_are_dropped_from_who_has_most(monkeypatch):
    metrics, store, stored = MetricRegistry(), memory_stores(), []
    store.records.save_decisions = stored.extend
    keeping = recorder.StoreRecorder(store.records, metrics, 10)
    few = [a_decision(project_id='blue') for _ in range(3)]
    flood = [a_decision(project_id='red') for _ in range(30)]
    for decision in [*few, *flood]:
        keeping.record(decision)
    assert metrics.value('gantt_decisions_dropped_total') == 23
    assert keeping.flush() == 10
    assert [decision.id for decision in stored] == [decision.id for decision in [*few, *flood[23:]]]
    monkeypatch.setattr(recorder, 'WAITING_BYTES_MAX', 5000)
    small = [a_decision(project_id='blue', packed=b'x' * 100) for _ in range(5)]
    large = [a_decision(project_id='red', packed=b'x' * 2000) for _ in range(3)]
    for decision in [*small, *large]:
        keeping.record(decision)
    assert keeping.flush() == 7
    assert {decision.id for decision in small} <= {decision.id for decision in stored}
