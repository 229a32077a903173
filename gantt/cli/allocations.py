# SPDX-License-Identifier: Apache-2.0
"""``gantt allocation``: list, show, set, delete."""

import argparse
from typing import Any

from gantt.cli import base, placement, text
from gantt.cli.endpoint import Failure
from gantt.cli.placement import OfPlacement, PlacementLister, PlacementWrite, find, unless_raced
from gantt.cli.text import TextColumn

_CONSUMER = base.arg('consumer', type=placement.uuid, help='its uuid, such as that of a server')
_COLUMNS = (
    TextColumn('PROVIDER', text.key('provider')),
    TextColumn('CLASS', text.key('class'), least=12),
    TextColumn('AMOUNT', text.key('amount'), right=True),
)
#: Type of a new consumer where none is given.
_UNKNOWN = 'unknown'


def share(value: str) -> tuple[str, str, int]:
    """Parse an argument ``PROVIDER:CLASS=AMOUNT``."""
    provider, colon, rest = value.rpartition(':')
    if not (colon and provider):
        raise argparse.ArgumentTypeError(
            f'expected PROVIDER:CLASS=AMOUNT, such as pool-1:CUSTOM_LICENCE=2; got {value!r}'
        )
    return provider, *base.resource(rest)


class AllocationList(PlacementLister):
    """List who has what of a provider."""

    nothing = 'nothing of it is taken'
    columns = (
        TextColumn('CONSUMER', text.key('consumer')),
        TextColumn(
            'RESOURCES',
            lambda r: ', '.join(f'{k}={v}' for k, v in sorted(r['resources'].items())),
            least=16,
        ),
    )
    takes = (base.arg('provider', help='its uuid or its name'),)

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        uuid = find(self.placement, args.provider)['uuid']
        allocations = self.placement.get(f'/resource_providers/{uuid}/allocations')['allocations']
        return [
            {'consumer': consumer, **allocation}
            for consumer, allocation in sorted(allocations.items())
        ]


class AllocationShow(OfPlacement):
    """Show all that a consumer has, whoever claimed it."""

    takes = (_CONSUMER,)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        answer = self.placement.get(f'/allocations/{parsed_args.consumer}')
        return self.show(parsed_args, answer, self._lines(parsed_args.consumer, answer))

    def _lines(self, consumer: str, found: dict[str, Any]) -> list[str]:
        if not found['allocations']:
            return [f'consumer {consumer} has nothing']
        rows = [
            {'provider': provider, 'class': name, 'amount': amount}
            for provider, allocation in sorted(found['allocations'].items())
            for name, amount in sorted(allocation['resources'].items())
        ]
        owner = f'project {found["project_id"]}, user {found["user_id"]}'
        return [
            f'consumer {consumer}, type {found["consumer_type"]}, {owner}, '
            f'generation {found["consumer_generation"]}',
            '',
            *text.table(_COLUMNS, rows, self.width),
        ]


class AllocationSet(PlacementWrite):
    """Let a consumer have exactly this; what was written so, only writers end."""

    takes = (
        _CONSUMER,
        base.arg(
            'shares',
            nargs='+',
            type=share,
            metavar='PROVIDER:CLASS=AMOUNT',
            help='all that it is to have; a provider by its uuid or its name',
        ),
        base.arg('--project', help='whose it is (default: as it is)'),
        base.arg('--user', help='whose it is (default: as it is)'),
        base.arg(
            '--type', help='what it is, such as INSTANCE (default: as it is)', dest='consumer_type'
        ),
    )

    def act(self, args: argparse.Namespace) -> str:
        allocations: dict[str, Any] = {}
        for provider, name, amount in args.shares:
            uuid = find(self.placement, provider)['uuid']
            resources = allocations.setdefault(uuid, {'resources': {}})['resources']
            if name in resources:
                raise Failure(f'{provider}:{name} is given twice')
            resources[name] = amount
        unless_raced(lambda: self._write(args, allocations))
        return f'consumer {args.consumer} {self.verb("has")} {len(args.shares)} allocations'

    def _write(self, args: argparse.Namespace, allocations: dict[str, Any]) -> None:
        path = f'/allocations/{args.consumer}'
        stored = self.placement.get(path)
        body = {
            'allocations': allocations,
            'project_id': args.project or stored.get('project_id'),
            'user_id': args.user or stored.get('user_id'),
            'consumer_type': args.consumer_type or stored.get('consumer_type', _UNKNOWN),
            'consumer_generation': stored.get('consumer_generation'),
        }
        for option, key in (('--project', 'project_id'), ('--user', 'user_id')):
            if not body[key]:
                raise Failure(f'consumer {args.consumer} is new: expected {option}')
        if body['consumer_type'] == _UNKNOWN:
            raise Failure(f'the type of consumer {args.consumer} is not known: expected --type')
        self.placement.put(path, body)


class AllocationDelete(PlacementWrite):
    """Let a consumer have nothing, whoever claimed it."""

    takes = (_CONSUMER,)

    def act(self, args: argparse.Namespace) -> str:
        self.placement.delete(f'/allocations/{args.consumer}')
        return f'consumer {args.consumer} {self.verb("has")} nothing'
