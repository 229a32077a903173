# SPDX-License-Identifier: Apache-2.0
"""``gantt aggregate export|diff|apply`` and the same for server groups, as files.

    aggregates:
      ssd:
        metadata: {availability_zone: az-1, rack: '7'}
        hosts: [cmp-1, cmp-2]

``diff`` shows what ``apply`` would do.  ``apply`` changes the stored entries to those of the file
and may be repeated; it writes nothing where any part of the file is refused, and deletes entries
that the file lacks only with ``--delete``.
"""

import abc
import argparse
import pathlib
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from gantt import exceptions
from gantt.cli import base
from gantt.cli.endpoint import Endpoint, Exit, Failure, load_body
from gantt.core.messages import base as message
from gantt.core.messages.base import FieldError, Message, Name, Text, Uuid
from gantt.core.messages.policy_set import (
    POLICIES_POLICY,
    MemberNames,
    Policies,
    Policy,
    PolicySet,
    Subgroups,
)
from gantt.core.messages.request import Names

#: Most entries of a file.
FILE_ENTRIES_MAX = 10_000
PAGE_SIZE = 500
_LINES_SHOWN_MAX = 1000


class AggregateEntry(Message, frozen=True, kw_only=True):
    """An aggregate of a file; what is left out stays as it is.

    :ivar metadata: all of it
    :ivar hosts: all of them
    """

    metadata: Annotated[dict[Name, Text], msgspec.Meta(max_length=256)] | None = None
    hosts: Names | None = None
    uuid: Uuid | None = None


class GroupEntry(Message, frozen=True, kw_only=True):
    """A server group of a file: its rule, which no file changes.

    :ivar policy: one of Nova's, or else ``policies``
    """

    policy: Policy | None = None
    name: Text = ''
    max_per_host: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    project_id: Text | None = None
    policies: Policies = []
    subgroups: Subgroups = {}
    member_names: MemberNames = []

    def __post_init__(self) -> None:
        if (self.policy is None) is not bool(self.policies):
            raise FieldError('policy', 'expected one of policy and policies')
        self.policy_set()  # checks the names in them

    def policy_set(self) -> PolicySet | None:
        """Return the policies of the group as a document; None: it has one of Nova's."""
        if not self.policies:
            return None
        return PolicySet(
            policies=self.policies, subgroups=self.subgroups, members=self.member_names
        )


class AggregatesFile(Message, frozen=True, kw_only=True):
    """A file of aggregates, by name."""

    aggregates: Annotated[dict[Name, AggregateEntry], msgspec.Meta(max_length=FILE_ENTRIES_MAX)]


class GroupsFile(Message, frozen=True, kw_only=True):
    """A file of server groups, by uuid."""

    server_groups: Annotated[dict[Uuid, GroupEntry], msgspec.Meta(max_length=FILE_ENTRIES_MAX)]


class Difference(NamedTuple):
    """A change to one entry.

    :ivar action: create | change | delete
    :ivar lines: details, each with ``+``, ``-`` or ``~`` before it
    :ivar body: the body of the request
    """

    action: str
    name: str
    lines: list[str]
    body: dict[str, Any]


class FileKind(abc.ABC):
    """A kind of entries in a file, with the methods to read, compare and send them."""

    noun = ''
    key = ''  # of the file, and of the interface's list
    path = ''
    form: type[Message] = Message

    def read(self, path: str) -> dict[str, Any]:
        """Return the entries of a file by name.

        :raises Failure: names the file, the entry and what was expected there
        """
        try:
            content = message.decode(load_body(path), self.form, inside=path)
        except exceptions.GanttError as e:
            raise Failure(e.message, Exit.USAGE) from None
        return dict(getattr(content, self.key))

    def fetch_existing(self, endpoint: Endpoint) -> dict[str, dict[str, Any]]:
        """Return the stored rows by name.  :raises Failure:"""
        rows: list[dict[str, Any]] = []
        marker = None
        while len(rows) < base.LISTED_ROWS_MAX:
            page = endpoint.get(self.path, limit=PAGE_SIZE, marker=marker)
            rows.extend(page[self.key])
            marker = page['next_marker']
            if marker is None:
                break
        return {self.name_of(row): row for row in rows}

    @abc.abstractmethod
    def name_of(self, row: dict[str, Any]) -> str:
        """Return the key of a row in a file."""

    @abc.abstractmethod
    def entry(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row in the form of a file."""

    @abc.abstractmethod
    def compare(self, name: str, row: dict[str, Any] | None, entry: Any) -> Difference | None:
        """Return the change from a row to the entry in the file; None: no change.

        :raises Failure: the change is not possible
        """

    @abc.abstractmethod
    def send(self, endpoint: Endpoint, difference: Difference, dry_run: bool) -> str:
        """Send a change, or check it as a dry run; return its summary.  :raises Failure:"""

    def differences(
        self, entries: dict[str, Any], existing: dict[str, dict[str, Any]], delete: bool
    ) -> Iterator[Difference]:
        """Yield changes in the order of names; deletions last.  :raises Failure:"""
        for name in sorted(entries):
            difference = self.compare(name, existing.get(name), entries[name])
            if difference is not None:
                yield difference
        if delete:
            for name in sorted(existing.keys() - entries.keys()):
                yield Difference('delete', name, [], {})


class AggregateKind(FileKind):
    """Aggregates by their names."""

    noun, key, path, form = 'aggregate', 'aggregates', '/v1/aggregates', AggregatesFile

    def name_of(self, row: dict[str, Any]) -> str:
        return row['name']

    def entry(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            'uuid': row['uuid'],
            'metadata': dict(sorted(row['metadata'].items())),
            'hosts': sorted(row['hosts']),
        }

    def compare(
        self, name: str, row: dict[str, Any] | None, entry: AggregateEntry
    ) -> Difference | None:
        before = row or {'uuid': None, 'metadata': {}, 'hosts': []}
        lines: list[str] = []
        body: dict[str, Any] = {}
        if entry.uuid is not None and entry.uuid != before['uuid']:
            lines.append(f'{"~" if row else "+"} uuid = {entry.uuid}')
            body['uuid'] = entry.uuid
        old, new = before['metadata'], before['metadata']
        if entry.metadata is not None:
            new = entry.metadata
        for key in sorted(old.keys() | new.keys()):
            if key not in new:
                lines.append(f'- {key} = {old[key]}')
            elif key not in old:
                lines.append(f'+ {key} = {new[key]}')
            elif old[key] != new[key]:
                lines.append(f'~ {key} = {new[key]} (was {old[key]})')
        new_values = {key: new.get(key) for key in old.keys() | new.keys()}
        body['metadata'] = {
            key: value for key, value in new_values.items() if old.get(key) != value
        }
        if entry.hosts is not None and set(entry.hosts) != set(before['hosts']):
            lines += [f'- host {host}' for host in sorted({*before['hosts']} - {*entry.hosts})]
            lines += [f'+ host {host}' for host in sorted({*entry.hosts} - {*before['hosts']})]
            body['hosts'] = list(entry.hosts)
        if row is not None and not lines:
            return None
        return Difference('change' if row else 'create', name, lines, body)

    def send(self, endpoint: Endpoint, difference: Difference, dry_run: bool) -> str:
        path = f'{self.path}/{base.path_part(difference.name)}'
        if difference.action == 'delete':
            return endpoint.delete(path, dry_run=dry_run)['message']
        return endpoint.put(path, difference.body, dry_run=dry_run)['message']


class ServerGroupKind(FileKind):
    """Server groups by their uuids."""

    noun, key, path, form = 'server group', 'server_groups', '/v1/server-groups', GroupsFile

    def fetch_existing(self, endpoint: Endpoint) -> dict[str, dict[str, Any]]:
        # A group that is planned without policies cannot be created from a file.
        return {
            name: row
            for name, row in super().fetch_existing(endpoint).items()
            if row['policies'] or row['policy'] != POLICIES_POLICY
        }

    def name_of(self, row: dict[str, Any]) -> str:
        return row['uuid']

    def entry(self, row: dict[str, Any]) -> dict[str, Any]:
        of_sets = ('policies', 'subgroups', 'member_names')
        rule = of_sets if row['policies'] else ('policy', 'max_per_host')
        return {key: row[key] for key in ('name', *rule, 'project_id')}

    def compare(
        self, name: str, row: dict[str, Any] | None, entry: GroupEntry
    ) -> Difference | None:
        entry_fields = msgspec.to_builtins(entry)
        if row is None:
            lines = [
                f'+ {key} = {value}' for key, value in entry_fields.items() if value is not None
            ]
            return Difference('create', name, lines, {'uuid': name, **entry_fields})
        for key, is_there, is_wanted in _rule_parts(row, entry):
            if is_there != is_wanted:
                raise Failure(
                    f'server_groups.{name}.{key}: the rule of a server group stays as it was made: '
                    f'it is {is_there}, the file has {is_wanted}; make another group',
                    Exit.USAGE,
                )
        return None

    def send(self, endpoint: Endpoint, difference: Difference, dry_run: bool) -> str:
        if difference.action == 'delete':
            path = f'{self.path}/{base.path_part(difference.name)}'
            return endpoint.delete(path, dry_run=dry_run)['message']
        return endpoint.post(self.path, difference.body, dry_run=dry_run)['message']


def _rule_parts(row: dict[str, Any], entry: GroupEntry) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of a rule to compare: name, stored value, value in the file."""
    rule_in_file = entry.policy_set()
    stored_rule = None
    if row['policies']:
        fields = {key: row[key] for key in ('policies', 'subgroups', 'member_names')}
        stored_rule = msgspec.convert(fields, GroupEntry).policy_set()
    if rule_in_file is not None or stored_rule is not None:
        yield 'policies', stored_rule and stored_rule.text, rule_in_file and rule_in_file.text
        return
    yield 'policy', row['policy'], entry.policy and entry.policy.value
    yield 'max_per_host', row['max_per_host'], entry.max_per_host


class Export(base.Base):
    """Write what exists as a file."""

    formats = ('yaml', 'json')
    kind: FileKind

    arguments = (
        base.arg(
            'file',
            nargs='?',
            default='-',
            metavar='FILE',
            help='the file to make; - (default): standard output',
        ),
        base.arg('--force', action='store_true', help='although the file is there'),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and write."""
        rows = self.kind.fetch_existing(self.endpoint)
        data = {self.kind.key: {name: self.kind.entry(rows[name]) for name in sorted(rows)}}
        if parsed_args.file == '-':
            return self.show(parsed_args, data, [])
        path = pathlib.Path(parsed_args.file)
        try:
            with path.open('w' if parsed_args.force else 'x', encoding='utf-8') as file:
                file.write(base.dump_data(parsed_args.form, data))
        except FileExistsError:
            raise Failure(f'{path} is there already; --force replaces it', Exit.USAGE) from None
        except OSError as e:
            raise Failure(f'{path}: {e.strerror or e}') from None
        return int(Exit.PLACED)


class _FileCommand(base.Base):
    kind: FileKind

    arguments = (
        base.arg('file', metavar='FILE', help='YAML or JSON; - reads standard input'),
        base.arg(
            '--delete', action='store_true', help='also delete what there is and the file has not'
        ),
    )

    def differences(self, args: argparse.Namespace) -> list[Difference]:
        """Return the changes to make.  :raises Failure:"""
        entries = self.kind.read(args.file)
        return list(
            self.kind.differences(entries, self.kind.fetch_existing(self.endpoint), args.delete)
        )

    def lines_of(self, differences: list[Difference]) -> list[str]:
        """Return the changes as lines for people."""
        signs = {'create': '+', 'change': '~', 'delete': '-'}
        lines = []
        for difference in differences:
            lines.append(f'{signs[difference.action]} {self.kind.noun} {difference.name}')
            lines += [f'    {line}' for line in difference.lines]
        more = len(lines) - _LINES_SHOWN_MAX
        return lines[:_LINES_SHOWN_MAX] + ([f'and {more} more lines'] if more > 0 else [])


class Diff(_FileCommand):
    """Say what ``apply`` would do."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Compare and print."""
        differences = self.differences(parsed_args)
        for difference in differences:
            self.kind.send(self.endpoint, difference, dry_run=True)
        data = [{'action': d.action, 'name': d.name, 'lines': d.lines} for d in differences]
        lines = self.lines_of(differences) or ['there is nothing to change']
        return self.show(parsed_args, data, lines)


class Apply(_FileCommand):
    """Make what there is as the file says."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Check all changes as a dry run, then send them."""
        differences = self.differences(parsed_args)
        for difference in differences:
            self.kind.send(self.endpoint, difference, dry_run=True)
        messages: list[str] = []
        for difference in differences:
            try:
                messages.append(self.kind.send(self.endpoint, difference, dry_run=False))
            except Failure as e:
                e.notes += [f'done before: {what}' for what in messages]
                e.notes.append('the same command goes on from there')
                raise
            self.changes_made = messages
        return self.show(parsed_args, messages, messages or ['there is nothing to change'])


class AggregateExport(Export):
    """Write the aggregates as a file that "gantt aggregate apply" takes."""

    kind = AggregateKind()


class AggregateDiff(Diff):
    """Say what "gantt aggregate apply" would change; change nothing."""

    kind = AggregateKind()


class AggregateApply(Apply):
    """Make the aggregates as a file says; those that it has not stay without --delete."""

    kind = AggregateKind()


class GroupExport(Export):
    """Write the server groups and their rules as a file that "gantt group apply" takes."""

    kind = ServerGroupKind()


class GroupDiff(Diff):
    """Say what "gantt group apply" would change; change nothing."""

    kind = ServerGroupKind()


class GroupApply(Apply):
    """Create the server groups of a file; those that it has not stay without --delete."""

    kind = ServerGroupKind()
