# SPDX-License-Identifier: Apache-2.0
"""What is placed by columns is committed as what is placed one after another, on every store."""

import random

import pytest

from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.run import Run
from gantt.core.records.decision import Answer
from tests.builders import CLEAN, uuid_of
from tests.conftest import STORES
from tests.world import World, a_request

HOSTS = 6


def requests_of(seed):
    """Requests that come at once, many of them alike, for more than there is."""
    rng = random.Random(seed)
    kinds = [{'vcpu': 1}, {'vcpu': 2, 'ram': 2048}, {'vcpu': 1, 'disk': 30}]
    return [
        a_request(
            **rng.choice(kinds),
            request_id=uuid_of('request', seed, number),
            consumers=[uuid_of(seed, number, i) for i in range(rng.choice((1, 1, 1, 4, 9)))],
            alternates=number % 3,
        )
        for number in range(24)
    ]


def places_of(answer: Answer):
    return [[(place.host, place.claim_id) for place in chosen] for chosen in answer.selections]


def outcome(store, requests):
    """What became of the requests, and of the hosts; how many members went by columns."""
    world = World(store, hosts=HOSTS)
    handles = [world.ask(request) for request in requests]
    for _ in range(40):
        if all(handle in world.replies.answers for handle in handles):
            break
        world.turn()
    answers = [world.replies.answers[handle] for handle in handles]
    world.scheduler.cache.fetch()
    table = world.scheduler.cache.fold()
    used_by_host = {row.name: {c: n for c, n in row.used.items() if n} for row in table.hosts}
    answered = [(answer.outcome, places_of(answer)) for answer in answers]
    claims = sorted(
        (c.id, c.consumer, c.host, c.state) for c in store.claims.list_claims(limit=1000)
    )
    assert store.claims.audit() == CLEAN
    return answered, claims, used_by_host, world.recorder.counts['gantt_members_planned_total']


@pytest.mark.parametrize('kind', STORES)
@pytest.mark.parametrize('seed', range(3))
def test_the_same_is_claimed(make_store, monkeypatch, kind, seed):
    requests = requests_of(seed)
    *by_columns, planned = outcome(make_store(kind), requests)
    monkeypatch.setattr(Run, 'go_on', lambda run, members: 0)
    monkeypatch.setattr(Run, 'may_go_on', lambda run, request: False)
    monkeypatch.setattr(FilterRun, 'reevaluate', lambda run, consumer: None)
    *slowly, planned_slowly = outcome(make_store(kind), requests)
    assert by_columns == slowly
    assert planned == planned_slowly > 20
    assert len({state for *_, state in slowly[1]}) == 1
