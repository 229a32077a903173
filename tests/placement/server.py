# SPDX-License-Identifier: Apache-2.0
"""A server of Placement's HTTP API, as one that builds a state there and takes it away again."""

from collections.abc import Iterable
from typing import Any

import httpx2 as httpx

#: The version of almost all requests: consumers have generations, and no types yet.
VERSION = '1.28'
#: The last in which setting aggregates leaves the generation of the provider as it is.
AGGREGATES_VERSION = '1.18'
#: What one request may take, in seconds.
TIMEOUT = 30.0
#: Names that are not of the standard sets, and may be deleted.
CUSTOM = 'CUSTOM_'


class ServerError(Exception):
    """A request was not answered as it had to be; the message has both."""


class Server:
    """One base URL, with the token that may do everything.

    :param url: where ``/resource_providers`` is below of
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip('/')
        self._client = httpx.Client(
            timeout=TIMEOUT,
            # Certificates take longer to read than many a request, and http has none.
            verify=self.url.startswith('https'),
            headers={'x-auth-token': 'admin', 'accept': 'application/json'},
        )

    def close(self) -> None:
        self._client.close()

    def request(
        self, method: str, path: str, body: Any = None, version: str = VERSION
    ) -> dict[str, Any]:
        """The answer, empty where it has no body.

        :raises ServerError: there was none, or it is no success
        """
        headers = {'openstack-api-version': f'placement {version}'}
        content = {} if body is None else {'json': body}
        try:
            answer = self._client.request(method, self.url + path, headers=headers, **content)
        except httpx.HTTPError as e:
            raise ServerError(f'{method} {self.url}{path}: {e!r}') from e
        if not answer.is_success:
            raise ServerError(
                f'{method} {self.url}{path}: expected a success, got {answer.status_code}: '
                f'{answer.text[:1000]}'
            )
        return answer.json() if answer.content else {}

    # -- building ------------------------------------------------------------------------

    def make_class(self, name: str) -> None:
        if name.startswith(CUSTOM):
            self.request('PUT', f'/resource_classes/{name}')

    def make_trait(self, name: str) -> None:
        if name.startswith(CUSTOM):
            self.request('PUT', f'/traits/{name}')

    def make_provider(self, uuid: str, name: str, parent: str | None) -> int:
        """Its generation."""
        body = {'uuid': uuid, 'name': name}
        if parent is not None:
            body['parent_provider_uuid'] = parent
        return self.request('POST', '/resource_providers', body)['generation']

    def add_inventory(self, uuid: str, resource_class: str, amounts: dict[str, Any]) -> int:
        """The generation of the provider after it: each inventory counts it up by one."""
        self.make_class(resource_class)
        body = {'resource_class': resource_class, **amounts}
        answer = self.request('POST', f'/resource_providers/{uuid}/inventories', body)
        return answer['resource_provider_generation']

    def set_traits(self, uuid: str, traits: Iterable[str], generation: int) -> int:
        """The generation of the provider after it."""
        names = list(traits)
        for name in names:
            self.make_trait(name)
        body = {'traits': names, 'resource_provider_generation': generation}
        answer = self.request('PUT', f'/resource_providers/{uuid}/traits', body)
        return answer['resource_provider_generation']

    def set_aggregates(self, uuid: str, aggregates: Iterable[str]) -> None:
        path = f'/resource_providers/{uuid}/aggregates'
        self.request('PUT', path, list(aggregates), AGGREGATES_VERSION)

    def allocate(
        self, consumer: str, user: str, project: str, provider: str, resources: dict[str, int]
    ) -> None:
        """For a consumer that has nothing yet."""
        self.request(
            'PUT',
            f'/allocations/{consumer}',
            {
                'allocations': {provider: {'resources': resources}},
                'user_id': user,
                'project_id': project,
                'consumer_generation': None,
            },
        )

    # -- looking and cleaning ------------------------------------------------------------

    def providers(self) -> list[dict[str, Any]]:
        return self.request('GET', '/resource_providers')['resource_providers']

    def require_empty(self) -> None:
        """:raises ServerError: it has providers, which the tests would trip over and delete"""
        if there := self.providers():
            raise ServerError(
                f'{self.url}: expected a server with no resource provider, for the tests delete '
                f'all of them; it has {len(there)}, one is {there[0].get("name")!r}'
            )

    def clean(self) -> None:
        """Delete all consumers' allocations, all providers, and the custom traits and classes.

        Projects, users, consumer types and aggregates have no request to delete them with;
        nothing shows them when nobody refers to them.

        :raises ServerError: something could not be deleted
        """
        there = self.providers()
        for provider in there:
            path = f'/resource_providers/{provider["uuid"]}'
            if not any(self.request('GET', f'{path}/usages')['usages'].values()):
                continue
            for consumer in self.request('GET', f'{path}/allocations')['allocations']:
                self.request('DELETE', f'/allocations/{consumer}')
        for uuid in children_first(there):
            self.request('DELETE', f'/resource_providers/{uuid}')
        for name in self.request('GET', f'/traits?name=startswith:{CUSTOM}')['traits']:
            self.request('DELETE', f'/traits/{name}')
        for entry in self.request('GET', '/resource_classes')['resource_classes']:
            if entry['name'].startswith(CUSTOM):
                self.request('DELETE', f'/resource_classes/{entry["name"]}')


def children_first(providers: Iterable[dict[str, Any]]) -> list[str]:
    """Uuids of providers in an order in which each can be deleted."""
    parents = {provider['uuid']: provider.get('parent_provider_uuid') for provider in providers}

    def depth(uuid: str) -> int:
        steps = 0
        above = parents[uuid]
        while above in parents and steps < len(parents):
            steps, above = steps + 1, parents[above]
        return steps

    return sorted(parents, key=depth, reverse=True)
