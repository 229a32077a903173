# SPDX-License-Identifier: Apache-2.0
"""``gantt host``: list, show, disable, enable, drain, undrain, history, remove."""

import argparse
import getpass
import time
from collections.abc import Sequence
from typing import Any

from gantt.cli import base, claims, parsing, text
from gantt.cli.endpoint import Exit, Failure
from gantt.cli.text import TextColumn

CONDITIONS = ('up', 'stale', 'new', 'disabled', 'over_committed')
#: Keys that the interface sorts by.
SORTS = ('name', 'zone', 'condition', 'claims', 'report_age')
_CONDITION_TEXTS = {'over_committed': 'overfull'}


def _free_amount(name: str) -> Any:
    def show(row: dict[str, Any]) -> str:
        if name not in row['cap']:
            return '-'
        return text.free_of_capacity(name, row['free'].get(name, 0), row['cap'][name])

    return show


def _free_cpu(row: dict[str, Any]) -> str:
    name = 'PCPU' if 'VCPU' not in row['cap'] and 'PCPU' in row['cap'] else 'VCPU'
    return _free_amount(name)(row) + ('p' if name == 'PCPU' else '')


class HostList(base.Lister):
    """List the hosts: condition, free room of capacity, claims, age of the last report."""

    may_watch = True
    path = '/v1/hosts'
    list_key = 'hosts'
    empty_message = 'no host matches'
    sort_keys = '; also free:CLASS, such as free:VCPU'
    columns = (
        TextColumn('HOST', text.value_of_key('name'), min_width=16),
        TextColumn('STATE', lambda r: _CONDITION_TEXTS.get(r['condition'], r['condition'])),
        TextColumn('ZONE', text.value_of_key('zone'), min_width=6),
        TextColumn('FREE CPU', _free_cpu, align_right=True, sort_key='free.VCPU'),
        TextColumn('RAM', _free_amount('MEMORY_MB'), align_right=True, sort_key='free.MEMORY_MB'),
        TextColumn('DISK', _free_amount('DISK_GB'), align_right=True, sort_key='free.DISK_GB'),
        TextColumn('CLAIMS', lambda r: str(r['claims']), align_right=True),
        TextColumn(
            'REPORT',
            lambda r: text.age_text(r['report_age_seconds']),
            align_right=True,
            sort_key='report_age_seconds',
        ),
    )

    arguments = (
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
        sort = args.sort[0] if args.sort and self.server_sorts(args) else 'name'
        return {**query, 'sort': ('-' if args.reverse else '') + sort}

    def server_sorts(self, args: argparse.Namespace) -> bool:
        """Return whether the interface knows the sort key, which is faster."""
        return len(args.sort) < 2 and all(
            key in SORTS or key.startswith('free:') for key in args.sort
        )

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
        age = text.age_text(last['table_age_seconds'])
        rest = '; --all shows all' if more else ''
        return f'{shown} {hosts}, free of capacity; the table is {age} old{rest}'


class HostShow(base.Show):
    """Show one host: believed, reported and claimed side by side, and why they differ."""

    arguments = (base.arg('host'),)

    path = '/v1/hosts/{host}'

    def lines(self, detail: dict[str, Any]) -> list[str]:
        width, host, version = self.width, detail['host'], detail['hypervisor_version']
        state = _CONDITION_TEXTS.get(host['condition'], host['condition'])
        why = f': {host["reason"]}' if host['reason'] else ''
        who = f' ({host["disabled_by"]})' if host['disabled_by'] else ''
        lines = text.wrap(f'{host["name"]} is {state}{why}{who}', width)
        facts = {
            'reported': f'{text.age_text(host["report_age_seconds"])} ago'
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
        lines.extend(text.table(_USE_COLUMNS, detail['use'], width))
        if detail.get('below'):
            lines.append('')
            lines.extend(text.table(_BELOW_COLUMNS, detail['below'], width))
        lines.append('')
        for difference in detail['differences'] or ['claimed, reported and believed agree']:
            lines.extend(text.wrap(difference, width))
        if detail['claims']:
            lines.append('')
            lines.extend(text.table(_CLAIM_COLUMNS, detail['claims'], width))
            if detail['claims_truncated']:
                lines.append(f'there are more: gantt claim list --host {host["name"]}')
        return lines


def _plain_name(name: str) -> Any:
    return lambda row: str(row[name])


_USE_COLUMNS = (
    TextColumn('CLASS', text.value_of_key('resource_class'), min_width=12),
    TextColumn('CAPACITY', _plain_name('cap'), align_right=True),
    TextColumn('CLAIMED', _plain_name('claimed'), align_right=True),
    TextColumn('FOREIGN', _plain_name('foreign'), align_right=True),
    TextColumn('BELIEVED', _plain_name('believed'), align_right=True),
    TextColumn('REPORTED', _plain_name('reported'), align_right=True),
    TextColumn('FREE', _plain_name('free'), align_right=True),
)

_BELOW_COLUMNS = (
    TextColumn('BELOW IT', text.value_of_key('provider'), min_width=12),
    TextColumn('CLASS', text.value_of_key('resource_class'), min_width=8),
    *(
        TextColumn(title, _plain_name(title.lower()), align_right=True)
        for title in ('CAP', 'USED', 'FREE')
    ),
)

_CLAIM_COLUMNS = tuple(column for column in claims.COLUMNS if column.title != 'HOST')


class HostDisable(base.Write):
    """Let nothing new land on a host; what is there stays."""

    arguments: Sequence[base.Argument] = (
        base.arg('host'),
        base.arg('--reason', required=True, help='why; shown in every verdict'),
        base.arg('--by', help='who says so (default: the user who runs this)'),
    )

    path = '/v1/hosts/{host}/disable'

    def body(self, args: argparse.Namespace) -> Any:
        return {'reason': args.reason, 'by': args.by or _user()}


class HostEnable(base.Write):
    """Let new claims land on a host again."""

    arguments = (base.arg('host'),)

    path = '/v1/hosts/{host}/enable'


class HostRemove(base.Write):
    """Forget a host without live claims; it comes back when it registers again."""

    arguments = (base.arg('host'),)

    method = 'DELETE'
    path = '/v1/hosts/{host}'


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return 'somebody'


class HostHistory(base.Show):
    """Show what happened to a host lately: registrations, operators, facts, claims."""

    arguments = (
        base.arg('host'),
        base.arg(
            '--limit',
            type=parsing.whole_number(1, 1000),
            default=50,
            help='print at most so many lines (default: 50, at most 1000)',
        ),
    )

    path = '/v1/hosts/{host}/history'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'limit': args.limit}

    def lines(self, answer: dict[str, Any]) -> list[str]:
        entries = answer['entries']
        lines = (
            text.table(_HISTORY_COLUMNS, entries, self.width)
            if entries
            else ['nothing is stored of it']
        )
        if answer['truncated']:
            lines.append(f'there is more; see --limit ({len(entries)} shown)')
        return lines


_HISTORY_COLUMNS = (
    TextColumn('AGE', lambda r: text.age_text(r['age_seconds']), align_right=True),
    TextColumn('WHAT', text.value_of_key('kind')),
    TextColumn('BY', text.value_of_key('actor'), min_width=6),
    TextColumn('DETAIL', text.value_of_key('message'), min_width=20),
)


#: Claims that are listed; the rest is counted.
OBSTACLES_SHOWN_MAX = 20
#: Consecutive reads that may fail while it waits.
FAILURES_MAX = 5
_OBSTACLE_TEXTS = {
    'running': 'run here',
    'allocated': 'written by the API',
    'moving': 'being moved',
    'in_flight': 'not confirmed yet',
}


class HostDrain(HostDisable):
    """Empty a host: let nothing new land there, and show what is left until nothing is."""

    arguments = (
        base.arg('host'),
        base.arg(
            '--reason', default='draining', help='why; shown in every verdict (default: draining)'
        ),
        base.arg('--by', help='who says so (default: the user who runs this)'),
        base.arg(
            '--wait', action='store_true', help='end when the host is empty, and show progress'
        ),
        base.arg(
            '--interval',
            metavar='SECONDS',
            type=parsing.number(0.1, 3600),
            default=5.0,
            help='with --wait: between two looks (default: 5)',
        ),
        base.arg(
            '--for',
            dest='seconds',
            metavar='SECONDS',
            type=parsing.number(0, 604_800),
            default=3600.0,
            help='with --wait: give up after so long; the host stays disabled (default: 3600)',
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Disable the host, read its drain, and wait where requested."""
        args = parsed_args
        result = self.change(args)
        self.changes_made = [result['message']]
        is_text = args.form == 'text'
        if is_text:
            self.print_lines(
                f'dry run: {result["message"]}' if result['dry_run'] else result['message']
            )
        state = self._drain_state(args.host)
        if args.wait and not result['dry_run']:
            state = self._wait_until_empty(args, state)
        self.show(args, {'change': result, **state}, _drain_lines(state, self.width))
        if args.wait and not result['dry_run'] and not state['is_empty']:
            raise Failure(
                f'host {args.host} is not empty after {args.seconds:g} s; it stays disabled: '
                f'"gantt host drain {args.host} --wait" goes on, '
                f'"gantt host undrain {args.host}" takes it back'
            )
        return Exit.PLACED

    def _drain_state(self, host: str) -> dict[str, Any]:
        drain: dict[str, Any] = self.endpoint.get(f'/v1/hosts/{base.path_part(host)}/drain')
        return drain

    def _wait_until_empty(self, args: argparse.Namespace, state: dict[str, Any]) -> dict[str, Any]:
        """Wait until the host is empty, or the time is over.

        :raises Failure: the host was enabled meanwhile, or its drain cannot be read
        """
        end, failures = time.monotonic() + args.seconds, 0
        before: dict[str, Any] = {}
        while not state['is_empty']:
            if not state['is_draining']:
                raise Failure(f'host {args.host} was enabled meanwhile: it is not drained any more')
            if args.form == 'text' and state['remaining'] != before:
                self.print_lines(_drain_progress(state))
                self.app.stdout.flush()
            before = state['remaining']
            seconds_left = end - time.monotonic()
            if seconds_left <= 0:
                break
            time.sleep(min(args.interval, seconds_left))
            try:
                state, failures = self._drain_state(args.host), 0
            except Failure:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
        return state


class HostUndrain(HostEnable):
    """Take a drain back: let new claims land on a host again."""


def _drain_progress(state: dict[str, Any]) -> str:
    more = 'more than ' if state['obstacles_truncated'] else ''
    parts = ', '.join(
        f'{count} {_OBSTACLE_TEXTS.get(kind, kind)}'
        for kind, count in state['remaining'].items()
        if count
    )
    claims = text.counted_noun(state['claims'], 'claim remains', 'claims remain')
    return f'{more}{claims}: {parts}'


_OBSTACLE_COLUMNS = (
    TextColumn('CLAIM', lambda r: text.short_id(r['claim']['id'])),
    TextColumn('CONSUMER', lambda r: r['claim']['consumer'], min_width=8),
    TextColumn('AGE', lambda r: text.age_text(r['claim']['age_seconds']), align_right=True),
    TextColumn('WAITS FOR', text.value_of_key('remedy'), min_width=20),
)


def _drain_lines(state: dict[str, Any], width: int) -> list[str]:
    name = state['host']['name']
    lines = []
    if state['is_empty']:
        lines.append(f'host {name} is empty')
    else:
        shown = state['obstacles'][:OBSTACLES_SHOWN_MAX]
        lines += [_drain_progress(state), *text.table(_OBSTACLE_COLUMNS, shown, width)]
        if state['claims'] > len(shown):
            lines.append(f'there are more: gantt claim list --host {name}')
    if state['foreign']:
        used = ', '.join(text.amount(kind, amount) for kind, amount in state['foreign'].items())
        lines += text.wrap(
            f'what runs there outside any claim uses {used}: no drain ends it', width
        )
    return lines
