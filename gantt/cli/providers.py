# SPDX-License-Identifier: Apache-2.0
"""``gantt provider``: list, show, create, set, delete."""

import argparse
import functools
import uuid as uuids
from typing import Any

from gantt.cli import base, placement, text
from gantt.cli.endpoint import Endpoint, Exit, Failure
from gantt.cli.placement import OfPlacement, PlacementLister, PlacementWrite, find, unless_raced
from gantt.cli.text import TextColumn
from gantt.core.messages.resource_classes import Inventory

_PROVIDER = base.arg('provider', help='its uuid or its name')
_CONTENT = (
    base.arg(
        '--inventory',
        action='append',
        type=placement.inventory,
        default=[],
        metavar='CLASS=TOTAL[,NUMBER=VALUE...]',
        help='what it has of a class, such as VCPU=64,reserved=2,allocation_ratio=4; numbers: '
        'reserved, min_unit, max_unit, step_size, allocation_ratio (may be repeated)',
    ),
    base.arg(
        '--trait', action='append', default=[], metavar='NAME', help='a trait (may be repeated)'
    ),
    base.arg(
        '--aggregate',
        action='append',
        type=placement.uuid,
        default=[],
        metavar='UUID',
        help='an aggregate that it is in (may be repeated)',
    ),
)
_GENERATION = 'resource_provider_generation'
_INVENTORIES = (
    TextColumn('CLASS', text.key('name'), least=12),
    TextColumn('TOTAL', text.key('total'), right=True),
    TextColumn('RESERVED', text.key('reserved'), right=True),
    TextColumn('RATIO', lambda r: f'{r["allocation_ratio"]:g}', right=True),
    TextColumn('UNITS', lambda r: f'{r["min_unit"]}..{r["max_unit"]}/{r["step_size"]}', right=True),
    TextColumn('USED', text.key('used'), right=True),
)


def _path(uuid: str, rest: str = '') -> str:
    return f'/resource_providers/{base.path_part(uuid)}' + (f'/{rest}' if rest else '')


def _amounts(ask: Endpoint, uuid: str) -> dict[str, Any]:
    """Fetch the inventories and usages of a provider."""
    return {part: ask.get(_path(uuid, part))[part] for part in ('inventories', 'usages')}


class ProviderList(PlacementLister):
    """List resource providers: hosts, what is nested in them, pools."""

    path = '/resource_providers'
    member = 'resource_providers'
    nothing = 'there is no such provider'
    columns = (
        TextColumn('NAME', text.key('name'), least=16),
        TextColumn('UUID', text.key('uuid')),
        TextColumn('PARENT', lambda r: text.short_id(r['parent_provider_uuid'])),
        TextColumn('GENERATION', text.key('generation'), right=True),
    )
    takes = (
        base.arg('--name', help='that of this name'),
        base.arg('--in-tree', metavar='PROVIDER', help='those of the tree of this one'),
        base.arg(
            '--resource',
            action='append',
            type=base.resource,
            default=[],
            metavar='CLASS=AMOUNT',
            help='those that could give so much in one piece (may be repeated)',
        ),
        base.arg('--required', metavar='TRAIT[,!TRAIT...]', help='with these traits, without !'),
        base.arg(
            '--long', action='store_true', help='and what each has free of what it may promise'
        ),
        base.arg(
            '--member-of', type=placement.uuid, metavar='UUID', help='those in this aggregate'
        ),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        tree = args.in_tree and find(self.placement, args.in_tree)['uuid']
        return {
            'name': args.name,
            'in_tree': tree,
            'resources': ','.join(f'{name}:{amount}' for name, amount in args.resource) or None,
            'required': args.required,
            'member_of': args.member_of,
        }

    def fetch(
        self, args: argparse.Namespace, most: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        rows, last, more = super().fetch(args, most)
        for row in rows if args.long else ():
            row.update(_amounts(self.placement, row['uuid']))
        return rows, last, more

    def note(self, row: dict[str, Any]) -> str:
        """Return what is free of each class; empty without ``--long``."""
        usages, shares = row.get('usages', {}), []
        for name, numbers in sorted(row.get('inventories', {}).items()):
            cap = Inventory(**numbers).cap
            shares.append(f'{name} {text.share(name, cap - usages.get(name, 0), cap)}')
        return ', '.join(shares) + ' free' if shares else ''


class ProviderShow(OfPlacement):
    """Show a provider: where it stands, what it has, and what of that is used."""

    takes = (_PROVIDER,)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        endpoint = self.placement
        provider = find(endpoint, parsed_args.provider)
        uuid = provider['uuid']
        del provider['links']
        provider.update(_amounts(endpoint, uuid))
        provider['traits'] = sorted(endpoint.get(_path(uuid, 'traits'))['traits'])
        provider['aggregates'] = sorted(endpoint.get(_path(uuid, 'aggregates'))['aggregates'])
        return self.show(parsed_args, provider, self._lines(provider))

    def _lines(self, found: dict[str, Any]) -> list[str]:
        lines = [
            f'provider    {found["name"]} ({found["uuid"]}), generation {found["generation"]}',
            f'parent      {found["parent_provider_uuid"] or "none, it is a root"}',
            f'root        {found["root_provider_uuid"]}',
        ]
        for key in ('traits', 'aggregates'):
            listed = text.wrap(', '.join(found[key]) or 'none', self.width - 12, '')
            lines += [f'{key if not i else "":<12}{line}' for i, line in enumerate(listed)]
        rows = [
            {'name': name, **numbers, 'used': found['usages'].get(name, 0)}
            for name, numbers in sorted(found['inventories'].items())
        ]
        return [*lines, '', *text.table(_INVENTORIES, rows, self.width)] if rows else lines


def _change(command: PlacementWrite, uuid: str, args: argparse.Namespace) -> None:
    """Apply the options of ``_CONTENT``, and the removals.

    Each part is read, changed and sent with its generation.

    :raises Failure:
    """
    removed = {'traits': [], 'aggregates': [], 'inventories': []} | getattr(args, 'gone', {})
    given = {'traits': args.trait, 'aggregates': args.aggregate}
    if args.inventory or removed['inventories']:
        unless_raced(
            lambda: _set_inventories(command, uuid, dict(args.inventory), removed['inventories'])
        )
    for key, names in given.items():
        if names or removed[key]:
            unless_raced(functools.partial(_set, command, uuid, key, names, removed[key]))


def _set_inventories(
    command: PlacementWrite, uuid: str, given: dict[str, Any], gone: list[str]
) -> None:
    now = command.placement.get(_path(uuid, 'inventories'))
    for name in gone:
        if name not in now['inventories']:
            raise Failure(f'provider {uuid} has no inventory of {name}')
    inventories = {
        class_name: stored
        for class_name, stored in now['inventories'].items()
        if class_name not in gone
    }
    for name, numbers in given.items():
        inventories[name] = {**inventories.get(name, {}), **numbers}
    body = {_GENERATION: now[_GENERATION], 'inventories': inventories}
    command.placement.put(_path(uuid, 'inventories'), body)
    command.done(f'inventories of provider {uuid}: {", ".join(sorted(inventories)) or "none"}')


def _set(command: PlacementWrite, uuid: str, key: str, names: list[str], gone: list[str]) -> None:
    now = command.placement.get(_path(uuid, key))
    members = sorted({*now[key], *names} - set(gone))
    command.placement.put(_path(uuid, key), {_GENERATION: now[_GENERATION], key: members})
    command.done(f'{key} of provider {uuid}: {", ".join(members) or "none"}')


class ProviderCreate(PlacementWrite):
    """Create a provider that is no host: a pool, or one below another provider."""

    takes = (
        base.arg('name'),
        base.arg('--uuid', type=placement.uuid, help='its uuid (default: a new one)'),
        base.arg('--parent', metavar='PROVIDER', help='what it is below of (default: nothing)'),
        *_CONTENT,
    )

    def act(self, args: argparse.Namespace) -> str:
        body = {'name': args.name, 'uuid': args.uuid or str(uuids.uuid4())}
        if args.parent:
            body['parent_provider_uuid'] = find(self.placement, args.parent)['uuid']
        provider = self.placement.post('/resource_providers', body)
        what = f'provider {provider["name"]} {self.verb("is")} created'
        if args.uuid or not args.dry_run:
            what += f': {provider["uuid"]}'
        self.done(what)
        _change(self, provider['uuid'], args)
        return what


class ProviderSet(PlacementWrite):
    """Change a provider; what is not named stays as it is."""

    takes = (
        _PROVIDER,
        base.arg('--name', help='another name'),
        base.arg('--parent', metavar='PROVIDER', help='another provider that it is below of'),
        base.arg('--no-parent', action='store_true', help='let it be a root'),
        *_CONTENT,
        *(
            base.arg(
                f'--no-{key}',
                action='append',
                default=[],
                metavar=what,
                help=f'take this {key} away (may be repeated)',
            )
            for key, what in (('inventory', 'CLASS'), ('trait', 'NAME'), ('aggregate', 'UUID'))
        ),
    )

    def act(self, args: argparse.Namespace) -> str:
        if args.parent and args.no_parent:
            raise Failure('--parent and --no-parent: expected one of them', Exit.USAGE)
        provider = find(self.placement, args.provider)
        uuid = provider['uuid']
        args.gone = {
            'inventories': args.no_inventory,
            'traits': args.no_trait,
            'aggregates': args.no_aggregate,
        }
        parent = provider['parent_provider_uuid']
        if args.parent:
            parent = find(self.placement, args.parent)['uuid']
        elif args.no_parent:
            parent = None
        name = args.name or provider['name']
        # A named value is sent even if unchanged: this repairs a broken tree.
        if args.parent or args.no_parent or name != provider['name']:
            body = {'name': name, 'parent_provider_uuid': parent}
            self.placement.put(_path(uuid), body)
            self.done(f'name and parent of provider {uuid}')
        _change(self, uuid, args)
        if not self.made:
            raise Failure('nothing to change is named; see --help', Exit.USAGE)
        return f'provider {name} {self.verb("is")} changed'


class ProviderDelete(PlacementWrite):
    """Delete a provider that nothing is taken from and that has nothing below it."""

    takes = (_PROVIDER,)

    def act(self, args: argparse.Namespace) -> str:
        provider = find(self.placement, args.provider)
        self.placement.delete(_path(provider['uuid']))
        return f'provider {provider["name"]} {self.verb("is")} deleted'
