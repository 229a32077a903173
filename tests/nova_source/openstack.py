# SPDX-License-Identifier: Apache-2.0
"""Keystone, Nova and Placement as far as a reader sees them: HTTP, played from data.

Shapes and paging are those of the API references: compute 2.69, placement 1.14.
"""

import json
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PASSWORD = 'secret'
CPU = {'arch': 'x86_64', 'model': 'EPYC', 'vendor': 'AMD', 'features': ['avx2'], 'odd': 1}


def new_uuid() -> str:
    return str(uuid.uuid4())


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


class OpenStack:
    """The data, and the server that shows it.  Close it.

    :ivar asked: (method, path) of each request, in order
    :ivar unlisted: servers that no list has, as those of a cell that is late
    :ivar unreachable: those of them that Nova cannot read when asked for them alone
    :ivar page_in_time: pages that are asked for with more entries come too late
    :ivar broken: path -> (status, how often), answered in place of data
    """

    def __init__(self) -> None:
        self.password = PASSWORD
        self.role = 'admin'
        self.unlisted: set[str] = set()
        self.unreachable: set[str] = set()
        self.page_most = 1000
        self.page_in_time = 1000
        self.services: dict[str, dict[str, Any]] = {}
        self.hypervisors: list[dict[str, Any]] = []
        self.servers: list[dict[str, Any]] = []
        self.migrations: list[dict[str, Any]] = []
        self.aggregates: list[dict[str, Any]] = []
        self.groups: list[dict[str, Any]] = []
        self.providers: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.broken: dict[str, tuple[int, int]] = {}
        self.is_closed = False
        self._tokens: set[str] = set()
        handler = type('Handler', (_Handler,), {'play': self})
        self._server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
        self._server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self._server.server_address[1]}'
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more, also not on connections that are open."""
        self.is_closed = True
        self._server.shutdown()
        self._server.server_close()

    # -- what there is -------------------------------------------------------------------
    def host(self, name: str, node: str = '', kind: str = 'QEMU', **amounts: int) -> str:
        """A host with its node and provider; the node's uuid."""
        self.services.setdefault(
            name,
            {
                'id': new_uuid(),
                'binary': 'nova-compute',
                'host': name,
                'zone': 'nova',
                'status': 'enabled',
                'state': 'up',
                'updated_at': '2026-11-21T10:00:00.000000',
                'disabled_reason': None,
                'forced_down': False,
            },
        )
        node_uuid = new_uuid()
        self.hypervisors.append(
            {
                'id': node_uuid,
                'hypervisor_hostname': node or f'{name}.example.org',
                'state': 'up',
                'status': 'enabled',
                'hypervisor_type': kind,
                'hypervisor_version': 8002000,
                'host_ip': '192.0.2.1',
                'cpu_info': CPU if kind == 'QEMU' else '',
                'vcpus': 8,
                'memory_mb': 32768,
                'local_gb': 500,
                'vcpus_used': 0,
                'memory_mb_used': 512,
                'local_gb_used': 0,
                'free_ram_mb': 32256,
                'free_disk_gb': 500,
                'running_vms': 0,
                'current_workload': 0,
                'disk_available_least': 490,
                'service': {'id': new_uuid(), 'host': name, 'disabled_reason': None},
            }
        )
        room = amounts or {'VCPU': 8, 'MEMORY_MB': 32768, 'DISK_GB': 500}
        self.providers[node_uuid] = {
            'uuid': node_uuid,
            'name': node or f'{name}.example.org',
            'generation': 1,
            'inventories': {kind: self.inventory(total) for kind, total in room.items()},
            'traits': ['COMPUTE_NODE', 'HW_CPU_X86_AVX2'],
            'allocations': {},
        }
        return node_uuid

    @staticmethod
    def inventory(total: int, **more: Any) -> dict[str, Any]:
        return {
            'total': total,
            'reserved': 0,
            'min_unit': 1,
            'max_unit': total,
            'step_size': 1,
            'allocation_ratio': 1.0,
        } | more

    def allocate(self, provider: str, consumer: str, **amounts: int) -> None:
        """Placement's word of what a consumer has; without amounts: nothing any more.

        As in Placement, PUT raises the generation of the provider and DELETE does not.
        """
        entry = self.providers[provider]
        if amounts:
            entry['generation'] += 1
            entry['allocations'][consumer] = {'resources': amounts}
        else:
            entry['allocations'].pop(consumer, None)

    def server(self, host: str | None, **more: Any) -> str:
        """A server on a host; its uuid."""
        server_id = more.pop('id', None) or new_uuid()
        self.servers.append(
            {
                'id': server_id,
                'name': 'vm',
                'status': 'ACTIVE',
                'tenant_id': 'a-project',
                'user_id': 'a-user',
                'image': {'id': new_uuid()},
                'flavor': {
                    'vcpus': 2,
                    'ram': 2048,
                    'disk': 20,
                    'ephemeral': 0,
                    'swap': 0,
                    'original_name': 'm1.small',
                    'extra_specs': {},
                },
                'OS-EXT-SRV-ATTR:host': host,
                'OS-EXT-SRV-ATTR:hypervisor_hostname': host and f'{host}.example.org',
                'OS-EXT-STS:vm_state': 'active',
                'OS-EXT-STS:task_state': None,
            }
            | more
        )
        return server_id

    def now(self, server: str, **more: Any) -> None:
        """A server is otherwise now."""
        (entry,) = [entry for entry in self.servers if entry['id'] == server]
        if 'host' in more:
            host = more.pop('host')
            entry['OS-EXT-SRV-ATTR:host'] = host
            entry['OS-EXT-SRV-ATTR:hypervisor_hostname'] = host and f'{host}.example.org'
        entry |= {f'OS-EXT-STS:{name}': value for name, value in more.items()}

    def delete(self, server: str) -> None:
        self.servers = [entry for entry in self.servers if entry['id'] != server]

    def migration(self, server: str, source: str, target: str, status: str, **more: Any) -> str:
        """A migration record; its uuid."""
        migration_id = new_uuid()
        self.migrations.append(
            {
                'id': len(self.migrations) + 1,
                'uuid': migration_id,
                'instance_uuid': server,
                'status': status,
                'migration_type': 'resize',
                'source_compute': source,
                'source_node': f'{source}.example.org',
                'dest_compute': target,
                'dest_node': f'{target}.example.org',
                'dest_host': '192.0.2.2',
                'created_at': '2026-11-21T10:00:00.000000',
                'updated_at': None,
            }
            | more
        )
        return migration_id

    def aggregate(self, name: str, *hosts: str, **metadata: str) -> dict[str, Any]:
        entry = {
            'id': len(self.aggregates) + 1,
            'uuid': new_uuid(),
            'name': name,
            'availability_zone': metadata.get('availability_zone'),
            'metadata': metadata,
            'hosts': list(hosts),
            'deleted': False,
        }
        self.aggregates.append(entry)
        return entry

    def group(self, policy: str, *members: str, **rules: int) -> str:
        group_id = new_uuid()
        self.groups.append(
            {
                'id': group_id,
                'name': 'a group',
                'policy': policy,
                'rules': rules,
                'members': list(members),
                'project_id': 'a-project',
                'user_id': 'a-user',
            }
        )
        return group_id

    # -- answers -------------------------------------------------------------------------
    def answer(self, path: str, query: dict[str, str], headers: Any) -> dict[str, Any]:
        status, times = self.broken.get(path, (0, 0))
        if times:
            self.broken[path] = (status, times - 1)
            raise Refused(status, 'broken on purpose')
        if path == '/identity':
            return self._keystone()
        if headers.get('X-Auth-Token') not in self._tokens:
            raise Refused(401, 'The request you have made requires authentication.')
        if self.role != 'admin':
            raise Refused(403, 'Policy does not allow this.')
        kind, _, rest = path.strip('/').partition('/')
        version = headers.get('OpenStack-API-Version', '')
        if kind == 'compute' and version == 'compute 2.69':
            return self._compute(rest.removeprefix('v2.1'), query)
        if kind == 'placement' and version == 'placement 1.14':
            return self._placement(rest)
        raise Refused(406, f'version {version!r} is not played')

    def token(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Keystone's answer to a user's password: the token, and the catalog."""
        user = body['auth']['identity']['password']['user']
        if user['password'] != self.password:
            raise Refused(401, 'The request you have made requires authentication.')
        token = new_uuid()
        self._tokens.add(token)
        return token, {
            'token': {
                'methods': ['password'],
                'expires_at': '2099-01-01T00:00:00.000000Z',
                'issued_at': '2026-11-21T10:00:00.000000Z',
                'roles': [{'id': 'r', 'name': self.role}],
                'user': {'id': 'u', 'name': user['name'], 'domain': {'id': 'd', 'name': 'Default'}},
                'project': {'id': 'p', 'name': 'service', 'domain': {'id': 'd', 'name': 'Default'}},
                'catalog': [
                    self._service('compute', '/compute/v2.1'),
                    self._service('placement', '/placement'),
                ],
            }
        }

    def _service(self, kind: str, path: str) -> dict[str, Any]:
        at = {'id': kind, 'region': 'one', 'region_id': 'one', 'url': self.url + path}
        return {
            'id': kind,
            'type': kind,
            'name': kind,
            'endpoints': [at | {'interface': 'public'}],
        }

    def _keystone(self) -> dict[str, Any]:
        link = [{'rel': 'self', 'href': f'{self.url}/identity/v3/'}]
        return {'versions': {'values': [{'id': 'v3.14', 'status': 'stable', 'links': link}]}}

    def _compute(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        if path.startswith('/servers/') and path != '/servers/detail':
            matching = [server for server in self.servers if path == f'/servers/{server["id"]}']
            if not matching:
                raise Refused(404, 'Instance could not be found.')
            keys = ('id', 'tenant_id')
            if matching[0]['id'] in self.unreachable:
                return {'server': {k: matching[0][k] for k in keys} | {'status': 'UNKNOWN'}}
            return {'server': matching[0]}
        match path:
            case '/os-services':
                return {'services': list(self.services.values())}
            case '/os-hypervisors/detail':
                return {'hypervisors': self._page(self.hypervisors, query)}
            case '/servers/detail':
                whole = ('all_tenants', 'soft_deleted')
                listed = [server for server in self.servers if server['id'] not in self.unlisted]
                matching = listed if all(name in query for name in whole) else []
                return {'servers': self._page(matching, query)}
            case '/os-migrations':
                mine = query['instance_uuid']
                return {'migrations': [m for m in self.migrations if m['instance_uuid'] == mine]}
            case '/os-aggregates':
                return {'aggregates': self.aggregates}
            case '/os-server-groups':
                start = int(query.get('offset', 0))
                return {'server_groups': self._page(self.groups[start:], query)}
        raise Refused(404, 'The resource could not be found.')

    def _page(self, items: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
        if 'marker' in query:
            ids = [entry['id'] for entry in items]
            items = items[ids.index(query['marker']) + 1 :]
        if int(query['limit']) > self.page_in_time:
            raise Refused(504, 'it took too long')
        return items[: min(int(query['limit']), self.page_most)]

    def _placement(self, path: str) -> dict[str, Any]:
        if path == 'resource_providers':
            return {
                'resource_providers': [
                    {
                        'uuid': provider['uuid'],
                        'name': provider['name'],
                        'generation': provider['generation'],
                        'parent_provider_uuid': None,
                        'root_provider_uuid': provider['uuid'],
                        'links': [],
                    }
                    for provider in self.providers.values()
                ]
            }
        _, _, rest = path.partition('/')
        provider, _, part = rest.partition('/')
        if provider not in self.providers or part not in ('inventories', 'traits', 'allocations'):
            raise Refused(404, 'No resource provider found')
        entry = self.providers[provider]
        return {part: entry[part], 'resource_provider_generation': entry['generation']}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    play: OpenStack

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.play.asked.append(('GET', url.path))
        self._tell(
            lambda: (
                None,
                self.play.answer(
                    url.path.rstrip('/'), dict(urllib.parse.parse_qsl(url.query)), self.headers
                ),
            )
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.play.asked.append(('POST', self.path))
        self._tell(lambda: self.play.token(body))

    def _tell(self, answer: Any) -> None:
        if self.play.is_closed:
            self.close_connection = True
            return
        headers = {}
        try:
            token, body = answer()
            status = 201 if token else 200
            if token:
                headers['X-Subject-Token'] = token
        except Refused as e:
            status, body = e.status, {'error': {'code': e.status, 'message': e.text}}
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
