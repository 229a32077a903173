# SPDX-License-Identifier: Apache-2.0
"""Handlers of the inventories of a provider, all or by class, and of its usages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.resource_classes import CORE_CLASSES, Inventory
from gantt.core.resources.provider import ResourceProvider
from gantt.placement_api.http import errors, schemas
from gantt.placement_api.http.call import Call, PlacementAnswer
from gantt.placement_api.http.errors import PlacementError

Inventories = dict[str, Inventory]

_CORE_CLASS_ORDER = {name: rank for rank, name in enumerate(CORE_CLASSES)}

#: The version from which on all of an inventory may be reserved.
ALL_RESERVED_SINCE = 26


def _amount_schema(least: int) -> dict[str, Any]:
    return {'type': 'integer', 'maximum': schemas.INT_MAX, 'minimum': least}


_NUMBER_SCHEMAS: dict[str, Any] = {
    'resource_provider_generation': schemas.GENERATION,
    'total': _amount_schema(1),
    'reserved': _amount_schema(0),
    'min_unit': _amount_schema(1),
    'max_unit': _amount_schema(1),
    'step_size': _amount_schema(1),
    'allocation_ratio': {
        'type': 'number',
        'maximum': schemas.FLOAT_MAX,
        'minimum': -schemas.FLOAT_MAX,
    },
}
_UPDATE_SCHEMA = schemas.object_schema(['total', 'resource_provider_generation'], **_NUMBER_SCHEMAS)
_CREATE_SCHEMA = schemas.object_schema(
    ['total', 'resource_class'],
    **_NUMBER_SCHEMAS,
    resource_class={'type': 'string', 'pattern': schemas.CLASS_PATTERN},
)
_INVENTORY_SCHEMA = schemas.object_schema(['total'], **_NUMBER_SCHEMAS)
INVENTORIES_SCHEMA = schemas.object_schema(
    ['resource_provider_generation', 'inventories'],
    resource_provider_generation=schemas.GENERATION,
    inventories={
        'type': 'object',
        'patternProperties': {schemas.CLASS_PATTERN: _INVENTORY_SCHEMA},
        # An impossible class name is refused as an unknown one, if its numbers are valid.
        'additionalProperties': _INVENTORY_SCHEMA,
    },
)


def inventory_of(numbers: Mapping[str, Any]) -> Inventory:
    """Return the inventory in a body; missing numbers have Placement's defaults."""
    fields = {name: numbers[name] for name in Inventory.__struct_fields__ if name in numbers}
    ratio = float(fields.pop('allocation_ratio', 1.0))
    amounts = {name: int(value) for name, value in fields.items()}
    return Inventory(**{'max_unit': schemas.INT_MAX, **amounts}, allocation_ratio=ratio)


def inventory_numbers(inventory: Inventory) -> dict[str, Any]:
    """Return the six numbers of an inventory."""
    numbers = msgspec.structs.asdict(inventory)
    numbers['max_unit'] = schemas.INT_MAX if inventory.max_unit is None else inventory.max_unit
    return numbers


def capacity_problem(call: Call, uuid: str, inventories: Mapping[str, Inventory]) -> str:
    """Return the problem with a reserved amount, or an empty text."""
    for name, inventory in inventories.items():
        capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
        problem = (
            f"Invalid inventory for '{name}' on resource provider '{uuid}'. The reserved value"
        )
        if call.since(ALL_RESERVED_SINCE):
            if capacity < 0:
                return f'{problem} is greater than total.'
        elif capacity <= 0:
            return f'{problem} is greater than or equal to total.'
    return ''


def _provider(call: Call) -> ResourceProvider:
    uuid = call.path['uuid']
    provider = call.stores.providers.load_provider(uuid)
    if provider is None:
        raise errors.no_provider(uuid)
    return provider


def _inventories_answer(provider: ResourceProvider) -> PlacementAnswer:
    body = {
        'resource_provider_generation': provider.generation,
        'inventories': {
            name: inventory_numbers(inventory) for name, inventory in provider.inventories.items()
        },
    }
    return PlacementAnswer(body=body, modified=provider.changed_at)


def _inventory_answer(provider: ResourceProvider, name: str, **more: Any) -> PlacementAnswer:
    body = inventory_numbers(provider.inventories[name])
    if provider.generation:
        body['resource_provider_generation'] = provider.generation
    return PlacementAnswer(body=body, modified=provider.changed_at, **more)


def list_inventories(call: Call) -> PlacementAnswer:
    """List the inventories of a provider."""
    return _inventories_answer(_provider(call))


def show_inventory(call: Call) -> PlacementAnswer:
    """Show the inventory of one class."""
    provider, name = _provider(call), call.path['resource_class']
    if name not in provider.inventories:
        raise PlacementError(404, f'No inventory of class {name} for {provider.uuid}')
    return _inventory_answer(provider, name)


def create_inventory(call: Call) -> PlacementAnswer:
    """Create the inventory of a class that the provider does not have."""
    uuid = _provider(call).uuid
    body = call.json(_CREATE_SCHEMA)
    name, inventory = body['resource_class'], inventory_of(body)
    problem = f'Unable to create inventory for resource provider {uuid}: '
    if reason := capacity_problem(call, uuid, {name: inventory}):
        raise PlacementError(400, problem + reason)

    def add(now: Inventories) -> Inventories:
        if name in now:
            raise PlacementError(
                409, f'Update conflict: there is an inventory of {name}', errors.CONCURRENT_UPDATE
            )
        return {**now, name: inventory}

    try:
        provider = call.stores.providers.change_inventories(uuid, add)
    except exceptions.NotFound as e:
        if e.kwargs['kind'] == 'provider':
            raise
        raise PlacementError(400, problem + errors.refusal_of_error(e).detail) from e
    location = f'/resource_providers/{uuid}/inventories/{name}'
    return _inventory_answer(provider, name, status=201, location=location)


def set_inventories(call: Call) -> PlacementAnswer:
    """Replace the inventories of a provider."""
    uuid = _provider(call).uuid
    body = call.json(INVENTORIES_SCHEMA)
    inventories = {name: inventory_of(numbers) for name, numbers in body['inventories'].items()}
    generation = int(body['resource_provider_generation'])

    def all_of_them(now: Inventories) -> Inventories:
        if reason := capacity_problem(call, uuid, inventories):
            raise PlacementError(
                400, f'Unable to update inventory for resource provider {uuid}: {reason}'
            )
        return inventories

    try:
        return _inventories_answer(
            call.stores.providers.change_inventories(uuid, all_of_them, generation)
        )
    except exceptions.NotFound as e:
        if e.kwargs['kind'] == 'provider':
            raise
        raise PlacementError(
            400,
            f'Unknown resource class in inventory for resource provider {uuid}: '
            f'{errors.refusal_of_error(e).detail}',
        ) from e
    except exceptions.InUse as e:
        problem = f'update conflict: {in_use_text(uuid, e)}'
        raise PlacementError(409, problem, errors.INVENTORY_IN_USE) from e


def in_use_text(uuid: str, error: exceptions.InUse) -> str:
    """Return the message that classes are in use; the core classes come first."""
    classes: Any = error.kwargs['classes']
    names = ', '.join(
        sorted(
            classes,
            key=lambda name: (name not in CORE_CLASSES, _CORE_CLASS_ORDER.get(name, 0), name),
        )
    )
    return f"Inventory for '{names}' on resource provider '{uuid}' in use."


def update_inventory(call: Call) -> PlacementAnswer:
    """Update the inventory of a class that the provider has."""
    uuid, name = _provider(call).uuid, call.path['resource_class']
    body = call.json(_UPDATE_SCHEMA)
    inventory = inventory_of(body)
    class_names = {entry.name for entry in call.stores.vocabulary.resource_classes()}

    def change(now: Inventories) -> Inventories:
        if reason := capacity_problem(call, uuid, {name: inventory}):
            raise PlacementError(
                400, f'Unable to update inventory for resource provider {uuid}: {reason}'
            )
        if name not in class_names:
            raise PlacementError(404, f'No such resource class {name}.')
        if name not in now:
            raise PlacementError(
                400,
                f'No inventory record with resource class for resource provider {uuid}: '
                f'No inventory of class {name} found.',
            )
        return {**now, name: inventory}

    generation = int(body['resource_provider_generation'])
    return _inventory_answer(
        call.stores.providers.change_inventories(uuid, change, generation), name
    )


def delete_inventory(call: Call) -> PlacementAnswer:
    """Delete the inventory of one class, of which nothing is used."""
    uuid, name = call.path['uuid'], call.path['resource_class']

    def drop(now: Inventories) -> Inventories:
        if name not in now:
            raise PlacementError(404, f'No inventory of class {name} found for delete')
        return {
            class_name: inventory for class_name, inventory in now.items() if class_name != name
        }

    try:
        call.stores.providers.change_inventories(uuid, drop)
    except exceptions.InUse as e:
        problem = f'Unable to delete inventory of class {name}: {in_use_text(uuid, e)}'
        raise PlacementError(409, problem, errors.CONCURRENT_UPDATE) from e
    return PlacementAnswer(status=204, cached=False)


def delete_inventories(call: Call) -> PlacementAnswer:
    """Delete the inventories of a provider, of which nothing may be used."""
    uuid = call.path['uuid']
    try:
        call.stores.providers.change_inventories(uuid, lambda now: {})
    except exceptions.InUse as e:
        raise PlacementError(409, in_use_text(uuid, e), errors.INVENTORY_IN_USE) from e
    return PlacementAnswer(status=204, cached=False)


def show_provider_usages(call: Call) -> PlacementAnswer:
    """Show the amounts of live claims, by class that the provider has."""
    provider = _provider(call)
    used = {name: provider.used.get(name, 0) for name in provider.inventories}
    body = {'resource_provider_generation': provider.generation, 'usages': used}
    return PlacementAnswer(body=body)
