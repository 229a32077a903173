# SPDX-License-Identifier: Apache-2.0
"""The base of every message and the one decoder that all interfaces share.

Unknown keys are refused, naming the nearest known one, unless the sender's minor version is newer
than ours.  Every refusal carries the path of the field.
"""

import enum
import functools
import hashlib
import re
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from gantt import exceptions
from gantt.core.messages import quoting
from gantt.core.messages.near import nearest_names

T = TypeVar('T')

#: Bounds of every message: checked before or while decoding.  Most are requests; messages that
#: list many things (reports, groups, hosts edited) may be larger.
BYTES_MAX = 1 << 20
REQUEST_BYTES_MAX = 128 << 10
TEXT_MAX = 1024
LIST_MAX = 1000
NAME_MAX = 255
#: Most known fields that a refusal of an unknown one names.
NAMED_FIELDS_MAX = 12

#: The end of a text, also to Python: there ``$`` alone matches before a last newline as well.
END_PATTERN = r'$(?!\n)'
UUID_PATTERN = rf'^[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}{END_PATTERN}'
UUID_EXPECTED = 'expected a UUID, its hexadecimal digits in lower case'
Uuid = Annotated[str, msgspec.Meta(pattern=UUID_PATTERN)]
_UUID = re.compile(UUID_PATTERN)
NAME_PATTERN = rf'^[^\x00-\x1f\x7f]*{END_PATTERN}'
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX, pattern=NAME_PATTERN)]
#: Pattern of names in reports: no two names may differ in leading or trailing space alone.
TRIMMED_NAME_PATTERN = rf'^(?!\s)[^\x00-\x1f\x7f]*(?<!\s){END_PATTERN}'
TrimmedName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=NAME_MAX, pattern=TRIMMED_NAME_PATTERN)
]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
#: A foreign structure, passed on or read elsewhere, bounded in bytes as msgpack: see
#: :func:`check_opaque`.
OPAQUE_META_KEY = 'bytes_max'
OPAQUE_BYTES_MAX = 512 << 10
Opaque = Annotated[Any, msgspec.Meta(extra={OPAQUE_META_KEY: OPAQUE_BYTES_MAX})]

#: Prefix of the name of a host in the topic of its agent.
TOPIC_PREFIX = 'gantt-compute'
UUID_NAMESPACE = uuid.UUID('6a1f1a9c-2f39-5c0e-9a8d-1f6d7d1c2b7e')
_NAMESPACE_HASH = hashlib.sha1(UUID_NAMESPACE.bytes, usedforsecurity=False)

#: Nova's spelling of fields with another name here, or without a part of their own.
FIELD_SPELLINGS = {'rules': 'max_per_host', 'max_server_per_host': 'max_per_host'}
_UNKNOWN_FIELD_ERROR = re.compile(r'Object contains unknown field `([^`]*)`(?: - at `([^`]*)`)?')
_ERROR_WITH_PATH = re.compile(r'^(.*?) - at `(key` in `)?(.*)`\Z', re.S)


#: Names of types in msgspec's errors, between back quotes -> names in JSON.
_TYPE_NAMES_IN_ERROR = re.compile(r'`([a-z]+(?: \| [a-z]+)*)`')
_TYPE_TEXTS = {
    'int': 'a whole number',
    'float': 'a number',
    'str': 'text',
    'bool': 'true or false',
    'array': 'a list',
    'object': 'an object',
}


#: Arguments of a create of a guest on which no placement depends: refused by name.
UNNEEDED_FIELDS = frozenset(
    {
        'accessIPv4',
        'accessIPv6',
        'admin_pass',
        'adminPass',
        'admin_password',
        'config_drive',
        'description',
        'hostname',
        'injected_files',
        'key_data',
        'key_name',
        'keypair',
        'metadata',
        'personality',
        'security_groups',
        'tags',
        'trusted_image_certificates',
        'user_data',
    }
)
UNNEEDED_FIELD_PROBLEM = 'placement needs nothing of it: leave it to the create of the member'


class FieldError(ValueError):
    """Error of a struct's own check: a field whose value does not fit with the others."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f'{field}: {problem}')
        self.field = field
        self.problem = problem


class Message(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base of the messages: immutable, keyword-only, unknown keys refused."""


@functools.cache
def _large_defaults(kind: type[Message]) -> list[tuple[str, Any]]:
    """Return the fields whose default has equals that are other objects: texts, floats, structs."""
    return [
        (field.name, field.default)
        for field in msgspec.structs.fields(kind)
        if isinstance(field.default, str | float | msgspec.Struct)
        and not isinstance(field.default, enum.Enum)
        and field.default != ''
    ]


def share_defaults(message: Message) -> None:
    """Replace values that equal the default of their field by the default itself.

    msgspec leaves a default out of an encoding where the value is that very object, not where it is
    an equal one.  Equal messages have to have one encoding where a digest is made of it.
    """
    for name, default in _large_defaults(type(message)):
        value = getattr(message, name)
        if value is not default and value == default:
            msgspec.structs.force_setattr(message, name, default)


def _path(path: str | None, inside: str) -> str:
    return (path or '$').replace('$', inside, 1)


def _fields(tp: Any, path: str) -> list[str]:
    """Return names of the fields of the struct at ``path`` below ``tp``."""
    struct = _struct_in(_type_at(tp, path))
    return list(struct.__struct_fields__) if _is_struct(struct) else []


def _is_struct(tp: Any) -> bool:
    return isinstance(tp, type) and issubclass(tp, msgspec.Struct)


def _is_map(tp: Any) -> bool:
    return get_origin(tp) is dict


def _struct_in(tp: Any) -> Any:
    return _first_in(tp, _is_struct)


def _without_unknown(body: Any, tp: Any) -> Any:
    """Return ``body`` without the keys that ``tp`` does not have (newer minor)."""
    if isinstance(body, list):
        return [_without_unknown(x, tp) for x in body]
    of = _first_in(tp, _is_map) if isinstance(body, dict) else None
    if of is not None:
        # Its keys are names, of classes for example, and no fields.
        return {k: _without_unknown(v, get_args(of)[1]) for k, v in body.items()}
    tp = _struct_in(tp)
    if not (isinstance(body, dict) and _is_struct(tp)):
        return body
    hints = {f.encode_name: f.type for f in msgspec.structs.fields(tp)}
    return {k: _without_unknown(v, hints[k]) for k, v in body.items() if k in hints}


def decode(body: Any, tp: type[T], *, inside: str, newer_minor: bool = False) -> T:
    """Return a builtin structure as ``tp``.

    :param inside: name of the message in an error, e.g. ``request``
    :param newer_minor: the sender's minor version is newer: drop unknown keys
    :raises InvalidMessage: names the field and the expected value
    """
    if newer_minor:
        body = _without_unknown(body, tp)
    try:
        message = msgspec.convert(body, tp)
    except msgspec.ValidationError as e:
        raise invalid(e, tp, inside, body) from None
    except UnicodeEncodeError:  # where such a text stands for another type, msgspec fails
        problem = 'expected text of whole characters; one is half of a surrogate pair'
        raise exceptions.invalid(inside, problem) from None
    except RecursionError:
        raise exceptions.invalid(inside, 'nested too deeply; expected fewer levels') from None
    check_opaque(message, inside)
    return message


@functools.cache
def _opaque(tp: Any) -> tuple[tuple[str, int], ...]:
    """Return names of the fields of a struct that are bounded in bytes, with the bounds."""
    if not _is_struct(tp):
        return ()
    return tuple(
        (field.name, limit)
        for field in msgspec.structs.fields(tp)
        if (limit := _bytes_max(field.type)) is not None
    )


def _bytes_max(tp: Any) -> int | None:
    if isinstance(tp, msgspec.Meta):
        return (tp.extra or {}).get(OPAQUE_META_KEY)
    return next((m for arg in get_args(tp) if (m := _bytes_max(arg)) is not None), None)


def check_opaque(found: Any, inside: str) -> None:
    """Check the size in bytes of structures that no type describes.

    :raises InvalidMessage: names the field
    """
    kind: Any = type(found)
    for name, limit in _opaque(kind):
        value = getattr(found, name)
        if value is None or value is msgspec.UNSET:
            continue
        try:
            size = len(msgspec.msgpack.encode(value))
        except OverflowError:
            problem = 'expected whole numbers of 64 bits at most'
        except RecursionError:
            problem = 'nested too deeply'
        else:
            if size <= limit:
                continue
            problem = f'expected at most {limit} bytes, got {size}'
        raise exceptions.invalid(f'{inside}.{name}', problem)


def decode_json(body: bytes, tp: type[T], *, inside: str) -> T:
    """Return JSON bytes as ``tp``; the same refusals as :func:`decode`."""
    if len(body) > BYTES_MAX:
        raise exceptions.PayloadTooLarge(size=len(body), limit=BYTES_MAX)
    try:
        message = _json(body, inside, tp)
    except msgspec.ValidationError as e:
        # It stops at the first field that does not fit: the rest was not checked yet.
        raise invalid(e, tp, inside, _json(body, inside)) from None
    check_opaque(message, inside)
    return message


def _json(body: bytes, inside: str, tp: Any = Any) -> Any:
    try:
        return msgspec.json.decode(body, type=tp)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError, UnicodeError) as e:
        deep = isinstance(e, RecursionError)
        problem = 'nested too deeply; expected fewer levels' if deep else f'not valid JSON: {e}'
        raise exceptions.invalid(inside, problem) from None


def invalid(error: Exception, tp: Any, inside: str, body: Any = None) -> exceptions.InvalidMessage:
    """Return an error of msgspec as ours: field path, problem, nearest known name.

    :param body: the decoded structure, to find which item of a list or map it was
    """
    text = str(error)
    unknown = _UNKNOWN_FIELD_ERROR.search(text)
    at = _ERROR_WITH_PATH.match(text)
    problem, path = (at.group(1), at.group(3)) if at else (text, '$')
    of_key = at.group(2) or '' if at else ''
    where = _path(_path_with_keys(body, tp, path, of_key), inside)
    cause = error.__cause__
    if isinstance(cause, FieldError):
        return exceptions.invalid(f'{where}.{cause.field}', cause.problem)
    if unknown:
        name = unknown.group(1)[: NAME_MAX + 1]
        field_names = _fields(tp, unknown.group(2) or '$')
        meant = (
            [FIELD_SPELLINGS[name]]
            if FIELD_SPELLINGS.get(name) in field_names
            else nearest_names(name, field_names, 1)
        )
        hint = f'; did you mean {meant[0]!r}?' if meant else f'; known: {_names(field_names)}'
        shown = quoting.plain_text(name, quoting.QUOTED_CHARACTERS_MAX)
        if name in UNNEEDED_FIELDS:
            return exceptions.invalid(f'{where}.{shown}', UNNEEDED_FIELD_PROBLEM)
        return exceptions.invalid(f'{where}.{shown}', f'unknown field{hint}')
    missing = re.match(r'Object missing required field `([^`]*)`', problem)
    if missing:
        return exceptions.invalid(f'{where}.{missing.group(1)}', 'required field is missing')
    expected = _expected(problem, tp, path)
    return exceptions.invalid(where, f'keys: {expected}' if of_key else expected)


def _names(known: list[str]) -> str:
    named = ', '.join(known[:NAMED_FIELDS_MAX])
    rest = len(known) - NAMED_FIELDS_MAX
    return f'{named} and {rest} more' if rest > 0 else named


def _expected(problem: str, tp: Any, path: str) -> str:
    """Return the problem with the expected values, where msgspec does not name them."""
    if problem.endswith(f'{UUID_PATTERN!r}'):
        return UUID_EXPECTED
    if 'matching regex' in problem and problem.endswith(f'{NAME_PATTERN!r}'):
        return 'expected a name without control characters'
    if 'matching regex' in problem and problem.endswith(f'{TRIMMED_NAME_PATTERN!r}'):
        return 'expected a name without control characters, and without space around it'
    # Of a value that is none of an enumeration's msgspec repeats all.
    problem = quoting.plain_text(problem, quoting.SENTENCE_CHARACTERS_MAX)
    if problem.startswith('Invalid enum value'):
        choices = _choices(tp, path)
        if choices:
            return f'{problem}; expected one of {", ".join(choices)}'
    return problem_text(problem)


def problem_text(problem: str) -> str:
    """Return a problem of msgspec in words: a whole number or null, not ``int | null``."""
    if not problem.startswith('Expected `'):
        return problem
    return _TYPE_NAMES_IN_ERROR.sub(_type_in_words, 'e' + problem[1:])


def _type_in_words(types: re.Match[str]) -> str:
    return ' or '.join(_TYPE_TEXTS.get(name, name) for name in types[1].split(' | '))


def to_builtins(message: Any) -> Any:
    """Return a message as dicts, lists, strings and numbers, for any carrier."""
    return msgspec.to_builtins(message)


def topic_of(host: str) -> str:
    """Return the topic for builds on a host, which follows from its name alone."""
    return f'{TOPIC_PREFIX}.{host}'


#: Hexadecimal digit -> with the variant of RFC 9562 in its upper bits.
_VARIANTS = {digit: '89ab'[int(digit, 16) & 3] for digit in '0123456789abcdef'}


def is_uuid(text: str) -> bool:
    """Return whether a text is a uuid as messages have it."""
    return _UUID.match(text) is not None


def named_id(*parts: object) -> str:
    """Return a uuid that depends on ``parts`` only, of version 8 (RFC 9562 section 5.8).

    No uuid that is drawn, or derived of a request, is equal.
    """
    derived = derived_id(*parts)
    return f'{derived[:14]}8{derived[15:]}'


def is_named_id(uuid: str) -> bool:
    """Return whether a uuid is of the version of those that follow from a name."""
    return uuid[14:15] == '8'


def derived_id(*parts: object) -> str:
    """Return a uuid that depends on ``parts`` only (UUIDv5, RFC 9562 section 5.5)."""
    # Several are computed for each placement: uuid.uuid5() takes twice as long.
    digest = _NAMESPACE_HASH.copy()
    digest.update(_text_of(parts))
    return _uuid_of(digest.hexdigest())


def derived_ids(parts: Sequence[object], last: Iterable[int]) -> list[str]:
    """Return ``derived_id(*parts, number)`` for each number in ``last``."""
    begun = _NAMESPACE_HASH.copy()
    begun.update(_text_of(parts) + b'\n')
    ids = []
    for number in last:
        digest = begun.copy()
        digest.update(b'%d' % number)
        ids.append(_uuid_of(digest.hexdigest()))
    return ids


def _text_of(parts: Sequence[object]) -> bytes:
    # A lone surrogate, which a foreign message may have, gives an id like any other.
    return '\n'.join(map(str, parts)).encode('utf-8', 'surrogatepass')


def _uuid_of(h: str) -> str:
    return f'{h[:8]}-{h[8:12]}-5{h[13:16]}-{_VARIANTS[h[16]]}{h[17:20]}-{h[20:32]}'


# -- where in a message something is wrong, in its sender's terms ---------------------------
#
# msgspec names a place as ``$.spec.resources[...]``: the key of the map, and the values of an
# enumeration, are derived here, after the fact.

#: Most keys of one map that are searched for the wrong one.
_TRIED_ITEMS_MAX = 200
_ANY_ITEM = '[...]'

_PATH_STEP = re.compile(r'\.([^.\[]+)|(\[\.\.\.\])|\[(\d+)\]')


def _path_steps(path: str) -> list[str]:
    return [name or item or number for name, item, number in _PATH_STEP.findall(path)]


def _first_in(tp: Any, predicate: Callable[[Any], bool]) -> Any:
    """Return the first type in ``tp`` and its arguments that ``predicate`` accepts; None: none."""
    if predicate(tp):
        return tp
    for arg in get_args(tp):
        match = _first_in(arg, predicate)
        if match is not None:
            return match
    return None


def _type_at(tp: Any, path: str) -> Any:
    """Return the type of the place at ``path`` below ``tp``; None where there is none."""
    for step in _path_steps(path):
        if step == _ANY_ITEM or step.isdigit():
            tp = _item_of(tp)
            continue
        struct = _struct_in(tp)
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(struct)} if struct else {}
        tp = fields.get(step)
    return tp


def _item_of(tp: Any) -> Any:
    """Return the type of the items of the list or map in ``tp``."""
    origin = get_origin(tp)
    args = get_args(tp)
    if origin in (list, dict, set, frozenset, tuple):
        return args[1] if origin is dict else args[0]
    if origin in (Annotated, Union, types.UnionType):
        return next((item for arg in args if (item := _item_of(arg)) is not None), None)
    return None


def _choices(tp: Any, path: str) -> list[str]:
    """Return values of the enumeration at ``path``; empty where it is none."""
    enumeration = _first_in(
        _type_at(tp, path), lambda value: isinstance(value, type) and issubclass(value, enum.Enum)
    )
    return [str(member.value) for member in enumeration] if enumeration is not None else []


def _path_with_keys(body: Any, tp: Any, path: str, of_key: str = '') -> str:
    """Return ``path`` with each ``[...]`` replaced by the key of the wrong item.

    That is the first one which, alone in its map, is refused at the same place.  Beyond
    ``_TRIED_ITEMS_MAX`` items the path stays as it is.

    :param of_key: text of msgspec before a path where the key itself is wrong
    """
    exact, *tails = path.split(_ANY_ITEM)
    shown = exact
    for number, tail in enumerate(tails):
        for key, single in _with_one_key(body, _path_steps(exact)):
            if _is_refused(single, tp, of_key + path):
                body = single
                exact += f'.{key}{tail}'
                shown += f'.{quoting.plain_text(key, quoting.QUOTED_CHARACTERS_MAX)}{tail}'
                break
        else:
            return _ANY_ITEM.join([shown, *tails[number:]])
    return shown


def _is_refused(body: Any, tp: Any, path: str) -> bool:
    try:
        msgspec.convert(body, tp)
    except msgspec.ValidationError as e:
        return str(e).endswith(f' - at `{path}`')
    except RecursionError:
        return False
    return False


def _with_one_key(body: Any, steps: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield for each key of the map at ``steps`` a ``body`` with only this one there."""
    mapping = body
    for step in steps:
        mapping = _value_at(mapping, step)
    if isinstance(mapping, dict) and len(mapping) <= _TRIED_ITEMS_MAX:
        for key, value in mapping.items():
            yield str(key), _with_value_at(body, steps, {key: value})


def _value_at(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    return value[int(step)] if isinstance(value, list) and step.isdigit() else None


def _with_value_at(body: Any, steps: list[str], there: Any) -> Any:
    """Return a copy of ``body`` with ``there`` at ``steps``."""
    if not steps:
        return there
    step, *rest = steps
    if isinstance(body, list):
        at = int(step)
        return [*body[:at], _with_value_at(body[at], rest, there), *body[at + 1 :]]
    return {**body, step: _with_value_at(body[step], rest, there)}
