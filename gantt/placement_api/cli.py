# SPDX-License-Identifier: Apache-2.0
"""``gantt provider``, ``class``, ``trait`` and ``allocation``, by Placement's interface."""

import argparse
import functools
import re
import uuid as uuids
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from gantt.cli import base, parsing, text
from gantt.cli.endpoint import Endpoint, Exit, Failure, failure_of, query_text
from gantt.cli.text import TextColumn
from gantt.core.messages.base import UUID_PATTERN
from gantt.core.messages.resource_classes import Inventory

#: Code of a refusal after a concurrent change, and the number of attempts.
CONCURRENT_UPDATE = 'placement.concurrent_update'
TRIES_MAX = 3
INVENTORY_NUMBERS = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size', 'allocation_ratio')
_DEFAULT_NUMBERS = dict(zip(INVENTORY_NUMBERS[1:], (0, 1, 2_147_483_647, 1, 1.0), strict=True))
_UUID = re.compile(UUID_PATTERN)
#: Description of an object in one line: name -> value; '': no value.
OptionTexts = Mapping[str, str]


def uuid_argument(value: str) -> str:
    """Check that an argument is a uuid."""
    if not _UUID.match(value):
        raise argparse.ArgumentTypeError(f'expected a uuid, got {value!r}')
    return value


def inventory(value: str) -> tuple[str, dict[str, Any]]:
    """Parse an argument such as ``VCPU=64`` or ``VCPU=64,allocation_ratio=4,reserved=2``."""
    name, equals, rest = value.partition('=')
    total, *pairs = rest.split(',')
    numbers: dict[str, Any] = {}
    try:
        numbers['total'] = int(total)
        for pair in pairs:
            key, _, number = pair.partition('=')
            if key not in INVENTORY_NUMBERS:
                raise ValueError(key)
            numbers[key] = float(number) if key == 'allocation_ratio' else int(number)
    except ValueError:
        equals = ''
    if not (name and equals):
        raise argparse.ArgumentTypeError(
            'expected CLASS=TOTAL and, after commas, any of '
            f'{", ".join(INVENTORY_NUMBERS[1:])}, such as VCPU=64,allocation_ratio=4; got {value!r}'
        )
    return name, numbers


def find_provider(endpoint: Endpoint, provider: str) -> dict[str, Any]:
    """Return a provider by its uuid or its name.  :raises Failure: there is none"""
    by = 'uuid' if _UUID.match(provider) else 'name'
    providers = endpoint.get('/resource_providers', **{by: provider})['resource_providers']
    if not providers:
        raise Failure(f'there is no provider with the {by} {provider!r}; see "gantt provider list"')
    match: dict[str, Any] = providers[0]
    return match


def with_retries(change: Callable[[], None]) -> None:
    """Run a change; repeat it where a concurrent update was faster.  :raises Failure:"""
    for retries_left in reversed(range(TRIES_MAX)):
        try:
            change()
            return
        except Failure as e:
            if e.error.get('code') != CONCURRENT_UPDATE or not retries_left:
                raise


class PlacementCommand(base.Base):
    """A command that uses Placement's interface."""

    @functools.cached_property
    def placement(self) -> Endpoint:
        """The endpoint of Placement's interface.  :raises Failure:"""
        return self.endpoint.placement


class PlacementLister(PlacementCommand, base.Lister):
    """A list that is fetched whole."""

    row_keys: Sequence[str] = ('name',)

    def keys(self) -> Sequence[str]:
        return self.row_keys

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        """Return all rows.  :raises Failure:"""
        answer = self.placement.get(self.path, **self.query(args))
        return list(answer[self.list_key])

    def fetch(
        self, args: argparse.Namespace, most: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        rows = self.rows(args)
        return rows[:most], {}, len(rows) > most


#: Verb of a change -> verb of a dry run.
_CONDITIONAL = {'is': 'would be', 'has': 'would have'}


class PlacementWrite(PlacementCommand):
    """A change: says in one sentence what was done, or with --dry-run would be."""

    _dry_run: 'DryRunEndpoint | None' = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option of a dry run."""
        return base.with_dry_run(super().get_parser(prog_name))

    def verb(self, word: str) -> str:
        """Return ``is`` or ``has``, in the conditional for a dry run."""
        return word if self._dry_run is None else _CONDITIONAL[word]

    def make_change(self, args: argparse.Namespace) -> str:
        """Make the change and return a summary.  :raises Failure:"""
        raise NotImplementedError

    def note_done(self, what: str) -> None:
        """Record one part of a change as made."""
        self.changes_made = [*self.changes_made, what]

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Make the change and print its summary."""
        if parsed_args.dry_run:
            return self._make_change(parsed_args)
        try:
            what = self.make_change(parsed_args)
        except Failure as e:
            e.notes += [f'done before: {part}' for part in self.changes_made]
            raise
        self.note_done(what)
        return self.show(parsed_args, {'dry_run': False, 'message': what}, [what])

    def _make_change(self, args: argparse.Namespace) -> int:
        dry_run = self.placement = self._dry_run = DryRunEndpoint(self.placement)
        what = self.make_change(args)
        differences = '; '.join(dry_run.differences)
        if not dry_run.would_change:
            differences = 'nothing would change'
        what += f': {differences}' if differences else ''
        self.changes_made = []
        return self.show(args, {'dry_run': True, 'message': what}, [f'dry run: {what}'])


class DryRunEndpoint(Endpoint):
    """An endpoint whose writes the service carries out, and undoes in the end.

    Each call sends the writes before it once more, so that it is answered as if they had been made.

    :ivar differences: changes that would result, each with ``+``, ``-`` or ``~`` before it
    :ivar would_change: whether there would be any
    """

    def __init__(self, placement: Endpoint) -> None:
        super().__init__(placement.url, placement.timeout)
        self.differences: list[str] = []
        self.would_change = False
        self._placement = placement
        self._writes: list[dict[str, Any]] = []

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        body: Any = None,
        timeout: float | None = None,
        accept_unhealthy: bool = False,
    ) -> Any:
        """Return the answer of a request after the writes so far.  :raises Failure: refused"""
        if method == 'GET':
            target = f'{path}?{urlencode(query_text(query))}'
            return _content_of(self._answers(_request('GET', target))[-1])
        write = _request(method, path, body)
        read = _request('GET', path if method != 'POST' else f'{path}/{body["uuid"]}')
        before, answer, after = self._answers(read, write, read)[-3:]
        content = _content_of(answer)
        self._writes.append(write)
        self._note_differences(option_texts(before), option_texts(after))
        return content

    def _answers(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the answers after the writes so far.  :raises Failure: one of these is refused"""
        body = {'requests': [*self._writes, *requests]}
        answers: list[dict[str, Any]] = self._placement.post('/dry_run', body)['answers']
        for answer in answers[: len(self._writes)]:
            _content_of(answer)
        return answers

    def _note_differences(self, before: OptionTexts | None, after: OptionTexts | None) -> None:
        self.would_change |= before != after
        if before is None or after is None:
            return  # the summary says that it comes or goes
        for key in sorted(before.keys() | after.keys()):
            old, new = before.get(key), after.get(key)
            if old == new:
                continue
            sign = '+' if old is None else '-' if new is None else '~'
            value = old if new is None else new
            was = f' (was {old})' if sign == '~' else ''
            self.differences.append(f'{sign} {key}{f"={value}" if value else ""}{was}')


def _request(method: str, path: str, body: Any = None) -> dict[str, Any]:
    return {'method': method, 'path': path} | ({} if body is None else {'body': body})


def _content_of(answer: dict[str, Any]) -> Any:
    """Return the body of one of several answers.  :raises Failure: it is a refusal"""
    if answer['status'] >= 400:
        raise failure_of(answer['body'])
    return answer['body'] or {}


def option_texts(answer: dict[str, Any]) -> OptionTexts | None:
    """Return the answer of a read in the words of the command's options; None: not found."""
    if answer['status'] >= 400:
        return None
    body = answer['body'] or {}
    if 'parent_provider_uuid' in body:
        return {'name': body['name'], 'parent': body['parent_provider_uuid'] or 'none'}
    if 'inventories' in body:
        return {name: _inventory_text(numbers) for name, numbers in body['inventories'].items()}
    if 'allocations' in body:
        return {
            f'{uuid}:{name}': str(amount)
            for uuid, allocation in body['allocations'].items()
            for name, amount in allocation['resources'].items()
        }
    return {
        f'{noun} {name}': '' for noun in ('trait', 'aggregate') for name in body.get(f'{noun}s', ())
    }


def _inventory_text(numbers: dict[str, Any]) -> str:
    """Return an inventory in the form of ``--inventory``, without default numbers."""
    rest = (
        f',{name}={f"{numbers[name]:g}" if name == "allocation_ratio" else numbers[name]}'
        for name, default in _DEFAULT_NUMBERS.items()
        if numbers[name] != default
    )
    return f'{numbers["total"]}{"".join(rest)}'


_CUSTOM_NAME_ARGUMENT = base.arg('name', help='CUSTOM_ and capital letters, digits and underscores')
_CUSTOM_ONLY_ARGUMENT = base.arg(
    '--custom', action='store_true', help='only those that are not standard'
)
_NAME_COLUMNS = (TextColumn('NAME', text.value_of_key('name'), min_width=20),)


def _chosen_rows(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not args.custom or row['name'].startswith('CUSTOM_')]


class ClassList(PlacementLister):
    """List resource classes, the standard ones first."""

    path = '/resource_classes'
    list_key = 'resource_classes'
    columns = _NAME_COLUMNS
    empty_message = 'there is no such class'
    arguments = (_CUSTOM_ONLY_ARGUMENT,)

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        return _chosen_rows(args, [{'name': row['name']} for row in super().rows(args)])


class ClassCreate(PlacementWrite):
    """Create a resource class; no error where it exists."""

    arguments = (_CUSTOM_NAME_ARGUMENT,)

    def make_change(self, args: argparse.Namespace) -> str:
        self.placement.put(f'/resource_classes/{base.path_part(args.name)}')
        return f'resource class {args.name} {self.verb("is")} there'


class ClassDelete(PlacementWrite):
    """Delete a resource class that no provider has."""

    arguments = (_CUSTOM_NAME_ARGUMENT,)

    def make_change(self, args: argparse.Namespace) -> str:
        self.placement.delete(f'/resource_classes/{base.path_part(args.name)}')
        return f'resource class {args.name} {self.verb("is")} deleted'


class TraitList(PlacementLister):
    """List traits, the standard ones first."""

    path = '/traits'
    list_key = 'traits'
    columns = _NAME_COLUMNS
    empty_message = 'there is no such trait'
    arguments = (
        _CUSTOM_ONLY_ARGUMENT,
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
        return _chosen_rows(args, [{'name': name} for name in answer[self.list_key]])


class TraitCreate(PlacementWrite):
    """Create a trait; no error where it exists."""

    arguments = (_CUSTOM_NAME_ARGUMENT,)

    def make_change(self, args: argparse.Namespace) -> str:
        self.placement.put(f'/traits/{base.path_part(args.name)}')
        return f'trait {args.name} {self.verb("is")} there'


class TraitDelete(PlacementWrite):
    """Delete a trait that no provider has."""

    arguments = (_CUSTOM_NAME_ARGUMENT,)

    def make_change(self, args: argparse.Namespace) -> str:
        self.placement.delete(f'/traits/{base.path_part(args.name)}')
        return f'trait {args.name} {self.verb("is")} deleted'


_CONSUMER_ARGUMENT = base.arg(
    'consumer', type=uuid_argument, help='its uuid, such as that of a server'
)
_ALLOCATION_COLUMNS = (
    TextColumn('PROVIDER', text.value_of_key('provider')),
    TextColumn('CLASS', text.value_of_key('class'), min_width=12),
    TextColumn('AMOUNT', text.value_of_key('amount'), align_right=True),
)
#: Type of a new consumer where none is given.
_UNKNOWN_TYPE = 'unknown'


def share(value: str) -> tuple[str, str, int]:
    """Parse an argument ``PROVIDER:CLASS=AMOUNT``."""
    provider, colon, rest = value.rpartition(':')
    if not (colon and provider):
        raise argparse.ArgumentTypeError(
            f'expected PROVIDER:CLASS=AMOUNT, such as pool-1:CUSTOM_LICENCE=2; got {value!r}'
        )
    return provider, *parsing.resource(rest)


class AllocationList(PlacementLister):
    """List who has what of a provider."""

    empty_message = 'nothing of it is taken'
    row_keys = ('consumer', 'resources', 'consumer_generation')
    columns = (
        TextColumn('CONSUMER', text.value_of_key('consumer')),
        TextColumn(
            'RESOURCES',
            lambda r: ', '.join(f'{k}={v}' for k, v in sorted(r['resources'].items())),
            min_width=16,
        ),
    )
    arguments = (base.arg('provider', help='its uuid or its name'),)

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        uuid = find_provider(self.placement, args.provider)['uuid']
        allocations = self.placement.get(f'/resource_providers/{uuid}/allocations')['allocations']
        return [
            {'consumer': consumer, **allocation}
            for consumer, allocation in sorted(allocations.items())
        ]


class AllocationShow(PlacementCommand):
    """Show all that a consumer has, whoever claimed it."""

    arguments = (_CONSUMER_ARGUMENT,)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        answer = self.placement.get(f'/allocations/{parsed_args.consumer}')
        return self.show(parsed_args, answer, self._lines(parsed_args.consumer, answer))

    def _lines(self, consumer: str, answer: dict[str, Any]) -> list[str]:
        if not answer['allocations']:
            return [f'consumer {consumer} has nothing']
        rows = [
            {'provider': provider, 'class': name, 'amount': amount}
            for provider, allocation in sorted(answer['allocations'].items())
            for name, amount in sorted(allocation['resources'].items())
        ]
        owner = f'project {answer["project_id"]}, user {answer["user_id"]}'
        return [
            f'consumer {consumer}, type {answer["consumer_type"]}, {owner}, '
            f'generation {answer["consumer_generation"]}',
            '',
            *text.table(_ALLOCATION_COLUMNS, rows, self.width),
        ]


class AllocationSet(PlacementWrite):
    """Set all allocations of a consumer; only another write, or a delete, ends them."""

    arguments = (
        _CONSUMER_ARGUMENT,
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

    def make_change(self, args: argparse.Namespace) -> str:
        allocations: dict[str, Any] = {}
        for provider, name, amount in args.shares:
            uuid = find_provider(self.placement, provider)['uuid']
            resources = allocations.setdefault(uuid, {'resources': {}})['resources']
            if name in resources:
                raise Failure(f'{provider}:{name} is given twice')
            resources[name] = amount
        with_retries(lambda: self._write(args, allocations))
        return f'consumer {args.consumer} {self.verb("has")} {len(args.shares)} allocations'

    def _write(self, args: argparse.Namespace, allocations: dict[str, Any]) -> None:
        path = f'/allocations/{args.consumer}'
        stored = self.placement.get(path)
        body = {
            'allocations': allocations,
            'project_id': args.project or stored.get('project_id'),
            'user_id': args.user or stored.get('user_id'),
            'consumer_type': args.consumer_type or stored.get('consumer_type', _UNKNOWN_TYPE),
            'consumer_generation': stored.get('consumer_generation'),
        }
        for option, key in (('--project', 'project_id'), ('--user', 'user_id')):
            if not body[key]:
                raise Failure(f'consumer {args.consumer} is new: expected {option}')
        if body['consumer_type'] == _UNKNOWN_TYPE:
            raise Failure(f'the type of consumer {args.consumer} is not known: expected --type')
        self.placement.put(path, body)


class AllocationDelete(PlacementWrite):
    """Delete all allocations of a consumer, whoever claimed them."""

    arguments = (_CONSUMER_ARGUMENT,)

    def make_change(self, args: argparse.Namespace) -> str:
        self.placement.delete(f'/allocations/{args.consumer}')
        return f'consumer {args.consumer} {self.verb("has")} nothing'


_PROVIDER_ARGUMENT = base.arg('provider', help='its uuid or its name')
_CONTENT_ARGUMENTS = (
    base.arg(
        '--inventory',
        action='append',
        type=inventory,
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
        type=uuid_argument,
        default=[],
        metavar='UUID',
        help='an aggregate that it is in (may be repeated)',
    ),
)
_GENERATION_KEY = 'resource_provider_generation'
_INVENTORY_COLUMNS = (
    TextColumn('CLASS', text.value_of_key('name'), min_width=12),
    TextColumn('TOTAL', text.value_of_key('total'), align_right=True),
    TextColumn('RESERVED', text.value_of_key('reserved'), align_right=True),
    TextColumn('RATIO', lambda r: f'{r["allocation_ratio"]:g}', align_right=True),
    TextColumn(
        'UNITS', lambda r: f'{r["min_unit"]}..{r["max_unit"]}/{r["step_size"]}', align_right=True
    ),
    TextColumn('USED', text.value_of_key('used'), align_right=True),
)


def _provider_path(uuid: str, rest: str = '') -> str:
    return f'/resource_providers/{base.path_part(uuid)}' + (f'/{rest}' if rest else '')


def _inventories_and_usages(ask: Endpoint, uuid: str) -> dict[str, Any]:
    """Fetch the inventories and usages of a provider."""
    return {part: ask.get(_provider_path(uuid, part))[part] for part in ('inventories', 'usages')}


class ProviderList(PlacementLister):
    """List resource providers: hosts, what is nested in them, pools."""

    path = '/resource_providers'
    list_key = 'resource_providers'
    empty_message = 'there is no such provider'
    row_keys = (
        'uuid',
        'name',
        'generation',
        'links',
        'parent_provider_uuid',
        'root_provider_uuid',
    )
    columns = (
        TextColumn('NAME', text.value_of_key('name'), min_width=16),
        TextColumn('UUID', text.value_of_key('uuid')),
        TextColumn('PARENT', lambda r: text.short_id(r['parent_provider_uuid'])),
        TextColumn('GENERATION', text.value_of_key('generation'), align_right=True),
    )
    arguments = (
        base.arg('--name', help='that of this name'),
        base.arg('--in-tree', metavar='PROVIDER', help='those of the tree of this one'),
        base.arg(
            '--resource',
            action='append',
            type=parsing.resource,
            default=[],
            metavar='CLASS=AMOUNT',
            help='those that could give so much in one piece (may be repeated)',
        ),
        base.arg('--required', metavar='TRAIT[,!TRAIT...]', help='with these traits, without !'),
        base.arg(
            '--long', action='store_true', help='and what each has free of what it may promise'
        ),
        base.arg('--member-of', type=uuid_argument, metavar='UUID', help='those in this aggregate'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        tree = args.in_tree and find_provider(self.placement, args.in_tree)['uuid']
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
            row.update(_inventories_and_usages(self.placement, row['uuid']))
        return rows, last, more

    def note(self, row: dict[str, Any]) -> str:
        """Return what is free of each class; empty without ``--long``."""
        usages, shares = row.get('usages', {}), []
        for name, numbers in sorted(row.get('inventories', {}).items()):
            cap = Inventory(**numbers).cap
            shares.append(f'{name} {text.free_of_capacity(name, cap - usages.get(name, 0), cap)}')
        return ', '.join(shares) + ' free' if shares else ''


class ProviderShow(PlacementCommand):
    """Show a provider: where it stands, what it has, and what of that is used."""

    arguments = (_PROVIDER_ARGUMENT,)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        endpoint = self.placement
        provider = find_provider(endpoint, parsed_args.provider)
        uuid = provider['uuid']
        del provider['links']
        provider.update(_inventories_and_usages(endpoint, uuid))
        provider['traits'] = sorted(endpoint.get(_provider_path(uuid, 'traits'))['traits'])
        provider['aggregates'] = sorted(
            endpoint.get(_provider_path(uuid, 'aggregates'))['aggregates']
        )
        return self.show(parsed_args, provider, self._lines(provider))

    def _lines(self, answer: dict[str, Any]) -> list[str]:
        lines = [
            f'provider    {answer["name"]} ({answer["uuid"]}), generation {answer["generation"]}',
            f'parent      {answer["parent_provider_uuid"] or "none, it is a root"}',
            f'root        {answer["root_provider_uuid"]}',
        ]
        for key in ('traits', 'aggregates'):
            listed = text.wrap(', '.join(answer[key]) or 'none', self.width - 12, '')
            lines += [f'{key if not i else "":<12}{line}' for i, line in enumerate(listed)]
        rows = [
            {'name': name, **numbers, 'used': answer['usages'].get(name, 0)}
            for name, numbers in sorted(answer['inventories'].items())
        ]
        return [*lines, '', *text.table(_INVENTORY_COLUMNS, rows, self.width)] if rows else lines


def _change_content(command: PlacementWrite, uuid: str, args: argparse.Namespace) -> None:
    """Apply the options of ``_CONTENT_ARGUMENTS``, and the removals.

    Each part is read, changed and sent with its generation.

    :raises Failure:
    """
    removed = {'traits': [], 'aggregates': [], 'inventories': []} | getattr(args, 'gone', {})
    added = {'traits': args.trait, 'aggregates': args.aggregate}
    if args.inventory or removed['inventories']:
        with_retries(
            lambda: _set_inventories(command, uuid, dict(args.inventory), removed['inventories'])
        )
    for key, names in added.items():
        if names or removed[key]:
            with_retries(functools.partial(_set_names, command, uuid, key, names, removed[key]))


def _set_inventories(
    command: PlacementWrite, uuid: str, changed: dict[str, Any], removed: list[str]
) -> None:
    now = command.placement.get(_provider_path(uuid, 'inventories'))
    for name in removed:
        if name not in now['inventories']:
            raise Failure(f'provider {uuid} has no inventory of {name}')
    inventories = {
        class_name: stored
        for class_name, stored in now['inventories'].items()
        if class_name not in removed
    }
    for name, numbers in changed.items():
        inventories[name] = {**inventories.get(name, {}), **numbers}
    body = {_GENERATION_KEY: now[_GENERATION_KEY], 'inventories': inventories}
    command.placement.put(_provider_path(uuid, 'inventories'), body)
    command.note_done(f'inventories of provider {uuid}: {", ".join(sorted(inventories)) or "none"}')


def _set_names(
    command: PlacementWrite, uuid: str, key: str, names: list[str], removed: list[str]
) -> None:
    now = command.placement.get(_provider_path(uuid, key))
    members = sorted({*now[key], *names} - set(removed))
    command.placement.put(
        _provider_path(uuid, key), {_GENERATION_KEY: now[_GENERATION_KEY], key: members}
    )
    command.note_done(f'{key} of provider {uuid}: {", ".join(members) or "none"}')


class ProviderCreate(PlacementWrite):
    """Create a provider that is no host: a pool, or one below another provider."""

    arguments = (
        base.arg('name'),
        base.arg('--uuid', type=uuid_argument, help='its uuid (default: a new one)'),
        base.arg('--parent', metavar='PROVIDER', help='what it is below of (default: nothing)'),
        *_CONTENT_ARGUMENTS,
    )

    def make_change(self, args: argparse.Namespace) -> str:
        body = {'name': args.name, 'uuid': args.uuid or str(uuids.uuid4())}
        if args.parent:
            body['parent_provider_uuid'] = find_provider(self.placement, args.parent)['uuid']
        provider = self.placement.post('/resource_providers', body)
        what = f'provider {provider["name"]} {self.verb("is")} created'
        if args.uuid or not args.dry_run:
            what += f': {provider["uuid"]}'
        self.note_done(what)
        _change_content(self, provider['uuid'], args)
        return what


class ProviderSet(PlacementWrite):
    """Change a provider; what is not named stays as it is."""

    arguments = (
        _PROVIDER_ARGUMENT,
        base.arg('--name', help='another name'),
        base.arg('--parent', metavar='PROVIDER', help='another provider that it is below of'),
        base.arg('--no-parent', action='store_true', help='let it be a root'),
        *_CONTENT_ARGUMENTS,
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

    def make_change(self, args: argparse.Namespace) -> str:
        if args.parent and args.no_parent:
            raise Failure('--parent and --no-parent: expected one of them', Exit.USAGE)
        provider = find_provider(self.placement, args.provider)
        uuid = provider['uuid']
        args.gone = {
            'inventories': args.no_inventory,
            'traits': args.no_trait,
            'aggregates': args.no_aggregate,
        }
        parent = provider['parent_provider_uuid']
        if args.parent:
            parent = find_provider(self.placement, args.parent)['uuid']
        elif args.no_parent:
            parent = None
        name = args.name or provider['name']
        # A named value is sent even if unchanged: this repairs a broken tree.
        if args.parent or args.no_parent or name != provider['name']:
            body = {'name': name, 'parent_provider_uuid': parent}
            self.placement.put(_provider_path(uuid), body)
            self.note_done(f'name and parent of provider {uuid}')
        _change_content(self, uuid, args)
        if not self.changes_made:
            raise Failure('nothing to change is named; see --help', Exit.USAGE)
        return f'provider {name} {self.verb("is")} changed'


class ProviderDelete(PlacementWrite):
    """Delete a provider that nothing is taken from and that has nothing below it."""

    arguments = (_PROVIDER_ARGUMENT,)

    def make_change(self, args: argparse.Namespace) -> str:
        provider = find_provider(self.placement, args.provider)
        self.placement.delete(_provider_path(provider['uuid']))
        return f'provider {provider["name"]} {self.verb("is")} deleted'
