# SPDX-License-Identifier: Apache-2.0
"""Parsers of query parameters with a syntax of their own: amounts, traits, aggregates.

The texts of refusals are those of Placement, because clients and its tests compare them.
"""

from typing import NoReturn

from gantt.placement_api.http import errors
from gantt.placement_api.http.call import Call
from gantt.placement_api.http.errors import PlacementError
from gantt.placement_api.http.schemas import is_uuid

#: Versions from which on a query may have: forbidden traits, several ``member_of``, forbidden
#: aggregates, and sets of traits of which one is needed.
FORBIDDEN_TRAITS, REPEATED_MEMBER_OF, FORBIDDEN_AGGREGATES, ANY_TRAITS = 22, 24, 32, 39

_INVALID_PREFIX = 'Invalid query string parameters: '


def refuse(detail: str, code: str = errors.UNDEFINED_CODE) -> NoReturn:
    """Refuse a malformed query.

    :raises PlacementError: always
    """
    raise PlacementError(400, detail, code)


def resources(value: str) -> dict[str, int]:
    """Parse ``VCPU:2,MEMORY_MB:1024`` into class -> amount, at least 1.

    :raises PlacementError: the text has another form
    """
    expected = (
        'Badly formed resources parameter. Expected resources query string parameter in form: '
        '?resources=VCPU:2,MEMORY_MB:1024. Got: '
    )
    if not value.strip():
        refuse(f'{expected}empty string.')
    amounts = {}
    for part in value.split(','):
        name, colon, text = part.partition(':')
        if not colon or ':' in text:
            refuse(f'{expected}{part}.')
        try:
            amount = int(text)
        except ValueError:
            refuse(f'Requested resource {name} expected positive integer amount. Got: {text}.')
        if amount < 1:
            refuse(f'Requested resource {name} requires amount >= 1. Got: {amount}.')
        amounts[name] = amount
    return amounts


def traits(call: Call, suffix: str = '') -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    """Return ``required`` of a group: sets of which one trait each is needed, and forbidden ones.

    Of repeated parameters the last one counts before 1.39.

    :raises PlacementError: a value is malformed, or has a form that the version has not
    """
    values = call.query_values(f'required{suffix}')
    if not call.since(ANY_TRAITS):
        values = values[-1:]
    required: list[frozenset[str]] = []
    forbidden: frozenset[str] = frozenset()
    for value in values:
        sets, unwanted = traits_in(
            value, forbidden=call.since(FORBIDDEN_TRAITS), any_of=call.since(ANY_TRAITS)
        )
        required += sets
        forbidden |= unwanted
    return tuple(required), forbidden


def traits_in(
    value: str, *, forbidden: bool, any_of: bool
) -> tuple[list[frozenset[str]], frozenset[str]]:
    """Parse one value into sets of which one trait each is needed, and forbidden traits.

    :param forbidden: whether the version knows ``!NAME``
    :param any_of: whether the version knows ``in:NAME,NAME``
    :raises PlacementError: it is malformed
    """
    if value.startswith('in:'):
        form = "The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' "
        if not any_of:
            refuse(f'{_INVALID_PREFIX}{form}only supported since microversion 1.39. Got: {value}')
        some = frozenset(name.strip() for name in value[3:].split(','))
        if '' in some:
            refuse(
                f"{_INVALID_PREFIX}Expected 'required' parameter value of the form: "
                f'in:HW_CPU_X86_VMX,CUSTOM_MAGIC. Got an empty trait in: {value}'
            )
        if any(name.startswith('!') for name in some):
            refuse(f'{_INVALID_PREFIX}{form}does not support forbidden traits. Got: {value}')
        return [some], frozenset()
    names = [name.strip() for name in value.split(',')]
    without = frozenset(name.lstrip('!') for name in names if name.startswith('!'))
    form = f'HW_CPU_X86_VMX,{"!" if forbidden else ""}CUSTOM_MAGIC'
    expected = f"{_INVALID_PREFIX}Expected 'required' parameter value of the form: {form}. "
    if '' in names or '' in without:
        refuse(f'{expected}Got an empty trait in: {value}')
    if without and not forbidden:
        refuse(f'{expected}Got: {value}')
    return [frozenset([name]) for name in names if not name.startswith('!')], without


def member_of(call: Call, suffix: str = '') -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    """Return ``member_of`` of a group: sets with one required aggregate each, and forbidden ones.

    :raises PlacementError: a value is malformed, or has a form that the version has not
    """
    values = call.query_values(f'member_of{suffix}')
    if len(values) > 1 and not call.since(REPEATED_MEMBER_OF):
        refuse(f'Multiple member_of{suffix} parameters are not supported')
    required: list[frozenset[str]] = []
    forbidden: frozenset[str] = frozenset()
    for value in values:
        uuids = _aggregates(value)
        if not value.startswith('!'):
            required.append(uuids)
            continue
        if not call.since(FORBIDDEN_AGGREGATES):
            refuse(
                f'Forbidden member_of{suffix} parameters are not supported in the specified '
                'microversion'
            )
        forbidden |= uuids
    return tuple(required), forbidden


def _aggregates(value: str) -> frozenset[str]:
    """Return the uuids in one value of ``member_of``."""
    if ',' in value and not value.startswith(('in:', '!in:')):
        refuse(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword "
            f'using the valid microversion. Got: {value}'
        )
    bare = value.removeprefix('!')
    uuids = bare[3:].split(',') if bare.startswith('in:') else [bare]
    for uuid in uuids:
        if not is_uuid(uuid):
            refuse(
                f"{_INVALID_PREFIX}Expected 'member_of' parameter to contain valid UUID(s). "
                f'Got: {uuid}'
            )
    return frozenset(uuids)


def in_tree(value: str) -> str:
    """Parse the uuid of ``in_tree``.

    :raises PlacementError: the value is no uuid
    """
    uuid = value.strip()
    if not is_uuid(uuid):
        refuse(
            f"{_INVALID_PREFIX}Expected 'in_tree' parameter to be a format of uuid. Got: {value}"
        )
    return uuid
