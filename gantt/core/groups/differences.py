# SPDX-License-Identifier: Apache-2.0
"""In what a create differs from the member that was planned, field by field.

Compared is what a place depends on.  What says whose it is, which hosts one request is to have or
to leave out, and which group it is of is not: that is looked at elsewhere.  Of flavor and image a
plan need not say more than placement needs: a name, a uuid or properties that it leaves open may
be any, unless a property asks something of the host.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from gantt.core.messages import quoting
from gantt.core.messages.keys import known_keys, nova_hints
from gantt.core.messages.keys.known_keys import KeyOf
from gantt.core.messages.request import RequestSpec
from gantt.core.topology import read as topology

#: Differences that a line for people names.
SHOWN_MAX = 6
#: Characters of a value in a line.
_CHARACTERS = 80

#: Fields that say nothing of where a member may be, or that others look at.
NOT_COMPARED = frozenset(
    {'kind', 'project_id', 'user_id', 'purpose', 'ignore_hosts', 'group', 'move_id'}
)
#: Fields that a plan may leave open, looked at by ``_open``.
_OPEN = frozenset({'image', 'networks'})
#: Hints that are fields, or that tell the create apart from others.
_HINTS = frozenset((*nova_hints.CONSUMERS, nova_hints.GROUP, nova_hints.MEMBER))
#: Hints that Heat sends with every server of a stack.
_HEAT = 'heat_'
_PROPERTY = 'image.properties.'

_encode = msgspec.msgpack.Encoder(order='deterministic').encode
_PLAIN = RequestSpec(resources={'DISK_GB': 1})


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One field in which a create is not as planned.

    :ivar field: its path below the spec, as ``resources.MEMORY_MB``
    :ivar planned: in the plan, for people
    :ivar requested: in the request
    """

    field: str
    planned: str
    requested: str

    @property
    def line(self) -> str:
        """It in words."""
        return f'{self.field}: the plan has {self.planned}, the request {self.requested}'


def key_of(spec: RequestSpec) -> bytes:
    """What two specs share that differ at most in what a plan may leave open."""
    return _encode(dict(_fixed(spec)))


def differences(planned: RequestSpec, requested: RequestSpec) -> list[PlanDifference]:
    """In what a request is not as planned, by the names of the fields; empty: it is as planned."""
    found = _differing(dict(_fixed(planned)), dict(_fixed(requested)))
    return sorted(
        [*found, *differences_left_open(planned, requested)], key=lambda one: _order(one.field)
    )


def differences_left_open(planned: RequestSpec, requested: RequestSpec) -> list[PlanDifference]:
    """The same of fields that a plan may leave open, which :func:`key_of` does not have."""
    known, wanted = dict(_open(planned)), dict(_open(requested))
    has_properties = any(name.startswith(_PROPERTY) for name in known)
    return _differing(
        known,
        {
            name: value
            for name, value in wanted.items()
            if name in known
            or (name.startswith(_PROPERTY) and (has_properties or _asks(name)))
            or (name.startswith('networks.') and planned.may_need_topology)
        },
    )


def in_words(found: list[PlanDifference]) -> str:
    """The differences in one line."""
    lines = '; '.join(one.line for one in found[:SHOWN_MAX])
    more = len(found) - SHOWN_MAX
    return f'{lines}; and {more} more' if more > 0 else lines


def _differing(planned: dict[str, Any], requested: dict[str, Any]) -> list[PlanDifference]:
    return [
        PlanDifference(
            field=name, planned=_text(planned.get(name)), requested=_text(requested.get(name))
        )
        for name in planned.keys() | requested.keys()
        if planned.get(name) != requested.get(name)
    ]


def _fixed(spec: RequestSpec) -> Iterator[tuple[str, Any]]:
    """What a plan cannot leave open: path -> value; nothing where it is the default."""
    for name in RequestSpec.__struct_fields__:
        value = getattr(spec, name)
        if name in NOT_COMPARED or name in _OPEN:
            continue
        if name == 'resources' or value != getattr(_PLAIN, name):
            yield from _leaves(name, value)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is compared of one field."""
    if name == 'flavor':
        for key, text in value.extra_specs.items():
            found = known_keys.known(KeyOf.FLAVOR, key)
            if found is None or found.places:
                yield f'flavor.extra_specs.{key}', text
    elif name == 'hints':
        for key, texts in value.items():
            if key not in _HINTS and not key.startswith(_HEAT) and texts:
                yield f'hints.{key}', list(texts)
    else:
        if name == 'destination':
            # The hosts in it are of the one request, as those that it ignores.
            value = msgspec.structs.replace(value, hosts=[])
        yield from _flat(name, msgspec.to_builtins(value))


def _open(spec: RequestSpec) -> Iterator[tuple[str, Any]]:
    """What a plan may leave open, the same way."""
    if spec.flavor.name:
        yield 'flavor.name', spec.flavor.name
    if spec.image.uuid:
        yield 'image.uuid', spec.image.uuid
    if spec.image.disk_format:
        yield 'image.disk_format', spec.image.disk_format.lower()
    for name, text in spec.image.properties.items():
        yield f'{_PROPERTY}{name}', text
    if spec.networks is not None and (spec.networks.physical or spec.networks.tunneled):
        yield from _flat('networks', msgspec.to_builtins(spec.networks))


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves below a path; a list of names, in whatever order it came, is one of them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f'{path}.{key}', inner)
    elif isinstance(value, list):
        yield path, sorted((_sorted(one) for one in value), key=_encode)
    else:
        yield path, value


def _sorted(value: Any) -> Any:
    if isinstance(value, list):
        return sorted((_sorted(one) for one in value), key=_encode)
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in value.items()}
    return value


def _asks(path: str) -> bool:
    """Whether an image property asks something of the host."""
    name = path.removeprefix(_PROPERTY)
    found = known_keys.known(KeyOf.IMAGE, name)
    return (found is not None and found.places) or topology.is_of_inside(name)


def _order(field: str) -> tuple[int, str]:
    top = field.partition('.')[0]
    return RequestSpec.__struct_fields__.index(top), field


def _text(value: Any) -> str:
    """A value for people."""
    if value is None or value == []:
        return 'none'
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ', '.join(value)
    elif isinstance(value, list):
        value = ', '.join(_text(one) for one in value)
    elif isinstance(value, dict):
        value = ', '.join(f'{key} {_text(inner)}' for key, inner in sorted(value.items()))
    return quoting.plain(str(value), _CHARACTERS)
