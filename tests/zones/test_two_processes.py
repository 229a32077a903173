# SPDX-License-Identifier: Apache-2.0
"""A zone with an API in two processes: what one of them seals the other one opens."""

import contextlib

import httpx2 as httpx
import pytest

from gantt.cmd.http_app import make_app
from gantt.groups.insights import HOOKS
from gantt.http.server import HttpServer
from gantt.insights.read_model import Insights
from tests.world import a_request
from tests.zones.test_protocol import allocate, code, evaluate, tokens_of
from tests.zones.tree import VERSION


class OtherProcess:
    """What another process of the API of a zone has, which has not read anything yet."""

    def __init__(self, zone):
        own = zone.insights
        self.insights = Insights(zone.store, own.pipeline, HOOKS, own.settings, max_age=0.0)
        self._around = zone._parts(self.insights.cache, own.pipeline, own.settings)
        app = make_app(
            self.insights, zone.store, zone.client, zone.metrics, zone_context=self._around
        )
        self._server = HttpServer(app, '127.0.0.1', 0, 4)
        self._server.start()
        self.url = f'http://127.0.0.1:{self._server.port}'

    def close(self):
        self._server.stop(1.0)
        self._around.close()


@pytest.fixture
def east(zone):
    started = zone('east').hosts(2, 8)
    registration = {
        'identity': 'parent-uuid',
        'project_id': 'of-parent',
        'lease_seconds_max': 60,
        'trusted': True,
    }
    assert started.put('/v1/parents/parent', registration).status_code == 200
    return started


@pytest.fixture
def other(east):
    with contextlib.closing(OtherProcess(east)) as process:
        yield process


def test_what_one_process_offers_is_claimed_at_another_that_has_read_nothing(east, other):
    request = a_request(vcpu=2)
    _, answer = allocate(other, request, tokens_of(evaluate(east, request)))
    assert answer.status_code == 200, answer.text
    assert east.live() == 1


def test_a_host_that_has_registered_since_another_process_read_them(east, other):
    request = a_request(vcpu=2)
    assert allocate(other, request, tokens_of(evaluate(east, request)))[1].status_code == 200
    offered_before = a_request(vcpu=2)
    tokens = tokens_of(evaluate(east, offered_before))
    for name in ('east-1', 'east-2'):
        east.host(name, 8)
    east.insights.reload_soon()  # an evaluation may know what was so a second ago
    after = a_request(vcpu=2)
    _, answer = allocate(other, after, tokens_of(evaluate(east, after)))
    assert answer.status_code == 200, answer.text
    _, gone = allocate(other, offered_before, tokens)
    assert code(gone) == 'gantt.offer_gone'
    assert east.live() == 2


def test_a_host_is_unsealed_by_a_process_that_no_zone_above_has_asked(east, other):
    request = a_request(vcpu=2)
    _, answer = allocate(east, request, tokens_of(evaluate(east, request)))
    sealed_host = answer.json()['members'][0]['sealed_host']
    response = httpx.post(
        f'{other.url}/v1/sealed-hosts', json={'sealed_host': sealed_host}, headers=VERSION
    )
    assert response.status_code == 200, response.text
    (claim,) = east.store.claims.list_claims(state='reserved', limit=5)
    assert (response.json()['claim_id'], response.json()['host']) == (claim.id, claim.host)
