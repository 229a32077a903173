# SPDX-License-Identifier: Apache-2.0
"""Two zones as an operator runs them: processes, brokers and databases of their own."""

import re
import uuid

import httpx
import pytest

from bench.rig import Rig, rig
from tests.zones.tree import VERSION, until

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]


class Running:
    """A zone's processes, by HTTP."""

    def __init__(self, made: Rig) -> None:
        self.rig = made
        made.start('scheduler', 'gantt-scheduler')
        made.start('api', 'gantt-api')
        made.wait_for('scheduler', 'is ready')
        made.wait_for('api', 'listens on')
        found = re.search(r'listens on (http://[\d.:]+)', made.log('api'))
        assert found is not None
        self.url = found[1]

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


def test_a_request_goes_down_to_another_cloud_and_survives_its_schedulers(
    rabbit_url, postgresql_url
):
    with rig({'api': {'port': 0}}) as above, rig({'api': {'port': 0}}) as below:
        top, east = Running(above), Running(below)
        below.start('farm', 'gantt-compute', '--fake', '3', '--name', 'farm')
        until(lambda: len(east.call('GET', '/v1/hosts').json()['hosts']) == 3, 60)
        said = {'identity': top.uuid, 'project_id': 'of-top'}
        assert east.call('PUT', '/v1/parents/top', said).status_code == 200
        added = top.call('PUT', '/v1/zones/east', {'url': east.url})
        assert added.status_code == 200, added.text

        def placed():
            answer = top.call('POST', '/v1/requests', request(str(uuid.uuid4())))
            return answer.status_code == 201 and answer.json()['answer']['selections'][0][0]

        until(lambda: placed(), 30)  # the scheduler has heard of the new zone by then
        chosen = placed()
        assert (chosen['child'], chosen['host']) == ('east', '')
        where = east.call('POST', '/v1/places', {'place': chosen['place']}).json()
        assert where['claim_id'] == chosen['claim_id'] and where['host'].startswith('fake-')

        # Whoever is killed: the same request comes to one claim.
        wanted = request(str(uuid.uuid4()))
        below.kill('scheduler')
        below.start('scheduler', 'gantt-scheduler')
        first = top.call('POST', '/v1/requests', wanted)
        above.kill('scheduler')
        above.start('scheduler', 'gantt-scheduler')
        again = top.call('POST', '/v1/requests', wanted)
        assert again.status_code in (200, 201), (first.text, again.text)
        claim = again.json()['answer']['selections'][0][0]['claim_id']
        print(east.call('GET', f'/v1/claims/{claim}').text)
        print(above.log('scheduler')[-3000:], below.log('scheduler')[-3000:])
        mine = [one for one in east.claims() if one['consumer'] == wanted['consumers'][0]]
        assert len(mine) == 1
        gone = top.call('DELETE', f'/v1/requests/{wanted["request_id"]}')
        assert gone.status_code == 200
        until(lambda: all(one['consumer'] != wanted['consumers'][0] for one in east.claims()), 30)
        for made in (above, below):
            made.run('gantt-manage', 'audit')
