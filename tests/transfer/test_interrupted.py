# SPDX-License-Identifier: Apache-2.0
"""A copy that is ended in its midst and begun again; a source that changes; trouble on the way."""

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gantt import exceptions
from gantt.placement_api.transfer import copying, differences
from gantt.placement_api.transfer.own import OwnSide
from gantt.placement_api.transfer.server import PlacementServer
from tests.transfer import cloud


class Wrapped:
    """A side that does something before some of its methods.

    :param before: name of a method -> what is called with how often it was called before
    """

    def __init__(self, side, before):
        self._side, self._before = side, before
        self._counts = {name: itertools.count() for name in before}

    def __getattr__(self, name):
        method = getattr(self._side, name)
        if name not in self._before:
            return method

        def call(*args):
            self._before[name](next(self._counts[name]))
            return method(*args)

        return call


@pytest.fixture
def server(built_server):
    """The cloud."""
    return built_server


@pytest.fixture
def own(make_store):
    return OwnSide(make_store('memory'))


def quietly(line):
    """Nobody reads how far it is."""


@pytest.mark.parametrize(
    ('method', 'after'),
    [('create_provider', 17), ('save_inventories', 30), ('save_traits', 3), ('save_consumer', 20)],
)
def test_what_was_ended_goes_on_where_it_was(server, own, at, method, after):
    def end(count):
        if count >= after:
            raise exceptions.Unavailable('ended')

    theirs = at(server.url)
    with pytest.raises(exceptions.Unavailable):
        copying.copy(theirs, Wrapped(own, {method: end}), quietly)
    written = len(own.outlines())
    report = copying.copy(theirs, own, quietly)
    assert (report.left, report.written['providers']) == ([], cloud.PROVIDERS - written)
    assert differences.compare(own, theirs, quietly)[0] == []


def test_a_source_that_changes_meanwhile_is_read_again(server, own, at):
    theirs = at(server.url)

    def change(count):
        if count == 0:
            server.request('DELETE', f'/allocations/{cloud.consumer(3)}')
            cloud.restock(server, cloud.pool(5), CUSTOM_LICENCE=30)
            server.request('POST', '/resource_providers', {'name': 'late', 'uuid': cloud.pool(99)})
        if count == 30:
            server.request('DELETE', f'/allocations/{cloud.consumer(4)}')

    report = copying.copy(theirs, Wrapped(own, {'save_consumer': change}), quietly)
    assert (report.left, report.changing) == ([], [])
    assert differences.compare(own, theirs, quietly)[0] == []


def test_a_source_that_never_stands_still_is_named_in_the_end(server, own, at):
    numbers = itertools.count(100)

    def change(count):
        if count % 50 == 0:
            cloud.restock(server, cloud.pool(5), CUSTOM_LICENCE=next(numbers))

    source = Wrapped(at(server.url), {'uses': change})
    report = copying.copy(source, own, quietly)
    assert report.changing == [f'provider {cloud.pool(5)} (pool-5)']


# -- trouble on the way -----------------------------------------------------------------
@pytest.fixture
def answering():
    """``answering({path: (status, body)})``: URL of a server that answers so."""
    running = []

    def start(answers):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = answers.get(self.path, (404, {'errors': [{'detail': 'none'}]}))
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header('Content-Length', str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return f'http://127.0.0.1:{server.server_port}'

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


VERSIONS = {'versions': [{'max_version': '1.39', 'min_version': '1.0', 'id': 'v1.0'}]}


@pytest.mark.parametrize(
    ('answers', 'expected'),
    [
        ({'/': (200, b'<html>')}, 'GET {url}/: expected JSON, as Placement answers'),
        (
            {'/': (200, {'versions': [{'id': 1}]})},
            'GET {url}/.versions[0].max_version: required field is missing',
        ),
        (
            {'/': (200, {'versions': [{'max_version': '1.20', 'min_version': '1.0'}]})},
            '{url}/: versions.max_version: expected at least 1.28, got 1.20',
        ),
        ({}, 'GET {url}/: 404 none'),
        (
            {'/': (401, {'errors': [{'detail': 'who?'}]})},
            'Give the token or the credentials of a user with the role admin',
        ),
    ],
)
def test_a_server_that_is_no_placement_is_told_by_name(answering, answers, expected):
    url = answering(answers)
    with pytest.raises(exceptions.GanttError) as raised:
        PlacementServer(url, lambda: 'admin')
    assert expected.format(url=url) in raised.value.message


def test_an_answer_of_another_form_is_named_by_url_and_field(answering, at):
    providers = {'resource_providers': [{'uuid': cloud.pool(1), 'name': 'a', 'generation': 'x'}]}
    url = answering({'/': (200, VERSIONS), '/resource_providers': (200, providers)})
    with pytest.raises(exceptions.InvalidMessage) as raised:
        at(url).outlines()
    where = f'GET {url}/resource_providers.resource_providers[0].generation'
    assert raised.value.message.startswith(f'{where}: expected a whole number')


def test_nobody_there_is_said_after_some_tries(monkeypatch):
    monkeypatch.setattr('gantt.placement_api.transfer.server.PAUSE_SECONDS', 0.01)
    with pytest.raises(exceptions.Unavailable) as raised:
        PlacementServer('http://127.0.0.1:1', lambda: 'admin')
    assert raised.value.message.startswith('GET http://127.0.0.1:1/: ')
    assert '(4 tries)' in raised.value.message


@pytest.mark.parametrize('url', ['placement', 'ftp://host', 'http://', 'http://[1', ''])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(exceptions.InvalidMessage) as raised:
        PlacementServer(url, lambda: 'admin')
    assert raised.value.message.startswith('URL: expected such as http://placement:8778')
