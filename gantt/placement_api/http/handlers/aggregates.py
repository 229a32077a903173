# SPDX-License-Identifier: Apache-2.0
"""Handlers of the aggregates of a provider: uuids, which need not be known otherwise."""

from typing import Any

from gantt import exceptions
from gantt.placement_api.http import errors, schemas
from gantt.placement_api.http.call import Call, PlacementAnswer

#: The version from which on the generation is checked and incremented.
GENERATION_SINCE = 19
_AGGREGATES_SCHEMA = {'type': 'array', 'items': schemas.UUID, 'uniqueItems': True}
_SCHEMA_WITH_GENERATION = schemas.object_schema(
    ['aggregates', 'resource_provider_generation'],
    aggregates=_AGGREGATES_SCHEMA,
    resource_provider_generation=schemas.GENERATION,
)


def list_aggregates(call: Call) -> PlacementAnswer:
    """List the aggregates of a provider."""
    uuid = call.path['uuid']
    stored = call.stores.providers.load_provider_aggregates(uuid)
    if stored is None:
        raise errors.no_provider(uuid)
    return _answer(call, stored.aggregates, stored.generation)


def set_aggregates(call: Call) -> PlacementAnswer:
    """Replace the aggregates of a provider."""
    uuid = call.path['uuid']
    # Where two things are wrong this one is reported first.
    if call.stores.providers.load_provider_aggregates(uuid) is None:
        raise errors.no_provider(uuid)
    generation = None
    if call.since(GENERATION_SINCE):
        body = call.json(_SCHEMA_WITH_GENERATION)
        uuids, generation = body['aggregates'], int(body['resource_provider_generation'])
    else:
        uuids = call.json(_AGGREGATES_SCHEMA)
    try:
        saved = call.stores.providers.save_provider_aggregates(uuid, uuids, generation)
    except exceptions.StaleGeneration as e:
        raise errors.generation_changed() from e
    return _answer(call, uuids, saved.generation)


def _answer(call: Call, uuids: list[str], generation: int) -> PlacementAnswer:
    body: dict[str, Any] = {'aggregates': uuids}
    if call.since(GENERATION_SINCE):
        body['resource_provider_generation'] = generation
    return PlacementAnswer(body=body)
