# SPDX-License-Identifier: Apache-2.0
"""Selection of columns and rows, the same for all lists.

A column is named by its title in the table (``FREE CPU``, also ``free_cpu``), and shows what
the table shows; or by a key of the interface's objects (``name``, ``free.VCPU``,
``metadata.rack``), as ``-f json`` has them, and shows what is there.
"""

import argparse
import csv
import fnmatch
import functools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from gantt.cli import text
from gantt.cli.endpoint import Exit, Failure
from gantt.core.messages.near import did_you_mean, near

Row = dict[str, Any]
#: Rows that are read to collect their keys.
_LOOKED_AT = 1000
#: Columns that a refusal names.
_NAMED_MAX = 40
#: Quoting styles of csv, by the names that cliff has for them.
QUOTES: dict[str, Literal[0, 1, 2, 3]] = {
    'all': csv.QUOTE_ALL,
    'minimal': csv.QUOTE_MINIMAL,
    'none': csv.QUOTE_NONE,
    'nonnumeric': csv.QUOTE_NONNUMERIC,
}
#: Characters that the name of a shell's variable cannot have.
_NO_NAME = re.compile(r'[^A-Za-z0-9_]')
_DIGITS = re.compile(r'(\d+)')
_PAIR = re.compile(r'([^=!]+)(!?=)(.*)', re.DOTALL)


class Field(NamedTuple):
    """A chosen column.

    :ivar name: its name in the answer
    :ivar column: its column of the table
    :ivar value: returns the value of a row, for programs
    :ivar rank: returns the sort key of a row
    """

    name: str
    column: text.TextColumn
    value: Callable[[Row], Any]
    rank: Callable[[Row], Any]


class RowFilter(NamedTuple):
    """A filter ``KEY=VALUE`` or ``KEY!=VALUE``; the value may have ``*`` and ``?`` in it."""

    name: str
    equals: bool
    value: str


def arguments(parser: argparse.ArgumentParser, sort: str = '') -> None:
    """Declare the options.

    :param sort: more about the keys of ``--sort``
    """
    column_argument(parser, 'columns, in this order: titles of the table, or keys')
    parser.add_argument(
        '--filter',
        action='append',
        default=[],
        type=_filter,
        metavar='KEY=VALUE',
        help='only rows where this column is so; * and ? stand for any characters, != for all '
        'others, and KEY= for nothing there (may be repeated: all must hold)',
    )
    parser.add_argument(
        '--sort',
        '--sort-column',
        metavar='KEY',
        help=f'in the order of this column{sort} (default: as listed)',
    )
    parser.add_argument(
        '-r', '--reverse', '--sort-descending', action='store_true', help='the other way round'
    )
    parser.add_argument(
        '--sort-ascending', action='store_false', dest='reverse', help='the usual way round'
    )
    parser.add_argument(
        '--quote',
        choices=QUOTES,
        default='minimal',
        help='which values of csv stand in quotes (default: minimal)',
    )


def column_argument(parser: argparse.ArgumentParser, of: str) -> None:
    """Declare ``--columns``.  :param of: beginning of its help text"""
    parser.add_argument(
        '-c',
        '--columns',
        '--column',
        action='append',
        default=[],
        metavar='NAME[,NAME...]',
        help=f'only these {of} as -f json has them, such as name or free.VCPU (may be repeated)',
    )


def _filter(value: str) -> RowFilter:
    """Parse an argument of ``--filter``."""
    match = _PAIR.fullmatch(value)
    if match is None:
        raise argparse.ArgumentTypeError(f'expected KEY=VALUE or KEY!=VALUE, got {value!r}')
    return RowFilter(match[1].strip(), match[2] == '=', match[3])


def columns(
    names: Iterable[str], titles: Sequence[text.TextColumn], rows: Sequence[Row]
) -> list[Field]:
    """Return the columns of ``--columns``; none named: none.

    :raises Failure: there is no such column; names the known ones
    """
    chosen_names = [name.strip() for listed in names for name in listed.split(',') if name.strip()]
    return [find('--columns', name, titles, rows) for name in chosen_names] if chosen_names else []


def matching(
    filters: Sequence[RowFilter], titles: Sequence[text.TextColumn], rows: list[Row]
) -> list[Row]:
    """Return the rows that match all filters.  :raises Failure: as :func:`columns`"""
    for row_filter in filters:
        field = find('--filter', row_filter.name, titles, rows)
        holds = functools.partial(_holds, field, re.compile(fnmatch.translate(row_filter.value)))
        rows = [row for row in rows if holds(row) is row_filter.equals]
    return rows


def ordered(
    name: str, reverse: bool, titles: Sequence[text.TextColumn], rows: list[Row]
) -> list[Row]:
    """Sort rows by a column; rows without a value are last, in both directions.

    :raises Failure: as :func:`columns`
    """
    rank = find('--sort', name, titles, rows).rank
    full = [row for row in rows if rank(row) is not None]
    empty = [row for row in rows if rank(row) is None]
    return sorted(full, key=lambda row: _order(rank(row)), reverse=reverse) + empty


def find(option: str, name: str, titles: Sequence[text.TextColumn], rows: Sequence[Row]) -> Field:
    """Return a column by its title or its key; an exact match first, then case-insensitive."""
    fields = [_of_title(column, rows) for column in titles]
    fields += [_of_key(key) for key in _keys(rows)]
    for same in (str, _plain):
        for field in fields:
            if same(field.name) == same(name):
                return field
    if not rows:
        return _of_key(name)  # without rows the keys are not known
    known_names = [field.name for field in fields]
    meant = did_you_mean(near(name, known_names))
    shown = ', '.join(known_names[:_NAMED_MAX])
    more = f' and {len(known_names) - _NAMED_MAX} more' if len(known_names) > _NAMED_MAX else ''
    raise Failure(f'{option}: no column {name!r}{meant or ";"} known are {shown}{more}', Exit.USAGE)


def of_one(names: Iterable[str], data: Any) -> dict[str, Any]:
    """Return the facts of one object that ``--columns`` names.

    Of a nested fact the last part of its key is enough where it is the only one of that name:
    ``condition`` for ``host.condition``.

    :raises Failure: as :func:`columns`
    """
    row = data if isinstance(data, dict) else {'value': data}
    last: dict[str, list[str]] = {}
    for key in _keys([row]):
        last.setdefault(key.rpartition('.')[2], []).append(key)
    alone = {name: _dig(keys[0], row) for name, keys in last.items() if len(keys) == 1}
    row = {**alone, **row}
    return {field.name: field.value(row) for field in columns(names, (), [row])}


def flat(value: Any) -> str:
    """Return a value as text on one line; a nested one as JSON."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return 'true' if value else 'false'
    return '' if value is None else str(value)


def facts(form: str, data: dict[str, Any], width: int, prefix: str) -> list[str]:
    """Return the facts of one object, a line each, as cliff prints them.

    :param form: value | shell; else a table
    :param prefix: the prefix of the names of shell variables
    """
    texts = {name: flat(value) for name, value in data.items()}
    if form == 'value':
        return list(texts.values())
    if form == 'shell':
        return [
            f'{prefix}{_NO_NAME.sub("_", name)}={shlex.quote(value)}'
            for name, value in texts.items()
        ]
    titles = [
        text.TextColumn('FIELD', text.key('name')),
        text.TextColumn('VALUE', text.key('value'), least=20),
    ]
    rows = [{'name': name, 'value': value} for name, value in texts.items()]
    return text.table(titles, rows, width)


def _plain(name: str) -> str:
    return name.casefold().replace(' ', '_').replace('-', '_')


def _keys(rows: Sequence[Row]) -> list[str]:
    keys: dict[str, None] = {}
    for row in rows[:_LOOKED_AT]:
        for key, value in row.items():
            keys[key] = None
            if isinstance(value, dict):
                keys.update({f'{key}.{name}': None for name in value})
    return list(keys)


def _of_title(column: text.TextColumn, rows: Sequence[Row]) -> Field:
    rank = functools.partial(_dig, column.by) if column.by else _natural(column.show)
    return Field(column.title, column, column.show, rank)


def _of_key(key: str) -> Field:
    value = functools.partial(_dig, key)
    column = text.TextColumn(key.upper(), lambda row: flat(value(row)) or '-', least=12)
    return Field(key, column, value, value)


def _dig(key: str, row: Row) -> Any:
    if key in row:
        return row[key]
    first, _, rest = key.partition('.')
    inner = row.get(first)
    return inner.get(rest) if isinstance(inner, dict) else None


def _natural(show: Callable[[Row], str]) -> Callable[[Row], Any]:
    def rank(row: Row) -> str | None:
        shown = show(row)
        return None if shown in ('', '-') else shown

    return rank


def _order(value: Any) -> tuple[Any, ...]:
    """Return a sort key: numbers before texts, natural order in texts: cmp-9 before cmp-10."""
    if isinstance(value, (int, float)):
        return (0, value)
    parts = _DIGITS.split(flat(value).casefold())
    return (1, [(int(part), '') if part.isdecimal() else (-1, part) for part in parts])


def _holds(field: Field, pattern: re.Pattern[str], row: Row) -> bool:
    value = field.value(row)
    if isinstance(value, list):
        return any(pattern.match(flat(item)) for item in value or [''])
    shown = flat(value)
    return bool(pattern.match('' if shown == '-' else shown))
