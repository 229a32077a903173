# SPDX-License-Identifier: Apache-2.0
"""``gantt group``: list, create, remove server groups."""

import argparse
import uuid
from typing import Any

from gantt.cli import base, text
from gantt.cli.text import TextColumn

POLICIES = ('affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity')


class GroupList(base.Lister):
    """List the server groups with the number of members that hold a live claim."""

    path = '/v1/server-groups'
    member = 'server_groups'
    nothing = 'there is no server group'
    columns = (
        TextColumn('GROUP', text.key('uuid')),
        TextColumn('POLICY', text.key('policy')),
        TextColumn(
            'PER HOST',
            lambda r: str(r['max_per_host']) if r['policy'] == 'anti-affinity' else '-',
            right=True,
        ),
        TextColumn('NAME', text.key('name'), least=8),
    )


class GroupCreate(base.Write):
    """Create a server group; its rule never changes afterwards."""

    takes = (
        base.arg('name'),
        base.arg('--policy', choices=POLICIES, required=True),
        base.arg(
            '--max-per-host',
            type=base.whole_number(1, 100_000),
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
            'policy': args.policy,
            'max_per_host': args.max_per_host,
            'project_id': args.project,
        }


class GroupRemove(base.Write):
    """Remove a server group that no live claim belongs to."""

    takes = (base.arg('group', help='its uuid'),)

    method = 'DELETE'
    path = '/v1/server-groups/{group}'
