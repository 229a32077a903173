# SPDX-License-Identifier: Apache-2.0
"""``gantt zone`` and ``gantt parent``: the zones below and above this one."""

import argparse
from collections.abc import Sequence
from typing import Any

from gantt.cli import base, text
from gantt.cli.text import TextColumn


def _state(zone: dict[str, Any]) -> str:
    if not zone['enabled']:
        return 'disabled'
    return 'unresponsive' if zone['problem'] else 'responding'


#: Argument types with the bounds of the interface.
_SCALE, _OFFSET = base.number(0, 1e6, above=True), base.number(-1e6, 1e6)
_BELOW = (
    base.arg('name', help='by which it goes here'),
    base.arg(
        '--credential',
        metavar='NAME',
        help='the section of [zones] credentials_file by which it is spoken to',
    ),
    base.arg(
        '--last-resort',
        action=argparse.BooleanOptionalAction,
        help='ask it only where nothing else has room',
    ),
    base.arg(
        '--trusted',
        action=argparse.BooleanOptionalAction,
        help='it is of the same owner: tell it all that a request says',
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
    """List the zones directly below, and whether they answer."""

    path = '/v1/zones'
    member = 'zones'
    nothing = 'there are no zones below; see "gantt zone add"'
    columns = (
        TextColumn('ZONE', text.key('name'), least=12),
        TextColumn('STATE', _state),
        TextColumn('CLAIMS', lambda r: str(r['claims']), right=True),
        TextColumn('LAST RESORT', lambda r: 'yes' if r['last_resort'] else ''),
        TextColumn('URL', text.key('url'), least=20),
        TextColumn('PROBLEM', text.key('problem'), least=20),
    )


class ZoneShow(base.Show):
    """Show a zone directly below, and whether it answers."""

    takes = (base.arg('name', help='its name or uuid'),)
    path = '/v1/zones/{name}'

    def lines(self, found: dict[str, Any]) -> list[str]:
        scores = f'times {found["scale"]:g}, plus {found["offset"]:g}'
        pairs = [
            ('zone', found['name']),
            ('uuid', found['uuid']),
            ('url', found['url']),
            ('credential', found['credential'] or 'none: it is on this machine'),
            ('state', _state(found)),
            ('problem', found['problem']),
            ('last resort', 'yes' if found['last_resort'] else 'no'),
            ('trusted', 'yes' if found['trusted'] else 'no'),
            ('scores', scores),
            ('live claims', str(found['claims'])),
        ]
        return [f'{name:<12} {value}' for name, value in pairs if value]


class ZoneSet(base.Write):
    """Change what is set of a zone below; what is not named stays as it is."""

    takes: Sequence[base.Argument] = (*_BELOW, base.arg('--url', help='the address of its API'))
    path = '/v1/zones/{name}'

    def body(self, args: argparse.Namespace) -> Any:
        names = ('url', 'credential', 'last_resort', 'scale', 'offset', 'accept_scores', 'trusted')
        return _values(args, *names)


class ZoneAdd(ZoneSet):
    """Put a zone below this one; it has to know this zone as a parent already.

    It is asked who it is, and from then on is that zone, whatever answers at its address.
    """

    takes = (
        *_BELOW,
        base.arg('url', help='the address of its API'),
        base.arg(
            '--disabled',
            action='store_true',
            help='ask it for nothing before "gantt zone enable": all schedulers know it by then',
        ),
    )

    def body(self, args: argparse.Namespace) -> Any:
        return {**super().body(args), **({'enabled': False} if args.disabled else {})}


class ZoneEnable(base.Write):
    """Ask a zone below again."""

    takes = (base.arg('name', help='its name or uuid'),)
    path = '/v1/zones/{name}'
    enabled = True

    def body(self, args: argparse.Namespace) -> Any:
        return {'enabled': self.enabled}


class ZoneDisable(ZoneEnable):
    """Ask a zone below for nothing new; what lives there stays."""

    enabled = False


class ZoneRemove(base.Write):
    """Forget a zone below; one with live claims of requests of here is in use."""

    takes = (base.arg('name', help='its name or uuid'),)
    path = '/v1/zones/{name}'
    method = 'DELETE'


_ABOVE = (
    base.arg('name', help='by which it goes here'),
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
    """List the zones above that may ask here."""

    path = '/v1/parents'
    member = 'parents'
    nothing = 'no zone above may ask here; see "gantt parent add"'
    columns = (
        TextColumn('PARENT', text.key('name'), least=12),
        TextColumn('STATE', lambda r: 'enabled' if r['enabled'] else 'disabled'),
        TextColumn('PROJECT', text.key('project_id'), least=12),
        TextColumn('TRUSTED', lambda r: 'yes' if r['trusted'] else ''),
        TextColumn('LEASE', lambda r: f'{r["lease_seconds_max"]} s', right=True),
        TextColumn('IDENTITY', text.key('identity'), least=20),
    )


class ParentSet(base.Write):
    """Change what a zone above may have; what is not named stays as it is."""

    takes = _ABOVE
    path = '/v1/parents/{name}'

    def body(self, args: argparse.Namespace) -> Any:
        settings = _values(args, 'identity', 'trusted', 'certificate_sha256')
        settings |= {} if args.project is None else {'project_id': args.project}
        return settings | ({} if args.lease is None else {'lease_seconds_max': args.lease})


class ParentAdd(ParentSet):
    """Let a zone above ask here, as a tenant: its claims are those of a project."""


class ParentEnable(base.Write):
    """Let a zone above ask here again."""

    takes = (base.arg('name', help='its name'),)
    path = '/v1/parents/{name}'
    enabled = True

    def body(self, args: argparse.Namespace) -> Any:
        return {'enabled': self.enabled}


class ParentDisable(ParentEnable):
    """Answer a zone above nothing; its claims stay."""

    enabled = False


class ParentRemove(base.Write):
    """Forget a zone above; one with live claims here is in use."""

    takes = (base.arg('name', help='its name'),)
    path = '/v1/parents/{name}'
    method = 'DELETE'


def _values(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the given values of some arguments, by name."""
    values = {name: getattr(args, name) for name in names}
    if not values.get('accept_scores'):
        values.pop('accept_scores', None)
    return {name: value for name, value in values.items() if value is not None}
