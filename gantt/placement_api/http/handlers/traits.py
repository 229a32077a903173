# SPDX-License-Identifier: Apache-2.0
"""Handlers of traits, and of the traits of a provider."""

import re
from typing import Any

from gantt import exceptions
from gantt.core.resources.provider import ProviderTraits, VocabularyEntry
from gantt.placement_api.http import errors, schemas
from gantt.placement_api.http.call import Call, PlacementAnswer, newest_time
from gantt.placement_api.http.errors import PlacementError
from gantt.standard_traits import STANDARD_TRAITS

_QUERY_SCHEMA = schemas.object_schema([], name={'type': 'string'}, associated={'type': 'string'})
_TRAIT_SCHEMA = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_TRAITS_SCHEMA = schemas.object_schema(
    ['traits', 'resource_provider_generation'],
    traits={'type': 'array', 'items': _TRAIT_SCHEMA},
    resource_provider_generation=schemas.GENERATION,
)
_CUSTOM_TRAIT = re.compile(schemas.CUSTOM_PATTERN)
_NAME_MAX = 255


def list_traits(call: Call) -> PlacementAnswer:
    """List the traits; a query selects by name, by prefix, or by use by a provider."""
    query = call.query(_QUERY_SCHEMA)
    criteria: dict[str, Any] = {}
    if 'name' in query:
        operator, colon, value = query['name'].partition(':')
        if not colon:
            raise PlacementError(
                400,
                'Badly formatted name parameter. Expected name query string parameter in form: '
                f'?name=[in|startswith]:[name1,name2|prefix]. Got: "{query["name"]}"',
            )
        if operator == 'in':
            criteria['names'] = frozenset(value.split(','))
        elif operator == 'startswith':
            criteria['prefix'] = value
    if 'associated' in query:
        answer = query['associated'].lower()
        if answer not in ('true', 'false'):
            raise PlacementError(
                400, 'The query parameter "associated" only accepts "true" or "false"'
            )
        criteria['associated'] = answer == 'true'
    return _traits_answer(call.stores.vocabulary.traits(**criteria))


def _traits_answer(entries: list[VocabularyEntry], **more: object) -> PlacementAnswer:
    body = {'traits': [entry.name for entry in entries], **more}
    return PlacementAnswer(body=body, modified=newest_time(entry.changed_at for entry in entries))


def show_trait(call: Call) -> PlacementAnswer:
    """Answer whether a trait exists."""
    name = call.path['name']
    entries = call.stores.vocabulary.traits(names=[name])
    if not entries:
        raise PlacementError(404, f'No such trait(s): {name}.')
    return PlacementAnswer(status=204, modified=entries[0].changed_at)


def ensure_trait(call: Call) -> PlacementAnswer:
    """Create a custom trait unless it exists."""
    name = call.path['name']
    if not _CUSTOM_TRAIT.match(name) or len(name) > _NAME_MAX:
        raise PlacementError(
            400,
            f'The trait is invalid. A valid trait must be no longer than {_NAME_MAX} characters, '
            'start with the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and '
            '"_"',
        )
    trait, is_new = call.stores.vocabulary.create_trait(name)
    status = 201 if is_new else 204
    return PlacementAnswer(status=status, location=f'/traits/{name}', modified=trait.changed_at)


def delete_trait(call: Call) -> PlacementAnswer:
    """Delete a custom trait that no provider has."""
    name = call.path['name']
    if name in STANDARD_TRAITS:
        raise PlacementError(400, f'Cannot delete standard trait {name}.')
    try:
        call.stores.vocabulary.delete_trait(name)
    except exceptions.InUse as e:
        raise PlacementError(409, f'The trait {name} is in use by a resource provider.') from e
    return PlacementAnswer(status=204, cached=False)


# -- of a provider ------------------------------------------------------------------
def list_provider_traits(call: Call) -> PlacementAnswer:
    """List the traits of a provider."""
    uuid = call.path['uuid']
    stored = call.stores.providers.load_provider_traits(uuid)
    if stored is None:
        raise errors.no_provider(uuid)
    return _provider_traits_answer(stored)


def _provider_traits_answer(stored: ProviderTraits) -> PlacementAnswer:
    return _traits_answer(stored.traits, resource_provider_generation=stored.generation)


def set_provider_traits(call: Call) -> PlacementAnswer:
    """Replace the traits of a provider."""
    body = call.json(_TRAITS_SCHEMA)
    generation = int(body['resource_provider_generation'])
    try:
        saved = call.stores.providers.save_provider_traits(
            call.path['uuid'], set(body['traits']), generation
        )
    except exceptions.StaleGeneration as e:
        raise errors.generation_changed() from e
    except exceptions.NotFound as e:
        if e.kwargs['kind'] != 'trait':
            raise
        raise PlacementError(400, f'No such trait {e.kwargs["name"]}') from e
    return _provider_traits_answer(saved)


def delete_provider_traits(call: Call) -> PlacementAnswer:
    """Remove all traits of a provider."""
    call.stores.providers.save_provider_traits(call.path['uuid'], ())
    return PlacementAnswer(status=204, cached=False)
