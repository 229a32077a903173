# SPDX-License-Identifier: Apache-2.0
"""``gantt-standalone``: scheduler and HTTP interface in one process, with a broker and without."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
import uuid

import httpx2 as httpx
import pytest

from bench.rig import Rig, rig
from gantt import client
from gantt.core.messages.request import RequestSpec
from tests import warm
from tests.rpc.bus import a_conf

COMMAND = [sys.executable, '-m', 'gantt.cmd.standalone']
VERSION = {'OpenStack-API-Version': 'scheduler latest'}


@pytest.fixture
def site(store_url, tmp_path):
    """A configuration with a database and a port, and no broker; its processes end with it."""
    own_rig = Rig(
        store_url('sqlite'), '', tmp_path, {'api': {'port': 0}, 'planner': {'solver': False}}
    )
    lines = own_rig.config.read_text().splitlines(keepends=True)
    own_rig.config.write_text(
        ''.join(line for line in lines if not line.startswith('transport_url'))
    )
    with contextlib.closing(own_rig):
        yield own_rig


def until(check, seconds=40.0):
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end, 'it did not come to it'
        time.sleep(0.1)
    return value


def running(site, name, *words):
    """A process under a name; the client of its API."""
    site.start(name, 'gantt-standalone', *words)
    site.wait_for(name, 'gantt-scheduler is ready')
    url = re.search(r'address=(http://[\d.:]+)', site.log(name))[1]
    return httpx.Client(base_url=url, headers=VERSION, timeout=30.0)


def request():
    spec = {'resources': {'VCPU': 1, 'MEMORY_MB': 256}}
    return {'request_id': str(uuid.uuid4()), 'spec': spec, 'consumers': [str(uuid.uuid4())]}


def test_it_places_without_a_broker_and_goes_on_with_its_database(site):
    body = request()
    with running(site, 'first', '--fake', '3') as api:
        until(lambda: len(api.get('/v1/hosts').json()['hosts']) == 3)
        placed = until(
            lambda: (response := api.post('/v1/requests', json=body)).is_success and response
        )
        answer = placed.json()['answer']
        claim = answer['selections'][0][0]['claim_id']
        # Whoever plays hosts there builds what is claimed on them.
        until(lambda: api.get(f'/v1/claims/{claim}').json()['state'] == 'confirmed')
        listed = api.get('/v1/services').json()['services']
        assert {service['kind'] for service in listed} == {'scheduler', 'api'}
        site.processes['first'].send_signal(signal.SIGUSR2)
        until(lambda: 'Gantt API' in (log := site.log('first')) and 'Gantt scheduler' in log)
        metrics = api.get('/metrics').text
        assert 'gantt_claims_created_total 1' in metrics, 'those of scheduler and API together'
    assert site.stop('first') == 0
    with running(site, 'again') as api:
        again = api.post('/v1/requests', json=body)
        assert again.is_success and again.json()['answer']['selections'] == answer['selections']
        assert api.get('/v1/health').status_code == 200
    assert site.stop('again') == 0
    assert 'Traceback' not in site.log('first') + site.log('again')


def test_what_is_wrong_with_it_is_said_and_ends_it(site, tmp_path):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        nobody = 'transport_url = rabbit://gantt:secret@127.0.0.1:1/'
        cases = {
            'workers': ('[scheduler]\nworkers = 2', [], 'one process'),
            'port': (f'[api]\nport = {taken.getsockname()[1]}', [], 'Choose a free port'),
            'broker': (f'[DEFAULT]\n{nobody}\n[rpc]\nstart_wait_seconds = 0', [], 'transport_url'),
            'shapes': ('', ['--fake', '2', '--shapes', '/no/such/file'], '/no/such/file'),
        }
        started = {}
        for name, (text, words, _) in cases.items():
            more = tmp_path / f'{name}.conf'
            more.write_text(f'{text}\n')
            files = ['--config-file', str(site.config), '--config-file', str(more)]
            started[name] = subprocess.Popen(
                [*COMMAND, *files, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        for name, process in started.items():
            output, _ = process.communicate(timeout=90)
            assert process.returncode == 1, (name, output)
            assert cases[name][2] in output.splitlines()[-1], (name, output)
            assert 'Traceback' not in output


@pytest.mark.rabbit
@pytest.mark.postgresql
def test_with_a_broker_hosts_and_conductors_reach_it(rabbit_url, postgresql_url):
    with rig({'api': {'port': 0}, 'planner': {'solver': False}}, kind=warm.Rig) as own_rig:
        api = running(own_rig, 'site')
        own_rig.start('farm', 'gantt-compute', '--fake', '2')
        until(lambda: len(api.get('/v1/hosts').json()['hosts']) == 2)
        carrier = client.get_transport(a_conf(own_rig.broker))
        spec = RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 256})
        try:
            answer = client.SchedulerClient(carrier).select_destinations(
                spec=spec, consumers=[str(uuid.uuid4())]
            )
        finally:
            carrier.cleanup()
        shown = api.get(f'/v1/requests/{answer.request_id}').json()
        assert shown['state'] == 'placed'
        assert api.post('/v1/requests', json=request()).is_success
        api.close()
        assert own_rig.stop('site') == 0
