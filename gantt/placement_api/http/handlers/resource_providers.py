# SPDX-License-Identifier: Apache-2.0
"""Handlers of resource providers: their names, and their places in a tree."""

from typing import Any

from gantt import exceptions
from gantt.core.resources import provider as rules
from gantt.core.resources.provider import ProviderFilter, ProviderRecord, ResourceProvider
from gantt.placement_api.http import errors, queries, schemas
from gantt.placement_api.http.call import Call, PlacementAnswer, newest_time
from gantt.placement_api.http.errors import PlacementError

#: Versions from which on there are parents and roots; a creation returns it; one may move.
TREES_SINCE, ANSWERED_SINCE, MOVES_SINCE = 14, 20, 37

_TEXT_SCHEMA = {'type': 'string'}
_NAME_SCHEMA = {'type': 'string', 'maxLength': 200}
_PARENT_SCHEMA = {'parent_provider_uuid': {'anyOf': [schemas.UUID, {'type': 'null'}]}}
#: Schemas by the version from which on each is valid.
_CREATE_SCHEMAS = {
    TREES_SINCE: schemas.object_schema(
        ['name'], name=_NAME_SCHEMA, uuid=schemas.UUID, **_PARENT_SCHEMA
    ),
    0: schemas.object_schema(['name'], name=_NAME_SCHEMA, uuid=schemas.UUID),
}
_UPDATE_SCHEMAS = {
    TREES_SINCE: schemas.object_schema(['name'], name=_NAME_SCHEMA, **_PARENT_SCHEMA),
    0: schemas.object_schema(['name'], name=_NAME_SCHEMA),
}
_QUERY_KEYS_SINCE = (
    (0, {'name': _TEXT_SCHEMA, 'uuid': schemas.UUID}),
    (3, {'member_of': _TEXT_SCHEMA}),
    (4, {'resources': _TEXT_SCHEMA}),
    (TREES_SINCE, {'in_tree': schemas.UUID}),
    (18, {'required': _TEXT_SCHEMA}),
)
_QUERY_SCHEMAS = {
    minor: schemas.object_schema(
        [],
        **{
            key: form
            for since, keys in _QUERY_KEYS_SINCE
            if since <= minor
            for key, form in keys.items()
        },
    )
    for minor, _ in _QUERY_KEYS_SINCE
}
#: Links of a provider, each with the version from which on it exists.
_LINKS_SINCE = (
    (0, 'inventories'),
    (0, 'usages'),
    (1, 'aggregates'),
    (6, 'traits'),
    (11, 'allocations'),
)
#: Reason why a parent is refused -> Placement's sentence.
_REFUSAL_TEXTS = {
    rules.PARENT_UNKNOWN: (
        'Object action create failed because: parent provider UUID does not exist.'
    ),
    rules.PARENT_LOOP: (
        'Object action update failed because: creating loop in the provider tree is not allowed.'
    ),
}


def _provider_path(uuid: str) -> str:
    return f'/resource_providers/{uuid}'


def _provider_body(call: Call, provider: ProviderRecord | ResourceProvider) -> dict[str, Any]:
    url = call.url(_provider_path(provider.uuid))
    links = [{'rel': 'self', 'href': url}]
    links += [
        {'rel': rel, 'href': f'{url}/{rel}'} for minor, rel in _LINKS_SINCE if call.since(minor)
    ]
    body = {
        'uuid': provider.uuid,
        'name': provider.name,
        'generation': provider.generation,
        'links': links,
    }
    if call.since(TREES_SINCE):
        body |= {'parent_provider_uuid': provider.parent, 'root_provider_uuid': provider.root}
    return body


def list_providers(call: Call) -> PlacementAnswer:
    """List the providers that match a query."""
    query = call.query(_QUERY_SCHEMAS[max(minor for minor in _QUERY_SCHEMAS if call.since(minor))])
    criteria: dict[str, Any] = {}
    if 'member_of' in query:
        criteria['member_of'], criteria['not_member_of'] = queries.member_of(call)
    if 'required' in query:
        criteria['required'], criteria['forbidden'] = queries.traits(call)
    if 'resources' in query:
        criteria['resources'] = queries.resources(query['resources'])
    # Placement ignores empty parameters.
    criteria |= {name: query[name] for name in ('name', 'uuid', 'in_tree') if query.get(name)}
    try:
        providers = call.stores.providers.find_providers(ProviderFilter(**criteria))
    except exceptions.NotFound as e:
        problem = errors.refusal_of_error(e).detail
        if e.kwargs['kind'] == 'trait':
            raise PlacementError(400, f'Invalid trait(s) in "required" parameter: {problem}') from e
        raise PlacementError(
            400, f'Invalid resource class in resources parameter: {problem}'
        ) from e
    return PlacementAnswer(
        body={'resource_providers': [_provider_body(call, provider) for provider in providers]},
        modified=newest_time(provider.changed_at for provider in providers),
    )


def show_provider(call: Call) -> PlacementAnswer:
    """Show a provider."""
    uuid = call.path['uuid']
    providers = call.stores.providers.find_providers(ProviderFilter(uuid=uuid))
    if not providers:
        raise errors.no_provider(uuid)
    return PlacementAnswer(
        body=_provider_body(call, providers[0]), modified=providers[0].changed_at
    )


def create_provider(call: Call) -> PlacementAnswer:
    """Create a provider, a root or the child of another."""
    body = call.json(_CREATE_SCHEMAS[TREES_SINCE if call.since(TREES_SINCE) else 0])
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
        return PlacementAnswer(
            body=_provider_body(call, provider),
            location=_provider_path(uuid),
            modified=provider.changed_at,
        )
    return PlacementAnswer(status=201, location=_provider_path(uuid), cached=False)


def update_provider(call: Call) -> PlacementAnswer:
    """Rename a provider, and since 1.37 move it below another parent."""
    uuid = call.path['uuid']
    if not call.stores.providers.find_providers(ProviderFilter(uuid=uuid)):
        raise errors.no_provider(uuid)
    body = call.json(_UPDATE_SCHEMAS[TREES_SINCE if call.since(TREES_SINCE) else 0])
    try:
        provider = call.stores.providers.update_provider(
            uuid,
            name=body['name'],
            parent=body.get('parent_provider_uuid', ''),
            reparent=call.since(MOVES_SINCE),
        )
    except exceptions.InvalidMessage as e:
        problem = f'Unable to save resource provider {uuid}: '
        if e.kwargs.get('why') == rules.PARENT_FIXED:
            what = 're-parenting' if body['parent_provider_uuid'] else 'un-parenting'
            problem += (
                f'Object action update failed because: {what} a provider is not currently allowed.'
            )
            raise PlacementError(400, problem) from e
        if e.kwargs.get('why') == rules.NAME_TAKEN:
            raise _duplicate_error(body['name']) from e
        raise _refusal(e, problem, body['name'], uuid) from e
    return PlacementAnswer(body=_provider_body(call, provider), modified=provider.changed_at)


def _refusal(
    error: exceptions.InvalidMessage, problem: str, name: str, uuid: str
) -> PlacementError:
    why = error.kwargs.get('why')
    if why in _REFUSAL_TEXTS:
        return PlacementError(400, problem + _REFUSAL_TEXTS[str(why)])
    conflicts = {rules.NAME_TAKEN: f'name: {name}', rules.UUID_TAKEN: f'uuid: {uuid}'}
    if why in conflicts:
        return _duplicate_error(conflicts[str(why)])
    return PlacementError(400, problem + error.message)


def _duplicate_error(what: str) -> PlacementError:
    detail = f'Conflicting resource provider {what} already exists.'
    return PlacementError(409, detail, errors.DUPLICATE_NAME)


def delete_provider(call: Call) -> PlacementAnswer:
    """Delete a provider without children of which nothing is used."""
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
    return PlacementAnswer(status=204, cached=False)
