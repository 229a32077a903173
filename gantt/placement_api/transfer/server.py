# SPDX-License-Identifier: Apache-2.0
"""Server with Placement's API, the real one or Gantt, as a side: HTTP, bounded and typed."""

import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2 as httpx
import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.resource_classes import Inventory
from gantt.placement_api.transfer.side import (
    CUSTOM_PREFIX,
    PLACEHOLDER_OWNER,
    UNKNOWN_TYPE,
    ConsumerRecord,
    ProviderContent,
    ProviderOutline,
    SavedConsumer,
    standardized,
)

T = TypeVar('T')
#: Range of versions to request: the server's highest up to the first one.  Below the second one
#: consumers have no generations.
NEWEST, OLDEST = (1, 39), (1, 28)
#: First version in which consumers have types.
TYPES_SINCE = (1, 38)
#: Version in which a consumer of unknown type is written.
VERSION_WITHOUT_TYPES = (1, 37)
#: Tries of one request where the server does not answer or is busy; seconds before the second,
#: each later pause is twice as long.
TRIES, PAUSE_SECONDS = 4, 0.5
#: Code of the answer to a writer that lost to a concurrent one.
CONCURRENT_UPDATE = 'placement.concurrent_update'
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
#: Reads of one provider until its inventories, traits and aggregates are of one generation.
READS_MAX = 3
#: Characters of a refusal that are shown.
_DETAIL_MAX = 500


class _Version(msgspec.Struct):
    max_version: str
    min_version: str


class _Versions(msgspec.Struct):
    versions: list[_Version]


class _Named(msgspec.Struct):
    name: str


class _Classes(msgspec.Struct):
    resource_classes: list[_Named]


class _Traits(msgspec.Struct):
    traits: list[str]


class _Provider(msgspec.Struct):
    uuid: str
    name: str
    generation: int
    parent_provider_uuid: str | None = None


class _Providers(msgspec.Struct):
    resource_providers: list[_Provider]


class _Numbers(msgspec.Struct):
    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class _Inventories(msgspec.Struct):
    inventories: dict[str, _Numbers]
    resource_provider_generation: int


class _TraitsOf(_Traits):
    resource_provider_generation: int


class _AggregatesOf(msgspec.Struct):
    aggregates: list[str]
    resource_provider_generation: int


class _Shares(msgspec.Struct):
    resources: dict[str, int]
    consumer_generation: int | None = None


class _Allocations(msgspec.Struct):
    allocations: dict[str, _Shares]
    project_id: str | None = None
    user_id: str | None = None
    consumer_generation: int = 0
    consumer_type: str | None = None


class PlacementServer:
    """Side over HTTP; see ``PlacementSide``.

    :param url: base URL, above ``/resource_providers``
    :param token: returns the token that is sent
    :param renew: returns another token where the first has expired; None: there is none
    :param timeout: seconds of one request
    :param verify: verification of certificates, as httpx takes it
    :ivar token: the token that is sent now
    """

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        renew: Callable[[], str] | None = None,
        timeout: float = 60.0,
        verify: Any = True,
    ) -> None:
        """Connect to the server, and choose the version.

        :raises InvalidMessage: ``url`` is no URL
        """
        self.name = self.url = url.rstrip('/')
        try:
            parsed = urlsplit(self.url)
            is_url = parsed.scheme in ('http', 'https') and bool(parsed.hostname)
        except ValueError:
            is_url = False
        if not is_url:
            raise exceptions.invalid('URL', f'expected such as http://placement:8778, got {url!r}')
        self.token = token()
        self._renew = renew
        self._client = httpx.Client(
            timeout=httpx.Timeout(timeout, connect=10.0),
            verify=verify if parsed.scheme == 'https' else False,
            trust_env=False,
        )
        self._version = NEWEST
        try:
            self._version = self._negotiate_version()
        except exceptions.GanttError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- read ----------------------------------------------------------------------------
    def classes(self) -> frozenset[str]:
        listed = self._get('/resource_classes', _Classes)
        return frozenset(
            resource_class.name
            for resource_class in listed.resource_classes
            if resource_class.name.startswith(CUSTOM_PREFIX)
        )

    def traits(self) -> frozenset[str]:
        return frozenset(self._get(f'/traits?name=startswith:{CUSTOM_PREFIX}', _Traits).traits)

    def outlines(self) -> dict[str, ProviderOutline]:
        listed = self._get('/resource_providers', _Providers)
        return {provider.uuid: _outline(provider) for provider in listed.resource_providers}

    def content(self, uuid: str) -> ProviderContent | None:
        path = f'/resource_providers/{uuid}'
        try:
            for _ in range(READS_MAX):
                inventories = self._get(f'{path}/inventories', _Inventories)
                traits = self._get(f'{path}/traits', _TraitsOf)
                aggregates = self._get(f'{path}/aggregates', _AggregatesOf)
                generations = {
                    part.resource_provider_generation for part in (inventories, traits, aggregates)
                }
                if len(generations) == 1:
                    break
        except exceptions.NotFound:
            return None
        return ProviderContent(
            # Where it changed all the time: an outdated generation, so that it is read again.
            generation=min(generations),
            inventories={
                name: standardized(Inventory(**msgspec.structs.asdict(numbers)))
                for name, numbers in inventories.inventories.items()
                if numbers.total > 0
            },
            traits=frozenset(traits.traits),
            aggregates=frozenset(aggregates.aggregates),
        )

    def uses(self, uuid: str) -> dict[str, tuple[int, dict[str, int]]]:
        try:
            listed = self._get(f'/resource_providers/{uuid}/allocations', _Allocations)
        except exceptions.NotFound:
            return {}
        return {
            consumer: (share.consumer_generation or 0, share.resources)
            for consumer, share in listed.allocations.items()
        }

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        answer = self._get(f'/allocations/{uuid}', _Allocations)
        if not answer.allocations:
            return None
        return ConsumerRecord(
            generation=answer.consumer_generation,
            project_id=answer.project_id or PLACEHOLDER_OWNER,
            user_id=answer.user_id or PLACEHOLDER_OWNER,
            consumer_type=answer.consumer_type or UNKNOWN_TYPE,
            allocations={
                provider: share.resources for provider, share in answer.allocations.items()
            },
        )

    # -- write ---------------------------------------------------------------------------
    def create_class(self, name: str) -> None:
        self._send('PUT', f'/resource_classes/{name}')

    def create_trait(self, name: str) -> None:
        self._send('PUT', f'/traits/{name}')

    def create_provider(self, outline: ProviderOutline) -> ProviderOutline:
        body = {'uuid': outline.uuid, **_provider_fields(outline)}
        if outline.parent is None:
            del body['parent_provider_uuid']
        answer = self._send('POST', '/resource_providers', body)
        return _outline(self._decoded(answer, _Provider, 'POST', '/resource_providers'))

    def update_provider(self, outline: ProviderOutline) -> None:
        self._send('PUT', f'/resource_providers/{outline.uuid}', _provider_fields(outline))

    def save_inventories(
        self, uuid: str, inventories: Mapping[str, Inventory], generation: int
    ) -> int:
        numbers = {
            name: msgspec.structs.asdict(standardized(inventory))
            for name, inventory in inventories.items()
        }
        return self._content('inventories', uuid, numbers, _Inventories, generation)

    def save_traits(self, uuid: str, traits: Collection[str], generation: int) -> int:
        return self._content('traits', uuid, sorted(traits), _TraitsOf, generation)

    def save_aggregates(self, uuid: str, aggregates: Collection[str], generation: int) -> int:
        return self._content('aggregates', uuid, sorted(aggregates), _AggregatesOf, generation)

    def save_consumer(
        self, uuid: str, record: ConsumerRecord, generation: int | None
    ) -> SavedConsumer:
        version = self._version
        body: dict[str, Any] = {
            'allocations': {
                provider: {'resources': amounts} for provider, amounts in record.allocations.items()
            },
            'project_id': record.project_id,
            'user_id': record.user_id,
            'consumer_generation': generation,
        }
        if record.consumer_type == UNKNOWN_TYPE:
            version = min(version, VERSION_WITHOUT_TYPES)
        elif version >= TYPES_SINCE:
            body['consumer_type'] = record.consumer_type
        for tries_left in reversed(range(TRIES)):
            try:
                self._send('PUT', f'/allocations/{uuid}', body, version)
                break
            except exceptions.Conflict:
                # Placement refuses some concurrent writers of a provider, after its own tries.
                if not tries_left:
                    raise
                time.sleep(random.uniform(0.0, PAUSE_SECONDS))
        return SavedConsumer(True)

    def delete_consumer(self, uuid: str) -> None:
        self._delete(f'/allocations/{uuid}')

    def delete_provider(self, uuid: str) -> None:
        self._delete(f'/resource_providers/{uuid}')

    def delete_class(self, name: str) -> None:
        self._delete(f'/resource_classes/{name}')

    def delete_trait(self, name: str) -> None:
        self._delete(f'/traits/{name}')

    def _delete(self, path: str) -> None:
        # Another client, or the try before, may have deleted it already.
        with contextlib.suppress(exceptions.NotFound):
            self._send('DELETE', path)

    def _content(self, key: str, uuid: str, value: Any, tp: Any, generation: int) -> int:
        path = f'/resource_providers/{uuid}/{key}'
        body = {key: value, 'resource_provider_generation': generation}
        answer = self._decoded(self._send('PUT', path, body), tp, 'PUT', path)
        new_generation: int = answer.resource_provider_generation
        return new_generation

    # -- requests ------------------------------------------------------------------------
    def _negotiate_version(self) -> tuple[int, int]:
        listed = self._decoded(self._send('GET', '/'), _Versions, 'GET', '/').versions
        versions = [_parse_version(candidate.max_version) for candidate in listed]
        best = max((candidate for candidate in versions if candidate is not None), default=(0, 0))
        if best < OLDEST:
            raise exceptions.invalid(
                f'{self.url}/: versions.max_version',
                f'expected at least {_version_text(OLDEST)}, got {_version_text(best)}',
            )
        return min(best, NEWEST)

    def _get(self, path: str, tp: type[T]) -> T:
        return self._decoded(self._send('GET', path), tp, 'GET', path)

    def _decoded(self, answer: bytes, tp: type[T], method: str, path: str) -> T:
        request_name = f'{method} {self.url}{path}'
        try:
            body = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            raise exceptions.invalid(request_name, 'expected JSON, as Placement answers') from None
        return base.decode(body, tp, inside=request_name)

    def _send(
        self, method: str, path: str, body: Any = None, version: tuple[int, int] | None = None
    ) -> bytes:
        """Return the answer's body.

        :raises NotFound, Refused: the request is refused
        :raises Conflict: a concurrent write was faster
        :raises Misconfigured: the user is not permitted
        :raises Unavailable: no answer, or one that means "later", several times
        """
        pause = PAUSE_SECONDS
        for tries_left in reversed(range(TRIES)):
            try:
                answer = self._send_once(method, path, body, version or self._version)
            except httpx.HTTPError as e:
                problem = str(e).lower() or type(e).__name__
            else:
                if answer.status_code not in _RETRIED_STATUSES:
                    return self._checked(method, path, answer)
                problem = f'{answer.status_code} {_refusal_text(answer)}'
            if tries_left:
                time.sleep(pause)
                pause *= 2
        raise exceptions.Unavailable(f'{method} {self.url}{path}: {problem} ({TRIES} tries)')

    def _send_once(
        self, method: str, path: str, body: Any, version: tuple[int, int]
    ) -> httpx.Response:
        headers = {
            'OpenStack-API-Version': f'placement {_version_text(version)}',
            'Accept': 'application/json',
        }
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers['Content-Type'] = 'application/json'

        def send() -> httpx.Response:
            return self._client.request(
                method,
                self.url + path,
                content=content,
                headers=headers | {'X-Auth-Token': self.token},
            )

        answer = send()
        if answer.status_code == 401 and self._renew is not None:
            self.token = self._renew()
            answer = send()
        return answer

    def _checked(self, method: str, path: str, answer: httpx.Response) -> bytes:
        if answer.is_success:
            return answer.content
        request_name = f'{method} {self.url}{path}'
        problem = f'{request_name}: {answer.status_code} {_refusal_text(answer)}'
        if answer.status_code in (401, 403):
            raise exceptions.Misconfigured(
                option='--token, --os-cloud, OS_CLOUD or OS_AUTH_URL and its kin',
                problem=problem,
                fix='Give the token or the credentials of a user with the role admin',
            )
        if answer.status_code == 404:
            raise exceptions.NotFound(problem, kind='path', name=path)
        if answer.status_code == 409 and CONCURRENT_UPDATE in answer.text:
            raise exceptions.Conflict(problem)
        raise exceptions.Refused(problem)


def _parse_version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition('.')
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _version_text(version: tuple[int, int]) -> str:
    return f'{version[0]}.{version[1]}'


def _outline(provider: _Provider) -> ProviderOutline:
    return ProviderOutline(
        uuid=provider.uuid,
        name=provider.name,
        generation=provider.generation,
        parent=provider.parent_provider_uuid,
    )


def _provider_fields(outline: ProviderOutline) -> dict[str, Any]:
    return {'name': outline.name, 'parent_provider_uuid': outline.parent}


def _refusal_text(answer: httpx.Response) -> str:
    """Return the text of a refusal, on one line."""
    try:
        text = str(answer.json()['errors'][0]['detail'])
    except (ValueError, KeyError, IndexError, TypeError):
        text = answer.text
    return ' '.join(text.split())[:_DETAIL_MAX]
