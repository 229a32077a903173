# SPDX-License-Identifier: Apache-2.0
"""A small server with the requests that build and clean a state, and the rules that these meet.

It has no candidates, no usages and no policies: it is there to see what is sent, not to be
compared with anything.
"""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

NO_CONTENT = (204, None)


@dataclass
class OneProvider:
    name: str
    parent: str | None
    generation: int = 0
    inventories: dict[str, dict[str, Any]] = field(default_factory=dict)
    traits: list[str] = field(default_factory=list)
    aggregates: list[str] = field(default_factory=list)


class SmallServer:
    """What it holds, and ``requests``: method, path and version of each."""

    def __init__(self) -> None:
        self.providers: dict[str, OneProvider] = {}
        self.allocations: dict[str, dict[str, Any]] = {}
        self.traits: set[str] = set()
        self.classes: set[str] = set()
        self.requests: list[tuple[str, str, str]] = []
        #: Answers that stand for a refusal: (method, first part of the path) -> status.
        self.refuses: dict[tuple[str, str], int] = {}

    @property
    def empty(self) -> bool:
        return not (self.providers or self.allocations or self.traits or self.classes)

    def answer(self, method: str, path: str, version: str, body: Any) -> tuple[int, Any]:
        """Status and body."""
        self.requests.append((method, path, version))
        kind, *rest = urlsplit(path).path.strip('/').split('/')
        if status := self.refuses.get((method, kind)):
            return status, {'errors': [{'detail': 'refused'}]}
        handle = getattr(self, f'{method.lower()}_{"_".join([kind, *rest[1:]])}', None)
        return handle(*rest[:1], body) if handle else (404, {'errors': [{'detail': 'unknown'}]})

    # -- resource providers ------------------------------------------------------------------

    def get_resource_providers(self, body: Any) -> tuple[int, Any]:
        return 200, {
            'resource_providers': [
                {'uuid': uuid, 'name': provider.name, 'parent_provider_uuid': provider.parent}
                for uuid, provider in self.providers.items()
            ]
        }

    def post_resource_providers(self, body: Any) -> tuple[int, Any]:
        parent = body.get('parent_provider_uuid')
        if parent is not None and parent not in self.providers:
            return 400, {'errors': [{'detail': 'no such parent'}]}
        if body['name'] in {provider.name for provider in self.providers.values()}:
            return 409, {'errors': [{'detail': 'the name is taken'}]}
        self.providers[body['uuid']] = OneProvider(body['name'], parent)
        return 200, {'generation': 0}

    def delete_resource_providers(self, uuid: str, body: Any) -> tuple[int, Any]:
        if uuid in {provider.parent for provider in self.providers.values()} or self._consumers(
            uuid
        ):
            return 409, {'errors': [{'detail': 'it has children or allocations'}]}
        del self.providers[uuid]
        return NO_CONTENT

    def post_resource_providers_inventories(self, uuid: str, body: Any) -> tuple[int, Any]:
        name = body.pop('resource_class')
        if name.startswith('CUSTOM_') and name not in self.classes:
            return 400, {'errors': [{'detail': 'no such class'}]}
        self.providers[uuid].inventories[name] = body
        return self._next(uuid, 201)

    def put_resource_providers_traits(self, uuid: str, body: Any) -> tuple[int, Any]:
        if body['resource_provider_generation'] != self.providers[uuid].generation:
            return 409, {'errors': [{'detail': 'another generation'}]}
        if {trait for trait in body['traits'] if trait.startswith('CUSTOM_')} - self.traits:
            return 400, {'errors': [{'detail': 'no such trait'}]}
        self.providers[uuid].traits = body['traits']
        return self._next(uuid, 200)

    def put_resource_providers_aggregates(self, uuid: str, body: Any) -> tuple[int, Any]:
        self.providers[uuid].aggregates = body
        return 200, {'aggregates': body}

    def get_resource_providers_allocations(self, uuid: str, body: Any) -> tuple[int, Any]:
        return 200, {'allocations': {consumer: {} for consumer in self._consumers(uuid)}}

    def get_resource_providers_usages(self, uuid: str, body: Any) -> tuple[int, Any]:
        return 200, {'usages': {'VCPU': len(self._consumers(uuid))}}

    def _consumers(self, uuid: str) -> list[str]:
        return [
            consumer for consumer, body in self.allocations.items() if uuid in body['allocations']
        ]

    def _next(self, uuid: str, status: int) -> tuple[int, Any]:
        self.providers[uuid].generation += 1
        return status, {'resource_provider_generation': self.providers[uuid].generation}

    # -- all others ----------------------------------------------------------------------------

    def put_allocations(self, consumer: str, body: Any) -> tuple[int, Any]:
        if consumer in self.allocations or body['consumer_generation'] is not None:
            return 409, {'errors': [{'detail': 'the consumer is there'}]}
        for uuid, share in body['allocations'].items():
            for name, amount in share['resources'].items():
                stored = self.providers[uuid].inventories[name]
                used = sum(
                    body['allocations'].get(uuid, {'resources': {}})['resources'].get(name, 0)
                    for body in self.allocations.values()
                )
                if amount > min(stored['max_unit'], stored['total'] - used):
                    return 409, {'errors': [{'detail': f'no room for {amount} {name}'}]}
        self.allocations[consumer] = body
        return NO_CONTENT

    def delete_allocations(self, consumer: str, body: Any) -> tuple[int, Any]:
        del self.allocations[consumer]
        return NO_CONTENT

    def get_traits(self, body: Any) -> tuple[int, Any]:
        return 200, {'traits': sorted(self.traits)}

    def put_traits(self, name: str, body: Any) -> tuple[int, Any]:
        self.traits.add(name)
        return NO_CONTENT

    def delete_traits(self, name: str, body: Any) -> tuple[int, Any]:
        self.traits.remove(name)
        return NO_CONTENT

    def get_resource_classes(self, body: Any) -> tuple[int, Any]:
        return 200, {'resource_classes': [{'name': name} for name in ['VCPU', *self.classes]]}

    def put_resource_classes(self, name: str, body: Any) -> tuple[int, Any]:
        self.classes.add(name)
        return NO_CONTENT

    def delete_resource_classes(self, name: str, body: Any) -> tuple[int, Any]:
        self.classes.remove(name)
        return NO_CONTENT


@contextlib.contextmanager
def serving(small: SmallServer) -> Iterator[str]:
    """Its URL while it serves, with a prefix as deployments have it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'
        # Head and body in one packet: the second of two waits for a delayed acknowledgement.
        wbufsize = -1

        def _answer(self) -> None:
            length = int(self.headers.get('content-length') or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            version = self.headers.get('openstack-api-version', '')
            path = self.path.removeprefix('/placement')
            status, reply = small.answer(self.command, path, version, body)
            content = b'' if reply is None else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header('content-type', 'application/json')
            self.send_header('content-length', str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f'http://127.0.0.1:{server.server_address[1]}/placement'
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
