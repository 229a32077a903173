# SPDX-License-Identifier: Apache-2.0
"""Handlers of allocations: of a consumer, of several at once, on a provider."""

import functools
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.placement_api.http import errors, schemas
from gantt.placement_api.http.call import Call, PlacementAnswer
from gantt.placement_api.http.errors import PlacementError

#: The owner of consumers that were stored without one.
PLACEHOLDER_OWNER = '00000000-0000-0000-0000-000000000000'
#: The versions from which on: owners are given; providers are keys; consumers have generations,
#: and may be left without allocations; groups are mapped; consumers have types.
OWNERS_SINCE, KEYS_SINCE, GENERATIONS_SINCE, MAPPINGS_SINCE, TYPES_SINCE = 8, 12, 28, 34, 38

_GROUP_KEY_PATTERN = '[a-zA-Z0-9_-]{1,64}'
_OWNER_SCHEMA = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_RESOURCES_SCHEMA = {
    'type': 'object',
    'minProperties': 1,
    'patternProperties': {schemas.CLASS_PATTERN: {'type': 'integer', 'minimum': 1}},
    'additionalProperties': False,
}
_MAPPINGS_SCHEMA = {
    'type': 'object',
    'minProperties': 1,
    'patternProperties': {
        _GROUP_KEY_PATTERN: {'type': 'array', 'minItems': 1, 'items': schemas.UUID}
    },
}
_CONSUMER_TYPE_SCHEMA = {**_OWNER_SCHEMA, 'pattern': schemas.CLASS_PATTERN}
#: Kind of refusal -> Placement's sentence.
_REFUSAL_TEXTS = {
    'missing': "Inventory for '{classes}' on resource provider '{provider}' invalid.",
    'units': (
        "Unable to create allocation for '{classes}' on resource provider '{provider}'. The "
        'requested amount would violate inventory constraints.'
    ),
    'capacity': (
        "Unable to create allocation for '{classes}' on resource provider '{provider}'. The "
        'requested amount would exceed the capacity.'
    ),
}


def _list_schema(version: int) -> dict[str, Any]:
    """Return the schema of allocations from before providers were keys."""
    item = schemas.object_schema(
        ['resource_provider', 'resources'],
        resource_provider=schemas.object_schema(['uuid'], uuid=schemas.UUID),
        resources=_RESOURCES_SCHEMA,
    )
    properties = {'allocations': {'type': 'array', 'minItems': 1, 'items': item}}
    if version < OWNERS_SINCE:
        return schemas.object_schema(['allocations'], **properties)
    return schemas.object_schema(
        ['allocations', 'project_id', 'user_id'],
        **properties,
        project_id=_OWNER_SCHEMA,
        user_id=_OWNER_SCHEMA,
    )


@functools.cache
def schema_of(version: int, *, may_be_empty: bool = True) -> dict[str, Any]:
    """Return the schema of the allocations of one consumer.

    :param may_be_empty: the allocations may be empty whatever the version
    """
    if version < KEYS_SINCE:
        return _list_schema(version)
    share = schemas.object_schema(
        ['resources'], generation=schemas.GENERATION, resources=_RESOURCES_SCHEMA
    )
    shares = {
        'type': 'object',
        'minProperties': 0 if may_be_empty or version >= GENERATIONS_SINCE else 1,
        'patternProperties': {schemas.UUID_KEY: share},
        'additionalProperties': False,
    }
    required = ['allocations', 'project_id', 'user_id']
    properties = {'allocations': shares, 'project_id': _OWNER_SCHEMA, 'user_id': _OWNER_SCHEMA}
    if version >= GENERATIONS_SINCE:
        properties['consumer_generation'] = {'type': ['integer', 'null']}
        required.append('consumer_generation')
    if version >= MAPPINGS_SINCE:
        properties['mappings'] = _MAPPINGS_SCHEMA
    if version >= TYPES_SINCE:
        properties['consumer_type'] = _CONSUMER_TYPE_SCHEMA
        required.append('consumer_type')
    return schemas.object_schema(required, **properties)


@functools.cache
def schema_of_many(version: int, least: int = 1) -> dict[str, Any]:
    """Return the schema of the allocations of several consumers, by their uuids."""
    return {
        'type': 'object',
        'minProperties': least,
        'additionalProperties': False,
        'patternProperties': {schemas.UUID_KEY: schema_of(version)},
    }


def wanted_allocations_of(
    consumer: str, body: Mapping[str, Any], version: int
) -> WantedAllocations:
    """Return the requested allocations of a consumer from a body."""
    allocations = body['allocations']
    if version < KEYS_SINCE:
        allocations = {item['resource_provider']['uuid']: item for item in allocations}
    has_generation = version >= GENERATIONS_SINCE
    return WantedAllocations(
        consumer=consumer,
        allocations={
            uuid: {name: int(amount) for name, amount in item['resources'].items()}
            for uuid, item in schemas.with_canonical_uuids(allocations).items()
        },
        project_id=body.get('project_id') or PLACEHOLDER_OWNER,
        user_id=body.get('user_id') or PLACEHOLDER_OWNER,
        consumer_type=body.get('consumer_type'),
        generation=body['consumer_generation'] if has_generation else UNSET,
    )


def wanted_allocations(body: Mapping[str, Any], version: int) -> list[WantedAllocations]:
    """Return the requested allocations of several consumers from a body."""
    bodies = schemas.with_canonical_uuids(body)
    return [
        wanted_allocations_of(consumer, consumer_body, version)
        for consumer, consumer_body in bodies.items()
    ]


def refusal_of(call: Call, error: exceptions.GanttError, unknown_class: str) -> Exception:
    """Return the refusal for an error of a write.

    :param unknown_class: the beginning of Placement's sentence about an unknown class
    """
    kwargs = error.kwargs
    if isinstance(error, exceptions.ConsumerChanged):
        detail = f'expected {kwargs["expected"]} but got {kwargs["given"]}'
        return PlacementError(
            409, f'consumer generation conflict - {detail}', errors.CONCURRENT_UPDATE
        )
    if isinstance(error, exceptions.ConsumerInChildZone):
        where = f'child zone {kwargs["zone"]}' if call.reads_hosts else 'a child zone'
        return PlacementError(
            409,
            f'Unable to allocate inventory: consumer {kwargs["consumer"]} has a claim in {where}, '
            'and cannot have another one here; cancel its request first',
        )
    if isinstance(error, exceptions.AllocationRefused):
        classes = kwargs['classes']
        assert isinstance(classes, list)
        detail = _REFUSAL_TEXTS[str(kwargs['why'])].format(
            classes=', '.join(classes), provider=kwargs['provider']
        )
        return PlacementError(409, f'Unable to allocate inventory: {detail}')
    if isinstance(error, exceptions.NotFound) and kwargs['kind'] == 'resource class':
        return PlacementError(400, f'{unknown_class}: No such resource class {kwargs["name"]}.')
    if isinstance(error, exceptions.NotFound) and kwargs['kind'] == 'provider':
        detail = f"Allocation for resource provider '{kwargs['name']}' that does not exist."
        return PlacementError(400, detail)
    return error


# -- handlers ---------------------------------------------------------------------------
def show_allocations(call: Call) -> PlacementAnswer:
    """Show the allocations of a consumer; one that does not exist has none."""
    stored = call.stores.allocations.load_allocations(_consumer_of(call))
    if stored is None or not stored.allocations:
        return PlacementAnswer(body={'allocations': {}})
    body: dict[str, Any] = {
        'allocations': {
            uuid: {'resources': amounts, 'generation': stored.generations[uuid]}
            for uuid, amounts in stored.allocations.items()
        }
    }
    if call.since(KEYS_SINCE):
        body |= {'project_id': stored.project_id, 'user_id': stored.user_id}
    if call.since(GENERATIONS_SINCE):
        body['consumer_generation'] = stored.generation
    if call.since(TYPES_SINCE):
        body['consumer_type'] = stored.consumer_type
    return PlacementAnswer(body=body, modified=stored.updated_at)


def _consumer_of(call: Call) -> str:
    """Return the consumer of the path, a uuid in canonical form; anything else as it is."""
    consumer = str(call.path['consumer_uuid'])
    return schemas.uuid_of(consumer) if schemas.is_uuid(consumer) else consumer


def set_allocations(call: Call) -> PlacementAnswer:
    """Replace the allocations of a consumer."""
    consumer = call.path['consumer_uuid']
    if not schemas.is_uuid(consumer):
        raise PlacementError(400, f'Malformed consumer_uuid: {consumer}')
    consumer = schemas.uuid_of(consumer)
    body = call.json(schema_of(call.version, may_be_empty=False))
    unknown = f'Unable to allocate inventory for consumer {consumer}'
    _write(call, [wanted_allocations_of(consumer, body, call.version)], unknown)
    return PlacementAnswer(status=204, cached=False)


def change_allocations(call: Call) -> PlacementAnswer:
    """Replace the allocations of several consumers, all or none."""
    body = call.json(schema_of_many(call.version))
    _write(call, wanted_allocations(body, call.version), 'Unable to allocate inventory')
    return PlacementAnswer(status=204, cached=False)


def _write(call: Call, wishes: list[WantedAllocations], unknown_class: str) -> None:
    try:
        call.stores.allocations.write_allocations(wishes)
    except exceptions.GanttError as e:
        raise refusal_of(call, e, unknown_class) from None


def delete_allocations(call: Call) -> PlacementAnswer:
    """Delete the allocations of a consumer."""
    consumer = _consumer_of(call)
    try:
        call.stores.allocations.delete_allocations(consumer)
    except exceptions.NotFound:
        raise PlacementError(404, f"No allocations for consumer '{consumer}'") from None
    return PlacementAnswer(status=204, cached=False)


def show_provider_allocations(call: Call) -> PlacementAnswer:
    """Show the allocations of a provider, by consumer."""
    uuid = call.path['uuid']
    stored = call.stores.allocations.provider_allocations(uuid)
    if stored is None:
        problem = f'No resource provider with uuid {uuid} found'
        raise PlacementError(404, f"Resource provider '{uuid}' not found: {problem}")
    allocations: dict[str, dict[str, Any]] = {}
    for consumer, amounts in stored.allocations.items():
        allocations[consumer] = {'resources': amounts}
        if call.since(GENERATIONS_SINCE):
            allocations[consumer]['consumer_generation'] = stored.generations.get(consumer)
    body = {'allocations': allocations, 'resource_provider_generation': stored.generation}
    return PlacementAnswer(body=body, modified=stored.updated_at)
