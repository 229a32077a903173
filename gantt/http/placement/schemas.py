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

from gantt.http.placement.errors import PlacementError

T = TypeVar('T')
FORMATS = jsonschema.FormatChecker()

#: What has to be an integer that fits into 32 bits.
INT_MAX = 2_147_483_647
#: The largest single precision number.
FLOAT_MAX = 3.40282e38

# To Python ``$`` matches before a last newline as well.
CLASS_PATTERN = r'^[A-Z0-9_]+\Z'
CUSTOM_PATTERN = r'^CUSTOM_[A-Z0-9_]+\Z'
UUID_KEY = r'^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z'
UUID: dict[str, Any] = {'type': 'string', 'format': 'uuid'}
GENERATION: dict[str, Any] = {'type': 'integer'}

#: Schemas and what checks them, by the identity of the schema: to make one takes a millisecond.
_checkers: cachetools.LRUCache[int, tuple[Mapping[str, Any], Any]] = cachetools.LRUCache(256)
_lock = threading.Lock()
_BARE = re.compile('[0-9a-f]{32}')


def is_uuid(text: object) -> bool:
    """Whether it reads as a uuid, with or without its hyphens, in braces or as a urn."""
    plain = re.sub('urn:|uuid:|[{}-]', '', str(text)).lower()
    return bool(_BARE.fullmatch(plain))


def uuid_of(text: str) -> str:
    """A uuid in its usual form."""
    return str(uuid.UUID(text))


def by_uuid(body: Mapping[str, T]) -> dict[str, T]:
    """An object whose keys are uuids, each in its usual form.

    :raises PlacementError: two of them are the same one
    """
    found = {uuid_of(key): value for key, value in body.items()}
    if len(found) < len(body):
        twice = next(one for one, n in Counter(map(uuid_of, body)).items() if n > 1)
        raise PlacementError(400, f'JSON does not validate: {twice} is a key twice')
    return found


def new_uuid() -> str:
    """One that nothing has yet."""
    return str(uuid.uuid4())


@FORMATS.checks('uuid')
def _is_uuid(found: object) -> bool:
    return is_uuid(found)


def exactly(required: list[str], /, **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {
        'type': 'object',
        'properties': properties,
        'required': required,
        'additionalProperties': False,
    }


def problem(found: object, schema: Mapping[str, Any]) -> str:
    """What of it is not as the schema says, or nothing.

    :param schema: that is made once, not for each request
    """
    with _lock:
        known = _checkers.get(id(schema))
        if known is None or known[0] is not schema:
            kind = validators.validator_for(schema)
            kind.check_schema(schema)
            known = _checkers[id(schema)] = schema, kind(schema, format_checker=FORMATS)
    worst = problems.best_match(known[1].iter_errors(found))
    # Placement's patterns end with ``$``, and its clients look for them in what it says.
    return '' if worst is None else str(worst).replace(r'\\Z', '$')
