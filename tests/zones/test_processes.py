# SPDX-License-Identifier: Apache-2.0
"""Two zones as an operator runs them: processes, brokers and databases of their own."""

import concurrent.futures
import re
import signal
import uuid

import httpx2 as httpx
import pytest

from bench.rig import Rig, rig
from tests import warm
from tests.zones.tree import VERSION, until

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]


class Running:
    """A zone's processes, by HTTP."""

    def __init__(self, own_rig: Rig) -> None:
        self.rig = own_rig
        own_rig.start('scheduler', 'gantt-scheduler')
        own_rig.start('api', 'gantt-api')
        own_rig.wait_for('scheduler', 'is ready')
        own_rig.wait_for('api', 'is ready')
        match = re.search(r'address=(http://[\d.:]+)', own_rig.log('api'))
        assert match is not None
        self.url = match[1]

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        return httpx.request(method, self.url + path, json=body, headers=VERSION, timeout=60.0)

    @property
    def uuid(self) -> str:
        return self.call('GET', '/v1/zones').json()['uuid']

    def claims(self) -> list[dict[str, object]]:
        return self.call('GET', '/v1/claims?state=reserved').json()['claims']


def request(request_id: str, vcpu: int = 1) -> dict[str, object]:
    spec = {'resources': {'VCPU': vcpu, 'MEMORY_MB': 256}}
    return {'request_id': request_id, 'spec': spec, 'consumers': [str(uuid.uuid4())]}


@pytest.fixture(scope='module')
def zones(rabbit_url, postgresql_url):
    """A zone without hosts, and one with four that is not below it yet."""
    options: dict[str, dict[str, object]] = {'api': {'port': 0}}
    with rig(options, kind=warm.Rig) as above, rig(options, kind=warm.Rig) as below:
        top, east = Running(above), Running(below)
        below.start('farm', 'gantt-compute', '--fake', '4', '--name', 'below')
        until(lambda: len(east.call('GET', '/v1/hosts').json()['hosts']) == 4, 60)
        yield top, east


def test_a_request_goes_down_to_another_cloud_and_survives_its_schedulers(zones):
    top, east = zones
    above, below = top.rig, east.rig
    registration = {'identity': top.uuid, 'project_id': 'of-top', 'trusted': True}
    assert east.call('PUT', '/v1/parents/top', registration).status_code == 200
    added = top.call('PUT', '/v1/zones/east', {'url': east.url, 'trusted': True})
    assert added.status_code == 200, added.text

    def placed():
        answer = top.call('POST', '/v1/requests', request(str(uuid.uuid4())))
        return answer.status_code == 201 and answer.json()['answer']['selections'][0][0]

    until(lambda: placed(), 30)  # the scheduler has heard of the new zone by then
    chosen = placed()
    assert (chosen['child'], chosen['host']) == ('east', '')
    where = east.call('POST', '/v1/sealed-hosts', {'sealed_host': chosen['sealed_host']}).json()
    assert where['claim_id'] == chosen['claim_id'] and where['host'].startswith('fake-')

    # Whoever is killed: the same request comes to one claim.
    body = request(str(uuid.uuid4()))
    below.kill('scheduler')
    below.start('scheduler', 'gantt-scheduler')
    first = top.call('POST', '/v1/requests', body)
    above.kill('scheduler')
    above.start('scheduler', 'gantt-scheduler')
    again = top.call('POST', '/v1/requests', body)
    assert again.status_code in (200, 201), (first.text, again.text)
    mine = [claim for claim in east.claims() if claim['consumer'] == body['consumers'][0]]
    assert len(mine) == 1
    gone = top.call('DELETE', f'/v1/requests/{body["request_id"]}')
    assert gone.status_code == 200
    until(lambda: all(claim['consumer'] != body['consumers'][0] for claim in east.claims()), 30)
    for zone_rig in (above, below):
        zone_rig.run('gantt-manage', 'audit')


def test_a_zone_that_is_frozen_in_the_middle_and_goes_on_later_claims_nothing_twice(zones):
    """Its scheduler and its API stand still while claims are made, and wake up when others are."""
    top, east = zones
    above, below = top.rig, east.rig
    above.start('farm', 'gantt-compute', '--fake', '2', '--name', 'above')
    until(lambda: len(top.call('GET', '/v1/hosts').json()['hosts']) == 2, 60)
    registration = {'identity': top.uuid, 'project_id': 'of-top', 'lease_seconds_max': 8}
    assert east.call('PUT', '/v1/parents/top', registration).status_code == 200
    added = top.call('PUT', '/v1/zones/east', {'url': east.url, 'trusted': True})
    assert added.status_code == 200, added.text
    bodies = []

    def ask(_):
        body = {**request(str(uuid.uuid4())), 'budget_ms': 3000, 'lease_seconds': 60}
        bodies.append(body)
        return body, top.call('POST', '/v1/requests', body)

    def live(zone):
        return [claim for claim in zone.claims() if claim['consumer'] in consumers]

    def is_delegated():
        body, answer = ask(0)
        bodies.remove(body)  # no part of the test
        return answer.json()['answer']['selections'][0][0]['child'] == 'east'

    until(is_delegated, 30)
    frozen = [below.processes[name] for name in ('scheduler', 'api')]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(ask, n) for n in range(12)]
        until(lambda: sum(future.done() for future in futures) > 2)
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        answers = [future.result() for future in futures]
        # Whoever was not placed asks again, for the same consumers under another id.
        again = [
            {**body, 'request_id': str(uuid.uuid4())}
            for body, answer in answers
            if answer.status_code != 201
        ]
        repeats = [top.call('POST', '/v1/requests', body) for body in again[:2]]
    for process in frozen:
        process.send_signal(signal.SIGCONT)
    assert all(answer.status_code in (201, 503, 409) for _, answer in answers)
    # Nothing but what was answered is left: given back by then, or ended with its lease.
    consumers = {consumer for body in bodies for consumer in body['consumers']}
    answered = {
        chosen['claim_id']
        for answer in [*(answer for _, answer in answers), *repeats]
        if answer.status_code == 201
        for members in answer.json()['answer']['selections']
        for chosen in members
    }

    def is_clean():
        claims = [*live(top), *live(east)]
        twice = len({claim['consumer'] for claim in claims}) < len(claims)
        return not twice and {claim['id'] for claim in claims} <= answered

    until(is_clean, 60)
    until(lambda: not live(east), 60)  # leases end there as well
    for zone_rig in (above, below):
        zone_rig.run('gantt-manage', 'audit')
