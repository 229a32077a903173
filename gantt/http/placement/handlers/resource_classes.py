# SPDX-License-Identifier: Apache-2.0
"""Handlers of resource classes: standard ones, which never change, and custom ones."""

from typing import Any

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.resources.provider import VocabularyEntry
from gantt.http.placement import schemas
from gantt.http.placement.call import Answer, Call, checked, newest
from gantt.http.placement.errors import PlacementError

_NAME = {'type': 'string', 'pattern': schemas.CUSTOM_PATTERN, 'maxLength': 255}
_CLASS = schemas.exactly(['name'], name=_NAME)


def _path(name: str) -> str:
    return f'/resource_classes/{name}'


def _shown(call: Call, name: str) -> dict[str, Any]:
    return {'name': name, 'links': [{'rel': 'self', 'href': call.url(_path(name))}]}


def _find(call: Call) -> VocabularyEntry:
    """Return the resource class in the path.

    :raises PlacementError: there is none of that name
    """
    name = call.path['name']
    for entry in call.stores.vocabulary.resource_classes():
        if entry.name == name:
            return entry
    raise PlacementError(404, f'No such resource class {name}.')


def list_classes(call: Call) -> Answer:
    """All of them."""
    entries = call.stores.vocabulary.resource_classes()
    body = {'resource_classes': [_shown(call, entry.name) for entry in entries]}
    return Answer(body=body, modified=newest(entry.changed_at for entry in entries))


def show_class(call: Call) -> Answer:
    """One of them."""
    entry = _find(call)
    return Answer(body=_shown(call, entry.name), modified=entry.changed_at)


def create_class(call: Call) -> Answer:
    """A custom one, by POST."""
    name = call.json(_CLASS)['name']
    if not call.stores.vocabulary.create_class(name):
        raise PlacementError(409, f'Conflicting resource class already exists: {name}')
    return Answer(status=201, location=_path(name), cached=False)


def rename_class(call: Call) -> Answer:
    """Until 1.6 PUT gives it another name."""
    name, new = call.path['name'], call.json(_CLASS)['name']
    if _find(call).name in resource_classes.STANDARD:
        raise PlacementError(400, f'Cannot update standard resource class {name}')
    try:
        call.stores.vocabulary.rename_class(name, new)
    except exceptions.InUse as e:
        if e.kwargs['name'] == new:
            raise PlacementError(409, f'Resource class already exists: {new}') from e
        raise
    return Answer(body=_shown(call, new), cached=False)


def ensure_class(call: Call) -> Answer:
    """From 1.7 on PUT makes sure that it is there."""
    name = call.path['name']
    checked(f'{{"name": "{name}"}}', _CLASS)
    status = 201 if call.stores.vocabulary.create_class(name) else 204
    return Answer(status=status, location=_path(name), cached=False)


def delete_class(call: Call) -> Answer:
    """A custom one that nothing has."""
    name = call.path['name']
    problem = 'Error in delete resource class: '
    if name in resource_classes.STANDARD:
        raise PlacementError(400, f'{problem}Cannot delete standard resource class {name}.')
    try:
        call.stores.vocabulary.delete_class(name)
    except exceptions.InUse as e:
        raise PlacementError(
            409, f'{problem}Cannot delete resource class {name}. Class is in use in inventory.'
        ) from e
    return Answer(status=204, cached=False)
