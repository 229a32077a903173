# SPDX-License-Identifier: Apache-2.0
"""Whether two messages have the same form: keys in order, types, fixed words."""

import json
import uuid
from typing import Any

#: Keys whose values are the same in every message.
FIXED = (
    'nova_object.name',
    'nova_object.namespace',
    'nova_object.version',
    'nova_object.changes',
    'allocation_request_version',
    'class',
    'module',
    'code',
    'ending',
    'oslo.version',
)


def shape(value: Any, key: str = '') -> Any:
    """The form of a message: fixed words as they are, anything else as its kind."""
    if key in FIXED:
        return sorted(value) if isinstance(value, list) else value
    if isinstance(value, dict):
        return {k: shape(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [shape(v, key) for v in value]
    if isinstance(value, str):
        return _text(value)
    return type(value).__name__


def _text(value: str) -> Any:
    if value.startswith('{'):
        # JSON inside: its separators count too, the receiver compares text.
        inner = json.loads(value)
        assert json.dumps(inner) == value
        return {'json': _uuids_out(shape(inner))}
    try:
        uuid.UUID(value)
    except ValueError:
        return 'text'
    return 'uuid'


def _uuids_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {(k if shape(k) == 'text' else 'uuid'): _uuids_out(v) for k, v in value.items()}
    return value
