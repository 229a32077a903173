# SPDX-License-Identifier: Apache-2.0
"""Events as the command shows them, and as the API answers."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from gantt.cli import events
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.insights import event_log
from gantt.insights.views import EventEntry
from tests.cli.conftest import Gantt, Run, run
from tests.http.site import Site

NEWEST = {'OpenStack-API-Version': 'scheduler latest'}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question reads: the clock of a site stands."""
    monkeypatch.setattr(event_log, 'LOOK_SECONDS', 0.0)


@contextlib.contextmanager
def following(site: Site, *args: str) -> Iterator[list[Run]]:
    """The command runs meanwhile; its end is in the list."""
    runs: list[Run] = []
    began = threading.Event()
    after = site.insights.events.after

    def noted(cursor: str | None, limit: int) -> object:
        page = after(cursor, limit)
        began.set()
        return page

    site.insights.events.after = noted  # type: ignore[method-assign, assignment]
    thread = threading.Thread(target=lambda: runs.append(run('events', '--for', '120', *args)))
    thread.start()
    assert began.wait(60)
    yield runs
    end = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < end:
        site.world.turn()
        thread.join(0.05)
    assert not thread.is_alive()


def test_it_prints_what_happens_from_now_on(site: Site, gantt: Gantt) -> None:
    with following(site, '--count', '1', '--kind', 'disabled') as runs:
        site.world.store.hosts.disable_host('cmp-2', 'disk swap', 'ann')
    assert runs[0].code == 0
    assert runs[0].out.endswith('Z cmp-2 disabled by ann: disk swap\n')
    with following(site, '--count', '1', '--host', 'cmp-1', '-f', 'json') as runs:
        site.world.store.hosts.disable_host('cmp-3', 'other', 'ann')
        site.world.store.hosts.disable_host('cmp-1', 'fan', 'bob')
    event = json.loads(runs[0].out.splitlines()[0])
    assert (event['host'], event['claim_id']) == ('cmp-1', None)


def test_scripts_choose_columns_and_rows(site: Site, gantt: Gantt) -> None:
    assert set(events.KEYS) == set(EventEntry.__struct_fields__)
    value = ('--count', '1', '-f', 'value', '-c', 'host,message', '--filter', 'actor=b*')
    with following(site, *value) as runs:
        site.world.store.hosts.disable_host('cmp-3', 'other', 'ann')
        site.world.store.hosts.disable_host('cmp-1', 'fan', 'bob')
    assert (runs[0].code, runs[0].out) == (0, 'cmp-1\tfan\n')
    with following(site, '--count', '2', '-f', 'csv', '--filter', 'kind=disabled') as runs:
        site.world.store.hosts.disable_host('cmp-2', 'disk', 'ann')
        site.world.store.hosts.disable_host('cmp-4', 'disk', 'ann')
    lines = runs[0].out.splitlines()
    assert (len(lines), lines[0]) == (3, 'host,kind,message,actor,claim_id,at')
    assert {line.partition(',')[0] for line in lines[1:]} == {'cmp-2', 'cmp-4'}
    for wrong in (('-c', 'hots'), ('--filter', 'hots=x')):
        refused = run('events', *wrong)
        assert (refused.code, 'did you mean host' in refused.err) == (64, True)
    empty = run('events', '--for', '0', '-f', 'csv', '-c', 'host')
    assert (empty.code, empty.out.split()) == (0, ['host'])


def test_what_is_not_remembered_is_said_and_it_goes_on(
    site: Site, gantt: Gantt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, 'NAMED_HOSTS_MAX', 1)
    with following(site, '--count', '1', '--kind', 'enabled') as runs:
        for name in ('cmp-1', 'cmp-2'):
            site.world.store.hosts.disable_host(name, 'why', 'ann')
        end = time.monotonic() + 60
        while not runs and time.monotonic() < end:
            site.world.turn()
            site.world.store.hosts.disable_host('cmp-3', f'{end}', 'ann')
            site.world.store.hosts.enable_host('cmp-3', 'bob')
            time.sleep(0.2)
    assert 'some events are missing here' in runs[0].err
    assert runs[0].code == 0


def test_an_api_that_is_away_ends_it_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, 'PAUSE_SECONDS', 0.0)
    monkeypatch.setenv('GANTT_ENDPOINT', 'http://127.0.0.1:1')
    refused = run('events')
    assert refused.code == 1
    assert 'http://127.0.0.1:1' in refused.err


def test_one_more_than_may_wait_is_refused() -> None:
    server = HttpServer(Site(HttpSettings(waits_max=0)).app, '127.0.0.1', 0, threads=4)
    server.start()
    try:
        answer = httpx.get(f'http://127.0.0.1:{server.port}/v1/events', headers=NEWEST)
    finally:
        assert server.stop(5)
    assert answer.status_code == 503
    assert answer.json()['errors'][0]['code'] == 'gantt.busy'
    assert 'waits for events' in answer.text


@pytest.mark.parametrize(
    ('query', 'said'),
    [('after=x', 'query.after'), ('wait=21', 'query.wait'), ('kind=made', 'query.kind')],
)
def test_a_wrong_parameter_is_named(endpoint: str, query: str, said: str) -> None:
    answer = httpx.get(f'{endpoint}/v1/events?{query}', headers=NEWEST)
    assert answer.status_code == 400
    assert said in answer.text
