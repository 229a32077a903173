# SPDX-License-Identifier: Apache-2.0
"""Inventories of providers and allocations of consumers, changed together."""

import functools
from typing import Any

from gantt import exceptions
from gantt.placement_api.http import errors, schemas
from gantt.placement_api.http.call import Call, PlacementAnswer
from gantt.placement_api.http.errors import PlacementError
from gantt.placement_api.http.handlers import allocations, inventories
from gantt.placement_api.ports import ReshapedProvider


@functools.cache
def _body_schema(version: int) -> dict[str, Any]:
    return schemas.object_schema(
        ['inventories', 'allocations'],
        inventories={
            'type': 'object',
            'patternProperties': {schemas.UUID_KEY: inventories.INVENTORIES_SCHEMA},
            'minProperties': 1,
            'additionalProperties': False,
        },
        allocations=allocations.schema_of_many(version, 0),
    )


def reshape(call: Call) -> PlacementAnswer:
    """Replace inventories and allocations in one transaction."""
    body = call.json(_body_schema(call.version))
    declared = {
        uuid: ReshapedProvider(
            generation=provider['resource_provider_generation'],
            inventories={
                name: inventories.inventory_of(numbers)
                for name, numbers in provider['inventories'].items()
            },
        )
        for uuid, provider in schemas.with_canonical_uuids(body['inventories']).items()
    }
    for uuid, provider in declared.items():
        problem = inventories.capacity_problem(call, uuid, provider.inventories)
        if problem:
            raise PlacementError(400, problem)
    wishes = allocations.wanted_allocations(body['allocations'], call.version)
    try:
        call.stores.allocations.reshape(declared, wishes)
    except exceptions.GanttError as e:
        raise _refusal_of(call, e, declared) from None
    return PlacementAnswer(status=204, cached=False)


def _refusal_of(
    call: Call, error: exceptions.GanttError, declared: dict[str, ReshapedProvider]
) -> Exception:
    kwargs = error.kwargs
    if isinstance(error, exceptions.StaleGeneration):
        detail = (
            f'resource provider generation conflict for provider {kwargs["uuid"]}: actual: '
            f'{kwargs["current"]}, given: {kwargs["generation"]}'
        )
        return PlacementError(409, detail, errors.CONCURRENT_UPDATE)
    if isinstance(error, exceptions.NotFound) and kwargs['name'] in declared:
        uuid = kwargs['name']
        detail = (
            f'Resource provider {uuid} in inventories not found: '
            f'No resource provider with uuid {uuid} found'
        )
        return PlacementError(400, detail, errors.PROVIDER_NOT_FOUND)
    if isinstance(error, exceptions.InUse):
        detail = f'update conflict: {inventories.in_use_text(str(kwargs["uuid"]), error)}'
        return PlacementError(409, detail, errors.INVENTORY_IN_USE)
    return allocations.refusal_of(call, error, 'malformed reshaper data')
