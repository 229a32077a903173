# SPDX-License-Identifier: Apache-2.0
"""Handlers of traits, and of the traits of a provider."""

import re
from typing import Any

from gantt import exceptions
from gantt.core.resources.provider import ProviderTraits, VocabularyEntry
from gantt.http.placement import errors, schemas
from gantt.http.placement.call import Answer, Call, newest
from gantt.http.placement.errors import PlacementError
from gantt.standard_traits import STANDARD_TRAITS

_LIST = schemas.exactly([], name={'type': 'string'}, associated={'type': 'string'})
_TRAIT = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_TRAITS = schemas.exactly(
    ['traits', 'resource_provider_generation'],
    traits={'type': 'array', 'items': _TRAIT},
    resource_provider_generation=schemas.GENERATION,
)
_CUSTOM = re.compile(schemas.CUSTOM_PATTERN)
_NAME_MAX = 255


def list_traits(call: Call) -> Answer:
    """All, or those of some names, of a prefix, that a provider has."""
    query = call.query(_LIST)
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
    return _list(call.stores.vocabulary.traits(**criteria))


def _list(found: list[VocabularyEntry], **more: object) -> Answer:
    body = {'traits': [entry.name for entry in found], **more}
    return Answer(body=body, modified=newest(entry.changed_at for entry in found))


def show_trait(call: Call) -> Answer:
    """Whether it is there."""
    name = call.path['name']
    entries = call.stores.vocabulary.traits(names=[name])
    if not entries:
        raise PlacementError(404, f'No such trait(s): {name}.')
    return Answer(status=204, modified=entries[0].changed_at)


def ensure_trait(call: Call) -> Answer:
    """Make sure that a custom one is there."""
    name = call.path['name']
    if not _CUSTOM.match(name) or len(name) > _NAME_MAX:
        raise PlacementError(
            400,
            f'The trait is invalid. A valid trait must be no longer than {_NAME_MAX} characters, '
            'start with the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and '
            '"_"',
        )
    trait, is_new = call.stores.vocabulary.create_trait(name)
    status = 201 if is_new else 204
    return Answer(status=status, location=f'/traits/{name}', modified=trait.changed_at)


def delete_trait(call: Call) -> Answer:
    """A custom one that no provider has."""
    name = call.path['name']
    if name in STANDARD_TRAITS:
        raise PlacementError(400, f'Cannot delete standard trait {name}.')
    try:
        call.stores.vocabulary.delete_trait(name)
    except exceptions.InUse as e:
        raise PlacementError(409, f'The trait {name} is in use by a resource provider.') from e
    return Answer(status=204, cached=False)


# -- of a provider ------------------------------------------------------------------
def list_provider_traits(call: Call) -> Answer:
    """Its traits."""
    uuid = call.path['uuid']
    stored = call.stores.providers.load_provider_traits(uuid)
    if stored is None:
        raise errors.no_provider(uuid)
    return _of_provider(stored)


def _of_provider(found: ProviderTraits) -> Answer:
    return _list(found.traits, resource_provider_generation=found.generation)


def set_provider_traits(call: Call) -> Answer:
    """Let it have exactly these."""
    body = call.json(_TRAITS)
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
    return _of_provider(saved)


def delete_provider_traits(call: Call) -> Answer:
    """Let it have none."""
    call.stores.providers.save_provider_traits(call.path['uuid'], ())
    return Answer(status=204, cached=False)
