# SPDX-License-Identifier: Apache-2.0
"""Fields that came with a microversion: shown and taken from that one on.

A microversion never changes once it is served.  A field that is added to a type of a body, a
query or an answer says so where it is declared::

    links: Annotated[list[Link], since(3)] = []

It has a default, which is what older versions mean by leaving it out.
"""

import functools
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from gantt import exceptions

_KEY, _OPTIONAL = 'since', 'optional since'
#: The same in the OpenAPI document, at operations and at properties.
MARK = 'x-openstack-min-version'
#: Of a property that was required before this version.
OPTIONAL_MARK = 'x-optional-since'


def since(minor: int) -> msgspec.Meta:
    """The annotation of a field that came with 1.``minor``."""
    return msgspec.Meta(extra={_KEY: minor}, extra_json_schema={MARK: f'1.{minor}'})


def optional_since(minor: int) -> msgspec.Meta:
    """The annotation of a field that is required before 1.``minor``; its default is UNSET."""
    return msgspec.Meta(extra={_OPTIONAL: minor}, extra_json_schema={OPTIONAL_MARK: f'1.{minor}'})


@functools.cache
def later_fields(tp: type) -> Mapping[str, int]:
    """Fields of a struct that did not come with the first version -> minor version."""
    return _noted(tp, _KEY)


@functools.cache
def _required_before(tp: type) -> Mapping[str, int]:
    """Fields of a struct that were required once -> the minor version that let them out."""
    return _noted(tp, _OPTIONAL)


def _noted(tp: type, key: str) -> Mapping[str, int]:
    found = {}
    for name, hint in get_type_hints(tp, include_extras=True).items():
        for note in getattr(hint, '__metadata__', ()):
            minor = isinstance(note, msgspec.Meta) and (note.extra or {}).get(key)
            if minor:
                found[name] = minor
    return found


def shown(value: Any, minor: int) -> Any:
    """A message as builtins, defaults included, as far as 1.``minor`` has it."""
    if isinstance(value, msgspec.Struct):
        later = later_fields(type(value))
        return {
            name: shown(getattr(value, name), minor)
            for name in value.__struct_fields__
            if later.get(name, 0) <= minor
        }
    if isinstance(value, dict):
        return {k: shown(v, minor) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(v, minor) for v in value]
    return value


def check(value: Any, minor: int, where: str) -> None:
    """Refuse what a caller says that its version does not have.

    :param where: path of ``value``, for the refusal
    :raises InvalidMessage: names the field and the version that it came with
    """
    if isinstance(value, msgspec.Struct):
        for name, until in _required_before(type(value)).items():
            if minor < until and getattr(value, name) is msgspec.UNSET:
                raise exceptions.invalid(f'{where}.{name}', f'is required before version 1.{until}')
        for name, default in zip(value.__struct_fields__, _defaults(type(value)), strict=True):
            found, came = getattr(value, name), later_fields(type(value)).get(name, 0)
            if came > minor and found != default:
                raise exceptions.invalid(
                    f'{where}.{name}', f'came with version 1.{came} of the interface, got 1.{minor}'
                )
            check(found, minor, f'{where}.{name}')
    elif isinstance(value, dict):
        for key, inner in value.items():
            check(inner, minor, f'{where}.{key}')
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            check(inner, minor, f'{where}[{index}]')


@functools.cache
def _defaults(tp: type) -> tuple[Any, ...]:
    fields = msgspec.structs.fields(tp)
    return tuple(
        f.default_factory() if f.default_factory is not msgspec.NODEFAULT else f.default
        for f in fields
    )
