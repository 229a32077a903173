# SPDX-License-Identifier: Apache-2.0
"""A zone below two zones that are below one: evaluated once, counted once, claimed once."""

import threading

import msgspec
import pytest

from gantt.core.messages.request import RequestSpec
from gantt.core.records.decision import Outcome
from gantt.scheduler.clock import SystemClock
from gantt.zones.service.offers.dedup import EvaluationDedup
from tests.world import a_request
from tests.zones.tree import until

HOSTS = 2


@pytest.fixture
def diamond(zone):
    """Top, the two ways, and the zone below both, whose evaluations are noted."""
    top, west, east = zone('top'), zone('west'), zone('east')
    south = zone('south').hosts(HOSTS, 8)
    for parent in (west, east):
        parent.above(south)
    top.above(west, east)
    evaluated, before = [], south.around.evaluator.evaluate

    def noting(request, *args, **options):
        evaluated.append((request.request_id, request.parent))
        return before(request, *args, **options)

    south.around.evaluator.evaluate = noting
    return top, west, east, south, evaluated


def explained(top, answer):
    until(lambda: top.store.records.load_decision(answer.decision_id) is not None)
    return top.insights.explain(answer.decision_id)


def test_it_is_evaluated_once_and_its_hosts_are_counted_once(diamond):
    top, west, east, south, evaluated = diamond
    request = a_request(vcpu=2)
    answer = top.select(request)
    assert answer.outcome is Outcome.PLACED
    assert [request_id for request_id, _ in evaluated] == [request.request_id]
    explanation = explained(top, answer)
    assert explanation.hosts == HOSTS
    assert sorted(share.hosts for share in explanation.zones if share.zone) == [0, HOSTS]
    assert sum(share.taken for share in explanation.zones) == 1
    for share in explanation.zones:
        assert share.survivors + sum(share.removed.values()) == share.hosts
    assert (south.live(), west.live(), east.live(), top.live()) == (1, 0, 0, 0)


@pytest.mark.parametrize('projects', [{'of-west', 'of-east'}, {'same'}])
def test_a_refusal_is_final_and_counts_each_host_once(diamond, projects):
    top, west, east, south, evaluated = diamond
    for parent, project in zip((west, east), sorted(projects) * 2, strict=False):
        response = south.put(f'/v1/parents/{parent.name}', {'project_id': project})
        assert response.status_code == 200
    south.around.directory.refresh()
    answer = top.select(a_request(vcpu=100))
    assert answer.outcome is Outcome.NO_VALID_HOST, answer.reason
    assert explained(top, answer).hosts == HOSTS
    # Different projects may have different rights: of nothing for one does not follow for both.
    assert len(evaluated) == len(projects)


def test_members_fill_it_and_nothing_is_claimed_twice(diamond):
    top, west, east, south, evaluated = diamond
    answer = top.select(a_request(4, vcpu=4))
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert len({chosen.claim_id for chosen, *_ in answer.selections}) == south.live() == 4
    assert top.select(a_request(vcpu=1)).outcome is Outcome.NO_VALID_HOST
    for node in diamond[:4]:
        assert not any(node.store.claims.audit().values())


def test_room_is_counted_once(diamond):
    top, *_ = diamond
    spec = msgspec.to_builtins(RequestSpec(resources={'VCPU': 2, 'MEMORY_MB': 64}))
    capacity = top.post('/v1/capacity', {'spec': spec}).json()
    assert sorted(child['count'] for child in capacity['below']) == [0, HOSTS * 4]


def test_where_one_way_is_cut_the_other_one_is_taken(diamond):
    top, west, east, south, _ = diamond
    west.cut()
    answer = top.select(a_request(vcpu=2))
    assert answer.selections[0][0].child == 'east'


def test_one_way_finds_it_whichever_comes_first():
    """Many at once: exactly one looks, whatever the order."""
    ways, looked = EvaluationDedup(SystemClock()), []
    request = a_request()
    start = threading.Barrier(8)

    def come(name):
        mine = msgspec.structs.replace(request, parent=name)
        start.wait(10)
        answer = ways.evaluate_once(mine, lambda: looked.append(name) or 7, bool, lambda _: 0)
        answers.append(answer)

    answers: list[int] = []
    threads = [threading.Thread(target=come, args=(f'way-{n}',)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(answers) == [0] * 7 + [7] and len(looked) == 1
    again = msgspec.structs.replace(request, parent=looked[0])
    assert (
        ways.evaluate_once(again, lambda: 8, bool, lambda _: 0) == 8
    )  # the first one may come again


def test_a_first_way_that_fails_leaves_nothing_behind():
    ways = EvaluationDedup(SystemClock())
    request = a_request()

    def fail():
        raise ValueError('a filter has failed')

    with pytest.raises(ValueError, match='a filter'):
        ways.evaluate_once(msgspec.structs.replace(request, parent='west'), fail, bool, lambda _: 0)
    second = msgspec.structs.replace(request, parent='east')
    assert ways.evaluate_once(second, lambda: 5, bool, lambda _: 0) == 5
