# SPDX-License-Identifier: Apache-2.0
"""Base classes of the commands: output forms, paging, writes with a dry run."""

import abc
import argparse
import csv
import functools
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from cliff import command

from gantt.cli import choosing, login, text
from gantt.cli.endpoint import Endpoint, Exit, Failure, Unwritable
from gantt.core.messages import quoting
from gantt.core.messages.near import did_you_mean, near
from gantt.core.messages.resource_classes import MILLI, MILLI_VCPU

PAGE = 500
#: Colloquial name of a resource -> the argument of ``--resource``.
_RESOURCES = {
    'vcpu': 'VCPU=2',
    'cpu': 'VCPU=2',
    'core': 'VCPU=2',
    'pcpu': 'PCPU=2',
    'ram': 'MEMORY_MB=4096',
    'memory': 'MEMORY_MB=4096',
    'memory-mb': 'MEMORY_MB=4096',
    'disk': 'DISK_GB=20',
    'disk-gb': 'DISK_GB=20',
}
ROWS_MAX = 100_000
#: Terminal sequence that clears the screen and moves to the top.
_CLEAR = '\x1b[H\x1b[2J'


class Parser(argparse.ArgumentParser):
    """A parser whose exit code for wrong usage is not 2, which is no valid host."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f'{self.prog}: error: {message}\n')

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; an unknown one is an error that suggests a known one."""
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest))
        return parsed

    def _unknown(self, rest: Sequence[str]) -> str:
        options = [argument.partition('=')[0] for argument in rest if argument.startswith('-')]
        if not options:
            return f'{rest[0]!r} is one argument too many'
        known_options = self._option_string_actions
        problem = f'there is no option {options[0]}'
        resource = _RESOURCES.get(options[0].strip('-').lower().removesuffix('s'))
        if resource is not None and '--resource' in known_options:
            return f'{problem}; say --resource {resource}'
        return f'{problem}{did_you_mean(near(options[0], known_options)) or "; see --help"}'


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

    forms: Sequence[str] = ('text', 'json', 'yaml', 'value', 'shell', 'table')
    #: Arguments, each created by :func:`arg`.
    takes: Sequence[Argument] = ()
    #: Path of the request; names in braces are those of arguments.
    path = ''
    #: Changes that the command has made, or may have, in case its answer cannot be read.
    made: Sequence[str] = ()
    #: True where it can be printed repeatedly, with --watch.
    may_watch = False
    #: For OpenStackClient: log in first.
    auth_required = True

    def _load_hooks(self) -> None:
        self._hooks = []

    def get_epilog(self) -> str:
        """Return no epilog."""
        return ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return a parser with the output form; subclasses extend it in :meth:`arguments`."""
        parser = Parser(
            description=self.get_description(),
            prog=prog_name,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument(
            '-f',
            '--format',
            dest='form',
            choices=self.forms,
            default=self.forms[0],
            help=f'how to print (default: {self.forms[0]}); json and yaml have every fact, '
            'under the keys of the HTTP interface',
        )
        parser.add_argument(
            '--noindent', action='store_true', help='json on one line, without indentation'
        )
        parser.set_defaults(columns=[])
        if 'shell' in self.forms:
            choosing.column_argument(parser, 'facts: keys')
            parser.add_argument(
                '--prefix', default='', help='what each name of -f shell begins with'
            )
        if 'table' in self.forms:
            _table_arguments(parser)
        if self.may_watch:
            parser.add_argument(
                '--watch',
                nargs='?',
                metavar='SECONDS',
                type=number(0.5, 3600),
                const=5.0,
                help='print it again and again, with so many seconds between (default: 5)',
            )
            parser.add_argument(
                '--for',
                dest='watch_seconds',
                metavar='SECONDS',
                type=number(0, 604_800),
                default=3600.0,
                help='with --watch: end after so long (default: 3600)',
            )
        self.arguments(parser)
        return parser

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare arguments: those of :attr:`takes`."""
        for names, options in self.takes:
            parser.add_argument(*names, **options)

    def route(self, args: argparse.Namespace) -> str:
        """Return the path with the arguments.  :raises Failure: one leads to another path"""
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
        return login.endpoint_of(options.endpoint, options.os_cloud, options.timeout)

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command.

        :raises Failure: to be printed by ``gantt``; under ``openstack`` it is printed here
        """
        try:
            return self._run(parsed_args)
        except Failure as e:
            if getattr(parsed_args, 'form', '') == 'json' and e.error:
                # A program reads the refusal where it would have read the answer.
                self._say_json({'error': e.error})
            if not hasattr(self.app, 'client_manager'):
                raise
            for line in e.lines('openstack'):
                self.app.stderr.write(quoting.plain(line) + '\n')
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
            raise Unwritable(f'the answer cannot be written: {e.strerror}', notes=self.made) from e
        return code

    def _watch(self, args: argparse.Namespace) -> int:
        """Print the result repeatedly, until the time is over or the user interrupts."""
        out, end = self.app.stdout, time.monotonic() + args.watch_seconds
        code: int = Exit.PLACED
        while (seconds_left := end - time.monotonic()) > 0:
            time.sleep(min(args.watch, seconds_left))
            out.write(_CLEAR if out.isatty() else '\n')
            code = super().run(args)
            out.flush()
        return code

    @property
    def width(self) -> int:
        """Width of the output, in characters."""
        return text.width_of(self.app.stdout)

    def _table_width(self, args: argparse.Namespace) -> int:
        return self.width if args.max_width is None else args.max_width or sys.maxsize

    def say(self, *lines: str) -> None:
        """Print lines for people, with control characters escaped."""
        for line in lines:
            self.app.stdout.write(quoting.plain(line) + '\n')

    def _say_json(self, data: Any) -> None:
        self.app.stdout.write(json.dumps(data, ensure_ascii=False) + '\n')

    def show(self, args: argparse.Namespace, data: Any, lines: Sequence[str]) -> int:
        """Print ``data`` in a machine's form, or ``lines`` for people.

        :raises Failure: a requested column does not exist
        """
        chosen = choosing.of_one(args.columns, data) if args.columns else data
        if args.form in ('json', 'yaml'):
            self.app.stdout.write(dumped(args.form, chosen, args.noindent))
        elif args.form == 'text' and not args.columns:
            self.say(*lines)
        else:
            facts = chosen if isinstance(chosen, dict) else {'value': chosen}
            self.say(*choosing.facts(args.form, facts, self._table_width(args), args.prefix))
        return Exit.PLACED


class Show(Base):
    """One thing: what the interface answers, in lines for people."""

    @abc.abstractmethod
    def lines(self, found: Any) -> list[str]:
        """Return the answer as lines for people."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        answer = self.endpoint.get(self.route(parsed_args), **self.query(parsed_args))
        return self.show(parsed_args, answer, self.lines(answer))


class Lister(Base):
    """A list: a table for people, the interface's objects for programs."""

    forms = ('table', 'json', 'yaml', 'csv', 'value')
    member = ''  # the key of the list in the answer
    columns: Sequence[text.TextColumn] = ()
    nothing = 'nothing to show'
    #: Keys of --sort that the interface knows itself, for the help.
    sort_keys = ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add columns, filters, an order, and the bound on the number of rows."""
        parser = super().get_parser(prog_name)
        choosing.arguments(parser, self.sort_keys)
        limit = parser.add_mutually_exclusive_group()
        limit.add_argument(
            '--limit',
            type=whole_number(1, ROWS_MAX),
            default=100,
            help=f'print at most so many (default: 100, at most {ROWS_MAX})',
        )
        limit.add_argument(
            '--all', action='store_const', dest='limit', const=ROWS_MAX, help='print all of them'
        )
        parser.add_argument(
            '--no-header', action='store_true', help='only the rows of the table, or of csv'
        )
        return parser

    def sorts_itself(self, args: argparse.Namespace) -> bool:
        """Return whether the interface sorts in the requested order."""
        return not args.sort and not args.reverse

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
        is_whole = bool(args.filter) or not self.sorts_itself(args)
        rows, last, more = self.fetch(args, ROWS_MAX if is_whole else args.limit)
        rows = choosing.matching(args.filter, self.columns, rows)
        if not self.sorts_itself(args):
            if args.sort:
                rows = choosing.ordered(args.sort, args.reverse, self.columns, rows)
            else:
                rows.reverse()
        more |= len(rows) > args.limit
        rows = rows[: args.limit]
        fields = choosing.columns(args.columns, self.columns, rows)
        if args.form in ('csv', 'value'):
            return self._plain(args, rows, fields)
        if args.form == 'table':
            self.say(*self._table(args, rows, fields, last, more))
        else:
            data = (
                [{field.name: field.value(row) for field in fields} for row in rows]
                if fields
                else rows
            )
            self.app.stdout.write(dumped(args.form, data, args.noindent))
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
                self.path, limit=min(PAGE, most - len(rows)), marker=marker, **query
            )
            rows.extend(last[self.member])
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
            return [self.nothing]
        columns = [field.column for field in fields] or self.columns
        lines = text.table(columns, rows, self._table_width(args), None if fields else self.note)
        if args.no_header:
            return lines[1:]
        footer = self.footer(rows, last, more)
        return [*lines, *footer.splitlines()]

    def _plain(
        self, args: argparse.Namespace, rows: list[dict[str, Any]], fields: list[choosing.Field]
    ) -> int:
        """Print rows for programs: csv with a header, or tab-separated values."""
        names = [field.name for field in fields] or (list(rows[0]) if rows else [])
        values = [
            [
                value if isinstance(value, int | float) else choosing.flat(value)
                for value in (
                    [field.value(row) for field in fields] or [row[name] for name in names]
                )
            ]
            for row in rows
        ]
        if args.form == 'value':
            for line in values:
                cells = (quoting.plain(choosing.flat(value)) for value in line)
                self.app.stdout.write('\t'.join(cells) + '\n')
            return Exit.PLACED
        writer = csv.writer(self.app.stdout, quoting=choosing.QUOTES[args.quote], escapechar='\\')
        writer.writerows(values if args.no_header else [names, *values])
        return Exit.PLACED


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
        self.made = [result['message']]
        problem = f'dry run: {result["message"]}' if result['dry_run'] else result['message']
        return self.show(parsed_args, result, [problem])


def _table_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how wide a table is, and whether one is printed without rows, as cliff does."""
    width = parser.add_mutually_exclusive_group()
    width.add_argument(
        '--max-width',
        type=whole_number(0, 10_000),
        metavar='CHARACTERS',
        help='how wide a table may be, 0: as wide as it gets (default: as the terminal)',
    )
    width.add_argument(
        '--fit-width', action='store_const', dest='max_width', const=None, help='the default'
    )
    parser.add_argument(
        '--print-empty', action='store_true', help='the header of a table without rows as well'
    )


def dumped(form: str, data: Any, on_one_line: bool = False) -> str:
    """Return ``data`` as ``json`` or ``yaml``, with a newline at its end."""
    if form == 'json':
        return json.dumps(data, indent=None if on_one_line else 2, ensure_ascii=False) + '\n'
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def whole_number(least: int, most: int) -> Any:
    """Return an argument type: a whole number within bounds."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f'expected a whole number from {least} to {most}, got {value!r}'
            )
        return number

    return parse


def number(least: float, most: float, *, above: bool = False) -> Any:
    """Return an argument type: a number within bounds.

    :param above: exclude ``least`` itself
    """
    bounds = f'above {least:g}, at most {most:g}' if above else f'from {least:g} to {most:g}'

    def parse(value: str) -> float:
        try:
            result = float(value)
        except ValueError:
            result = math.nan
        if not (least < result if above else least <= result) or not result <= most:
            raise argparse.ArgumentTypeError(f'expected a number {bounds}, got {value!r}')
        return result

    return parse


#: An argument type: any number that JSON has.
any_number = number(-sys.float_info.max, sys.float_info.max)


def resource(value: str) -> tuple[str, int]:
    """Parse an argument such as ``VCPU=2``."""
    name, equals, number = value.partition('=')
    if name == 'VCPU' and re.fullmatch(r'\d{1,9}\.\d{1,3}', number) and float(number):
        thousandths = round(float(number) * MILLI)
        raise argparse.ArgumentTypeError(
            f'a part of a processor is asked for in thousandths: {MILLI_VCPU}={thousandths}; '
            f'got {value!r}'
        )
    if not (equals and name and number.isdecimal() and len(number) < 20 and int(number) > 0):
        raise argparse.ArgumentTypeError(
            f'expected CLASS=AMOUNT with a whole number above 0, such as VCPU=2 '
            f'or MEMORY_MB=4096; got {value!r}'
        )
    return name, int(number)


def devices(value: str) -> dict[str, Any]:
    """Parse an argument such as ``VGPU=500x2``, ``PGPU=whole`` or ``PGPU=wholex4``."""
    name, _, rest = value.partition('=')
    amount, times, count = rest.partition('x')
    numbers = [amount] * (amount != 'whole') + [count] * bool(times)
    if not name or not all(
        digits.isdecimal() and len(digits) < 20 and int(digits) > 0 for digits in numbers
    ):
        raise argparse.ArgumentTypeError(
            f'expected CLASS=AMOUNT, CLASS=AMOUNTxCOUNT or CLASS=whole with whole numbers above 0, '
            f'such as VGPU=500x2; got {value!r}'
        )
    group: dict[str, Any] = {'resource_class': name}
    if amount == 'whole':
        group['whole'] = True
    else:
        group['amount'] = int(amount)
    if count:
        group['count'] = int(count)
    return group


def hint(value: str) -> tuple[str, str]:
    """Parse an argument ``NAME=VALUE``."""
    name, equals, rest = value.partition('=')
    if not (equals and name and rest):
        raise argparse.ArgumentTypeError(
            f'expected NAME=VALUE, such as location=site1.room2; got {value!r}'
        )
    return name, rest


def pair(value: str) -> tuple[str, str | None]:
    """Parse an argument ``key=value``; ``key=`` removes the key."""
    name, equals, rest = value.partition('=')
    if not (equals and name):
        raise argparse.ArgumentTypeError(f'expected KEY=VALUE, got {value!r}')
    return name, rest or None


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
