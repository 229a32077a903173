# SPDX-License-Identifier: Apache-2.0
"""JSON schemas that more than one handler needs, and the check of formats in them."""

import re
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import cachetools
import jsonschema
from jsonschema import exceptions as problems
from jsonschema import validators

from gantt.placement_api.http.errors import PlacementError

T = TypeVar('T')
FORMATS = jsonschema.FormatChecker()

#: The largest integer of 32 bits.
INT_MAX = 2_147_483_647
#: The largest single precision number.
FLOAT_MAX = 3.40282e38

# To Python ``$`` matches before a last newline as well.
CLASS_PATTERN = r'^[A-Z0-9_]+\Z'
CUSTOM_PATTERN = r'^CUSTOM_[A-Z0-9_]+\Z'
UUID_KEY = r'^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z'
UUID: dict[str, Any] = {'type': 'string', 'format': 'uuid'}
GENERATION: dict[str, Any] = {'type': 'integer'}

#: Schemas and their validators, by the identity of the schema: creating one takes a millisecond.
_checkers: cachetools.LRUCache[int, tuple[Mapping[str, Any], Any]] = cachetools.LRUCache(256)
_lock = threading.Lock()
_HEX_UUID = re.compile('[0-9a-f]{32}')


def is_uuid(text: object) -> bool:
    """Return whether a text is a uuid, with or without hyphens, in braces or as a urn."""
    plain = re.sub('urn:|uuid:|[{}-]', '', str(text)).lower()
    return bool(_HEX_UUID.fullmatch(plain))


def uuid_of(text: str) -> str:
    """Return a uuid in canonical form."""
    return str(uuid.UUID(text))


def with_canonical_uuids(body: Mapping[str, T]) -> dict[str, T]:
    """Return an object with its keys, uuids, in canonical form.

    :raises PlacementError: two keys are the same uuid
    """
    by_plain_uuid = {uuid_of(key): value for key, value in body.items()}
    if len(by_plain_uuid) < len(body):
        twice = next(
            repeated for repeated, count in Counter(map(uuid_of, body)).items() if count > 1
        )
        raise PlacementError(400, f'JSON does not validate: {twice} is a key twice')
    return by_plain_uuid


def new_uuid() -> str:
    """Return a new random uuid."""
    return str(uuid.uuid4())


@FORMATS.checks('uuid')
def _is_uuid(value: object) -> bool:
    return is_uuid(value)


def object_schema(required: list[str], /, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others."""
    return {
        'type': 'object',
        'properties': properties,
        'required': required,
        'additionalProperties': False,
    }


def problem(value: object, schema: Mapping[str, Any]) -> str:
    """Return the worst violation of a schema, or an empty text.

    :param schema: a schema that is created once, not for each request
    """
    with _lock:
        cached = _checkers.get(id(schema))
        if cached is None or cached[0] is not schema:
            validator_class = validators.validator_for(schema)
            validator_class.check_schema(schema)
            cached = _checkers[id(schema)] = schema, validator_class(schema, format_checker=FORMATS)
    worst = problems.best_match(cached[1].iter_errors(value))
    # Placement's patterns end with ``$``, and its clients expect them in its messages.
    return '' if worst is None else str(worst).replace(r'\\Z', '$')
