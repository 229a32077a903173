# SPDX-License-Identifier: Apache-2.0
"""One trace id for a request in all zones that it goes through."""

import logging

import httpx2 as httpx
import msgspec
import pytest
from oslo_context import context

from gantt.core.records import decision_codec
from gantt.core.trace import trace_in
from gantt.db.schema import models
from gantt.http.server import HttpServer
from tests.world import a_request
from tests.zones.tree import VERSION, until

TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
NEWEST = {'OpenStack-API-Version': 'scheduler latest'}


class TracesLogged(logging.Handler):
    """The trace ids that lines of the log carry in their context, by logger."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.found = set()

    def emit(self, record):
        current = context.get_current()
        if current is not None and current.global_request_id:
            self.found.add((record.name, current.global_request_id))


@pytest.fixture
def lines():
    logger, handler = logging.getLogger('gantt'), TracesLogged()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.found
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def levels(zone):
    """Three, with hosts in the lowest."""
    top, middle, leaf = zone('top'), zone('middle'), zone('leaf').hosts(1)
    middle.above(leaf)
    top.above(middle)
    return top, middle, leaf


def post(top, request, **headers):
    response = httpx.post(
        f'{top.url}/v1/requests',
        json=msgspec.to_builtins(request),
        headers={**VERSION, **headers},
        timeout=20.0,
    )
    assert response.status_code == 201, response.text
    return response.json()['answer']


def stored(zone):
    """Of the decisions."""
    with zone.store.database.engine.connect() as connection:
        rows = connection.execute(models.decisions.select()).all()
    return [decision_codec.unpack(row.packed).request.trace for row in rows]


def test_the_trace_of_the_caller_goes_down_and_is_explained_by_all(levels, lines, caplog):
    caplog.set_level(logging.INFO)
    top, middle, leaf = levels
    answer = post(top, a_request(), Traceparent=f'00-{TRACE}-00f067aa0ba902b7-01')
    for level in levels:
        until(lambda level=level: stored(level))
        assert stored(level) == [TRACE]
    path = f'/v1/decisions/{answer["decision_id"]}?explain=true'
    explained = top.get(path, **NEWEST).json()
    assert explained['trace'] == TRACE and f'trace    {TRACE}' in explained['lines']
    assert explained['zones_explained']['middle']['zones'][1]['below']['survivors'] == 1
    # The API of both zones below has evaluated it and explained it, and the schedulers say it.
    assert {trace for _, trace in lines} == {TRACE}
    assert ('gantt.zones.http.requests', TRACE) in lines
    answered = [line for line in caplog.messages if line.startswith('Request over zones')]
    assert answered == [f'Request over zones was answered: outcome=placed trace={TRACE}'] * 2
    assert top.uuid not in leaf.everything()  # and says nothing of who is above


@pytest.mark.parametrize('header', [{}, {'Traceparent': 'ff-nothing'}, {'Traceparent': 'é' * 9}])
def test_without_a_valid_one_the_first_zone_makes_it(levels, header):
    top, middle, leaf = levels
    request = a_request()
    post(top, request, **{name: value.encode() for name, value in header.items()})
    for level in levels:
        until(lambda level=level: stored(level))
        assert stored(level) == [request.traced().trace]


def test_a_dry_run_and_a_refusal_have_it_too(levels):
    top, middle, leaf = levels
    request = a_request(vcpu=100, dry_run=True)
    headers = {**NEWEST, 'Traceparent': f'00-{TRACE}-00f067aa0ba902b7-01'}
    response = httpx.post(
        f'{top.url}/v1/requests', json=msgspec.to_builtins(request), headers=headers, timeout=20.0
    )
    assert response.status_code == 409 and f'trace    {TRACE}' in response.text
    refused = a_request(vcpu=100, trace=TRACE)
    top.select(refused)
    until(lambda: stored(top))
    assert stored(top) == [TRACE] and not stored(middle)


def test_what_a_call_says_is_a_trace_and_a_new_id_of_the_call(zone):
    top, east = zone('top'), zone('east').hosts(1)
    seen = []

    def noting(environ, start_response):
        seen.append((environ['PATH_INFO'], environ.get('HTTP_TRACEPARENT')))
        return east.app(environ, start_response)

    east.cut()
    east.server = HttpServer(noting, '127.0.0.1', 0, 8)
    east.server.start()
    top.above(east)
    request = a_request()
    answer = top.select(request)
    until(lambda: stored(top))
    top.get(f'/v1/decisions/{answer.decision_id}?explain=true')
    about = [(path, header) for path, header in seen if header is not None]
    kinds = {path.split('/')[3] for path, _ in about}
    assert kinds == {'evaluations', 'allocations', 'explanations'}
    assert {trace_in(header) for _, header in about} == {request.traced().trace}
    assert len({header for _, header in about}) == len(about)
    east.server.stop(1.0)
