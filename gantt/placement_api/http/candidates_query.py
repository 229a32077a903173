# SPDX-License-Identifier: Apache-2.0
"""Queries for candidates, as each version of Placement's interface reads them.

The texts of refusals are those of Placement, because clients and its tests compare them.
"""

import copy
import re
from collections.abc import Iterable
from typing import Any

from gantt.core.candidates.query import ISOLATE, CandidatesQuery, GroupQuery
from gantt.placement_api.http import errors, queries, schemas
from gantt.placement_api.http.call import Call
from gantt.placement_api.http.queries import refuse

#: Versions from which on a query has more parameters.
_LIMIT, _REQUIRED, _MEMBER_OF, _GROUPS = 16, 17, 21, 25
_NUMBERED, _NAMED = '[1-9][0-9]*', '[a-zA-Z0-9_-]{1,64}'
_NESTED, _IN_TREE, _SUFFIXES, _ROOT_REQUIRED, _SAME_SUBTREE = 29, 31, 33, 35, 36
_TEXT_SCHEMA: dict[str, Any] = {'type': 'string'}


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
        plain['resources'] = _TEXT_SCHEMA
        if version >= _REQUIRED:
            plain['required'] = _TEXT_SCHEMA
        if version >= _MEMBER_OF:
            plain['member_of'] = _TEXT_SCHEMA
        return schemas.object_schema(['resources'], **plain)
    plain['group_policy'] = {'type': 'string', 'enum': ['none', ISOLATE]}
    if version >= _IN_TREE:
        grouped.append('in_tree')
    if version >= _ROOT_REQUIRED:
        plain['root_required'] = _TEXT_SCHEMA
    if version >= _SAME_SUBTREE:
        plain['same_subtree'] = _TEXT_SCHEMA
    schema = schemas.object_schema([], **plain)
    schema['patternProperties'] = {
        rf'^{name}({_suffix(version)})?\Z': copy.copy(_TEXT_SCHEMA) for name in grouped
    }
    return schema


def _suffix(version: int) -> str:
    return _NAMED if version >= _SUFFIXES else _NUMBERED


SCHEMAS = {version: _schema(version) for version in range(10, queries.ANY_TRAITS + 1)}


def parse(call: Call) -> CandidatesQuery:
    """Return the query of a request.

    :raises PlacementError: it is malformed, or has a parameter that its version has not
    """
    call.query(SCHEMAS[call.version])
    limit = call.query_values('limit')
    policy = call.query_values('group_policy')
    root_required, root_forbidden = _root_traits(call)
    subtrees = _subtrees(call)
    groups = _request_groups(call)
    if call.since(_SAME_SUBTREE):
        _check_subtrees(groups, subtrees)
    else:
        _check_resources(groups)
    if call.since(queries.FORBIDDEN_TRAITS):
        _check_conflicts(groups)
    if not policy and sum(bool(suffix) for suffix in groups) > 1:
        refuse(
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


# -- groups -------------------------------------------------------------------------------
def _request_groups(call: Call) -> dict[str, GroupQuery]:
    """Return the groups by suffix, in order of first appearance."""
    pattern = re.compile(rf'^(resources|required|member_of|in_tree)({_suffix(call.version)})?\Z')
    fields_by_suffix: dict[str, dict[str, Any]] = {}
    for key, value in call.query_pairs:
        match = pattern.match(key)
        if not match:
            continue
        name, suffix = match.group(1), match.group(2) or ''
        fields = fields_by_suffix.setdefault(suffix, {'suffix': suffix})
        if name == 'resources':
            fields['resources'] = queries.resources(value)
        elif name == 'required':
            fields['required'], fields['forbidden'] = queries.traits(call, suffix)
        elif name == 'member_of':
            fields['member_of'], fields['forbidden_aggregates'] = queries.member_of(call, suffix)
        else:
            fields['in_tree'] = queries.in_tree(value)
    return {suffix: GroupQuery(**fields) for suffix, fields in fields_by_suffix.items()}


# -- what holds for all groups -------------------------------------------------------------
def _root_traits(call: Call) -> tuple[frozenset[str], frozenset[str]]:
    values = call.query_values('root_required')
    if not values:
        return frozenset(), frozenset()
    if len(values) > 1:
        refuse("Query parameter 'root_required' may be specified only once.", errors.DUPLICATE_KEY)
    sets, forbidden = queries.traits_in(values[0], forbidden=True, any_of=False)
    required = frozenset().union(*sets)
    if conflicts := required & forbidden:
        refuse(
            'Conflicting required and forbidden traits found in root_required: '
            f'{", ".join(sorted(conflicts))}',
            errors.BAD_VALUE,
        )
    return required, forbidden


def _subtrees(call: Call) -> tuple[frozenset[str], ...]:
    subtrees = []
    for value in call.query_values('same_subtree'):
        suffixes = frozenset(suffix.strip() for suffix in value.split(','))
        if '' in suffixes:
            refuse(
                'Empty string (unsuffixed group) can not be specified in `same_subtree` ',
                errors.BAD_VALUE,
            )
        subtrees.append(suffixes)
    return tuple(subtrees)


def _check_subtrees(groups: dict[str, GroupQuery], subtrees: Iterable[frozenset[str]]) -> None:
    named = sorted(set().union(*subtrees))
    without = [suffix for suffix, group in groups.items() if not group.resources]
    if len(without) == len(groups):
        refuse(
            'There must be at least one resources or resources[$S] parameter.',
            errors.MISSING_VALUE,
        )
    if bad := [suffix for suffix in without if suffix not in named]:
        refuse(
            'Resourceless suffixed group request should be specified in `same_subtree` query '
            f'param: bad group(s) - {bad}.',
            errors.BAD_VALUE,
        )
    if bad := [suffix for suffix in named if suffix not in groups]:
        refuse(
            f'Real suffixes should be specified in `same_subtree`: {bad} not found in '
            f'{list(groups)}.',
            errors.BAD_VALUE,
        )


def _check_resources(groups: dict[str, GroupQuery]) -> None:
    """Check that each group has resources, as it must before 1.36."""
    without = [(suffix, group) for suffix, group in groups.items() if not group.resources]
    if orphans := [f'required{suffix}' for suffix, group in without if group.required]:
        refuse(
            'All traits parameters must be associated with resources.  Found the following '
            f'orphaned traits keys: {", ".join(orphans)}'
        )
    orphans = [
        f'member_of{suffix}'
        for suffix, group in without
        if group.member_of or group.forbidden_aggregates
    ]
    if orphans:
        refuse(
            'All member_of parameters must be associated with resources. Found the following '
            f'orphaned member_of keys: {", ".join(orphans)}'
        )
    if without:
        refuse('All request groups must specify resources.')
    if not groups:
        refuse('At least one request group (`resources` or `resources{$S}`) is required.')


def _check_conflicts(groups: dict[str, GroupQuery]) -> None:
    conflicts = [
        f'required{suffix}: ({", ".join(sorted(names))})'
        for suffix, group in groups.items()
        for names in group.required
        if names <= group.forbidden
    ]
    if conflicts:
        refuse(
            'Conflicting required and forbidden traits found in the following traits keys: '
            f'{", ".join(sorted(conflicts))}'
        )
