# SPDX-License-Identifier: Apache-2.0
"""``gantt host``: list, show, disable, enable, remove."""

import argparse
import getpass
from collections.abc import Sequence
from typing import Any

from gantt.cli import base, claims, text
from gantt.cli.text import TextColumn

CONDITIONS = ('up', 'stale', 'new', 'disabled', 'over_committed')
#: Keys that the interface sorts by.
SORTS = ('name', 'zone', 'condition', 'claims', 'report_age')
_WORDS = {'over_committed': 'overfull'}


def _room(name: str) -> Any:
    def show(row: dict[str, Any]) -> str:
        if name not in row['cap']:
            return '-'
        return text.share(name, row['free'].get(name, 0), row['cap'][name])

    return show


def _cpu(row: dict[str, Any]) -> str:
    name = 'PCPU' if 'VCPU' not in row['cap'] and 'PCPU' in row['cap'] else 'VCPU'
    return _room(name)(row) + ('p' if name == 'PCPU' else '')


class HostList(base.Lister):
    """List the hosts: condition, free room of capacity, claims, age of the last report."""

    may_watch = True
    path = '/v1/hosts'
    member = 'hosts'
    nothing = 'no host matches'
    sort_keys = '; also free:CLASS, such as free:VCPU'
    columns = (
        TextColumn('HOST', text.key('name'), least=16),
        TextColumn('STATE', lambda r: _WORDS.get(r['condition'], r['condition'])),
        TextColumn('ZONE', text.key('zone'), least=6),
        TextColumn('FREE CPU', _cpu, right=True, by='free.VCPU'),
        TextColumn('RAM', _room('MEMORY_MB'), right=True, by='free.MEMORY_MB'),
        TextColumn('DISK', _room('DISK_GB'), right=True, by='free.DISK_GB'),
        TextColumn('CLAIMS', lambda r: str(r['claims']), right=True),
        TextColumn(
            'REPORT',
            lambda r: text.age(r['report_age_seconds']),
            right=True,
            by='report_age_seconds',
        ),
    )

    takes = (
        base.arg('--condition', choices=CONDITIONS, help='only hosts in this condition'),
        base.arg(
            '--stale',
            action='store_const',
            dest='condition',
            const='stale',
            help='only hosts that have not reported lately',
        ),
        base.arg('--zone', help='only hosts of this availability zone'),
        base.arg('--aggregate', help='only hosts of this aggregate, by name or uuid'),
        base.arg('--name', metavar='PART', help='only hosts with PART in their name'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the filters and the order."""
        query = {name: getattr(args, name) for name in ('condition', 'zone', 'aggregate', 'name')}
        sort = (args.sort or 'name') if self.sorts_itself(args) else 'name'
        return {**query, 'sort': ('-' if args.reverse else '') + sort}

    def sorts_itself(self, args: argparse.Namespace) -> bool:
        """Return whether the interface knows the sort key, which is faster."""
        return args.sort is None or args.sort in SORTS or args.sort.startswith('free:')

    def note(self, row: dict[str, Any]) -> str:
        """Return the reason why a host is disabled, and the user that disabled it."""
        if not row['reason']:
            return ''
        return row['reason'] + (f' ({row["disabled_by"]})' if row['disabled_by'] else '')

    def footer(self, rows: list[dict[str, Any]], last: dict[str, Any], more: bool) -> str:
        """Return the number of hosts, and the age of the table."""
        part = len(rows) < last['total']
        shown = f'{len(rows)} of {last["total"]}' if part else f'{last["total"]}'
        hosts = 'host' if last['total'] == 1 else 'hosts'
        age = text.age(last['table_age_seconds'])
        rest = '; --all shows all' if more else ''
        return f'{shown} {hosts}, free of capacity; the table is {age} old{rest}'


class HostShow(base.Show):
    """Show one host: believed, reported and claimed side by side, and why they differ."""

    takes = (base.arg('host'),)

    path = '/v1/hosts/{host}'

    def lines(self, detail: dict[str, Any]) -> list[str]:
        width, host, version = self.width, detail['host'], detail['hypervisor_version']
        state = _WORDS.get(host['condition'], host['condition'])
        why = f': {host["reason"]}' if host['reason'] else ''
        who = f' ({host["disabled_by"]})' if host['disabled_by'] else ''
        lines = text.wrap(f'{host["name"]} is {state}{why}{who}', width)
        facts = {
            'reported': f'{text.age(host["report_age_seconds"])} ago'
            if host['report_age_seconds'] is not None
            else 'never',
            'report': f'{detail["sequence"]} of epoch {detail["epoch"]}, '
            f'last full one {detail["full_sequence"]}, generation {detail["generation"]}',
            'node': host['node'],
            'uuid': host['uuid'],
            'zone': host['zone'] or '-',
            'aggregates': ', '.join(host['aggregates']) or '-',
            'location': detail['location'],
            'key': detail['key'] or '',
            'inventories by': detail['inventories_by'],
            'hypervisor': f'{detail["hypervisor_type"]} {version or ""}'.strip(),
            'NUMA cells': str(detail['numa_cells'] or ''),
            'devices': str(detail['devices'] or ''),
            'traits': ', '.join(detail['traits'][:12])
            + (f' and {len(detail["traits"]) - 12} more' if len(detail['traits']) > 12 else ''),
        }
        for name, value in facts.items():
            if value:
                lines.extend(text.wrap(f'  {name:<11} {value}', width, ' ' * 14))
        lines.append('')
        lines.extend(text.table(_USE, detail['use'], width))
        if detail.get('below'):
            lines.append('')
            lines.extend(text.table(_BELOW, detail['below'], width))
        lines.append('')
        for difference in detail['differences'] or ['claimed, reported and believed agree']:
            lines.extend(text.wrap(difference, width))
        if detail['claims']:
            lines.append('')
            lines.extend(text.table(_CLAIMS, detail['claims'], width))
            if detail['claims_truncated']:
                lines.append(f'there are more: gantt claim list --host {host["name"]}')
        return lines


def _plain(name: str) -> Any:
    return lambda row: str(row[name])


_USE = (
    TextColumn('CLASS', text.key('resource_class'), least=12),
    TextColumn('CAPACITY', _plain('cap'), right=True),
    TextColumn('CLAIMED', _plain('claimed'), right=True),
    TextColumn('FOREIGN', _plain('foreign'), right=True),
    TextColumn('BELIEVED', _plain('believed'), right=True),
    TextColumn('REPORTED', _plain('reported'), right=True),
    TextColumn('FREE', _plain('free'), right=True),
)

_BELOW = (
    TextColumn('BELOW IT', text.key('provider'), least=12),
    TextColumn('CLASS', text.key('resource_class'), least=8),
    *(TextColumn(title, _plain(title.lower()), right=True) for title in ('CAP', 'USED', 'FREE')),
)

_CLAIMS = tuple(column for column in claims.COLUMNS if column.title != 'HOST')


class HostDisable(base.Write):
    """Let nothing new land on a host; what is there stays."""

    takes: Sequence[base.Argument] = (
        base.arg('host'),
        base.arg('--reason', required=True, help='why; shown in every verdict'),
        base.arg('--by', help='who says so (default: the user who runs this)'),
    )

    path = '/v1/hosts/{host}/disable'

    def body(self, args: argparse.Namespace) -> Any:
        return {'reason': args.reason, 'by': args.by or _user()}


class HostEnable(base.Write):
    """Let new claims land on a host again."""

    takes = (base.arg('host'),)

    path = '/v1/hosts/{host}/enable'


class HostRemove(base.Write):
    """Forget a host without live claims; it comes back when it registers again."""

    takes = (base.arg('host'),)

    method = 'DELETE'
    path = '/v1/hosts/{host}'


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return 'somebody'
