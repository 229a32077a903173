# SPDX-License-Identifier: Apache-2.0
"""``gantt zone`` and ``gantt parent``: child and parent zones."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gantt.cli import base, parsing, text
from gantt.cli.text import TextColumn


def _state_text(zone: dict[str, Any]) -> str:
    if not zone['enabled']:
        return 'disabled'
    return 'unresponsive' if zone['problem'] else 'responding'


#: Argument types with the bounds of the interface.
_SCALE, _OFFSET = parsing.number(0, 1e6, exclusive=True), parsing.number(-1e6, 1e6)
_CHILD_ARGUMENTS = (
    base.arg('name', help='its name in this zone'),
    base.arg(
        '--credential',
        metavar='NAME',
        help='the section of [zones] credentials_file for calls to it',
    ),
    base.arg(
        '--last-resort',
        action=argparse.BooleanOptionalAction,
        help='query it only if nothing else has room',
    ),
    base.arg(
        '--trusted',
        action=argparse.BooleanOptionalAction,
        help='it has the same owner: send it requests with all of their fields',
    ),
    base.arg('--scale', type=_SCALE, metavar='NUMBER', help='what its scores are multiplied with'),
    base.arg('--offset', type=_OFFSET, metavar='NUMBER', help='what is added to its scores then'),
    base.arg(
        '--accept-scores',
        action='store_true',
        help='it has other weighers: its scores are comparable by --scale and --offset',
    ),
)


class ZoneList(base.Lister):
    """List the child zones, and whether they answer."""

    path = '/v1/zones'
    list_key = 'zones'
    empty_message = 'there are no child zones; see "gantt zone add"'
    columns = (
        TextColumn('ZONE', text.value_of_key('name'), min_width=12),
        TextColumn('STATE', _state_text),
        TextColumn('CLAIMS', lambda r: str(r['claims']), align_right=True),
        TextColumn('LAST RESORT', lambda r: 'yes' if r['last_resort'] else ''),
        TextColumn('URL', text.value_of_key('url'), min_width=20),
        TextColumn('PROBLEM', text.value_of_key('problem'), min_width=20),
    )


class ZoneShow(base.Show):
    """Show a child zone, and whether it answers."""

    arguments = (base.arg('name', help='its name or uuid'),)
    path = '/v1/zones/{name}'

    def lines(self, found: dict[str, Any]) -> list[str]:
        scores = f'times {found["scale"]:g}, plus {found["offset"]:g}'
        pairs = [
            ('zone', found['name']),
            ('uuid', found['uuid']),
            ('url', found['url']),
            ('credential', found['credential'] or 'none: it is on this machine'),
            ('state', _state_text(found)),
            ('problem', found['problem']),
            ('last resort', 'yes' if found['last_resort'] else 'no'),
            ('trusted', 'yes' if found['trusted'] else 'no'),
            ('scores', scores),
            ('live claims', str(found['claims'])),
        ]
        return [f'{name:<12} {value}' for name, value in pairs if value]


class ZoneSet(base.Write):
    """Change settings of a child zone; settings that are not named stay as they are."""

    arguments: Sequence[base.Argument] = (
        *_CHILD_ARGUMENTS,
        base.arg('--url', help='the address of its API'),
    )
    path = '/v1/zones/{name}'

    def body(self, args: argparse.Namespace) -> Any:
        names = ('url', 'credential', 'last_resort', 'scale', 'offset', 'accept_scores', 'trusted')
        return _given_settings(args, *names)


class ZoneAdd(ZoneSet):
    """Register a child zone; this zone has to be registered there as a parent already.

    It is queried for its uuid; from then on answers of any other zone at its address are refused.
    """

    arguments = (
        *_CHILD_ARGUMENTS,
        base.arg('url', help='the address of its API'),
        base.arg(
            '--disabled',
            action='store_true',
            help='do not query it before "gantt zone enable": all schedulers know it by then',
        ),
    )

    def body(self, args: argparse.Namespace) -> Any:
        return {**super().body(args), **({'enabled': False} if args.disabled else {})}


class ZoneEnable(base.Write):
    """Query a child zone again."""

    arguments = (base.arg('name', help='its name or uuid'),)
    path = '/v1/zones/{name}'
    enabled = True

    def body(self, args: argparse.Namespace) -> Any:
        return {'enabled': self.enabled}


class ZoneDisable(ZoneEnable):
    """Request nothing new from a child zone; what lives there stays."""

    enabled = False


class ZoneRemove(base.Write):
    """Remove a child zone; with live claims of this zone's requests it is in use."""

    arguments = (base.arg('name', help='its name or uuid'),)
    path = '/v1/zones/{name}'
    method = 'DELETE'


_PARENT_ARGUMENTS = (
    base.arg('name', help='its name in this zone'),
    base.arg('--project', metavar='ID', help='whose quota, rate and rules its claims come under'),
    base.arg(
        '--identity',
        metavar='ID',
        help='of its credential: the user in the identity service of this zone; without one its '
        'own uuid, which the refusal of "gantt zone add" there names',
    ),
    base.arg('--lease', type=int, metavar='SECONDS', help='the longest lease that it gets'),
    base.arg(
        '--trusted',
        action=argparse.BooleanOptionalAction,
        help='it is of the same owner: it says and reads what only operators may here',
    ),
    base.arg(
        '--certificate-sha256',
        metavar='DIGEST',
        help='of the certificate that it has to show, where this server speaks TLS itself: 64 '
        'hexadecimal digits; "": none',
    ),
)


class ParentList(base.Lister):
    """List the parent zones that may query this zone."""

    path = '/v1/parents'
    list_key = 'parents'
    empty_message = 'no parent zone may query this zone; see "gantt parent add"'
    columns = (
        TextColumn('PARENT', text.value_of_key('name'), min_width=12),
        TextColumn('STATE', lambda r: 'enabled' if r['enabled'] else 'disabled'),
        TextColumn('PROJECT', text.value_of_key('project_id'), min_width=12),
        TextColumn('TRUSTED', lambda r: 'yes' if r['trusted'] else ''),
        TextColumn('LEASE', lambda r: f'{r["lease_seconds_max"]} s', align_right=True),
        TextColumn('IDENTITY', text.value_of_key('identity'), min_width=20),
    )


class ParentSet(base.Write):
    """Change settings of a parent zone; settings that are not named stay as they are."""

    arguments = _PARENT_ARGUMENTS
    path = '/v1/parents/{name}'

    def body(self, args: argparse.Namespace) -> Any:
        settings = _given_settings(args, 'identity', 'trusted', 'certificate_sha256')
        settings |= {} if args.project is None else {'project_id': args.project}
        return settings | ({} if args.lease is None else {'lease_seconds_max': args.lease})


class ParentAdd(ParentSet):
    """Let a parent zone query this zone, as a tenant: its claims are those of a project."""


class ParentEnable(base.Write):
    """Let a parent zone query this zone again."""

    arguments = (base.arg('name', help='its name'),)
    path = '/v1/parents/{name}'
    enabled = True

    def body(self, args: argparse.Namespace) -> Any:
        return {'enabled': self.enabled}


class ParentDisable(ParentEnable):
    """Refuse the queries of a parent zone; its claims stay."""

    enabled = False


class ParentRemove(base.Write):
    """Remove a parent zone; with live claims here it is in use."""

    arguments = (base.arg('name', help='its name'),)
    path = '/v1/parents/{name}'
    method = 'DELETE'


def _given_settings(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the given values of some arguments, by name."""
    values = {name: getattr(args, name) for name in names}
    if not values.get('accept_scores'):
        values.pop('accept_scores', None)
    return {name: value for name, value in values.items() if value is not None}


class ZoneTreeShow(base.Base):
    """Show this zone, its parent zones, and the conditions of its child zones.

    A child zone reports only the number of hosts of its own child zones: run the command there.
    """

    may_watch = True

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the tree of zones."""
        tree = self.endpoint.get('/v1/zone-tree')
        return self.show(parsed_args, tree, _tree_lines(tree, self.width))


def _tree_lines(found: dict[str, Any], width: int) -> list[str]:
    lines = [
        f'{parent["name"]} (parent): {", ".join(_parent_lines(parent))}'
        for parent in found['parents']
    ]
    indent = '└─ ' if lines else ''
    name = found['site'] or 'this zone'
    hosts = text.counted_noun(found['hosts'], 'host')
    claims = text.counted_noun(found['claims'], 'live claim')
    lines.append(f'{indent}{name} ({found["uuid"]}): {hosts}, {found["hosts_up"]} up, {claims}')
    children = found['children']
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        first = ' ' * len(indent) + ('└─ ' if is_last else '├─ ')
        rest = ' ' * len(indent) + ('   ' if is_last else '│  ')
        words = f'{first}{child["name"]}: {", ".join(_child_lines(child))}'
        lines += text.wrap(words, width, f'{rest}  ')
        if child['problem']:
            lines += text.wrap(f'{rest}  {child["problem"]}', width, f'{rest}  ')
    return lines


def _parent_lines(parent: dict[str, Any]) -> Iterator[str]:
    if not parent['enabled']:
        yield 'disabled'
    yield f'project {parent["project_id"]}'
    yield f'leases of {parent["lease_seconds_max"]} s at most'
    yield f'{text.counted_noun(parent["claims"], "live claim")} of it here'


def _child_lines(child: dict[str, Any]) -> Iterable[str]:
    latency = child['milliseconds']
    state = child['state'].replace('_', ' ')
    yield f'{state} in {latency:g} ms' if latency is not None and state == 'responding' else state
    if child['hosts'] is not None:
        hosts = text.counted_noun(child['hosts'], 'host')
        yield f'{hosts}, {child["room"]} with room for a vCPU'
        if not child['complete']:
            yield 'not all of its child zones have answered'
    if child['last_resort']:
        yield 'last resort'
    yield f'{text.counted_noun(child["claims"], "live claim")} of here'
