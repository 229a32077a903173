# SPDX-License-Identifier: Apache-2.0
"""Output of the demonstration: plain lines of at most 80 columns."""

import sys
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80


def line(text: str = '') -> None:
    """Print one line, at once."""
    print(text, flush=True)


def heading(text: str) -> None:
    """Print the heading of a section."""
    line()
    line(text)
    line('-' * min(len(text), WIDTH))


def paragraph(text: str, indent: str = '') -> None:
    """Print text, wrapped."""
    filled = textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    line(filled)


def block(lines: Iterable[str], indent: str = '  ') -> None:
    """Print lines as they are, indented."""
    for text in lines:
        line((indent + text).rstrip())


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns as wide as they need; numbers to the right."""
    body = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *body]) for i in range(len(header))]
    numeric = [all(row[i].replace('.', '').isdigit() for row in body) for i in range(len(header))]
    for row in [list(header), *body]:
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        )
        line(('  ' + '  '.join(cells)).rstrip()[:WIDTH])


def progress(text: str) -> None:
    """Print a line that the next one replaces on a terminal; elsewhere nothing."""
    if sys.stdout.isatty():
        print(f'\r{text:<{WIDTH - 1}}', end='', flush=True)


def progress_done() -> None:
    """Clear what ``progress`` wrote."""
    if sys.stdout.isatty():
        print('\r' + ' ' * (WIDTH - 1) + '\r', end='', flush=True)
