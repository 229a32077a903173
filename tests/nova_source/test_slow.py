# SPDX-License-Identifier: Apache-2.0
"""APIs that answer without end: each byte comes in time, and the answer does not."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gantt import exceptions
from gantt.nova.source import api
from tests.nova_source.openstack import new_uuid
from tests.nova_source.region import a_conf

HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n'


class Dripping:
    """Nova whose answers come byte by byte."""

    def __init__(self, at_once):
        outer = self
        self.asked, self.over = 0, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked += 1
                try:
                    self.wfile.write(HEAD[:at_once])
                    while not outer.over.wait(0.1):
                        self.wfile.write(b'X')
                except OSError:
                    pass

            def log_message(self, *_):
                """Nothing."""

        self._server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f'http://127.0.0.1:{self._server.server_address[1]}'

    def close(self):
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(params=[len(HEAD), 20], ids=['body', 'head'])
def dripping(request):
    server = Dripping(request.param)
    yield server
    server.close()


@pytest.fixture
def nova(openstack, dripping):
    conf = a_conf(openstack)
    conf.set_override('endpoint_override', dripping.url, 'nova')
    compute_api, _ = api.apis(conf, 0.5)
    return compute_api


def test_an_answer_without_end_is_given_up(nova):
    with pytest.raises(exceptions.Unavailable, match='GET /os-services: no whole answer in 1.0 s'):
        nova.get('/os-services', list, 'services')


def test_a_process_that_is_to_stop_waits_for_no_such_answer(openstack, dripping):
    conf, stopping = a_conf(openstack), threading.Event()
    conf.set_override('endpoint_override', dripping.url, 'nova')
    nova, _ = api.apis(conf, 20.0, stopping)
    threading.Timer(0.3, stopping.set).start()
    start = time.monotonic()
    with pytest.raises(exceptions.Unavailable):
        nova.get('/os-services', list, 'services')
    assert time.monotonic() - start < 15, 'the answer alone is waited for for 40 s'


def test_what_still_arrives_is_bounded_and_does_not_last(nova, dripping, monkeypatch):
    monkeypatch.setattr(api, 'ABANDONED_REQUESTS_MAX', 2)
    for _ in range(2):
        with pytest.raises(exceptions.Unavailable, match='no whole answer'):
            nova.get('/os-services', list, 'services')
    with pytest.raises(exceptions.Unavailable, match='2 late answers still arrive'):
        nova.get('/os-services', list, 'services')
    assert dripping.asked == 2
    dripping.over.set()
    end = time.monotonic() + 10
    while not all(call.done() for call in nova._abandoned_requests) and time.monotonic() < end:
        time.sleep(0.05)
    with pytest.raises(exceptions.GanttError) as caught:
        nova.get('/os-services', list, 'services')
    assert 'still arrive' not in str(caught.value)


def test_a_pass_that_takes_too_long_is_given_up(openstack, region):
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    region.passes(3)
    for _ in range(20):
        openstack.allocate(openstack.hypervisors[0]['id'], new_uuid(), VCPU=0)
    answer = openstack._compute

    def slowly(path, query):
        if path.startswith('/servers/'):
            time.sleep(0.2)
        return answer(path, query)

    openstack._compute = slowly
    region.reader.seconds = 0.5
    with pytest.raises(exceptions.Unavailable, match='is used up|no whole answer'):
        region.source.step()
    assert region.counts['gantt_nova_source_passes_total', 'failed'] == 1
    region.reader.seconds = 60.0
    region.passes()
    assert region.live(guest) == [('cmp-1', 'confirmed')]
