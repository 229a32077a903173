# SPDX-License-Identifier: Apache-2.0
"""Where in a message something is wrong, said as its sender would.

msgspec names a place as ``$.spec.resources[...]``: which key of a map it was, and
which values an enumeration has, is found out here, after the fact.
"""

import enum
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gantt.core.messages import quoting

#: Keys of one map that are looked at for the one that is wrong.
ITEMS_MAX = 200
ANY_ITEM = '[...]'

_STEPS = re.compile(r'\.([^.\[]+)|(\[\.\.\.\])|\[(\d+)\]')


def _steps(path: str) -> list[str]:
    return [name or item or number for name, item, number in _STEPS.findall(path)]


def first_in(tp: Any, wanted: Callable[[Any], bool]) -> Any:
    """The first type that is ``wanted`` in a type and what it is made of; None without."""
    if wanted(tp):
        return tp
    for arg in typing.get_args(tp):
        found = first_in(arg, wanted)
        if found is not None:
            return found
    return None


def type_at(tp: Any, path: str) -> Any:
    """The type of the place at ``path`` below ``tp``; None where there is none."""
    for step in _steps(path):
        if step == ANY_ITEM or step.isdigit():
            tp = _item_of(tp)
            continue
        struct = first_in(tp, lambda one: isinstance(one, type) and issubclass(one, msgspec.Struct))
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(struct)} if struct else {}
        tp = fields.get(step)
    return tp


def _item_of(tp: Any) -> Any:
    """The type of the items of the list or map in ``tp``."""
    origin = typing.get_origin(tp)
    args = typing.get_args(tp)
    if origin in (list, dict, set, frozenset, tuple):
        return args[1] if origin is dict else args[0]
    if origin in (typing.Annotated, typing.Union, types.UnionType):
        return next((found for arg in args if (found := _item_of(arg)) is not None), None)
    return None


def choices(tp: Any, path: str) -> list[str]:
    """Values of the enumeration at ``path``; empty where it is none."""
    found = first_in(
        type_at(tp, path), lambda one: isinstance(one, type) and issubclass(one, enum.Enum)
    )
    return [str(one.value) for one in found] if found is not None else []


def exact(body: Any, tp: Any, path: str) -> str:
    """``path`` with each ``[...]`` replaced by the key of the item that is wrong.

    That is the first one which, alone in its map, is refused at the same place.
    Beyond ``ITEMS_MAX`` items the path stays as it is.
    """
    found, *tails = path.split(ANY_ITEM)
    shown = found
    for number, tail in enumerate(tails):
        for key, alone in _alone(body, _steps(found)):
            if _is_refused(alone, tp, path):
                body = alone
                found += f'.{key}{tail}'
                shown += f'.{quoting.plain(key, quoting.CHARACTERS_MAX)}{tail}'
                break
        else:
            return ANY_ITEM.join([shown, *tails[number:]])
    return shown


def _is_refused(body: Any, tp: Any, path: str) -> bool:
    try:
        msgspec.convert(body, tp)
    except msgspec.ValidationError as e:
        return str(e).endswith(f' - at `{path}`')
    except RecursionError:
        return False
    return False


def _alone(body: Any, steps: list[str]) -> Iterator[tuple[str, Any]]:
    """For each key of the map at ``steps``: ``body`` with only this one there."""
    found = body
    for step in steps:
        found = _inside(found, step)
    if isinstance(found, dict) and len(found) <= ITEMS_MAX:
        for key, value in found.items():
            yield str(key), _with(body, steps, {key: value})


def _inside(found: Any, step: str) -> Any:
    if isinstance(found, dict):
        return found.get(step)
    return found[int(step)] if isinstance(found, list) and step.isdigit() else None


def _with(body: Any, steps: list[str], there: Any) -> Any:
    """A copy of ``body`` with ``there`` at ``steps``."""
    if not steps:
        return there
    step, *rest = steps
    if isinstance(body, list):
        at = int(step)
        return [*body[:at], _with(body[at], rest, there), *body[at + 1 :]]
    return {**body, step: _with(body[step], rest, there)}
