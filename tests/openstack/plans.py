# SPDX-License-Identifier: Apache-2.0
"""Steps: a group that is planned as a whole, and created by Nova member by member."""

import random
import uuid

from tests.openstack import files
from tests.openstack.trial import Trial, expect

CONFIRMED = 'confirmed'
#: Flavor -> members of it, and what one takes.
MEMBERS = {
    'm1': (5, {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}),
    'm2': (4, {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 2}),
    'tiny': (3, {'VCPU': 1, 'MEMORY_MB': 64, 'DISK_GB': 1}),
}
VERSION = {'OpenStack-API-Version': 'scheduler latest'}


def _described(group: str) -> dict:
    members = [
        {'name': flavor, 'count': count, 'spec': {'resources': takes, 'flavor': {'name': flavor}}}
        for flavor, (count, takes) in MEMBERS.items()
    ]
    policies = [
        {'policy': 'anti-affinity', 'of': 'tiny'},
        {'policy': 'spread', 'of': 'm1', 'max_per_domain': 2},
        {'policy': 'affinity', 'of': 'm2'},
    ]
    return {'uuid': group, 'members': members, 'policies': policies}


def planned_group(trial: Trial) -> str:
    """twelve servers of three flavors, planned under a server group's uuid: each on its place"""
    # Nova lets ten servers into a group, and ten into a project.
    quotas = {'instances': 30, 'cores': 60, 'server_group_members': 20}
    project = trial.admin.session.get_project_id()
    trial.ask('PUT', f'/os-quota-sets/{project}', {'quota_set': quotas})
    body = {'server_group': {'name': 'cluster', 'policy': 'soft-anti-affinity'}}
    group = trial.ask('POST', '/os-server-groups', body)['server_group']['id']
    scheduler = trial.admin.scheduler
    answer = scheduler.post(
        '/v1/group-plans',
        json={'request_id': str(uuid.uuid4()), 'group': _described(group)},
        headers=VERSION,
    ).json()
    places = {member['name']: member['host'] for member in answer['plan']['members']}
    expect(len(places) == 12, f'planned: {places}')
    names = sorted(places)
    random.Random(12).shuffle(names)
    servers = {
        name: trial.boot(
            name, flavor=name.rpartition('-')[0], hints={'group': group, 'gantt_member': name}
        )[0]
        for name in names
    }
    for name, server in servers.items():
        settled = trial.settled(server, seconds=120.0)
        expect(
            settled['host'] == places[name], f'{name} is on {settled["host"]}, not {places[name]}'
        )
        takes = MEMBERS[name.rpartition('-')[0]][1]['VCPU']
        trial.holds(server, {places[name]: (CONFIRMED, takes)})
    shown = scheduler.get(f'/v1/group-plans/{group}', headers=VERSION).json()
    states = {member['name']: member['state'] for member in shown['members']}
    expect(set(states.values()) == {'running'}, f'states are {states}')
    late = trial.settled(
        trial.boot('one-more', flavor='m2', hints={'group': group, 'gantt_member': 'm2-1'})[0],
        'ERROR',
    )
    expect('m2-1' in late['fault']['message'], late['fault'])
    trial.delete(*servers.values(), late['id'], seconds=120.0)
    for server in servers.values():
        trial.holds(server, {}, 90.0)
    scheduler.delete(f'/v1/group-plans/{group}', headers=VERSION)
    expect(trial.claims() == {}, f'claims are {trial.claims()}')
    trial.ask('DELETE', f'/os-server-groups/{group}')
    by_host = {host: sum(place == host for place in places.values()) for host in files.HOSTS}
    return f'{answer["plan"]["status"]}, {by_host}; {trial.audit()}'


STEPS = (planned_group,)
