# SPDX-License-Identifier: Apache-2.0
"""Text for people: tables that fit the terminal, relative ages, amounts with units."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from gantt.core.messages.quoting import plain_text
from gantt.core.messages.resource_classes import format_amount as amount
from gantt.insights.explain.wording import age_text, counted_noun, outcome_text, shape_text

__all__ = ['age_text', 'amount', 'counted_noun', 'outcome_text', 'shape_text']

WIDTH = 80
ELLIPSIS = '…'
_COLUMN_GAP = 2

#: Short names of resource classes, for narrow columns.
SHORT_CLASS_NAMES = {'MEMORY_MB': 'RAM', 'DISK_GB': 'DISK'}


class TextColumn(NamedTuple):
    """A column of a table.

    :ivar show: function that returns the cell's text for a row (a dictionary)
    :ivar align_right: align to the right
    :ivar min_width: width to which the column may be cut where room is short; 0: never
    :ivar sort_key: key of the row's value to sort by, in place of the text
    """

    title: str
    show: Callable[[dict[str, Any]], str]
    align_right: bool = False
    min_width: int = 0
    sort_key: str = ''


def value_of_key(name: str) -> Callable[[dict[str, Any]], str]:
    """Return a function that shows the value of a key, ``-`` where there is none."""

    def show(row: dict[str, Any]) -> str:
        value = row.get(name)
        return '-' if value is None or value == '' else str(value)

    return show


def width_of(out: TextIO) -> int:
    """Return the width of output: CLIFF_MAX_TERM_WIDTH, COLUMNS, the terminal, or 80.

    The first one is a bound that all tables of OpenStack's client keep, 0: none.
    """
    most = os.environ.get('CLIFF_MAX_TERM_WIDTH', '')
    if most.isdecimal():
        return int(most) or sys.maxsize
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
    cells = [[plain_text(column.show(row)) for column in columns] for row in rows]
    sizes = [
        max(len(column.title), *(len(line[i]) for line in cells), 0)
        for i, column in enumerate(columns)
    ]
    _shrink(columns, sizes, width)
    lines = [_table_line([c.title for c in columns], columns, sizes)]
    for row, line in zip(rows, cells, strict=True):
        lines.append(_table_line(line, columns, sizes))
        remark = note(row) if note else ''
        if remark:
            lines.append('    ' + cut_text(plain_text(remark), width - 4))
    return lines


def _shrink(columns: Sequence[TextColumn], sizes: list[int], width: int) -> None:
    over = sum(sizes) + _COLUMN_GAP * (len(sizes) - 1) - width
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        min_width = columns[i].min_width
        if over <= 0:
            return
        if min_width and sizes[i] > min_width:
            less = min(over, sizes[i] - max(min_width, len(columns[i].title)))
            sizes[i] -= less
            over -= less


def _table_line(cells: Sequence[str], columns: Sequence[TextColumn], sizes: Sequence[int]) -> str:
    out = []
    for cell, column, size in zip(cells, columns, sizes, strict=True):
        cell = cut_text(cell, size)
        out.append(cell.rjust(size) if column.align_right else cell.ljust(size))
    return (' ' * _COLUMN_GAP).join(out).rstrip()


def cut_text(text: str, size: int) -> str:
    """Cut ``text`` to at most ``size`` characters."""
    return text if len(text) <= size else text[: max(0, size - 1)] + ELLIPSIS


def wrap(text: str, width: int, indent: str = '  ') -> list[str]:
    """Wrap ``text`` into lines of at most ``width``; the later ones indented."""
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or ['']


def short_id(value: str | None) -> str:
    """Return the first part of an id: enough to distinguish ids in a list."""
    return value[:8] if value else '-'


def short_needs_text(resources: dict[str, int]) -> str:
    """Return :func:`shape_text` for a narrow column: ``2 vCPU, 4G RAM, 20G disk``."""
    return shape_text(resources).replace(' GiB', 'G').replace(' MiB', 'M')


def free_of_capacity(resource_class: str, free: int, cap: int) -> str:
    """Return ``12/64``, or ``57/128G`` where the class is counted in MiB or GiB."""
    if resource_class == 'MEMORY_MB':
        return f'{_gib_text(free / 1024)}/{_gib_text(cap / 1024)}G'
    if resource_class == 'DISK_GB':
        return f'{free}/{cap}G'
    return f'{free}/{cap}'


def _gib_text(value: float) -> str:
    return f'{value:.0f}' if abs(value) >= 10 or value == int(value) else f'{value:.1f}'


def percent(part: int, whole: int) -> str:
    """Return a percentage such as ``38 %``; ``-`` where the whole is 0."""
    return f'{100 * part / whole:.0f} %' if whole else '-'
