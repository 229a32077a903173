# SPDX-License-Identifier: Apache-2.0
"""Candidates over HTTP, beyond what Placement's own tests look at."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from gantt.cmd import policies
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.insights.candidates import ProviderTableReader
from gantt.placement_api.http import versions
from gantt.placement_api.http.app import make_placement_app
from gantt.placement_api.http.dispatch import mounted_app
from gantt.placement_api.http.handlers.candidates import EXTRAS_HEADER
from gantt.scheduler.clock import SystemClock
from gantt.telemetry.metrics import MetricRegistry
from tests.builders import uuid_of
from tests.world import sqlite_store

VGPU = 'CUSTOM_VGPU'


class CandidatesSite:
    """The application on a store of its own.

    :ivar roots: uuids of two hosts, each with three equal devices of two units
    """

    def __init__(
        self, steps: int = 300, kind: type[ProviderTableReader] = ProviderTableReader
    ) -> None:
        self.store = sqlite_store(SystemClock())
        self.metrics = MetricRegistry()
        self.table = kind(self.store.candidates, steps, self.metrics.count)
        self.app = make_placement_app(
            self.store,
            self.metrics,
            HttpSettings(),
            policies.defaults(),
            candidates=self.table,
        )
        transport = httpx.WSGITransport(self.app)
        self.client = httpx.Client(transport=transport, base_url='http://localhost')
        self._send('PUT', f'/resource_classes/{VGPU}')
        self.roots = [uuid_of('one'), uuid_of('other')]
        for root in self.roots:
            self._send('POST', '/resource_providers', {'uuid': root, 'name': root})
            for n in range(3):
                self._make_device(root, n)

    def _make_device(self, root: str, n: int) -> None:
        uuid = uuid_of(f'{root} {n}')
        body = {'uuid': uuid, 'name': uuid, 'parent_provider_uuid': root}
        self._send('POST', '/resource_providers', body)
        inventories = {'inventories': {VGPU: {'total': 2}}, 'resource_provider_generation': 0}
        self._send('PUT', f'/resource_providers/{uuid}/inventories', inventories)

    def _send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        common = {'X-Auth-Token': 'admin', versions.HEADER: 'placement 1.39'}
        return self.client.request(method, path, json=body, headers=common | headers)

    def candidates(self, query: str, **headers: str) -> httpx.Response:
        return self._send('GET', f'/allocation_candidates?{query}', **headers)


@pytest.fixture
def site() -> Iterator[CandidatesSite]:
    new_site = CandidatesSite()
    yield new_site
    new_site.store.database.close()


def roots_of(answer: httpx.Response) -> list[str]:
    """Of each candidate the root, in order."""
    body = answer.json()
    return [
        body['provider_summaries'][next(iter(request['allocations']))]['root_provider_uuid']
        for request in body['allocation_requests']
    ]


def test_with_a_limit_each_host_comes_once_before_any_twice(site):
    answer = site.candidates(f'resources={VGPU}:1&limit=2')
    assert sorted(roots_of(answer)) == sorted(site.roots)
    assert len(roots_of(site.candidates(f'resources={VGPU}:1'))) == 6


def test_of_equal_devices_one_is_named_where_there_is_a_limit(site):
    assert sorted(roots_of(site.candidates(f'resources={VGPU}:1&limit=100'))) == sorted(site.roots)


def test_scores_and_reasons_are_for_those_who_say_so(site):
    plain = site.candidates(f'resources={VGPU}:1').json()
    assert plain.keys() == {'allocation_requests', 'provider_summaries'}
    more = site.candidates(f'resources={VGPU}:1', **{EXTRAS_HEADER: 'scores, reasons'}).json()
    assert more['scores'] == [0.5] * 6
    assert more['allocation_requests'] == plain['allocation_requests']
    none = site.candidates(f'resources={VGPU}:3', **{EXTRAS_HEADER: 'reasons'}).json()
    assert none['allocation_requests'] == []
    assert f'group without suffix: 3 {VGPU} free in one piece: 0 providers' in none['reasons']


def test_other_extras_are_refused_with_those_that_there_are(site):
    answer = site.candidates(f'resources={VGPU}:1', **{EXTRAS_HEADER: 'weights'})
    assert answer.status_code == 400
    (error,) = answer.json()['errors']
    assert 'expected "scores", "reasons" or both; got: weights' in error['detail']


def test_a_search_that_takes_too_long_is_no_answer(site):
    groups = '&'.join(f'resources_{n}={VGPU}:1' for n in range(6))
    answer = site.candidates(f'{groups}&group_policy=none')
    assert answer.status_code == 503
    assert 'ended after 300 steps' in answer.text
    assert site.metrics.value('gantt_candidate_searches_over_budget_total') == 1
    assert len(roots_of(site.candidates(f'{groups}&group_policy=none&limit=1'))) == 1


def test_the_table_tells_its_size_and_its_age(site):
    assert (site.table.providers, site.table.age_seconds) == (0, None)
    site.candidates(f'resources={VGPU}:1')
    assert site.table.providers == 8
    first = site.table.age_seconds
    assert 0 <= first <= site.table.age_seconds
    assert site.metrics.value('gantt_candidate_searches_over_budget_total') == 0


class HeldUp(ProviderTableReader):
    """Whoever searches waits until it may go on."""

    go_on = threading.Event()

    def answer(self, query: Any, answering: Any) -> Any:
        assert self.go_on.wait(60)
        return super().answer(query, answering)


class Flood:
    """Connections to a server of four threads, each with the token of a project."""

    def __init__(self, site: CandidatesSite) -> None:
        app = mounted_app(_nothing, site.app, False)
        self.server = HttpServer(app, '127.0.0.1', 0, threads=4)
        self.server.start()
        self.queue = self.server._server.task_dispatcher.queue
        self.open = contextlib.ExitStack()

    def ask(self, project: str, path: str) -> socket.socket:
        line = socket.create_connection(('127.0.0.1', self.server.port), timeout=60)
        self.open.enter_context(line)
        head = f'GET /placement/{path} HTTP/1.1\r\nHost: localhost\r\nX-Roles: admin\r\n'
        version = f'{versions.HEADER}: placement 1.39\r\n'
        line.sendall(f'{head}X-Auth-Token: {project}:{project}\r\n{version}\r\n'.encode())
        return line

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)


def _nothing(environ: Any, start_response: Any) -> list[bytes]:
    start_response('404 Not Found', [('Content-Length', '0')])
    return []


def test_a_flood_of_searches_of_one_project_leaves_threads_to_others():
    site = CandidatesSite(kind=HeldUp)
    flood = Flood(site)
    try:
        HeldUp.go_on.set()
        for project in ('red', 'blue'):  # the server learns whose tokens these are
            answer = flood.ask(project, 'resource_providers').recv(100)
            assert answer.startswith(b'HTTP/1.1 200')
        flood.until(lambda: not flood.queue._begun_by_owner)
        HeldUp.go_on.clear()
        path = f'allocation_candidates?resources={VGPU}:1'
        searches = [flood.ask('red', path) for _ in range(6)]
        flood.until(lambda: flood.queue.waiting == 4)  # two of four threads are at them
        for _ in range(3):
            answer = flood.ask('blue', 'resource_providers').recv(100)
            assert answer.startswith(b'HTTP/1.1 200')
        assert flood.queue.waiting == 4
        HeldUp.go_on.set()
        for line in searches:
            assert line.recv(100).startswith(b'HTTP/1.1 200')
    finally:
        HeldUp.go_on.set()
        flood.open.close()
        flood.server.stop(10)
        site.store.database.close()


def test_more_groups_than_find_room_are_an_empty_answer_at_once(site):
    groups = '&'.join(f'resources_{n}={VGPU}:1' for n in range(64))
    answer = site.candidates(f'{groups}&group_policy=none')
    assert answer.json() == {'allocation_requests': [], 'provider_summaries': {}}
