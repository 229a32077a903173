# SPDX-License-Identifier: Apache-2.0
"""Steps: who may do what by a token of Keystone, and the commands of OpenStackClient."""

import json
import uuid

import requests

from tests.openstack.asking import User
from tests.openstack.trial import Trial, expect

#: Who gets what: project, whole system, then the statuses of the paths below.
USERS = {
    'admin': ('admin', False, (200, 200, 200, 200)),
    'admin of the system': ('', True, (200, 200, 200, 200)),
    'member': ('demo', False, (200, 403, 200, 200)),
    'reader': ('demo', False, (200, 403, 200, 403)),
    'plain-service': ('service', False, (200, 403, 200, 200)),
}


def tokens(trial: Trial) -> str:
    """tokens of Keystone: who may see hosts and claims, and ask for places"""
    url = f'http://127.0.0.1:{trial.cloud.ports["gantt"]}'
    for name, (project, system, expected) in USERS.items():
        user = User(trial.cloud.keystone, name.split()[0], project, system)
        head = {'X-Auth-Token': user.session.get_token()}
        asked = [
            requests.get(url + path, headers=head, timeout=30).status_code
            for path in ('/v1/decisions', '/v1/hosts', '/v1/claims')
        ]
        place = {
            'request_id': str(uuid.uuid4()),
            'consumers': [str(uuid.uuid4())],
            'spec': {'resources': {'VCPU': 1}},
            'dry_run': True,
        }
        asked.append(
            requests.post(f'{url}/v1/requests', json=place, headers=head, timeout=30).status_code
        )
        expect(tuple(asked) == expected, f'{name} got {asked}, expected {expected}')
    for token in ({}, {'X-Auth-Token': 'nonsense'}):
        got = requests.get(f'{url}/v1/hosts', headers=token, timeout=30)
        expect(got.status_code == 401, f'{token} got {got.status_code}')
        expect(trial.cloud.keystone in got.headers['WWW-Authenticate'], str(got.headers))
    return ', '.join(USERS) + ', nobody, and a token that is none'


def commands(trial: Trial) -> str:
    """openstack scheduler ..., with a token"""
    environment = trial.environment()

    def ask(*words: str) -> str:
        return trial.cloud.run('openstack', 'scheduler', *words, **environment)

    trial.up('explained')
    hosts = json.loads(ask('host', 'list', '-f', 'json'))
    expect('alpha' in str(hosts), str(hosts)[:500])
    for words in (
        ('status',),
        ('claim', 'list'),
        ('capacity', '--resource', 'VCPU=1'),
        ('select', '--resource', 'VCPU=1', '--dry-run'),
    ):
        expect(ask(*words).strip(), f'{words} says nothing')
    request = trial.decisions()[0]['request_id']
    return ask('explain', request).splitlines()[0]


STEPS = (tokens, commands)
