# SPDX-License-Identifier: Apache-2.0
"""``gantt group``: list, create, remove server groups."""

import argparse
import json
import uuid
from typing import Any

from gantt.cli import base, endpoint, parsing, text
from gantt.cli.endpoint import Exit, Failure
from gantt.cli.text import TextColumn
from gantt.core.messages import policy_set

POLICIES = ('affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity')


class GroupList(base.Lister):
    """List the server groups."""

    path = '/v1/server-groups'
    list_key = 'server_groups'
    empty_message = 'there is no server group'
    columns = (
        TextColumn('GROUP', text.value_of_key('uuid')),
        TextColumn('POLICY', lambda r: _policy_text(r) + '!' * bool(r.get('problem'))),
        TextColumn(
            'PER HOST',
            lambda r: str(r['max_per_host']) if r['policy'] == 'anti-affinity' else '-',
            align_right=True,
        ),
        TextColumn('NAME', text.value_of_key('name'), min_width=8),
    )


class GroupCreate(base.Write):
    """Create a server group; its rule stays, but for a plan that is made under its uuid."""

    arguments = (
        base.arg('name'),
        base.arg(
            '--policy',
            action='append',
            default=[],
            metavar='POLICY',
            help=f'{", ".join(POLICIES)}, or a policy at any level as a JSON object, such as '
            '\'{"policy": "anti-affinity", "level": "rack"}\'; may be repeated',
        ),
        base.arg(
            '--policies-file',
            metavar='FILE',
            help='policies, subgroups and member_names as JSON or YAML; - is standard input',
        ),
        base.arg(
            '--subgroup',
            action='append',
            default=[],
            metavar='NAME=MEMBER,MEMBER',
            help='members that policies may be about together; may be repeated',
        ),
        base.arg(
            '--max-per-host',
            type=parsing.whole_number(1, 100_000),
            default=1,
            help='members that may share a host (anti-affinity only; default: 1)',
        ),
        base.arg('--uuid', help='its uuid (default: a new one)'),
        base.arg('--project', help='the project it belongs to'),
    )

    method = 'POST'
    path = '/v1/server-groups'

    def body(self, args: argparse.Namespace) -> Any:
        return {
            'uuid': args.uuid or str(uuid.uuid4()),
            'name': args.name,
            **_requested_policies(args),
            'max_per_host': args.max_per_host,
            'project_id': args.project,
        }


def _requested_policies(args: argparse.Namespace) -> dict[str, Any]:
    """Return the requested rule: a single policy of Nova's, or a set.

    :raises Failure: it cannot be read
    """
    by_argument = [_parse_policy(policy_text) for policy_text in args.policy]
    document = endpoint.load_body(args.policies_file) if args.policies_file is not None else {}
    if not isinstance(document, dict):
        problem = 'expected an object with policies, subgroups and member_names'
        raise Failure(f'{args.policies_file}: {problem}', Exit.USAGE)
    subgroups = dict(map(_parse_subgroup, args.subgroup))
    if len(by_argument) == 1 and isinstance(by_argument[0], str) and not (document or subgroups):
        return {'policy': by_argument[0]}
    known_fields = {'policies', 'subgroups', 'member_names'}
    for name in document.keys() - known_fields:
        problem = f'unknown field {name!r}; known: {", ".join(sorted(known_fields))}'
        raise Failure(f'{args.policies_file}: {problem}', Exit.USAGE)
    policies = [*(document.get('policies') or []), *by_argument]
    if not policies:
        raise Failure('expected --policy or --policies-file', Exit.USAGE)
    subgroups = {**(document.get('subgroups') or {}), **subgroups}
    return {**document, 'policies': policies, 'subgroups': subgroups}


def _policy_text(group: dict[str, Any]) -> str:
    is_empty = group['policy'] == policy_set.POLICIES_POLICY and not group['policies']
    return 'none' if is_empty else str(group['policy'])


def _parse_policy(text: str) -> Any:
    if not text.lstrip().startswith('{'):
        return text
    try:
        return json.loads(text)
    except ValueError as e:
        raise Failure(f'argument --policy: {text!r} is no JSON: {e}', Exit.USAGE) from None


def _parse_subgroup(text: str) -> tuple[str, list[str]]:
    name, is_there, members = text.partition('=')
    if not (name and is_there and members):
        problem = f'argument --subgroup: expected NAME=MEMBER,MEMBER, got {text!r}'
        raise Failure(problem, Exit.USAGE)
    return name, members.split(',')


class GroupRemove(base.Write):
    """Remove a server group that no live claim belongs to."""

    arguments = (base.arg('group', help='its uuid'),)

    method = 'DELETE'
    path = '/v1/server-groups/{group}'
