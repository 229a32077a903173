# SPDX-License-Identifier: Apache-2.0
"""What waits is bounded in bytes, and no caller of the API holds its threads or its processor."""

import threading

import httpx2 as httpx
import pytest

from devel.memory_store.stores import memory_stores
from gantt import exceptions
from gantt.cmd import policies
from gantt.cmd.http_app import make_app
from gantt.core.records.decision import Outcome
from gantt.db.records import purge
from gantt.groups.http import NoPlans
from gantt.http import gates
from gantt.http.context import Caller, LocalAnswers
from gantt.http.context import HandlerContext as HttpWorld
from gantt.http.handlers import requests
from gantt.http.settings import HttpSettings
from gantt.insights import decision_reader, what_if
from gantt.scheduler import recorder
from gantt.scheduler.request import loop, planner, queue
from gantt.telemetry.metrics import MetricRegistry
from tests.builders import a_decision, a_request, uuid_of
from tests.conftest import READERS, STORES
from tests.http.site import Site, fixed
from tests.world import World


@pytest.mark.finding('H3', 'bodies, queues and what is kept are bounded in bytes')
def test_requests_that_wait_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(queue, 'QUEUED_BYTES_MAX', 100_000)
    world = World(hosts=1)
    large = {'any': ['x' * 1000] * 15}
    handles = [world.ask(a_request(hints=large).build()) for _ in range(20)]
    busy = [h for h in handles if h in world.replies.answers]
    assert len(busy) == 14
    assert all(world.replies.answers[h].outcome is Outcome.BUSY for h in busy)
    world.turn(times=3)
    assert world.select(a_request(hints=large).build()).outcome is Outcome.PLACED
    assert world.scheduler.placing.admission._bytes == 0


@pytest.mark.finding('H3', 'bodies, queues and what is kept are bounded in bytes')
def test_requests_that_are_committed_together_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(loop, 'BATCH_BYTES_MAX', 50_000)
    world = World(hosts=4)
    sizes = []
    commit = world.store.requests.commit

    def committed(drafts):
        sizes.append(sum(len(draft.decision.packed) for draft in drafts))
        return commit(drafts)

    world.store.requests.commit = committed
    handles = [world.ask(a_request(hints={'any': ['x' * 1000] * 15}).build()) for _ in range(9)]
    world.turn(times=9)
    assert all(world.replies.answers[h].outcome is Outcome.PLACED for h in handles)
    assert sum(sizes) > 9 * 15_000
    assert max(sizes) < 60_000


@pytest.mark.finding('H3', 'decisions that are kept are bounded in bytes')
@pytest.mark.parametrize('kind', READERS)
def test_decisions_that_are_kept_are_bounded_in_bytes(kind, make_store, monkeypatch):
    monkeypatch.setattr(purge, 'PIECE_BYTES_MAX', 1)
    store = make_store(kind)
    keep = {'decisions': 1000, 'tombstone_seconds': 1e6, 'request_seconds': 1e6}

    def stay():
        return [decision.id for decision in reversed(store.records.list_decisions(limit=100))]

    def save(size):
        saved.append(a_decision(packed=b'x' * size))
        store.records.save_decisions(saved[-1:])

    saved = []
    for size in (9000, 100, 4000, 4000):
        save(size)
    ids = [decision.id for decision in saved]
    assert store.retention.purge(limit=10, decision_bytes=20_000, **keep) == 0
    save(4000)
    assert store.retention.purge(limit=10, decision_bytes=20_000, **keep) == 1
    assert stay() == [decision.id for decision in saved[1:]]
    save(20_001)
    # At most so many at once; one that is too large by itself does not stay either.
    gone = [store.retention.purge(limit=2, decision_bytes=20_000, **keep) for _ in range(4)]
    assert gone == [2, 2, 1, 0]
    assert stay() == []
    save(10)
    assert store.retention.purge(limit=10, decision_bytes=20_000, **keep) == 0
    assert stay() == [saved[-1].id]
    assert ids[0] not in stay()


@pytest.mark.finding('H3', 'bodies, queues and what is kept are bounded in bytes')
def test_decisions_that_wait_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(recorder, 'WAITING_BYTES_MAX', 100_000)
    monkeypatch.setattr(recorder, 'BATCH_BYTES_MAX', 40_000)
    world = World(hosts=1)
    large = a_request(hints={'any': ['x' * 1000] * 15}, resources={'VCPU': 99}).build()
    world.select(large)
    [record] = world.recorder.records
    batches = []
    store = memory_stores()
    store.records.save_decisions = lambda batch: batches.append(len(batch))
    keeping = recorder.StoreRecorder(store.records, MetricRegistry(), 1000)
    for _ in range(20):
        keeping.record(record)
    assert keeping.flush() == 100_000 // recorder._size(record)
    assert max(batches) * recorder._size(record) <= 40_000
    assert keeping._bytes == 0


@pytest.mark.finding('M2', 'whose consumers they are is one look')
@pytest.mark.parametrize('kind', STORES)
def test_the_live_claims_of_many_consumers_are_one_look(make_store, kind):
    world = World(make_store(kind), hosts=2)
    consumers = [uuid_of('consumer', n) for n in range(1000)]
    world.select(a_request(consumers=consumers[:3]).build())
    world.select(a_request(consumers=[uuid_of('other')]).build())
    claims = world.store.claims.live_claims_of([*consumers, 'no id'])
    assert {claim.consumer for claim in claims} == set(consumers[:3])
    assert world.store.claims.live_claims_of([]) == []


@pytest.mark.finding('M2', 'whose consumers they are is one look')
def test_a_request_of_a_member_reads_claims_once(monkeypatch):
    site = Site()
    looks = []
    owners = site.world.store.quotas.owners_of
    monkeypatch.setattr(
        site.world.store.quotas, 'owners_of', lambda c: looks.append(len(c)) or owners(c)
    )
    # No consumer is named otherwise.
    monkeypatch.setattr(site.world.store.claims, 'live_claims_of', lambda c: looks.extend(c) or [])
    monkeypatch.setattr(
        site.world.store.claims, 'list_claims', lambda **_: looks.append('one by one') or []
    )
    body = a_request(consumers=[uuid_of(n) for n in range(1000)], dry_run=True).build()
    world = HttpWorld(
        insights=site.insights,
        stores=site.world.store,
        client=site.client,
        metrics=site.metrics,
        settings=HttpSettings(),
        checks={},
        policy=policies.defaults(),
        gates=gates.quota_gates(HttpSettings()),
        answers=LocalAnswers(site.insights),
        routes=(),
    )
    # In the trial of who may not claim it is not looked at whose the consumers are.
    monkeypatch.setattr(world.policy, 'allows', lambda rule, caller: True)
    requests.request_access.check_request(world, Caller(project='red', roles=('member',)), body)
    assert looks == [1000]


def client_of(site, schedulers, settings):
    app = make_app(site.insights, site.world.store, schedulers, site.metrics, settings)
    return httpx.Client(transport=httpx.WSGITransport(app=app), base_url='http://localhost')


class Held:
    """A client whose schedulers do not answer until they may."""

    def __init__(self):
        self.begun, self.go_on, self.budgets = threading.Semaphore(0), threading.Event(), []
        self.cancelled = 0

    def select_destinations(self, request):
        self.budgets.append(request.budget_ms)
        self.begun.release()
        assert self.go_on.wait(60)
        raise AssertionError('nobody asks for more')

    def cancel_claims(self, request_id, reason=''):
        self.cancelled += 1
        self.begun.release()
        assert self.go_on.wait(60)


@pytest.mark.finding('M3', 'a caller of the API cannot hold all of its threads')
def test_placements_that_wait_leave_threads_for_others():
    site = Site()
    held = Held()
    caller = client_of(site, held, HttpSettings(placements_max=3, placements_of_one_max=2))

    def ask(number, user='ann'):
        body = {
            'request_id': uuid_of(number),
            'consumers': [uuid_of(number, 1)],
            'spec': {'resources': {'VCPU': 1}},
            'budget_ms': 600_000,
        }
        headers = {'X-User-Id': user, 'X-Project-Id': f'project of {user}'}
        return caller.post('/v1/requests', json=body, headers=headers)

    waiting = [
        threading.Thread(target=ask, args=(n, user), daemon=True)
        for n, user in enumerate(['ann', 'bob', 'cem'])
    ]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        assert held.begun.acquire(timeout=30)
    refused = ask(7, 'eve')
    assert refused.status_code == 503
    assert int(refused.headers['Retry-After']) >= 1
    assert caller.get('/v1/hosts').status_code == 200
    held.go_on.set()
    for thread in waiting:
        thread.join(30)
    assert held.budgets == [requests.BUDGET_MS_MAX] * 3


@pytest.mark.finding('M3', 'a caller of the API cannot hold all of its threads')
def test_cancels_that_wait_leave_threads_for_others():
    site = Site()
    held = Held()
    site.place(1)
    caller = client_of(site, held, HttpSettings(placements_max=2, placements_of_one_max=2))
    path = f'/v1/requests/{fixed(1)}?reason=gone'
    waiting = [threading.Thread(target=caller.delete, args=(path,), daemon=True) for _ in range(2)]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        assert held.begun.acquire(timeout=30)
    assert caller.delete(path).status_code == 503
    assert caller.get('/v1/hosts').status_code == 200
    held.go_on.set()
    for thread in waiting:
        thread.join(30)
    assert held.cancelled == 2
    assert caller.delete(path).status_code == 200  # the places of those that went are free


class HeldPlans(NoPlans):
    """Who plans groups, and does not answer until it may."""

    def __init__(self):
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()

    def place_group(self, request):
        self.begun.release()
        assert self.go_on.wait(60)
        raise exceptions.Unavailable('no answer from gantt-planner')


@pytest.mark.finding('P14', 'a planner that does not answer costs requests nothing')
def test_plans_that_wait_leave_threads_for_requests():
    site, plans = Site(), HeldPlans()
    app = make_app(
        site.insights,
        site.world.store,
        site.client,
        site.metrics,
        HttpSettings(plans_max=2, placements_max=3),
        plans=plans,
    )
    caller = httpx.Client(transport=httpx.WSGITransport(app=app), base_url='http://localhost')

    def ask(number, path='/v1/group-plans', **body):
        headers = {
            'OpenStack-API-Version': 'scheduler latest',
            'X-User-Id': f'user {number}',
            'X-Project-Id': f'project {number}',
        }
        return caller.post(path, json={'request_id': uuid_of(number), **body}, headers=headers)

    member = {'name': 'web', 'spec': {'resources': {'VCPU': 1}}}
    waiting = [
        threading.Thread(
            target=ask, args=(n,), kwargs={'group': {'members': [member]}}, daemon=True
        )
        for n in range(2)
    ]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        assert plans.begun.acquire(timeout=30)
    for number in (2, 3):
        refused = ask(number, group={'members': [member]})
        assert refused.status_code == 503 and refused.headers['Retry-After']
        assert 'plans of groups' in refused.json()['errors'][0]['detail']
    placed = ask(4, '/v1/requests', consumers=[uuid_of(4, 1)], spec=member['spec'])
    assert placed.status_code == 201, placed.text
    plans.go_on.set()
    for thread in waiting:
        thread.join(30)
    answered = ask(5, group={'members': [member]})
    assert 'no answer from gantt-planner' in answered.json()['errors'][0]['detail']


@pytest.mark.finding('M4', 'what is placed in the API process has a bound and a deadline')
def test_trials_are_bounded(monkeypatch):
    site = Site()
    trial_gates = gates.quota_gates(HttpSettings(trials_max=1))
    monkeypatch.setattr(gates, 'quota_gates', lambda settings: trial_gates)
    caller = client_of(site, site.client, HttpSettings())
    body = {
        'request_id': uuid_of(1),
        'consumers': [uuid_of(2, n) for n in range(20)],
        'spec': {'resources': {'VCPU': 1}},
        'dry_run': True,
    }
    site.place(1)
    replay = f'/v1/decisions/{fixed(1)}/replay'
    assert caller.post('/v1/requests', json=body).status_code == 200
    with trial_gates.trials.admit(Caller()):
        for path, posted in (
            (replay, {}),
            ('/v1/requests', body),
            ('/v1/what-if', {'request': body}),
            ('/v1/capacity', {'spec': body['spec']}),
        ):
            response = caller.post(path, json=posted)
            assert response.status_code == 503, path
            assert response.headers['Retry-After']
    monkeypatch.setattr(what_if, 'HOST_CHECKS_MAX', 60)
    response = caller.post('/v1/requests', json=body)
    assert response.status_code == 400
    assert 'expected at most 10' in response.json()['errors'][0]['detail']
    monkeypatch.setattr(what_if, 'HOST_CHECKS_MAX', 10**6)
    monkeypatch.setattr(planner, 'DRY_RUN_SECONDS_MAX', 0.0)
    assert caller.post('/v1/requests', json=body).status_code == 504


@pytest.mark.finding('M4', 'what is placed in the API process has a bound and a deadline')
def test_a_replay_has_a_deadline(monkeypatch):
    site = Site()
    site.place(1, 20)
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()
    assert site.insights.replay(fixed(1)).same
    monkeypatch.setattr(decision_reader, 'SECONDS_MAX', 0.0)
    with pytest.raises(exceptions.Expired):
        site.insights.replay(fixed(1))
