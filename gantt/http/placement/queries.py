# SPDX-License-Identifier: Apache-2.0
"""Parsers of query parameters with a syntax of their own: amounts, traits, aggregates.

Each takes one value, as it is in the query, and refuses a malformed one with 400.
"""

from gantt.http.placement.call import Call
from gantt.http.placement.errors import PlacementError
from gantt.http.placement.schemas import is_uuid

_INVALID = 'Invalid query string parameters: '


def resources(value: str) -> dict[str, int]:
    """Parse ``VCPU:2,MEMORY_MB:1024`` into class -> amount, at least 1.

    :raises PlacementError:
    """
    form = (
        'Badly formed resources parameter. Expected resources query string parameter in form: '
        '?resources=VCPU:2,MEMORY_MB:1024. Got: {}.'
    )
    if not value.strip():
        raise PlacementError(400, form.format('empty string'))
    amounts = {}
    for part in value.split(','):
        name, colon, text = part.partition(':')
        if not colon or ':' in text:
            raise PlacementError(400, form.format(part))
        try:
            amount = int(text)
        except ValueError:
            raise PlacementError(
                400, f'Requested resource {name} expected positive integer amount. Got: {text}.'
            ) from None
        if amount < 1:
            raise PlacementError(
                400, f'Requested resource {name} requires amount >= 1. Got: {amount}.'
            )
        amounts[name] = amount
    return amounts


def traits(call: Call, suffix: str = '') -> tuple[list[frozenset[str]], frozenset[str]]:
    """Parse ``required`` of a group: sets of which one trait each is needed, and forbidden ones.

    Forbidden ones are known from 1.22 on, ``in:`` and repeated parameters from 1.39; before it
    the last one counts.

    :raises PlacementError:
    """
    values = call.all(f'required{suffix}')
    if not call.since(39):
        values = values[-1:]
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        if value.startswith('in:'):
            required.append(_any_of(value, call.since(39)))
        else:
            sets, unwanted = _all_of(value, call.since(22))
            required += sets
            forbidden |= unwanted
    return required, frozenset(forbidden)


def _any_of(value: str, is_known: bool) -> frozenset[str]:
    if not is_known:
        raise PlacementError(
            400,
            f"{_INVALID}The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' only supported since "
            f'microversion 1.39. Got: {value}',
        )
    names = frozenset(name.strip() for name in value[3:].split(','))
    if not all(names):
        raise PlacementError(
            400,
            f"{_INVALID}Expected 'required' parameter value of the form: "
            f'in:HW_CPU_X86_VMX,CUSTOM_MAGIC. Got an empty trait in: {value}',
        )
    if any(name.startswith('!') for name in names):
        raise PlacementError(
            400,
            f"{_INVALID}The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' does not support forbidden "
            f'traits. Got: {value}',
        )
    return names


def _all_of(value: str, may_forbid: bool) -> tuple[list[frozenset[str]], set[str]]:
    names = [name.strip() for name in value.split(',')]
    forbidden = {name.lstrip('!') for name in names if name.startswith('!')}
    form = f"{_INVALID}Expected 'required' parameter value of the form: "
    if not all(names) or not all(forbidden):
        example = 'HW_CPU_X86_VMX,!CUSTOM_MAGIC' if may_forbid else 'HW_CPU_X86_VMX,CUSTOM_MAGIC'
        raise PlacementError(400, f'{form}{example}. Got an empty trait in: {value}')
    if forbidden and not may_forbid:
        raise PlacementError(400, f'{form}HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: {value}')
    return [frozenset([name]) for name in names if not name.startswith('!')], forbidden


def member_of(call: Call, suffix: str = '') -> tuple[list[frozenset[str]], frozenset[str]]:
    """Parse ``member_of`` of a group: sets with one required aggregate each, and forbidden ones.

    Repeated parameters are known from 1.24 on, forbidden ones from 1.32.

    :raises PlacementError:
    """
    values = call.all(f'member_of{suffix}')
    if len(values) > 1 and not call.since(24):
        raise PlacementError(400, f'Multiple member_of{suffix} parameters are not supported')
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        is_forbidden, uuids = _aggregates(value)
        if not is_forbidden:
            required.append(uuids)
        elif not call.since(32):
            raise PlacementError(
                400,
                f'Forbidden member_of{suffix} parameters are not supported in the specified '
                'microversion',
            )
        else:
            forbidden |= uuids
    return required, frozenset(forbidden)


def _aggregates(value: str) -> tuple[bool, frozenset[str]]:
    """Return whether the aggregates are forbidden, and their uuids."""
    is_forbidden = value.startswith('!')
    rest = value.removeprefix('!')
    if rest.startswith('in:'):
        uuids = frozenset(rest[3:].split(','))
    elif ',' in value:
        raise PlacementError(
            400,
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword "
            f'using the valid microversion. Got: {value}',
        )
    else:
        uuids = frozenset([rest])
    for uuid in uuids:
        if not is_uuid(uuid):
            raise PlacementError(
                400,
                f"{_INVALID}Expected 'member_of' parameter to contain valid UUID(s). Got: {uuid}",
            )
    return is_forbidden, uuids


def in_tree(value: str) -> str:
    """Parse the uuid of ``in_tree``.

    :raises PlacementError:
    """
    uuid = value.strip()
    if not is_uuid(uuid):
        raise PlacementError(
            400, f"{_INVALID}Expected 'in_tree' parameter to be a format of uuid. Got: {value}"
        )
    return uuid
