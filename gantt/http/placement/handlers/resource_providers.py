# SPDX-License-Identifier: Apache-2.0
"""Handlers of resource providers: their names, and their places in a tree."""

from typing import Any

from gantt import exceptions
from gantt.core.resources import provider as rules
from gantt.core.resources.provider import ProviderFilter, ProviderRecord, ResourceProvider
from gantt.http.placement import errors, queries, schemas
from gantt.http.placement.call import Answer, Call, newest
from gantt.http.placement.errors import PlacementError

#: Versions from which on there are parents and roots; a creation returns it; one may move.
TREES_SINCE, ANSWERED_SINCE, MOVES_SINCE = 14, 20, 37

_TEXT = {'type': 'string'}
_NAME = {'type': 'string', 'maxLength': 200}
_PARENT = {'parent_provider_uuid': {'anyOf': [schemas.UUID, {'type': 'null'}]}}
#: Schemas by the version from which on each is valid.
_NEW = {
    TREES_SINCE: schemas.exactly(['name'], name=_NAME, uuid=schemas.UUID, **_PARENT),
    0: schemas.exactly(['name'], name=_NAME, uuid=schemas.UUID),
}
_CHANGED = {
    TREES_SINCE: schemas.exactly(['name'], name=_NAME, **_PARENT),
    0: schemas.exactly(['name'], name=_NAME),
}
_KEYS = (
    (0, {'name': _TEXT, 'uuid': schemas.UUID}),
    (3, {'member_of': _TEXT}),
    (4, {'resources': _TEXT}),
    (TREES_SINCE, {'in_tree': schemas.UUID}),
    (18, {'required': _TEXT}),
)
_LIST = {
    minor: schemas.exactly(
        [], **{key: form for since, keys in _KEYS if since <= minor for key, form in keys.items()}
    )
    for minor, _ in _KEYS
}
#: Links of a provider, each with the version from which on it exists.
_LINKS = (
    (0, 'inventories'),
    (0, 'usages'),
    (1, 'aggregates'),
    (6, 'traits'),
    (11, 'allocations'),
)
#: Reason why a parent is refused -> Placement's sentence.
_WHY = {
    rules.UNKNOWN: 'Object action create failed because: parent provider UUID does not exist.',
    rules.LOOP: (
        'Object action update failed because: creating loop in the provider tree is not allowed.'
    ),
}


def _path(uuid: str) -> str:
    return f'/resource_providers/{uuid}'


def _shown(call: Call, one: ProviderRecord | ResourceProvider) -> dict[str, Any]:
    url = call.url(_path(one.uuid))
    links = [{'rel': 'self', 'href': url}]
    links += [{'rel': rel, 'href': f'{url}/{rel}'} for minor, rel in _LINKS if call.since(minor)]
    body = {'uuid': one.uuid, 'name': one.name, 'generation': one.generation, 'links': links}
    if call.since(TREES_SINCE):
        body |= {'parent_provider_uuid': one.parent, 'root_provider_uuid': one.root}
    return body


def list_providers(call: Call) -> Answer:
    """All, or those that meet what the query asks for."""
    query = call.query(_LIST[max(minor for minor in _LIST if call.since(minor))])
    criteria: dict[str, Any] = {}
    if 'member_of' in query:
        required, criteria['not_member_of'] = queries.member_of(call)
        criteria['member_of'] = tuple(required)
    if 'required' in query:
        traits, criteria['forbidden'] = queries.traits(call)
        criteria['required'] = tuple(traits)
    if 'resources' in query:
        criteria['resources'] = queries.resources(query['resources'])
    # Placement ignores empty parameters.
    criteria |= {name: query[name] for name in ('name', 'uuid', 'in_tree') if query.get(name)}
    try:
        providers = call.stores.providers.find_providers(ProviderFilter(**criteria))
    except exceptions.NotFound as e:
        problem = errors.of(e).detail
        if e.kwargs['kind'] == 'trait':
            raise PlacementError(400, f'Invalid trait(s) in "required" parameter: {problem}') from e
        raise PlacementError(
            400, f'Invalid resource class in resources parameter: {problem}'
        ) from e
    return Answer(
        body={'resource_providers': [_shown(call, provider) for provider in providers]},
        modified=newest(provider.changed_at for provider in providers),
    )


def show_provider(call: Call) -> Answer:
    """One of them."""
    uuid = call.path['uuid']
    providers = call.stores.providers.find_providers(ProviderFilter(uuid=uuid))
    if not providers:
        raise errors.no_provider(uuid)
    return Answer(body=_shown(call, providers[0]), modified=providers[0].changed_at)


def create_provider(call: Call) -> Answer:
    """A root, or one below another."""
    body = call.json(_NEW[TREES_SINCE if call.since(TREES_SINCE) else 0])
    name, parent = body['name'], body.get('parent_provider_uuid')
    uuid = schemas.uuid_of(body['uuid']) if body.get('uuid') else schemas.new_uuid()
    problem = f'Unable to create resource provider "{name}", {uuid}: '
    action = 'Object action create failed because: '
    if not name:
        raise PlacementError(400, f'{problem}{action}name is required')
    if parent == uuid:
        raise PlacementError(
            400,
            f'{problem}{action}parent provider UUID cannot be same as UUID. Please set parent '
            'provider UUID to None if there is no parent.',
        )
    try:
        provider = call.stores.providers.create_provider(name, uuid=uuid, parent=parent)
    except exceptions.InvalidMessage as e:
        raise _refusal(e, problem, name, uuid) from e
    if call.since(ANSWERED_SINCE):
        return Answer(
            body=_shown(call, provider), location=_path(uuid), modified=provider.changed_at
        )
    return Answer(status=201, location=_path(uuid), cached=False)


def update_provider(call: Call) -> Answer:
    """Another name, another parent."""
    uuid = call.path['uuid']
    if not call.stores.providers.find_providers(ProviderFilter(uuid=uuid)):
        raise errors.no_provider(uuid)
    body = call.json(_CHANGED[TREES_SINCE if call.since(TREES_SINCE) else 0])
    try:
        provider = call.stores.providers.update_provider(
            uuid,
            name=body['name'],
            parent=body.get('parent_provider_uuid', ''),
            reparent=call.since(MOVES_SINCE),
        )
    except exceptions.InvalidMessage as e:
        problem = f'Unable to save resource provider {uuid}: '
        if e.kwargs.get('why') == rules.FIXED:
            what = 're-parenting' if body['parent_provider_uuid'] else 'un-parenting'
            problem += (
                f'Object action update failed because: {what} a provider is not currently allowed.'
            )
            raise PlacementError(400, problem) from e
        if e.kwargs.get('why') == rules.NAME_TAKEN:
            raise _taken(body['name']) from e
        raise _refusal(e, problem, body['name'], uuid) from e
    return Answer(body=_shown(call, provider), modified=provider.changed_at)


def _refusal(
    error: exceptions.InvalidMessage, problem: str, name: str, uuid: str
) -> PlacementError:
    why = error.kwargs.get('why')
    if why in _WHY:
        return PlacementError(400, problem + _WHY[str(why)])
    conflicts = {rules.NAME_TAKEN: f'name: {name}', rules.UUID_TAKEN: f'uuid: {uuid}'}
    if why in conflicts:
        return _taken(conflicts[str(why)])
    return PlacementError(400, problem + error.message)


def _taken(what: str) -> PlacementError:
    detail = f'Conflicting resource provider {what} already exists.'
    return PlacementError(409, detail, errors.DUPLICATE_NAME)


def delete_provider(call: Call) -> Answer:
    """One that nothing is taken from, and that has nothing below."""
    uuid = call.path['uuid']
    try:
        call.stores.providers.delete_provider(uuid)
    except exceptions.NotFound as e:
        raise PlacementError(404, f'No resource provider with uuid {uuid} found for delete') from e
    except exceptions.InUse as e:
        if 'children' in e.kwargs:
            raise PlacementError(
                409,
                f'Unable to delete parent resource provider {uuid}: It has child resource '
                'providers.',
                errors.CANNOT_DELETE_PARENT,
            ) from e
        raise PlacementError(
            409,
            f'Unable to delete resource provider {uuid}: Resource provider has allocations.',
            errors.PROVIDER_IN_USE,
        ) from e
    return Answer(status=204, cached=False)
