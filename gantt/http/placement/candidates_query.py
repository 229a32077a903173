# SPDX-License-Identifier: Apache-2.0
"""Queries for candidates, as each version of Placement's interface reads them.

The texts of refusals are those of Placement, because clients and its tests compare them.
"""

import copy
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from gantt.core.candidates.query import ISOLATE, CandidatesQuery, GroupQuery
from gantt.http.placement import errors, schemas
from gantt.http.placement.call import Call
from gantt.http.placement.errors import PlacementError

#: Versions from which on a query has more parameters.
_LIMIT, _REQUIRED, _MEMBER_OF, _GROUPS = 16, 17, 21, 25
_NUMBERED, _NAMED = '[1-9][0-9]*', '[a-zA-Z0-9_-]{1,64}'
_FORBIDDEN_TRAITS, _REPEATED_MEMBER_OF, _NESTED = 22, 24, 29
_IN_TREE, _FORBIDDEN_AGGREGATES, _SUFFIXES = 31, 32, 33
_ROOT_REQUIRED, _SAME_SUBTREE, _ANY_TRAITS = 35, 36, 39
_TEXT: dict[str, Any] = {'type': 'string'}


def _schema(version: int) -> dict[str, Any]:
    """Return the JSON schema of the parameters of a version."""
    plain: dict[str, Any] = {}
    grouped = ['resources', 'required', 'member_of']
    if version >= _LIMIT:
        plain['limit'] = {
            'type': ['integer', 'string'],
            'pattern': r'^[1-9][0-9]*\Z',
            'minimum': 1,
            'minLength': 1,
        }
    if version < _GROUPS:
        plain['resources'] = _TEXT
        if version >= _REQUIRED:
            plain['required'] = _TEXT
        if version >= _MEMBER_OF:
            plain['member_of'] = _TEXT
        return schemas.exactly(['resources'], **plain)
    plain['group_policy'] = {'type': 'string', 'enum': ['none', ISOLATE]}
    if version >= _IN_TREE:
        grouped.append('in_tree')
    if version >= _ROOT_REQUIRED:
        plain['root_required'] = _TEXT
    if version >= _SAME_SUBTREE:
        plain['same_subtree'] = _TEXT
    schema = schemas.exactly([], **plain)
    schema['patternProperties'] = {
        rf'^{name}({_suffix(version)})?\Z': copy.copy(_TEXT) for name in grouped
    }
    return schema


def _suffix(version: int) -> str:
    return _NAMED if version >= _SUFFIXES else _NUMBERED


SCHEMAS = {version: _schema(version) for version in range(10, _ANY_TRAITS + 1)}


def parse(call: Call) -> CandidatesQuery:
    """Return the query of a request.

    :raises PlacementError: it is malformed, or has a parameter that its version has not
    """
    call.query(SCHEMAS[call.version])
    limit = call.all('limit')
    policy = call.all('group_policy')
    root_required, root_forbidden = _root_traits(call)
    subtrees = _subtrees(call)
    groups = _groups(call)
    if call.since(_SAME_SUBTREE):
        _check_subtrees(groups, subtrees)
    else:
        _check_resources(groups)
    if call.since(_FORBIDDEN_TRAITS):
        _check_conflicts(groups)
    if not policy and sum(bool(suffix) for suffix in groups) > 1:
        _refuse(
            'The "group_policy" parameter is required when specifying more than one '
            '"resources{N}" parameter.'
        )
    return CandidatesQuery(
        groups=tuple(groups.values()),
        isolate=bool(policy) and policy[0] == ISOLATE,
        same_subtree=subtrees,
        root_required=root_required,
        root_forbidden=root_forbidden,
        limit=int(limit[0]) if limit else None,
        nested=call.since(_NESTED),
    )


def _refuse(detail: str, code: str = errors.UNDEFINED) -> NoReturn:
    raise PlacementError(400, detail, code)


# -- groups -------------------------------------------------------------------------------
def _groups(call: Call) -> dict[str, GroupQuery]:
    """Return the groups by suffix, in order of first appearance."""
    pattern = re.compile(rf'^(resources|required|member_of|in_tree)({_suffix(call.version)})?\Z')
    fields_by_suffix: dict[str, dict[str, Any]] = {}
    for key, value in call.pairs:
        match = pattern.match(key)
        if not match:
            continue
        name, suffix = match.group(1), match.group(2) or ''
        fields = fields_by_suffix.setdefault(suffix, {'suffix': suffix})
        if name == 'resources':
            fields['resources'] = resources(value)
        elif name == 'required':
            fields['required'], fields['forbidden'] = _traits_of(call, suffix)
        elif name == 'member_of':
            fields['member_of'], fields['forbidden_aggregates'] = _aggregates_of(call, suffix)
        else:
            fields['in_tree'] = _in_tree(value)
    return {suffix: GroupQuery(**fields) for suffix, fields in fields_by_suffix.items()}


def resources(text: str) -> dict[str, int]:
    """Parse amounts such as ``VCPU:2,MEMORY_MB:1024``.

    :raises PlacementError: the text has another form
    """
    expected = (
        'Badly formed resources parameter. Expected resources query string parameter in form: '
        '?resources=VCPU:2,MEMORY_MB:1024. Got: '
    )
    if not text.strip():
        _refuse(f'{expected}empty string.')
    amounts = {}
    for item in text.split(','):
        name, colon, amount = item.partition(':')
        if not colon or ':' in amount:
            _refuse(f'{expected}{item}.')
        try:
            amounts[name] = int(amount)
        except ValueError:
            _refuse(f'Requested resource {name} expected positive integer amount. Got: {amount}.')
        if amounts[name] < 1:
            _refuse(f'Requested resource {name} requires amount >= 1. Got: {amounts[name]}.')
    return amounts


def _traits_of(call: Call, suffix: str) -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    values = call.all(f'required{suffix}')
    if not call.since(_ANY_TRAITS):
        values = values[-1:]
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        any_of_sets, unwanted = traits(
            value,
            forbidden=call.since(_FORBIDDEN_TRAITS),
            any_of=call.since(_ANY_TRAITS),
        )
        required += any_of_sets
        forbidden |= unwanted
    return tuple(required), frozenset(forbidden)


def traits(
    text: str, *, forbidden: bool, any_of: bool
) -> tuple[list[frozenset[str]], frozenset[str]]:
    """Parse required traits, sets of which one each is needed, and forbidden ones.

    :param forbidden: ``!NAME`` is known
    :param any_of: ``in:NAME,NAME`` is known
    :raises PlacementError: it is malformed
    """
    bad = 'Invalid query string parameters: '
    if text.startswith('in:'):
        form = "The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' "
        if not any_of:
            _refuse(f'{bad}{form}only supported since microversion 1.39. Got: {text}')
        some = frozenset(name.strip() for name in text[3:].split(','))
        if '' in some:
            _refuse(
                f"{bad}Expected 'required' parameter value of the form: "
                f'in:HW_CPU_X86_VMX,CUSTOM_MAGIC. Got an empty trait in: {text}'
            )
        if any(name.startswith('!') for name in some):
            _refuse(f'{bad}{form}does not support forbidden traits. Got: {text}')
        return [some], frozenset()
    names = [name.strip() for name in text.split(',')]
    without = frozenset(name.lstrip('!') for name in names if name.startswith('!'))
    form = f'HW_CPU_X86_VMX,{"!" if forbidden else ""}CUSTOM_MAGIC'
    expected = f"{bad}Expected 'required' parameter value of the form: {form}. "
    if '' in names or '' in without:
        _refuse(f'{expected}Got an empty trait in: {text}')
    if without and not forbidden:
        _refuse(f'{expected}Got: {text}')
    return [frozenset([name]) for name in names if not name.startswith('!')], without


def _aggregates_of(call: Call, suffix: str) -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    values = call.all(f'member_of{suffix}')
    if len(values) > 1 and not call.since(_REPEATED_MEMBER_OF):
        _refuse(f'Multiple member_of{suffix} parameters are not supported')
    required = []
    forbidden: frozenset[str] = frozenset()
    for value in values:
        any_of, unwanted = aggregates(value)
        if any_of:
            required.append(any_of)
        if unwanted and not call.since(_FORBIDDEN_AGGREGATES):
            _refuse(
                f'Forbidden member_of{suffix} parameters are not supported in the specified '
                'microversion'
            )
        forbidden |= unwanted
    return tuple(required), forbidden


def aggregates(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Parse aggregates: those of which one is required, and those that are forbidden.

    :raises PlacementError: it is malformed
    """
    if ',' in text and not text.startswith(('in:', '!in:')):
        _refuse(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword "
            f'using the valid microversion. Got: {text}'
        )
    bare = text.removeprefix('!')
    values = bare[3:].split(',') if bare.startswith('in:') else [bare]
    for value in values:
        if not schemas.is_uuid(value):
            _refuse(
                "Invalid query string parameters: Expected 'member_of' parameter to contain valid "
                f'UUID(s). Got: {value}'
            )
    uuids = frozenset(values)
    return (frozenset(), uuids) if text.startswith('!') else (uuids, frozenset())


def _in_tree(text: str) -> str:
    if not schemas.is_uuid(text.strip()):
        _refuse(
            "Invalid query string parameters: Expected 'in_tree' parameter to be a format of "
            f'uuid. Got: {text}'
        )
    return text.strip()


# -- what holds for all groups -------------------------------------------------------------
def _root_traits(call: Call) -> tuple[frozenset[str], frozenset[str]]:
    values = call.all('root_required')
    if not values:
        return frozenset(), frozenset()
    if len(values) > 1:
        _refuse("Query parameter 'root_required' may be specified only once.", errors.DUPLICATE_KEY)
    sets, forbidden = traits(values[0], forbidden=True, any_of=False)
    required = frozenset().union(*sets)
    if conflicts := required & forbidden:
        _refuse(
            'Conflicting required and forbidden traits found in root_required: '
            f'{", ".join(sorted(conflicts))}',
            errors.BAD_VALUE,
        )
    return required, forbidden


def _subtrees(call: Call) -> tuple[frozenset[str], ...]:
    subtrees = []
    for value in call.all('same_subtree'):
        suffixes = frozenset(suffix.strip() for suffix in value.split(','))
        if '' in suffixes:
            _refuse(
                'Empty string (unsuffixed group) can not be specified in `same_subtree` ',
                errors.BAD_VALUE,
            )
        subtrees.append(suffixes)
    return tuple(subtrees)


def _check_subtrees(groups: dict[str, GroupQuery], subtrees: Iterable[frozenset[str]]) -> None:
    named = sorted(set().union(*subtrees))
    without = [suffix for suffix, group in groups.items() if not group.resources]
    if len(without) == len(groups):
        _refuse(
            'There must be at least one resources or resources[$S] parameter.',
            errors.MISSING_VALUE,
        )
    if bad := [suffix for suffix in without if suffix not in named]:
        _refuse(
            'Resourceless suffixed group request should be specified in `same_subtree` query '
            f'param: bad group(s) - {bad}.',
            errors.BAD_VALUE,
        )
    if bad := [suffix for suffix in named if suffix not in groups]:
        _refuse(
            f'Real suffixes should be specified in `same_subtree`: {bad} not found in '
            f'{list(groups)}.',
            errors.BAD_VALUE,
        )


def _check_resources(groups: dict[str, GroupQuery]) -> None:
    """Check that each group has resources, as it must before 1.36."""
    without = [(suffix, group) for suffix, group in groups.items() if not group.resources]
    if orphans := [f'required{suffix}' for suffix, group in without if group.required]:
        _refuse(
            'All traits parameters must be associated with resources.  Found the following '
            f'orphaned traits keys: {", ".join(orphans)}'
        )
    orphans = [
        f'member_of{suffix}'
        for suffix, group in without
        if group.member_of or group.forbidden_aggregates
    ]
    if orphans:
        _refuse(
            'All member_of parameters must be associated with resources. Found the following '
            f'orphaned member_of keys: {", ".join(orphans)}'
        )
    if without:
        _refuse('All request groups must specify resources.')
    if not groups:
        _refuse('At least one request group (`resources` or `resources{$S}`) is required.')


def _check_conflicts(groups: dict[str, GroupQuery]) -> None:
    conflicts = [
        f'required{suffix}: ({", ".join(sorted(names))})'
        for suffix, group in groups.items()
        for names in group.required
        if names <= group.forbidden
    ]
    if conflicts:
        _refuse(
            'Conflicting required and forbidden traits found in the following traits keys: '
            f'{", ".join(sorted(conflicts))}'
        )
