# SPDX-License-Identifier: Apache-2.0
"""Differences between a create and the member that was planned, field by field.

Fields that a place depends on are compared.  Owner, hosts to use or to ignore in one request, and
the group are not: they are checked elsewhere.  Of flavor and image a plan need not have more than
placement needs: a name, a uuid or properties that it leaves open may be any, unless a property
requires something of the host.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from gantt.core.messages import quoting
from gantt.core.messages.keys import known_keys, nova_hints
from gantt.core.messages.keys.known_keys import KeyKind
from gantt.core.messages.request import RequestSpec
from gantt.core.topology import read as topology

#: Differences that a line for users names.
SHOWN_MAX = 6
#: Longest value in a line, in characters.
_VALUE_CHARACTERS_MAX = 80

#: Fields without influence on the place of a member, or that are checked elsewhere.
NOT_COMPARED = frozenset(
    {'kind', 'project_id', 'user_id', 'purpose', 'ignore_hosts', 'group', 'move_id'}
)
#: Fields that a plan may leave open, compared by ``_open_fields``.
_OPEN_FIELDS = frozenset({'image', 'networks'})
#: Hints that are fields, or that identify the create.
_COMPARED_HINTS = nova_hints.HINT_NAMES
#: Hints that Heat sends with every server of a stack.
_HEAT_PREFIX = 'heat_'
_PROPERTY_PREFIX = 'image.properties.'

_encode = msgspec.msgpack.Encoder(order='deterministic').encode
_DEFAULT_SPEC = RequestSpec(resources={'DISK_GB': 1})


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Field in which a create is not as planned.

    :ivar field: its path below the spec, as ``resources.MEMORY_MB``
    :ivar planned: value in the plan, for users
    :ivar requested: value in the request
    """

    field: str
    planned: str
    requested: str

    @property
    def line(self) -> str:
        """Message of the difference."""
        return f'{self.field}: the plan has {self.planned}, the request {self.requested}'


def fixed_fields_key(spec: RequestSpec) -> bytes:
    """Return a key that is equal for specs which differ only in fields a plan may leave open."""
    return _encode(dict(_fixed_fields(spec)))


def plan_differences(planned: RequestSpec, requested: RequestSpec) -> list[PlanDifference]:
    """Return the differences of a request from the plan, by the names of the fields."""
    fixed_differences = _differing_fields(
        dict(_fixed_fields(planned)), dict(_fixed_fields(requested))
    )
    return sorted(
        [*fixed_differences, *differences_left_open(planned, requested)],
        key=lambda difference: _field_order(difference.field),
    )


def differences_left_open(planned: RequestSpec, requested: RequestSpec) -> list[PlanDifference]:
    """Return differences of fields that a plan may leave open, beyond :func:`key_of`."""
    open_fields, requested_fields = dict(_open_fields(planned)), dict(_open_fields(requested))
    has_properties = any(name.startswith(_PROPERTY_PREFIX) for name in open_fields)
    return _differing_fields(
        open_fields,
        {
            name: value
            for name, value in requested_fields.items()
            if name in open_fields
            or (name.startswith(_PROPERTY_PREFIX) and (has_properties or _is_requirement(name)))
            or (name.startswith('networks.') and planned.may_need_topology)
        },
    )


def differences_text(found: list[PlanDifference]) -> str:
    """Return the differences in one line."""
    lines = '; '.join(difference.line for difference in found[:SHOWN_MAX])
    more = len(found) - SHOWN_MAX
    return f'{lines}; and {more} more' if more > 0 else lines


def _differing_fields(planned: dict[str, Any], requested: dict[str, Any]) -> list[PlanDifference]:
    return [
        PlanDifference(
            field=name,
            planned=_value_text(planned.get(name)),
            requested=_value_text(requested.get(name)),
        )
        for name in planned.keys() | requested.keys()
        if planned.get(name) != requested.get(name)
    ]


def _fixed_fields(spec: RequestSpec) -> Iterator[tuple[str, Any]]:
    """Yield fields that a plan cannot leave open: path -> value; none where it is the default."""
    for name in RequestSpec.__struct_fields__:
        value = getattr(spec, name)
        if name in NOT_COMPARED or name in _OPEN_FIELDS:
            continue
        if name == 'resources' or value != getattr(_DEFAULT_SPEC, name):
            yield from _leaves(name, value)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the compared parts of one field."""
    if name == 'flavor':
        for key, text in value.extra_specs.items():
            known_key = known_keys.known_key(KeyKind.FLAVOR, key)
            if known_key is None or known_key.places:
                yield f'flavor.extra_specs.{key}', text
    elif name == 'hints':
        for key, texts in value.items():
            if key not in _COMPARED_HINTS and not key.startswith(_HEAT_PREFIX) and texts:
                yield f'hints.{key}', list(texts)
    else:
        if name == 'destination':
            # The hosts in it are of the one request, as those that it ignores.
            value = msgspec.structs.replace(value, hosts=[])
        yield from _leaves_below(name, msgspec.to_builtins(value))


def _open_fields(spec: RequestSpec) -> Iterator[tuple[str, Any]]:
    """Yield the set fields that a plan may leave open: path -> value."""
    if spec.flavor.name:
        yield 'flavor.name', spec.flavor.name
    if spec.image.uuid:
        yield 'image.uuid', spec.image.uuid
    if spec.image.disk_format:
        yield 'image.disk_format', spec.image.disk_format.lower()
    for name, text in spec.image.properties.items():
        yield f'{_PROPERTY_PREFIX}{name}', text
    if spec.networks is not None and (spec.networks.physical or spec.networks.tunneled):
        yield from _leaves_below('networks', msgspec.to_builtins(spec.networks))


def _leaves_below(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield leaves below a path; a list of names, in whatever order it came, is one of them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves_below(f'{path}.{key}', inner)
    elif isinstance(value, list):
        yield path, sorted((_sorted_list(element) for element in value), key=_encode)
    else:
        yield path, value


def _sorted_list(value: Any) -> Any:
    if isinstance(value, list):
        return sorted((_sorted_list(element) for element in value), key=_encode)
    if isinstance(value, dict):
        return {key: _sorted_list(inner) for key, inner in value.items()}
    return value


def _is_requirement(path: str) -> bool:
    """Return whether an image property requires something of the host."""
    name = path.removeprefix(_PROPERTY_PREFIX)
    known_key = known_keys.known_key(KeyKind.IMAGE, name)
    return (known_key is not None and known_key.places) or topology.is_topology_property(name)


def _field_order(field: str) -> tuple[int, str]:
    top = field.partition('.')[0]
    return RequestSpec.__struct_fields__.index(top), field


def _value_text(value: Any) -> str:
    """Return a value for users."""
    if value is None or value == []:
        return 'none'
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        value = ', '.join(value)
    elif isinstance(value, list):
        value = ', '.join(_value_text(element) for element in value)
    elif isinstance(value, dict):
        value = ', '.join(f'{key} {_value_text(inner)}' for key, inner in sorted(value.items()))
    return quoting.plain_text(str(value), _VALUE_CHARACTERS_MAX)
