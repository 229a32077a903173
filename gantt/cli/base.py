# SPDX-License-Identifier: Apache-2.0
"""Base classes of the commands: output forms, paging, writes with a dry run."""

import abc
import argparse
import functools
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from cliff import command

from gantt.cli import choosing, parsing, text
from gantt.cli.endpoint import Endpoint, Exit, Failure, OutputUnwritable, endpoint_of
from gantt.core.messages import quoting

PAGE_SIZE = 500
LISTED_ROWS_MAX = 100_000
#: Terminal sequence that clears the screen and moves to the top.
_CLEAR_SCREEN = '\x1b[H\x1b[2J'


#: Names and options of one argument, as argparse takes them.
Argument = tuple[tuple[str, ...], dict[str, Any]]


def arg(*names: str, **options: Any) -> Argument:
    """Return an argument of a command."""
    return names, options


class _PathParts(dict[str, str]):
    """Arguments by name, each as a part of a URL's path."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self._args = args

    def __missing__(self, name: str) -> str:
        return path_part(getattr(self._args, name))


class Base(command.Command):
    """A command.  Nothing is looked up among installed packages: starting is quick."""

    formats: Sequence[str] = ('text', 'json', 'yaml', 'value', 'shell', 'table')
    #: Arguments, each created by :func:`arg`.
    arguments: Sequence[Argument] = ()
    #: Path of the request; names in braces are those of arguments.
    path = ''
    #: Changes that the command has made, or may have, in case its answer cannot be read.
    changes_made: Sequence[str] = ()
    #: True where it can be printed repeatedly, with --watch.
    may_watch = False
    #: For OpenStackClient: log in first.
    auth_required = True

    def __init__(self, app: Any, app_args: Any, cmd_name: str | None = None) -> None:
        super().__init__(app, app_args)  # by the name it would look for hooks
        self.cmd_name = cmd_name

    def get_epilog(self) -> str:
        """Return no epilog."""
        return ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return a parser with the output form; subclasses extend it in :meth:`add_arguments`."""
        parser = parsing.Parser(
            description=self.get_description(),
            prog=prog_name,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument(
            '-f',
            '--format',
            dest='form',
            choices=self.formats,
            default=self.formats[0],
            help=f'how to print (default: {self.formats[0]}); json and yaml have every fact, '
            'under the keys of the HTTP interface',
        )
        parser.add_argument(
            '--noindent', action='store_true', help='json on one line, without indentation'
        )
        parser.set_defaults(columns=[])
        if 'shell' in self.formats:
            choosing.column_argument(parser, 'facts: keys')
            parser.add_argument(
                '--prefix',
                default='',
                type=parsing.shell_name,
                help='what each name of -f shell begins with',
            )
        if 'table' in self.formats:
            _table_arguments(parser)
        if 'csv' in self.formats:
            _csv_arguments(parser)
        if self.may_watch:
            parser.add_argument(
                '--watch',
                nargs='?',
                metavar='SECONDS',
                type=parsing.number(0.5, 3600),
                const=5.0,
                help='print it again and again, with so many seconds between (default: 5)',
            )
            parser.add_argument(
                '--for',
                dest='watch_seconds',
                metavar='SECONDS',
                type=parsing.number(0, 604_800),
                default=3600.0,
                help='with --watch: end after so long (default: 3600)',
            )
        self.add_arguments(parser)
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare arguments: those of :attr:`arguments`."""
        for names, options in self.arguments:
            parser.add_argument(*names, **options)

    def route(self, args: argparse.Namespace) -> str:
        """Return the path with the arguments.  :raises Failure: an argument leads outside of it"""
        return self.path.format_map(_PathParts(args))

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the query parameters."""
        return {}

    @functools.cached_property
    def endpoint(self) -> Endpoint:
        """The endpoint of the API.  :raises Failure:"""
        client = getattr(self.app, 'client_manager', None)
        if client is not None:  # of the command "openstack"
            return client.scheduler
        options = self.app.options
        return endpoint_of(options.endpoint, options.os_cloud, options.timeout)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command.

        :raises Failure: to be printed by ``gantt``; under ``openstack`` it is printed here
        """
        try:
            return self._run(parsed_args)
        except Failure as e:
            if getattr(parsed_args, 'form', '') == 'json' and e.error:
                # A program reads the refusal where it would have read the answer.
                self._print_json({'error': e.error})
            if not hasattr(self.app, 'client_manager'):
                raise
            for line in e.lines('openstack'):
                self.app.stderr.write(quoting.plain_text(line) + '\n')
            return e.exit_code

    def _run(self, parsed_args: argparse.Namespace) -> int:
        try:
            code = super().run(parsed_args)
            self.app.stdout.flush()
            if getattr(parsed_args, 'watch', None):
                code = self._watch(parsed_args)
        except BrokenPipeError:
            raise
        except OSError as e:
            # The change is made, but the user cannot read the answer.
            raise OutputUnwritable(
                f'the answer cannot be written: {e.strerror}', notes=self.changes_made
            ) from e
        return code

    def _watch(self, args: argparse.Namespace) -> int:
        """Print the result repeatedly, until the time is over or the user interrupts."""
        out, end = self.app.stdout, time.monotonic() + args.watch_seconds
        code: int = Exit.PLACED
        while (seconds_left := end - time.monotonic()) > 0:
            time.sleep(min(args.watch, seconds_left))
            out.write(_CLEAR_SCREEN if out.isatty() else '\n')
            code = super().run(args)
            out.flush()
        return code

    @property
    def width(self) -> int:
        """Width of the output, in characters."""
        return text.width_of(self.app.stdout)

    def _table_width(self, args: argparse.Namespace) -> int:
        return self.width if args.max_width is None else args.max_width or sys.maxsize

    def print_lines(self, *lines: str) -> None:
        """Print lines for people, with control characters escaped."""
        for line in lines:
            self.app.stdout.write(quoting.plain_text(line) + '\n')

    def _print_json(self, data: Any) -> None:
        self.app.stdout.write(json.dumps(data, ensure_ascii=False) + '\n')

    def show(self, args: argparse.Namespace, data: Any, lines: Sequence[str]) -> int:
        """Print ``data`` in a machine's form, or ``lines`` for people.

        :raises Failure: a requested column does not exist
        """
        chosen = choosing.picked_values(args.columns, data) if args.columns else data
        if args.form in ('json', 'yaml'):
            self.app.stdout.write(dump_data(args.form, chosen, args.noindent))
        elif args.form == 'text' and not args.columns:
            self.print_lines(*lines)
        else:
            facts = chosen if isinstance(chosen, dict) else {'value': chosen}
            self.print_lines(
                *choosing.fact_lines(args.form, facts, self._table_width(args), args.prefix)
            )
        return Exit.PLACED

    def show_rows(
        self,
        args: argparse.Namespace,
        rows: Sequence[dict[str, Any]],
        fields: Sequence[choosing.Field],
        header: bool = True,
    ) -> int:
        """Print columns of rows in a machine's form, or as a table."""
        if args.form in ('json', 'yaml'):
            data = [{field.name: field.value(row) for field in fields} for row in rows]
            self.app.stdout.write(dump_data(args.form, data, args.noindent))
            return Exit.PLACED
        values = [[field.value(row) for field in fields] for row in rows]
        if args.form == 'value':
            for line in values:
                cells = (quoting.plain_text(choosing.flat_text(value)) for value in line)
                self.app.stdout.write('\t'.join(cells) + '\n')
        elif args.form == 'csv':
            choosing.write_csv(
                self.app.stdout,
                [field.name for field in fields] if header and not args.no_header else None,
                values,
                args.quote,
            )
        elif args.form == 'shell':
            names = [field.name for field in fields]
            ends = [f'_{i}' for i in range(len(values))] if len(values) > 1 else ['']
            for end, line in zip(ends, values, strict=False):
                named = {f'{name}{end}': value for name, value in zip(names, line, strict=True)}
                self.print_lines(*choosing.fact_lines('shell', named, 0, args.prefix))
        else:
            columns = [field.column for field in fields]
            lines = text.table(columns, rows, self._table_width(args))
            self.print_lines(*lines[args.no_header :])
        return Exit.PLACED


class Show(Base):
    """One thing: what the interface answers, in lines for people."""

    @abc.abstractmethod
    def lines(self, answer: Any) -> list[str]:
        """Return the answer as lines for people."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        answer = self.endpoint.get(self.route(parsed_args), **self.query(parsed_args))
        return self.show(parsed_args, answer, self.lines(answer))


class Lister(Base):
    """A list: a table for people, the interface's objects for programs."""

    formats = ('table', 'json', 'yaml', 'csv', 'value')
    list_key = ''  # the key of the list in the answer
    columns: Sequence[text.TextColumn] = ()
    empty_message = 'nothing to show'
    #: Keys of --sort that the interface knows itself, for the help.
    sort_keys = ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add columns, filters, an order, and the bound on the number of rows."""
        parser = super().get_parser(prog_name)
        choosing.add_arguments(parser, self.sort_keys)
        limit = parser.add_mutually_exclusive_group()
        limit.add_argument(
            '--limit',
            type=parsing.whole_number(1, LISTED_ROWS_MAX),
            default=100,
            help=f'print at most so many (default: 100, at most {LISTED_ROWS_MAX})',
        )
        limit.add_argument(
            '--all',
            action='store_const',
            dest='limit',
            const=LISTED_ROWS_MAX,
            help='print all of them',
        )
        return parser

    def server_sorts(self, args: argparse.Namespace) -> bool:
        """Return whether the interface sorts in the requested order."""
        return not args.sort and not args.reverse

    def titles(self, rows: list[dict[str, Any]]) -> Sequence[text.TextColumn]:
        """Return the columns of a table of these rows."""
        return self.columns

    def note(self, row: dict[str, Any]) -> str:
        """Return a further line below a row, empty for none."""
        return ''

    def footer(self, rows: list[dict[str, Any]], last: dict[str, Any], more: bool) -> str:
        """Return a line below the table, or several; empty for none."""
        return f'{len(rows)} shown, there are more: --limit N, or --all' if more else ''

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch page by page and print."""
        args = parsed_args
        # Order and filters need all rows.
        is_whole = bool(args.filter) or not self.server_sorts(args)
        fetched_rows, last, more = self.fetch(args, LISTED_ROWS_MAX if is_whole else args.limit)
        rows = choosing.matching(args.filter, self.columns, fetched_rows)
        if not self.server_sorts(args):
            if args.sort:
                rows = choosing.ordered(args.sort, args.reverse, self.columns, rows)
            else:
                rows.reverse()
        more |= len(rows) > args.limit
        rows = rows[: args.limit]
        fields = choosing.columns(args.columns, self.columns, rows)
        if args.form == 'table':
            self.print_lines(*self._table(args, rows, fields, last, more))
        elif fields:
            self.show_rows(args, rows, fields)
        elif args.form in ('json', 'yaml'):
            self.app.stdout.write(dump_data(args.form, rows, args.noindent))
        elif rows or args.form == 'csv':
            keys = fetched_rows[0] if fetched_rows else self.keys()
            self.show_rows(args, rows, [choosing.field_of_key(key) for key in keys])
        return Exit.PLACED

    def fetch(
        self, args: argparse.Namespace, most: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        """Return the rows, the last answer, and whether there are more."""
        rows: list[dict[str, Any]] = []
        marker: str | None = None
        last: dict[str, Any] = {}
        endpoint, query = self.endpoint, self.query(args)
        while len(rows) < most:
            last = endpoint.get(
                self.path, limit=min(PAGE_SIZE, most - len(rows)), marker=marker, **query
            )
            rows.extend(last[self.list_key])
            marker = last['next_marker']
            if marker is None:
                break
        return rows, last, marker is not None

    def _table(
        self,
        args: argparse.Namespace,
        rows: list[dict[str, Any]],
        fields: Sequence[choosing.Field],
        last: Any,
        more: bool,
    ) -> list[str]:
        if not rows and not args.print_empty:
            return [self.empty_message]
        columns = [field.column for field in fields] or self.titles(rows)
        lines = text.table(columns, rows, self._table_width(args), None if fields else self.note)
        if args.no_header:
            return lines[1:]
        footer = self.footer(rows, last, more)
        return [*lines, *footer.splitlines()]

    def keys(self) -> Sequence[str]:
        """Return the keys of the rows, which are not known from rows where there are none."""
        return keys_of(self.endpoint, self.path, self.list_key)


def keys_of(endpoint: Endpoint, path: str, list_key: str) -> list[str]:
    """Return the keys of the objects of a list, as the interface describes itself.

    :param list_key: the key of the list in the answer
    """
    document = endpoint.get('/v1/openapi.json')

    def resolved(schema: dict[str, Any]) -> dict[str, Any]:
        name = schema.get('$ref', '').rpartition('/')[2]
        return document['components']['schemas'][name] if name else schema

    content = document['paths'][path]['get']['responses']['200']['content']
    answer = resolved(content['application/json']['schema'])
    return list(resolved(answer['properties'][list_key]['items'])['properties'])


def with_dry_run(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return a parser with the option of a dry run, for a command that writes."""
    parser.add_argument(
        '--dry-run', action='store_true', help='change nothing, only say what would happen'
    )
    return parser


class Write(Base):
    """A change: says in one sentence what was done, or with --dry-run would be."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option of a dry run."""
        return with_dry_run(super().get_parser(prog_name))

    method = 'PUT'

    def body(self, args: argparse.Namespace) -> Any:
        """Return the body of the request; None: no body."""
        return None

    def change(self, args: argparse.Namespace) -> dict[str, Any]:
        """Send the change, and return the Change in the answer."""
        query = {**self.query(args), 'dry_run': args.dry_run}
        result: dict[str, Any] = self.endpoint.call(
            self.method, self.route(args), query, self.body(args)
        )
        return result

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Send the change and print the result."""
        result = self.change(parsed_args)
        self.changes_made = [result['message']]
        problem = f'dry run: {result["message"]}' if result['dry_run'] else result['message']
        return self.show(parsed_args, result, [problem])


def _table_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how wide a table is, and whether one is printed without rows, as cliff does."""
    width = parser.add_mutually_exclusive_group()
    width.add_argument(
        '--max-width',
        type=parsing.whole_number(0, 10_000),
        metavar='CHARACTERS',
        help='how wide a table may be, 0: as wide as it gets (default: as the terminal)',
    )
    width.add_argument(
        '--fit-width', action='store_const', dest='max_width', const=None, help='the default'
    )
    parser.add_argument(
        '--print-empty', action='store_true', help='the header of a table without rows as well'
    )


def _csv_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the header of csv and of tables, and the quotes of csv."""
    parser.add_argument(
        '--quote',
        choices=choosing.CSV_QUOTING,
        default='minimal',
        help='which values of csv stand in quotes (default: minimal)',
    )
    parser.add_argument(
        '--no-header', action='store_true', help='only the rows of the table, or of csv'
    )


def dump_data(form: str, data: Any, on_one_line: bool = False) -> str:
    """Return ``data`` as ``json`` or ``yaml``, with a newline at its end."""
    if form == 'json':
        return json.dumps(data, indent=None if on_one_line else 2, ensure_ascii=False) + '\n'
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def path_part(value: str) -> str:
    """Quote a name as a part of a URL's path.

    :raises Failure: it leads to another path
    """
    from urllib.parse import quote

    if value in ('', '.', '..'):
        raise Failure(f'expected a name or an id, got {value!r}', Exit.USAGE)
    try:
        return quote(value, safe='')
    except UnicodeError:
        raise Failure(f'expected a name or an id in UTF-8, got {value!r}', Exit.USAGE) from None
