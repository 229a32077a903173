# SPDX-License-Identifier: Apache-2.0
"""``gantt class`` and ``gantt trait``: list, create, delete."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.placement import PlacementLister, PlacementWrite
from gantt.cli.text import TextColumn

_CUSTOM = base.arg('name', help='CUSTOM_ and capital letters, digits and underscores')
_IS_CUSTOM = base.arg('--custom', action='store_true', help='only those that are not standard')
_COLUMNS = (TextColumn('NAME', text.key('name'), least=20),)


def _chosen(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not args.custom or row['name'].startswith('CUSTOM_')]


class ClassList(PlacementLister):
    """List resource classes, the standard ones first."""

    path = '/resource_classes'
    member = 'resource_classes'
    columns = _COLUMNS
    nothing = 'there is no such class'
    takes = (_IS_CUSTOM,)

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        return _chosen(args, [{'name': row['name']} for row in super().rows(args)])


class ClassCreate(PlacementWrite):
    """Create a resource class; fine where it is there."""

    takes = (_CUSTOM,)

    def act(self, args: argparse.Namespace) -> str:
        self.placement.put(f'/resource_classes/{base.path_part(args.name)}')
        return f'resource class {args.name} {self.verb("is")} there'


class ClassDelete(PlacementWrite):
    """Delete a resource class that no provider has."""

    takes = (_CUSTOM,)

    def act(self, args: argparse.Namespace) -> str:
        self.placement.delete(f'/resource_classes/{base.path_part(args.name)}')
        return f'resource class {args.name} {self.verb("is")} deleted'


class TraitList(PlacementLister):
    """List traits, the standard ones first."""

    path = '/traits'
    member = 'traits'
    columns = _COLUMNS
    nothing = 'there is no such trait'
    takes = (
        _IS_CUSTOM,
        base.arg('--prefix', help='those that begin so'),
        base.arg('--associated', action='store_true', help='those that a provider has'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {
            'name': f'startswith:{args.prefix}' if args.prefix else None,
            'associated': args.associated,
        }

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        answer = self.placement.get(self.path, **self.query(args))
        return _chosen(args, [{'name': name} for name in answer[self.member]])


class TraitCreate(PlacementWrite):
    """Create a trait; fine where it is there."""

    takes = (_CUSTOM,)

    def act(self, args: argparse.Namespace) -> str:
        self.placement.put(f'/traits/{base.path_part(args.name)}')
        return f'trait {args.name} {self.verb("is")} there'


class TraitDelete(PlacementWrite):
    """Delete a trait that no provider has."""

    takes = (_CUSTOM,)

    def act(self, args: argparse.Namespace) -> str:
        self.placement.delete(f'/traits/{base.path_part(args.name)}')
        return f'trait {args.name} {self.verb("is")} deleted'
