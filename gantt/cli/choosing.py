# SPDX-License-Identifier: Apache-2.0
"""Which columns and which rows of a list: one way for all lists.

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
#: Rows that are looked at for the keys that there are.
_LOOKED_AT = 1000
#: Columns that a refusal names.
_NAMED_MAX = 40
#: How csv quotes, by the names that cliff has for it.
QUOTES: dict[str, Literal[0, 1, 2, 3]] = {
    'all': csv.QUOTE_ALL,
    'minimal': csv.QUOTE_MINIMAL,
    'none': csv.QUOTE_NONE,
    'nonnumeric': csv.QUOTE_NONNUMERIC,
}
#: What the name of a shell's variable cannot have in it.
_NO_NAME = re.compile(r'[^A-Za-z0-9_]')
_DIGITS = re.compile(r'(\d+)')
_PAIR = re.compile(r'([^=!]+)(!?=)(.*)', re.DOTALL)


class Field(NamedTuple):
    """A column that somebody chose.

    :ivar name: as it is called in the answer
    :ivar column: of the table
    :ivar value: of a row, for programs
    :ivar rank: of a row, in an order
    """

    name: str
    column: text.TextColumn
    value: Callable[[Row], Any]
    rank: Callable[[Row], Any]


class RowFilter(NamedTuple):
    """``KEY=VALUE``, or ``KEY!=VALUE``; the value may have ``*`` and ``?`` in it."""

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
    """Declare ``--columns``.  :param of: begins what may be named"""
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
    """An argument type."""
    found = _PAIR.fullmatch(value)
    if found is None:
        raise argparse.ArgumentTypeError(f'expected KEY=VALUE or KEY!=VALUE, got {value!r}')
    return RowFilter(found[1].strip(), found[2] == '=', found[3])


def columns(
    names: Iterable[str], titles: Sequence[text.TextColumn], rows: Sequence[Row]
) -> list[Field]:
    """The columns of ``--columns``; none named: none.

    :raises Failure: there is no such column; names those that there are
    """
    wanted = [name.strip() for some in names for name in some.split(',') if name.strip()]
    return [find('--columns', name, titles, rows) for name in wanted] if wanted else []


def matching(
    filters: Sequence[RowFilter], titles: Sequence[text.TextColumn], rows: list[Row]
) -> list[Row]:
    """The rows for which every filter holds.  :raises Failure: as :func:`columns`"""
    for one in filters:
        field = find('--filter', one.name, titles, rows)
        holds = functools.partial(_holds, field, re.compile(fnmatch.translate(one.value)))
        rows = [row for row in rows if holds(row) is one.equals]
    return rows


def ordered(
    name: str, reverse: bool, titles: Sequence[text.TextColumn], rows: list[Row]
) -> list[Row]:
    """The rows in the order of a column; those with nothing there are last, either way round.

    :raises Failure: as :func:`columns`
    """
    rank = find('--sort', name, titles, rows).rank
    full = [row for row in rows if rank(row) is not None]
    empty = [row for row in rows if rank(row) is None]
    return sorted(full, key=lambda row: _order(rank(row)), reverse=reverse) + empty


def find(option: str, name: str, titles: Sequence[text.TextColumn], rows: Sequence[Row]) -> Field:
    """A column by its title or its key; as it is written first, then whatever its capitals."""
    fields = [_of_title(column, rows) for column in titles]
    fields += [_of_key(key) for key in _keys(rows)]
    for same in (str, _plain):
        for field in fields:
            if same(field.name) == same(name):
                return field
    if not rows:
        return _of_key(name)  # whether there is such a key, no row says
    known = [field.name for field in fields]
    meant = did_you_mean(near(name, known))
    shown = ', '.join(known[:_NAMED_MAX])
    more = f' and {len(known) - _NAMED_MAX} more' if len(known) > _NAMED_MAX else ''
    raise Failure(f'{option}: no column {name!r}{meant or ";"} known are {shown}{more}', Exit.USAGE)


def of_one(names: Iterable[str], data: Any) -> dict[str, Any]:
    """The facts of one thing that ``--columns`` names.

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
    """A value as text on one line: what is nested, as JSON."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return 'true' if value else 'false'
    return '' if value is None else str(value)


def facts(form: str, data: dict[str, Any], width: int, prefix: str) -> list[str]:
    """The facts of one thing, a line each, as cliff prints them.

    :param form: value | shell; else a table
    :param prefix: what each name of a shell's variable begins with
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
    found: dict[str, None] = {}
    for row in rows[:_LOOKED_AT]:
        for key, value in row.items():
            found[key] = None
            if isinstance(value, dict):
                found.update({f'{key}.{name}': None for name in value})
    return list(found)


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
    """Numbers before texts; in texts numbers count as such: cmp-9 is before cmp-10."""
    if isinstance(value, (int, float)):
        return (0, value)
    parts = _DIGITS.split(flat(value).casefold())
    return (1, [(int(part), '') if part.isdecimal() else (-1, part) for part in parts])


def _holds(field: Field, pattern: re.Pattern[str], row: Row) -> bool:
    value = field.value(row)
    if isinstance(value, list):
        return any(pattern.match(flat(one)) for one in value or [''])
    shown = flat(value)
    return bool(pattern.match('' if shown == '-' else shown))
