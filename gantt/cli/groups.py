# SPDX-License-Identifier: Apache-2.0
"""``gantt group``: list, create, remove server groups."""

import argparse
import uuid
from typing import Any

from gantt.cli import base, text
from gantt.cli.text import Column

POLICIES = ('affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity')


class GroupList(base.Lister):
    """List the server groups with the number of members that hold a live claim."""

    path = '/v1/server-groups'
    member = 'server_groups'
    nothing = 'there is no server group'
    columns = (
        Column('GROUP', text.key('uuid')),
        Column('POLICY', text.key('policy')),
        Column(
            'PER HOST',
            lambda r: str(r['max_per_host']) if r['policy'] == 'anti-affinity' else '-',
            right=True,
        ),
        Column('NAME', text.key('name'), least=8),
    )


class GroupCreate(base.Write):
    """Create a server group; its rule never changes afterwards."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its rule."""
        parser.add_argument('name')
        parser.add_argument('--policy', choices=POLICIES, required=True)
        parser.add_argument(
            '--max-per-host',
            type=base.whole_number(1, 100_000),
            default=1,
            help='members that may share a host (anti-affinity only; default: 1)',
        )
        parser.add_argument('--uuid', help='its uuid (default: a new one)')
        parser.add_argument('--project', help='the project it belongs to')

    def change(self, args: argparse.Namespace) -> dict[str, Any]:
        """POST it."""
        body = {
            'uuid': args.uuid or str(uuid.uuid4()),
            'name': args.name,
            'policy': args.policy,
            'max_per_host': args.max_per_host,
            'project_id': args.project,
        }
        return self.endpoint.post('/v1/server-groups', body, dry_run=args.dry_run)


class GroupRemove(base.Write):
    """Remove a server group that no live claim belongs to."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which."""
        parser.add_argument('group', help='its uuid')

    def change(self, args: argparse.Namespace) -> dict[str, Any]:
        """DELETE it."""
        path = f'/v1/server-groups/{base.path_part(args.group)}'
        return self.endpoint.delete(path, dry_run=args.dry_run)
