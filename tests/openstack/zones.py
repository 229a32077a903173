# SPDX-License-Identifier: Apache-2.0
"""Steps: the cloud is a zone below another, which is let in by an application credential."""

import contextlib
import re
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import requests
from keystoneauth1 import exceptions as ks

from tests.openstack.asking import User
from tests.openstack.trial import Trial, expect

CREDENTIAL, PROJECT = 'the-cloud', 'demo'
LATEST = {'OpenStack-API-Version': 'scheduler latest'}

CONFIG = """\
[DEFAULT]
state_path = {root}
[database]
connection = sqlite:///{root}/gantt.db
[api]
port = 0
[zones]
credentials_file = {root}/credentials.ini
"""

SECTION = """\
[{name}]
auth_url = {url}
application_credential_id = {id}
application_credential_secret = {secret}
"""


class Above:
    """A zone without hosts and broker, in a process of its own.

    :param secret: of the application credential; the file has it
    """

    def __init__(self, trial: Trial, credential: dict[str, str]) -> None:
        self.cloud = trial.cloud
        self.root = self.cloud.root / f'above-{credential["id"][:8]}'
        self.root.mkdir()
        self.credential = credential
        self.write(credential['secret'])
        self._config = self.root / 'gantt.conf'
        self._config.write_text(CONFIG.format(root=self.root))
        self.cloud.run(
            str(self.cloud.gantt / 'gantt-manage'), '--config-file', str(self._config), 'db', 'sync'
        )
        self.start()

    def start(self) -> None:
        """Start its process, and wait until it serves."""
        self._log = self.root / 'above.out'
        with self._log.open('wb') as log:
            self._process = subprocess.Popen(
                [str(self.cloud.gantt / 'gantt-standalone'), '--config-file', str(self._config)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        port = self.cloud.wait('the zone above', self._port, 60)
        self.url = f'http://127.0.0.1:{port}'

    def _port(self) -> str:
        match = re.search(r'address=http://[^ ]+:(\d+)', self._log.read_text())
        return match[1] if match else ''

    def write(self, secret: str) -> None:
        """The file of credentials."""
        file = self.root / 'credentials.ini'
        file.write_text(
            SECTION.format(
                name=CREDENTIAL, url=self.cloud.keystone, id=self.credential['id'], secret=secret
            )
        )
        file.chmod(0o600)

    def call(self, method: str, path: str, body: Any = None) -> requests.Response:
        return requests.request(method, self.url + path, json=body, headers=LATEST, timeout=60)

    def audit(self) -> str:
        """What its audit says, which must find nothing."""
        audit = self.cloud.run(
            str(self.cloud.gantt / 'gantt-manage'), '--config-file', str(self._config), 'audit'
        )
        expect('over-commit 0, lost 0, leaked 0, doubled 0' in audit, audit)
        return audit.strip().splitlines()[-1]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def credential_of(trial: Trial, name: str) -> Iterator[dict[str, str]]:
    """A user of the cloud's Keystone for the zone above, and an application credential of it.

    :param name: of a user that may do what services do in the project ``service``
    """
    user = User(trial.cloud.keystone, name, 'service')
    user_id = user.session.get_user_id()
    path = f'/users/{user_id}/application_credentials'
    body = {'application_credential': {'name': f'{name}-{uuid.uuid4().hex[:8]}'}}
    credential = user.identity.post(path, json=body).json()['application_credential']
    try:
        yield {
            'id': credential['id'],
            'secret': credential['secret'],
            'user': user_id,
            'path': path,
        }
    finally:
        with contextlib.suppress(ks.NotFound):
            user.identity.delete(f'{path}/{credential["id"]}')


@contextlib.contextmanager
def above(trial: Trial) -> Iterator[Above]:
    """A zone above the cloud that is registered there, and knows the cloud as zone ``cloud``."""
    scheduler = trial.admin.scheduler
    with credential_of(trial, 'plain-service') as credential:
        body = {'identity': credential['user'], 'project_id': project(trial), 'trusted': True}
        scheduler.put('/v1/parents/region', json=body, headers=LATEST)
        with contextlib.closing(Above(trial, credential)) as zone:
            url = f'http://127.0.0.1:{trial.cloud.ports["gantt"]}'
            zone_body = {'url': url, 'credential': CREDENTIAL, 'trusted': True}
            added = zone.call('PUT', '/v1/zones/cloud', zone_body)
            expect(added.status_code == 200, added.text)
            try:
                yield zone
            finally:
                # A zone above is not forgotten while claims of it live.
                held = scheduler.get('/v1/claims?state=reserved&limit=1000').json()['claims']
                for claim in held:
                    scheduler.delete(f'/v1/requests/{claim["request_id"]}')
                scheduler.delete('/v1/parents/region', headers=LATEST)


def project(trial: Trial) -> str:
    """The id of the project under which the zone above is a tenant."""
    projects = trial.admin.identity.get('/projects', params={'name': PROJECT}).json()
    return projects['projects'][0]['id']


def request() -> dict[str, Any]:
    return {
        'request_id': str(uuid.uuid4()),
        'consumers': [str(uuid.uuid4())],
        'spec': {'resources': {'VCPU': 1, 'MEMORY_MB': 64}},
    }


def below_another(trial: Trial) -> str:
    """the cloud below another zone: by an application credential, under a project's quota"""
    with above(trial) as zone:
        body = request()

        def placed() -> Any:
            body['request_id'] = str(uuid.uuid4())
            response = zone.call('POST', '/v1/requests', body)
            return response.json() if response.status_code == 201 else None

        answer = trial.cloud.wait('a place in the cloud', placed, 30)
        [[chosen, *_]] = answer['answer']['selections']
        expect((chosen['child'], chosen['host']) == ('cloud', ''), str(chosen))
        place = trial.admin.scheduler.post(
            '/v1/sealed-hosts', json={'sealed_host': chosen['sealed_host']}, headers=LATEST
        ).json()
        [consumer] = body['consumers']
        claims = trial.admin.scheduler.get(f'/v1/claims?consumer={consumer}').json()['claims']
        live = [claim for claim in claims if claim['state'] == 'reserved']
        expect(len(live) == 1 and live[0]['host'] == place['host'], f'{live} {place}')
        expect(live[0]['project_id'] == project(trial), str(live))
        gone = zone.call('DELETE', f'/v1/requests/{body["request_id"]}')
        expect(gone.status_code == 200, gone.text)
        trial.cloud.wait('no claim', lambda: trial.claims(consumer) == {}, 30)
        trial.audit()
        return f'{place["host"]}; above: {zone.audit()}'


def wrong_credentials(trial: Trial) -> str:
    """a zone above whose secret is wrong, and one whose credential was deleted"""
    with above(trial) as zone:

        def answer() -> requests.Response:
            return zone.call('POST', '/v1/requests', request())

        def restart(secret: str) -> None:
            zone.close()
            zone.write(secret)
            zone.start()

        def not_known() -> str:
            response = answer()
            expect(response.status_code == 503 and 'cloud' in response.text, response.text)
            expect(zone.credential['secret'] not in response.text, response.text)
            tree = zone.call('GET', '/v1/zone-tree').json()
            [cloud] = tree['children']
            expect(cloud['state'] != 'responding' and CREDENTIAL in cloud['problem'], str(cloud))
            return f'{cloud["state"]}: {cloud["problem"][:60]}'

        def is_placed() -> bool:
            return answer().status_code == 201

        trial.cloud.wait('a place in the cloud', is_placed, 30)
        restart('wrong')
        seen = not_known()
        # The right one again: the file is read anew, the process is the same.
        zone.write(zone.credential['secret'])
        trial.cloud.wait('a place in the cloud', is_placed, 30)
        user = User(trial.cloud.keystone, 'plain-service', 'service')
        user.identity.delete(f'{zone.credential["path"]}/{zone.credential["id"]}')
        restart(zone.credential['secret'])
        not_known()
        # Who has a good token, and is no zone above, is no zone above.
        token = {'X-Auth-Token': trial.admin.session.get_token(), **LATEST}
        url = f'http://127.0.0.1:{trial.cloud.ports["gantt"]}/zone/v1/summary'
        response = requests.get(url, headers=token, timeout=30)
        expect(response.status_code == 403, response.text)
    return seen


STEPS = (below_another, wrong_credentials)
