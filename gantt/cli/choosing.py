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
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TextIO

from gantt.cli import text
from gantt.cli.endpoint import Exit, Failure
from gantt.core.messages.near import did_you_mean, nearest_names

Row = dict[str, Any]
#: Rows that are read to collect their keys.
_KEY_ROWS_MAX = 1000
#: Columns that a refusal names.
_NAMES_SHOWN_MAX = 40
#: Quoting styles of csv, by the names that cliff has for them.
CSV_QUOTING: dict[str, Literal[0, 1, 2, 3]] = {
    'all': csv.QUOTE_ALL,
    'minimal': csv.QUOTE_MINIMAL,
    'none': csv.QUOTE_NONE,
    'nonnumeric': csv.QUOTE_NONNUMERIC,
}
#: Characters that the name of a shell's variable cannot have.
_NOT_IN_NAMES = re.compile(r'[^A-Za-z0-9_]')
_DIGITS = re.compile(r'(\d+)')
_FILTER_FORM = re.compile(r'([^=!]+)(!?=)(.*)', re.DOTALL)


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


def add_arguments(parser: argparse.ArgumentParser, sort: str = '') -> None:
    """Declare the options.

    :param sort: more about the keys of ``--sort``
    """
    column_argument(parser, 'columns, in this order: titles of the table, or keys')
    filter_argument(parser)
    parser.add_argument(
        '--sort',
        '--sort-column',
        action='append',
        default=[],
        metavar='KEY',
        help=f'in the order of this column{sort} (default: as listed; may be repeated: a later '
        'one decides where the earlier ones are equal)',
    )
    parser.add_argument(
        '-r', '--reverse', '--sort-descending', action='store_true', help='the other way round'
    )
    parser.add_argument(
        '--sort-ascending', action='store_false', dest='reverse', help='the usual way round'
    )


def filter_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--filter``."""
    parser.add_argument(
        '--filter',
        action='append',
        default=[],
        type=_parse_filter,
        metavar='KEY=VALUE',
        help='only rows where this column is so; * and ? stand for any characters, != for all '
        'others, and KEY= for nothing there (may be repeated: all must hold)',
    )


def column_argument(parser: argparse.ArgumentParser, of: str) -> None:
    """Declare ``--columns``.  :param of: the beginning of the option's help text"""
    parser.add_argument(
        '-c',
        '--columns',
        '--column',
        action='append',
        default=[],
        metavar='NAME[,NAME...]',
        help=f'only these {of} as -f json has them, such as name or free.VCPU (may be repeated)',
    )


def _parse_filter(value: str) -> RowFilter:
    """Parse an argument of ``--filter``."""
    match = _FILTER_FORM.fullmatch(value)
    if match is None:
        raise argparse.ArgumentTypeError(f'expected KEY=VALUE or KEY!=VALUE, got {value!r}')
    return RowFilter(match[1].strip(), match[2] == '=', match[3])


def split_names(names: Iterable[str]) -> list[str]:
    """Return the names in values of ``--columns``."""
    return [name.strip() for listed in names for name in listed.split(',') if name.strip()]


def columns(
    names: Iterable[str], titles: Sequence[text.TextColumn], rows: Sequence[Row]
) -> list[Field]:
    """Return the columns of ``--columns``; none named: none.

    :raises Failure: there is no such column; names the known ones
    """
    return [find_field('--columns', name, titles, rows) for name in split_names(names)]


def columns_of(names: Iterable[str], keys: Sequence[str]) -> list[Field]:
    """Return the columns of ``--columns``, before there is a row; none named: all keys.

    :param keys: the keys of the rows to come; what is nested in them is not known yet
    :raises Failure: as :func:`columns`
    """
    example = [dict.fromkeys(keys)]
    return [
        field_of_key(name)
        if '.' in name and name.partition('.')[0] in keys
        else find_field('--columns', name, (), example)
        for name in split_names(names) or keys
    ]


def matching(
    filters: Sequence[RowFilter], titles: Sequence[text.TextColumn], rows: list[Row]
) -> list[Row]:
    """Return the rows that match all filters.  :raises Failure: as :func:`columns`"""
    for row_filter in filters:
        field = find_field('--filter', row_filter.name, titles, rows)
        holds = functools.partial(_matches, field, re.compile(fnmatch.translate(row_filter.value)))
        rows = [row for row in rows if holds(row) is row_filter.equals]
    return rows


def ordered(
    names: Sequence[str], reverse: bool, titles: Sequence[text.TextColumn], rows: list[Row]
) -> list[Row]:
    """Sort rows by columns; rows without a value are last, in both directions.

    :param names: columns to sort by; a later column decides where the earlier ones are equal
    :raises Failure: as :func:`columns`
    """
    ranks = [find_field('--sort', name, titles, rows).rank for name in names]
    for rank in reversed(ranks):
        ranked = [(rank(row), row) for row in rows]
        full = [(_sort_key(value), row) for value, row in ranked if value is not None]
        full.sort(key=operator.itemgetter(0), reverse=reverse)
        rows = [row for _, row in full] + [row for value, row in ranked if value is None]
    return rows


def find_field(
    option: str, name: str, titles: Sequence[text.TextColumn], rows: Sequence[Row]
) -> Field:
    """Return a column by its title or its key; an exact match first, then case-insensitive."""
    fields = [field_of_title(column, rows) for column in titles]
    fields += [field_of_key(key) for key in _row_keys(rows)]
    for same in (str, _plain_name):
        for field in fields:
            if same(field.name) == same(name):
                return field
    if not rows:
        return field_of_key(name)  # without rows the keys are not known
    known_names = [field.name for field in fields]
    meant = did_you_mean(nearest_names(name, known_names))
    shown = ', '.join(known_names[:_NAMES_SHOWN_MAX])
    more = (
        f' and {len(known_names) - _NAMES_SHOWN_MAX} more'
        if len(known_names) > _NAMES_SHOWN_MAX
        else ''
    )
    raise Failure(f'{option}: no column {name!r}{meant or ";"} known are {shown}{more}', Exit.USAGE)


def picked_values(names: Iterable[str], data: Any) -> dict[str, Any]:
    """Return the facts of one object that ``--columns`` names.

    Of a nested fact the last part of its key is enough where it is the only one of that name:
    ``condition`` for ``host.condition``.

    :raises Failure: as :func:`columns`
    """
    row = data if isinstance(data, dict) else {'value': data}
    # By the last part of the key: the least nested ones.
    last: dict[str, list[str]] = {}
    for key in sorted(_row_keys([row]), key=lambda key: key.count('.')):
        same = last.setdefault(key.rpartition('.')[2], [])
        if not same or same[0].count('.') == key.count('.'):
            same.append(key)
    unique = {name: _value_at(keys[0], row) for name, keys in last.items() if len(keys) == 1}
    row = {**unique, **row}
    return {field.name: field.value(row) for field in columns(names, (), [row])}


def flat_text(value: Any) -> str:
    """Return a value as text on one line; a nested one as JSON."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return 'true' if value else 'false'
    return '' if value is None else str(value)


def fact_lines(form: str, data: dict[str, Any], width: int, prefix: str) -> list[str]:
    """Return the facts of one object, a line each, as cliff prints them.

    :param form: value | shell; else a table
    :param prefix: the prefix of the names of shell variables
    """
    texts = {name: flat_text(value) for name, value in data.items()}
    if form == 'value':
        return list(texts.values())
    if form == 'shell':
        return [
            f'{_shell_name(prefix + name)}={shlex.quote(value)}' for name, value in texts.items()
        ]
    titles = [
        text.TextColumn('FIELD', text.value_of_key('name')),
        text.TextColumn('VALUE', text.value_of_key('value'), min_width=20),
    ]
    rows = [{'name': name, 'value': value} for name, value in texts.items()]
    return text.table(titles, rows, width)


def write_csv(
    out: TextIO, header: Sequence[str] | None, values: Iterable[Sequence[Any]], quote: str
) -> None:
    """Write rows as csv.

    :param quote: a name of :data:`CSV_QUOTING`
    """
    writer = csv.writer(out, quoting=CSV_QUOTING[quote], escapechar='\\')
    if header is not None:
        writer.writerow(header)
    writer.writerows(
        [value if isinstance(value, int | float) else flat_text(value) for value in line]
        for line in values
    )


def _shell_name(name: str) -> str:
    """Return the name of a fact as that of a shell's variable, which begins with no digit."""
    name = _NOT_IN_NAMES.sub('_', name)
    return f'_{name}' if not name or name[0].isdigit() else name


def _plain_name(name: str) -> str:
    return name.casefold().replace(' ', '_').replace('-', '_').replace(':', '.')


def _row_keys(rows: Sequence[Row]) -> list[str]:
    keys: dict[str, None] = {}
    for row in rows[:_KEY_ROWS_MAX]:
        keys.update(dict.fromkeys(_nested_keys(row)))
    return list(keys)


def _nested_keys(row: Row, prefix: str = '') -> Iterator[str]:
    for key, value in row.items():
        yield f'{prefix}{key}'
        if isinstance(value, dict):
            yield from _nested_keys(value, f'{prefix}{key}.')


def field_of_title(column: text.TextColumn, rows: Sequence[Row]) -> Field:
    rank = (
        functools.partial(_value_at, column.sort_key)
        if column.sort_key
        else _natural_key(column.show)
    )
    return Field(column.title, column, column.show, rank)


def field_of_key(key: str) -> Field:
    """Return the column of a key of the interface's objects."""
    value = functools.partial(_value_at, key)
    column = text.TextColumn(key.upper(), lambda row: flat_text(value(row)) or '-', min_width=12)
    return Field(key, column, value, value)


def _value_at(key: str, row: Row) -> Any:
    if key in row:
        return row[key]
    parts = key.split('.')
    for i in range(1, len(parts)):  # a key may have a dot itself
        inner = row.get('.'.join(parts[:i]))
        if isinstance(inner, dict) and (value := _value_at('.'.join(parts[i:]), inner)) is not None:
            return value
    return None


def _natural_key(show: Callable[[Row], str]) -> Callable[[Row], Any]:
    def rank(row: Row) -> str | None:
        shown = show(row)
        return None if shown in ('', '-') else shown

    return rank


def _sort_key(value: Any) -> tuple[Any, ...]:
    """Return a sort key: numbers before texts, natural order in texts: cmp-9 before cmp-10."""
    if isinstance(value, (int, float)):
        return (0, value)
    parts = _DIGITS.split(flat_text(value).casefold())
    return (1, [(int(part), '') if part.isdecimal() else (-1, part) for part in parts])


def _matches(field: Field, pattern: re.Pattern[str], row: Row) -> bool:
    value = field.value(row)
    if isinstance(value, list):
        return any(pattern.match(flat_text(item)) for item in value or [''])
    shown = flat_text(value)
    return bool(pattern.match('' if shown == '-' else shown))
