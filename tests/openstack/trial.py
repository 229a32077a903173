# SPDX-License-Identifier: Apache-2.0
"""What the steps of the scenario have in hand: servers of Nova, and what Gantt holds of them."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from keystoneauth1 import exceptions as ks

from tests.openstack.asking import User
from tests.openstack.cloud import Cloud, Trouble
from tests.openstack.files import PASSWORD


def expect(condition: object, problem: str) -> None:
    """Say what was seen where it is not what was expected."""
    if not condition:
        raise Trouble(problem)


class Trial:
    """The cloud, asked as its administrator."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.admin = User(cloud.keystone)
        self.images: dict[str, str] = {}

    # -- Nova ----------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None, version: str = '2.96') -> Any:
        """The answer of Nova's API, decoded; None where it has no body."""
        response = self.admin.compute.request(
            path, method, json=body, microversion=version, headers={'Accept': 'application/json'}
        )
        return response.json() if response.content else None

    def prepare(self) -> None:
        """Two images and the flavors."""
        for name in ('small', 'other'):
            image = self.admin.image.post(
                '/v2/images',
                json={
                    'name': name,
                    'disk_format': 'raw',
                    'container_format': 'bare',
                },
            ).json()['id']
            self.admin.image.put(
                f'/v2/images/{image}/file',
                data=name.encode(),
                headers={'Content-Type': 'application/octet-stream'},
            )
            self.images[name] = image
        for name, vcpus, ram, disk in (
            ('m1', 1, 512, 1),
            ('m2', 2, 1024, 2),
            ('tiny', 1, 64, 1),
            ('huge', 1, 1, 9999),
        ):
            self.ask(
                'POST',
                '/flavors',
                {'flavor': {'id': name, 'name': name, 'vcpus': vcpus, 'ram': ram, 'disk': disk}},
            )

    def boot(
        self,
        name: str,
        flavor: str = 'm1',
        count: int = 1,
        hints: Any = None,
        version: str = '2.96',
        **more: Any,
    ) -> list[str]:
        """Uuids of servers that were asked for; no wait."""
        body: dict[str, Any] = {
            'server': {
                'name': name,
                'flavorRef': flavor,
                'imageRef': self.images['small'],
                'networks': 'none',
                **more,
            }
        }
        if count > 1:
            body['server'] |= {
                'min_count': count,
                'max_count': count,
                'return_reservation_id': True,
            }
        if hints:
            body['os:scheduler_hints'] = hints
        answer = self.ask('POST', '/servers', body, version)
        if count == 1:
            return [answer['server']['id']]
        page = self.ask('GET', f'/servers/detail?reservation_id={answer["reservation_id"]}')
        return [server['id'] for server in page['servers']]

    def show(self, server: str) -> dict[str, Any]:
        """``status``, ``host``, ``fault`` and the rest, of a server that has been built."""
        shown = self.ask('GET', f'/servers/{server}')['server']
        shown['host'] = shown['OS-EXT-SRV-ATTR:host']
        return shown

    def settled(self, server: str, *statuses: str, seconds: float = 60.0) -> dict[str, Any]:
        """The server once it is in one of these states (ACTIVE) and nothing is being done to it."""
        ends = statuses or ('ACTIVE',)
        seen: dict[str, Any] = {}

        def look() -> bool:
            seen.update({'fault': None} | self.show(server))
            if seen['status'] == 'ERROR':
                return True
            return seen['status'] in ends and not seen['OS-EXT-STS:task_state']

        with contextlib.suppress(Trouble):
            self.cloud.wait(f'server {server}', look, seconds)
        expect(
            seen['status'] in ends,
            f'the server is {seen["status"]}, {seen["OS-EXT-STS:task_state"]}: {seen["fault"]}',
        )
        return seen

    def up(self, name: str, **more: Any) -> list[dict[str, Any]]:
        """Servers that are active."""
        return [self.settled(server) for server in self.boot(name, **more)]

    def act(self, server: str, action: str, body: Any = None, version: str = '2.96') -> None:
        self.ask('POST', f'/servers/{server}/action', {action: body}, version)

    def delete(self, *servers: str, seconds: float = 60.0) -> None:
        """Ask for it, and wait until Nova has none of them."""
        for server in servers:
            with contextlib.suppress(ks.NotFound):
                self.ask('DELETE', f'/servers/{server}')

        def gone() -> bool:
            there = {
                server['id'] for server in self.ask('GET', '/servers?all_tenants=1')['servers']
            }
            return not there & set(servers)

        self.cloud.wait('deletion', gone, seconds)

    def delete_all(self) -> None:
        servers = self.ask('GET', '/servers?all_tenants=1')['servers']
        self.delete(*(server['id'] for server in servers))

    @contextlib.contextmanager
    def aggregate(self, name: str, zone: str, *hosts: str) -> Iterator[int]:
        """A zone of its own, for as long as it is needed."""
        body = {'aggregate': {'name': name, 'availability_zone': zone}}
        aggregate = self.ask('POST', '/os-aggregates', body)['aggregate']['id']
        act = f'/os-aggregates/{aggregate}/action'
        for host in hosts:
            self.ask('POST', act, {'add_host': {'host': host}})
        try:
            yield aggregate
        finally:
            self.delete_all()
            for host in hosts:
                self.ask('POST', act, {'remove_host': {'host': host}})
            self.ask('DELETE', f'/os-aggregates/{aggregate}')

    @contextlib.contextmanager
    def failing(self, step: str, *hosts: str) -> Iterator[None]:
        """The hypervisors of these hosts fail in this, meanwhile."""
        named = [self.cloud.root / host / 'fails' for host in hosts]
        for path in named:
            path.write_text(step)
        try:
            yield
        finally:
            for path in named:
                path.unlink()

    def sweep(self) -> None:
        """After a step that failed: no servers, and what failed is not in the way of the next."""
        for name in [n for n, process in self.cloud.running.items() if process.poll() is not None]:
            del self.cloud.running[name]
        with contextlib.suppress(Exception):
            self.delete_all()

    def environment(self) -> dict[str, str]:
        """Credentials for commands."""
        return {
            'OS_AUTH_URL': self.cloud.keystone,
            'OS_USERNAME': 'admin',
            'OS_PASSWORD': PASSWORD,
            'OS_PROJECT_NAME': 'admin',
            'OS_USER_DOMAIN_NAME': 'Default',
            'OS_PROJECT_DOMAIN_NAME': 'Default',
            'OS_IDENTITY_API_VERSION': '3',
        }

    # -- Gantt ---------------------------------------------------------------------------

    def claims(self, server: str | None = None) -> dict[str, tuple[str, int]]:
        """Live claims: host to state and processors; of one server, or of all."""
        where = f'?consumer={server}&limit=1000' if server else '?limit=1000'
        claims = self.admin.scheduler.get(f'/v1/claims{where}').json()['claims']
        return {
            claim['host'] if server else f'{claim["consumer"]} {claim["host"]}': (
                claim['state'],
                claim['resources']['VCPU'],
            )
            for claim in claims
            if claim['state'] in ('reserved', 'confirmed')
        }

    def holds(
        self, server: str, claims: dict[str, tuple[str, int]], seconds: float = 30.0
    ) -> float:
        """Wait until exactly these claims are live; the seconds that it took."""
        began = time.monotonic()
        try:
            self.cloud.wait('claims', lambda: self.claims(server) == claims, seconds)
        except Trouble:
            raise Trouble(f'claims are {self.claims(server)}, expected {claims}') from None
        return time.monotonic() - began

    def decisions(self, limit: int = 1) -> list[dict[str, Any]]:
        return self.admin.scheduler.get(f'/v1/decisions?limit={limit}').json()['decisions']

    def audit(self) -> str:
        """What gantt-manage audit says, which must find nothing."""
        audit = self.cloud.gantt_command('gantt-manage', 'audit')
        expect('over-commit 0, lost 0, leaked 0, doubled 0, providers 0' in audit, audit)
        return audit.strip()
