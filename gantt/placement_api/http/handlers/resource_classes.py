# SPDX-License-Identifier: Apache-2.0
"""Handlers of resource classes: standard ones, which never change, and custom ones."""

from typing import Any

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.resources.provider import VocabularyEntry
from gantt.placement_api.http import schemas
from gantt.placement_api.http.call import Call, PlacementAnswer, decode_json, newest_time
from gantt.placement_api.http.errors import PlacementError

_NAME_SCHEMA = {'type': 'string', 'pattern': schemas.CUSTOM_PATTERN, 'maxLength': 255}
_CLASS_SCHEMA = schemas.object_schema(['name'], name=_NAME_SCHEMA)


def _class_path(name: str) -> str:
    return f'/resource_classes/{name}'


def _class_body(call: Call, name: str) -> dict[str, Any]:
    return {'name': name, 'links': [{'rel': 'self', 'href': call.url(_class_path(name))}]}


def _find_class(call: Call) -> VocabularyEntry:
    """Return the resource class in the path.

    :raises PlacementError: there is none of that name
    """
    name = call.path['name']
    for entry in call.stores.vocabulary.resource_classes():
        if entry.name == name:
            return entry
    raise PlacementError(404, f'No such resource class {name}.')


def list_classes(call: Call) -> PlacementAnswer:
    """List the resource classes."""
    entries = call.stores.vocabulary.resource_classes()
    body = {'resource_classes': [_class_body(call, entry.name) for entry in entries]}
    return PlacementAnswer(body=body, modified=newest_time(entry.changed_at for entry in entries))


def show_class(call: Call) -> PlacementAnswer:
    """Show a resource class."""
    entry = _find_class(call)
    return PlacementAnswer(body=_class_body(call, entry.name), modified=entry.changed_at)


def create_class(call: Call) -> PlacementAnswer:
    """Create a custom resource class, by POST."""
    name = call.json(_CLASS_SCHEMA)['name']
    if not call.stores.vocabulary.create_class(name):
        raise PlacementError(409, f'Conflicting resource class already exists: {name}')
    return PlacementAnswer(status=201, location=_class_path(name), cached=False)


def rename_class(call: Call) -> PlacementAnswer:
    """Rename a custom resource class, by PUT until 1.6."""
    name, new = call.path['name'], call.json(_CLASS_SCHEMA)['name']
    if _find_class(call).name in resource_classes.STANDARD_CLASSES:
        raise PlacementError(400, f'Cannot update standard resource class {name}')
    try:
        call.stores.vocabulary.rename_class(name, new)
    except exceptions.InUse as e:
        if e.kwargs['name'] == new:
            raise PlacementError(409, f'Resource class already exists: {new}') from e
        raise
    return PlacementAnswer(body=_class_body(call, new), cached=False)


def ensure_class(call: Call) -> PlacementAnswer:
    """Create a custom resource class unless it exists, by PUT since 1.7."""
    name = call.path['name']
    decode_json(f'{{"name": "{name}"}}', _CLASS_SCHEMA)
    status = 201 if call.stores.vocabulary.create_class(name) else 204
    return PlacementAnswer(status=status, location=_class_path(name), cached=False)


def delete_class(call: Call) -> PlacementAnswer:
    """Delete a custom resource class that no inventory has."""
    name = call.path['name']
    problem = 'Error in delete resource class: '
    if name in resource_classes.STANDARD_CLASSES:
        raise PlacementError(400, f'{problem}Cannot delete standard resource class {name}.')
    try:
        call.stores.vocabulary.delete_class(name)
    except exceptions.InUse as e:
        raise PlacementError(
            409, f'{problem}Cannot delete resource class {name}. Class is in use in inventory.'
        ) from e
    return PlacementAnswer(status=204, cached=False)
