# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage``: the schema, the audit, the purge, hosts and checks of the configuration.

Trouble is one line on standard error with its remedy.  Exit codes: 0 fine,
1 trouble (or a violation found by the audit, an error found by the doctor), 64 wrong
usage.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from typing import Any

from oslo_config import cfg

from gantt import exceptions, stores
from gantt.cli import parsing
from gantt.cmd import (
    USAGE_EXIT_CODE,
    audit_trail,
    bundle,
    console,
    dead_letters,
    dev,
    manage_broker,
    manage_config,
    manage_hosts,
    manage_placement,
    manage_shadow,
    wiring,
)
from gantt.conf import files
from gantt.core.claims.adoption import GUESTS_MAX
from gantt.core.records import audit_remedies
from gantt.core.records.retention import DECISION_STORED_SECONDS
from gantt.core.resources.host import HostRow
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.stores import AllStores
from gantt.testing import conformance
from gantt.zones.service.audit import AuditedZone, ZoneAudit, ZoneFindings

#: Of check-plugin.
_CONFORMANCE_CASES_MAX = 100_000
#: Of dead-letters list.
_SHOWN_DEAD_LETTERS_MAX = 100_000
#: Of host decommission: a week.
_WAIT_SECONDS_MAX = 604_800
LOG = logging.getLogger(__name__)
PURGE_ROWS = 5000
PURGE_ROUNDS = 10_000
AUDIT_KIND_TEXTS = {
    'over_commit': 'over-commit',
    'lost': 'lost',
    'leaked': 'leaked',
    'doubled': 'doubled',
    'providers': 'providers',
}


def db_sync(conf: Any) -> int:
    """Bring the schema up to date."""
    engine = session.engine_from_conf(conf)
    before = migration.version(engine)
    after = migration.sync(engine)
    print(f'the database is at {after}' + (f' (was {before})' if before != after else ' already'))
    return 0


def db_version(conf: Any) -> int:
    """Show the schema of the database, and the one that this version of Gantt needs."""
    engine = session.engine_from_conf(conf)
    current = migration.version(engine)
    needed = migration.expected()
    lines = [f'database {current}, needed {needed}']
    try:
        migration.check(engine)
    except exceptions.DatabaseNotSynced as e:
        lines.append(e.message)
    else:
        if current != needed:
            later = ', '.join(migration.added(engine, current))
            lines.append(f'{later} of a newer release only add: this one works with them')
    console.show(conf, {'database': current, 'needed': needed, 'in_step': current == needed}, lines)
    return 0


def db_restored(conf: Any) -> int:
    """Begin a new incarnation after the database was restored: all processes read it again."""
    number = migration.bump_incarnation(session.engine_from_conf(conf))
    print(
        f'incarnation {number}: schedulers read everything again, and what runs is adopted as '
        'hosts report it'
    )
    return 0


def audit(conf: Any) -> int:
    """Ask the database, and the child zones, whether the promises hold; 1 where one does not."""
    connected = stores.connect(conf)
    violations = connected.claims.audit()
    zone_findings = _findings_over_zones(conf, connected)
    for kind, of_zones in zone_findings.lines.items():
        violations[kind] = [*violations.get(kind, []), *of_zones]
    rows = (change.row for change in connected.feed.load_everything().hosts)
    flagged = [row for row in rows if row is not None and row.over_committed]
    lines = {
        key: violations.get(key, [])
        for key in [*AUDIT_KIND_TEXTS, *(k for k in violations if k not in AUDIT_KIND_TEXTS)]
    }
    counts = {key: len(value) for key, value in lines.items()}
    to_do = audit_remedies.remedies_of(lines)
    body = {
        'counts': counts,
        'violations': lines,
        'remedies': [{'kind': r.kind, 'about': r.about, 'remedy': r.what} for r in to_do],
        'flagged': [row.name for row in flagged],
        'zones': zone_findings.zones,
    }
    console.show(
        conf,
        body,
        [
            ', '.join(f'{AUDIT_KIND_TEXTS.get(key, key)} {count}' for key, count in counts.items()),
            *(
                f'{AUDIT_KIND_TEXTS.get(key, key)}: {line}'
                for key, violations in lines.items()
                for line in violations
            ),
            *(f'to do, {AUDIT_KIND_TEXTS[item.kind]}: {item.about}: {item.what}' for item in to_do),
            *(
                f'flagged, no violation: {_over_full_text(row)}; nothing new lands there'
                for row in flagged
            ),
            *map(_zone_line, zone_findings.zones),
        ],
    )
    return 1 if any(lines.values()) or any(item.problem for item in zone_findings.zones) else 0


def _findings_over_zones(conf: Any, connected: AllStores) -> ZoneFindings:
    """Return the findings between this zone and its child zones."""
    calls = wiring.zone_calls(conf, lambda: connected.zones.zone_identity().uuid)
    try:
        return ZoneAudit(connected, calls).run()
    finally:
        calls.close()


def _zone_line(zone: AuditedZone) -> str:
    """Return the line of the audit on a zone that it compared, or tried to."""
    if zone.problem:
        return f'zone {zone.zone}: not compared as a whole: {zone.problem}'
    line = f'zone {zone.zone}: compared, live claims there: {zone.claims}, hosts: {zone.hosts}'
    if zone.restored:
        line += f'; forgotten here and restored: {zone.restored}'
    return line


def _over_full_text(row: HostRow) -> str:
    excesses = [
        f'{name} {row.used.get(name, 0)} claimed and {row.foreign.get(name, 0)} foreign of {cap}'
        for name in sorted(row.used.keys() | row.foreign.keys())
        if row.free(name) < 0 and (cap := row.cap(name)) is not None
    ]
    return f'{row.name}: {"; ".join(excesses) or "found with more use than capacity"}'


def purge(conf: Any) -> int:
    """Delete what is past its bound, until nothing is."""
    connected = stores.connect(conf)
    deleted = 0
    for _ in range(PURGE_ROUNDS):
        batch_deleted = connected.retention.purge(
            decisions=conf.decisions.count_max,
            decision_bytes=conf.decisions.size_mb_max << 20,
            decision_seconds=DECISION_STORED_SECONDS,
            tombstone_seconds=conf.claims.tombstone_seconds,
            request_seconds=conf.claims.request_seconds,
            limit=PURGE_ROWS,
        )
        deleted += batch_deleted
        if not batch_deleted and connected.retention.is_purged:
            break
    print(f'{deleted} rows deleted')
    return 0


def add_commands(parsers: Any) -> None:
    """Add all commands to the subparsers of argparse."""

    def add(
        to: Any, name: str, run: Callable[[Any], int], json_too: bool = False, writes: bool = False
    ) -> Any:
        text = (run.__doc__ or '').strip()
        parser = to.add_parser(name, help=text, description=text)
        parser.set_defaults(run=run, writes=writes, format='text')
        if json_too:
            parser.add_argument(
                '-f', '--format', choices=('text', 'json'), default='text', help='how to print'
            )
        return parser

    def group(name: str, text: str) -> Any:
        return parsers.add_parser(name, help=text, description=text).add_subparsers(
            dest='action', required=True, metavar='ACTION'
        )

    database = group('db', 'The schema of the database.')
    add(database, 'sync', db_sync, writes=True)
    add(database, 'version', db_version, json_too=True)
    add(database, 'incarnation', db_restored, writes=True)
    _host_commands(add, group, parsers)
    manage_shadow.add_commands(add, group)
    manage_placement.add_commands(add, group)
    add(parsers, 'audit', audit, json_too=True)
    add(parsers, 'purge', purge, writes=True)
    trail = add(parsers, 'audit-trail', audit_trail.show, json_too=True)
    trail.add_argument(
        '--limit',
        type=parsing.whole_number(1, audit_trail.SHOWN_ENTRIES_MAX),
        default=50,
        metavar='N',
        help='how many, at most (50)',
    )
    manage_broker.add_commands(add, group)
    dead_letter_group = group('dead-letters', 'Messages that could not be handled.')
    add(dead_letter_group, 'list', dead_letters.show, json_too=True).add_argument(
        '--limit',
        type=parsing.whole_number(1, _SHOWN_DEAD_LETTERS_MAX),
        default=20,
        metavar='N',
        help='how many, at most (20)',
    )
    add(dead_letter_group, 'drop', dead_letters.drop, writes=True)
    manage_config.add_commands(add, group)
    gathered = add(parsers, 'bundle', bundle.run)
    gathered.add_argument(
        '--output', metavar='FILE', help='the file to make (gantt-bundle-HOST-TIME.tar.gz here)'
    )
    gathered.set_defaults(live=None)
    plugin = group('dev', 'For those who write filters and weighers.')
    checked = add(plugin, 'check-plugin', dev.check_plugin)
    checked.add_argument('plugin', help='its name where it is installed, else module:Class')
    checked.add_argument(
        '--cases',
        type=parsing.whole_number(1, _CONFORMANCE_CASES_MAX),
        default=conformance.CASES_DEFAULT,
        help=f'random clouds to try ({conformance.CASES_DEFAULT})',
    )
    checked.add_argument(
        '--seed',
        type=parsing.whole_number(0, parsing.SEED_MAX),
        default=0,
        metavar='N',
        help='of the first one (0)',
    )
    new_filter = add(plugin, 'new-filter', dev.new_filter)
    # Not 'name': under that one oslo.config keeps the name of the command.
    new_filter.add_argument('name_of_filter', metavar='NAME', help='e.g. GpuModel')
    new_filter.add_argument('--folder', default='.', help='where the package is (.)')
    new_filter.add_argument('--package', help='the package (that of setup.cfg in the folder)')


def _host_commands(add: Any, group: Any, parsers: Any) -> None:
    hosts = group('host', 'Hosts: renamed, taken away.')
    renamed = add(hosts, 'rename', manage_hosts.rename, writes=True)
    renamed.add_argument('old', metavar='OLD')
    renamed.add_argument('new', metavar='NEW')
    decommissioned = add(hosts, 'decommission', manage_hosts.decommission, writes=True)
    decommissioned.add_argument('name_of_host', metavar='NAME')
    decommissioned.add_argument(
        '--wait',
        type=parsing.number(0, _WAIT_SECONDS_MAX),
        default=0.0,
        metavar='SECONDS',
        help='for its claims to end and its agent to fall silent (0: not at all)',
    )
    inventories = add(hosts, 'inventories', manage_hosts.inventories, json_too=True, writes=True)
    inventories.add_argument('name_of_host', metavar='NAME')
    inventories.add_argument(
        '--by',
        choices=tuple(manage_hosts.INVENTORIES_BY),
        help='who says from now on what it has (without: who does is shown)',
    )
    by_digest = add(hosts, 'named', manage_hosts.name_digests, json_too=True)
    by_digest.add_argument('salt', metavar='SALT', help='that the audit has shown')
    by_digest.add_argument(
        'digests', metavar='DIGEST', nargs='+', help='of a host, as it has shown'
    )
    keys_text = 'The keys that the messages of hosts are signed with.'
    keys = hosts.add_parser('key', help=keys_text, description=keys_text).add_subparsers(
        dest='key_action', required=True, metavar='ACTION'
    )
    for key_parser in (
        add(keys, 'show', manage_hosts.key_show, json_too=True),
        add(keys, 'forget', manage_hosts.key_forget, writes=True),
        add(keys, 'revoke', manage_hosts.key_revoke, writes=True),
    ):
        key_parser.add_argument('name_of_host', metavar='NAME')
    for parser in (renamed, decommissioned):
        parser.add_argument(
            '--now', action='store_true', help='although it reported lately: its agent is stopped'
        )
    parser_made = add(parsers, 'adopt', manage_hosts.adopt, json_too=True, writes=True)
    parser_made.add_argument(
        'file', metavar='FILE', help='guests, a line of JSON each; - reads them'
    )
    parser_made.add_argument(
        '--dry-run', action='store_true', help='say what would be; write nothing'
    )
    parser_made.add_argument(
        '--batch',
        type=parsing.whole_number(1, GUESTS_MAX),
        default=manage_hosts.ADOPTION_BATCH,
        metavar='N',
        help=f'guests in one transaction, about ({manage_hosts.ADOPTION_BATCH})',
    )


def _help_text() -> str:
    """Return the help: the commands, and the few options before them that one needs.

    Options of logging and their kin are many, and the same in every program.
    """
    parser = argparse.ArgumentParser(
        prog='gantt-manage',
        description=(__doc__ or '').partition('\n\n')[0].partition(': ')[2],
        epilog='Each command has its own --help. Further options of every program, such as '
        '--log-file, stand before the command; "gantt-manage --help-options" lists them.',
    )
    parser.add_argument(
        '--config-file',
        metavar='PATH',
        help='a file of the configuration; may be given several times (environment: '
        f'{files.CONFIG_FILE_VARIABLE}, with ":" between the paths; default: those in /etc/gantt)',
    )
    parser.add_argument('--debug', action='store_true', help='log what happens in detail')
    parser.add_argument('--version', action='store_true', help='show the version')
    add_commands(parser.add_subparsers(title='commands', metavar='COMMAND'))
    return parser.format_help()


def run(argv: list[str]) -> int:
    """Parse the command line, run the command, turn errors into one line and an exit code."""
    before = files.options_before_command(argv)
    if {'-h', '--help'} & set(before):
        print(_help_text(), end='')
        return 0
    argv = ['--help' if word == '--help-options' else word for word in argv]
    command = cfg.SubCommandOpt('command', title='commands', handler=add_commands)
    try:
        conf = wiring.parse(argv, 'gantt-manage', [command], prints=True)
    except SystemExit as e:
        return USAGE_EXIT_CODE if e.code else 0
    except (cfg.Error, exceptions.GanttError) as e:
        print(f'gantt-manage: {files.error_message(e)}', file=sys.stderr)
        return 1
    if conf.command.name is None:
        print('gantt-manage: which command? "gantt-manage --help" lists them', file=sys.stderr)
        return USAGE_EXIT_CODE
    # Somebody waits for it: oslo.db would wait for the server by its own options.
    conf.set_override('max_retries', 0, 'database')
    try:
        with audit_trail.recording(conf, argv) as code:
            code.append(conf.command.run(conf))
            return code[0]
    except (cfg.Error, exceptions.GanttError) as e:
        print(f'gantt-manage: {files.error_message(e)}', file=sys.stderr)
    except Exception as e:
        LOG.exception('gantt-manage failed unexpectedly')
        where = conf.log_file or conf.log_dir or 'standard error'
        print(
            f'gantt-manage: unexpected {type(e).__name__}: {e}; the traceback is in {where}',
            file=sys.stderr,
        )
    return 1


def main() -> int:
    """Run as the console script."""
    return run(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
