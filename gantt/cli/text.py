# SPDX-License-Identifier: Apache-2.0
"""Text for people: tables that fit the terminal, relative ages, amounts with units."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from gantt.core.messages.quoting import plain
from gantt.core.messages.resource_classes import format_amount as amount
from gantt.insights.explain.wording import age, count, shape

__all__ = ['age', 'amount', 'count', 'shape']

WIDTH = 80
ELLIPSIS = '…'
_GAP = 2

#: Short names of resource classes, for narrow columns.
SHORT = {'MEMORY_MB': 'RAM', 'DISK_GB': 'DISK'}


class TextColumn(NamedTuple):
    """A column of a table.

    :ivar show: from a row (a dictionary) to text
    :ivar right: align to the right
    :ivar least: it may be cut to so many characters where room is short; 0: never
    :ivar by: the key of the value that it is sorted by, where that is not the text
    """

    title: str
    show: Callable[[dict[str, Any]], str]
    right: bool = False
    least: int = 0
    by: str = ''


def key(name: str) -> Callable[[dict[str, Any]], str]:
    """Return a function that shows the value of a key, ``-`` where there is none."""

    def show(row: dict[str, Any]) -> str:
        value = row.get(name)
        return '-' if value is None or value == '' else str(value)

    return show


def width_of(out: TextIO) -> int:
    """Return the width of output: COLUMNS, the terminal, or 80."""
    if os.environ.get('COLUMNS', '').isdigit():
        return max(40, int(os.environ['COLUMNS']))
    if out is sys.stdout and out.isatty():
        return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)
    return WIDTH


def table(
    columns: Sequence[TextColumn],
    rows: Iterable[dict[str, Any]],
    width: int = WIDTH,
    note: Callable[[dict[str, Any]], str] | None = None,
) -> list[str]:
    """Return lines of a table: a header, a line per row, and an indented note below, if any."""
    rows = list(rows)
    # Escaped here, so that columns are as wide as what is printed.
    cells = [[plain(column.show(row)) for column in columns] for row in rows]
    sizes = [
        max(len(column.title), *(len(line[i]) for line in cells), 0)
        for i, column in enumerate(columns)
    ]
    _shrink(columns, sizes, width)
    lines = [_line([c.title for c in columns], columns, sizes)]
    for row, line in zip(rows, cells, strict=True):
        lines.append(_line(line, columns, sizes))
        remark = note(row) if note else ''
        if remark:
            lines.append('    ' + cut(plain(remark), width - 4))
    return lines


def _shrink(columns: Sequence[TextColumn], sizes: list[int], width: int) -> None:
    over = sum(sizes) + _GAP * (len(sizes) - 1) - width
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = columns[i].least
        if over <= 0:
            return
        if least and sizes[i] > least:
            less = min(over, sizes[i] - max(least, len(columns[i].title)))
            sizes[i] -= less
            over -= less


def _line(cells: Sequence[str], columns: Sequence[TextColumn], sizes: Sequence[int]) -> str:
    out = []
    for cell, column, size in zip(cells, columns, sizes, strict=True):
        cell = cut(cell, size)
        out.append(cell.rjust(size) if column.right else cell.ljust(size))
    return (' ' * _GAP).join(out).rstrip()


def cut(text: str, size: int) -> str:
    """Cut ``text`` to at most ``size`` characters."""
    return text if len(text) <= size else text[: max(0, size - 1)] + ELLIPSIS


def wrap(text: str, width: int, indent: str = '  ') -> list[str]:
    """Wrap ``text`` into lines of at most ``width``; the later ones indented."""
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or ['']


def short_id(value: str | None) -> str:
    """Return the first part of an id: enough to distinguish ids in a list."""
    return value[:8] if value else '-'


def needs(resources: dict[str, int]) -> str:
    """Return :func:`shape` for a narrow column: ``2 vCPU, 4G RAM, 20G disk``."""
    return shape(resources).replace(' GiB', 'G').replace(' MiB', 'M')


def share(resource_class: str, free: int, cap: int) -> str:
    """Return ``12/64``, or ``57/128G`` where the class is counted in MiB or GiB."""
    if resource_class == 'MEMORY_MB':
        return f'{_gib(free / 1024)}/{_gib(cap / 1024)}G'
    if resource_class == 'DISK_GB':
        return f'{free}/{cap}G'
    return f'{free}/{cap}'


def _gib(value: float) -> str:
    return f'{value:.0f}' if abs(value) >= 10 or value == int(value) else f'{value:.1f}'


def percent(part: int, whole: int) -> str:
    """Return a percentage such as ``38 %``; ``-`` where the whole is 0."""
    return f'{100 * part / whole:.0f} %' if whole else '-'
