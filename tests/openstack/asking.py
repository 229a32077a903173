# SPDX-License-Identifier: Apache-2.0
"""The APIs as a client of OpenStack asks them, with tokens of Keystone."""

from typing import Any

from keystoneauth1 import session
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import v3

from tests.openstack.files import PASSWORD

NOVA, PLACEMENT = '2.96', '1.39'


class User:
    """One user's view of all services."""

    def __init__(
        self, url: str, name: str = 'admin', project: str = 'admin', system: bool = False
    ) -> None:
        scope = (
            {'system_scope': 'all'}
            if system
            else {'project_name': project, 'project_domain_name': 'Default'}
        )
        self.session = session.Session(
            v3.Password(
                auth_url=url,
                username=name,
                password=PASSWORD,
                user_domain_name='Default',
                **scope,
            )
        )
        self.url = url

    def _of(self, kind: str, version: str | None = None) -> Adapter:
        return Adapter(
            self.session, service_type=kind, interface='public', default_microversion=version
        )

    @property
    def compute(self) -> Adapter:
        return self._of('compute', NOVA)

    @property
    def placement(self) -> Adapter:
        return self._of('placement', PLACEMENT)

    @property
    def image(self) -> Adapter:
        return self._of('image')

    @property
    def scheduler(self) -> Adapter:
        return self._of('scheduler')

    @property
    def identity(self) -> Adapter:
        return Adapter(self.session, service_type='identity', endpoint_override=self.url)

    def allocations(self, consumer: str) -> dict[str, Any]:
        """What Placement holds for a consumer: provider to amounts."""
        by_provider = self.placement.get(f'/allocations/{consumer}').json()['allocations']
        return {key: value['resources'] for key, value in by_provider.items()}


def prepare(admin: User, ports: dict[str, int]) -> None:
    """Projects, users, roles and the catalog, as each service's guide to install says."""
    ask = admin.identity
    roles = {r['name']: r['id'] for r in ask.get('/roles').json()['roles']}
    projects = {p['name']: p['id'] for p in ask.get('/projects').json()['projects']}
    for name in ('service', 'demo'):
        body = {'project': {'name': name, 'domain_id': 'default'}}
        projects[name] = ask.post('/projects', json=body).json()['project']['id']
    users = {
        'glance': [('service', 'service'), ('service', 'admin')],
        'placement': [('service', 'service'), ('service', 'admin')],
        'nova': [('service', 'service'), ('service', 'admin')],
        'gantt': [('service', 'service'), ('service', 'admin')],
        'plain-service': [('service', 'service')],
        'member': [('demo', 'member')],
        'reader': [('demo', 'reader')],
    }
    for name, given in users.items():
        body = {'user': {'name': name, 'domain_id': 'default', 'password': PASSWORD}}
        user = ask.post('/users', json=body).json()['user']['id']
        for project, role in given:
            ask.put(f'/projects/{projects[project]}/users/{user}/roles/{roles[role]}')
    for kind, name, path in (
        ('image', 'glance', ''),
        ('placement', 'placement', ''),
        ('compute', 'nova', '/v2.1'),
        ('network', 'network', ''),
        ('scheduler', 'gantt', ''),
    ):
        body = {'service': {'type': kind, 'name': name}}
        service = ask.post('/services', json=body).json()['service']['id']
        for interface in ('public', 'internal', 'admin'):
            ask.post(
                '/endpoints',
                json={
                    'endpoint': {
                        'service_id': service,
                        'interface': interface,
                        'region_id': 'RegionOne',
                        'url': f'http://127.0.0.1:{ports[name]}{path}',
                    }
                },
            )
