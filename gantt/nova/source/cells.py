# SPDX-License-Identifier: Apache-2.0
"""Cells of hosts, from the table that ``nova-manage cell_v2 list_hosts`` prints.

    +-----------+--------------------------------------+-----------+
    | Cell Name |              Cell UUID               |  Hostname |
    +-----------+--------------------------------------+-----------+
    |   cell1   | 3f08903e-ffa4-442a-bd00-09d817a78499 | compute-1 |
    +-----------+--------------------------------------+-----------+

Nova's API does not have them.  Columns are known by their place: titles are translated.
A table without its last line is half written, and refused.
"""

import os
import re

from gantt import exceptions

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z')
#: Columns, and lines like ``+---+`` above the first row.
_COLUMNS, _ABOVE_ROWS = 3, 2
#: Most bytes of the file; a line of the table is some hundred bytes long.
FILE_BYTES_MAX = 64 << 20


def parse(text: str, path: str) -> dict[str, str]:
    """Return host -> uuid of its cell.

    :raises InvalidMessage: names file and line
    """
    cell_of_host: dict[str, str] = {}
    border, borders, is_closed = '', 0, False
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        if line.startswith('+'):
            border, borders = border or line, borders + 1
            is_closed = line == border
            continue
        is_closed = False
        _, cell, host = _columns(line, path, number)
        if borders < _ABOVE_ROWS:
            continue  # the titles
        if not _UUID.match(cell.lower()):
            raise _invalid_line(path, number, f'expected the uuid of a cell, got {cell!r}')
        if not host:
            raise _invalid_line(path, number, 'expected the name of a host')
        if cell_of_host.setdefault(host, cell.lower()) != cell.lower():
            raise _invalid_line(path, number, f'host {host!r} is in two cells')
    if not cell_of_host:
        raise exceptions.invalid(path, 'expected the output of nova-manage cell_v2 list_hosts')
    if not is_closed:
        raise exceptions.invalid(path, f'expected {border} as the last line: is it written whole?')
    return cell_of_host


def _columns(line: str, path: str, number: int) -> list[str]:
    parts = [part.strip() for part in line.strip('|').split('|')]
    if len(parts) != _COLUMNS:
        raise _invalid_line(path, number, f'expected {_COLUMNS} columns, got {len(parts)}')
    return parts


def _invalid_line(path: str, number: int, problem: str) -> exceptions.InvalidMessage:
    return exceptions.invalid(f'{path}: line {number}', problem)


class Cells:
    """Table of cells in a file, read again when it changes.

    :param path: the file; '': there is none
    :param single_cell: uuid of the one cell that all hosts are in; '': no cell is known
    :raises Misconfigured, InvalidMessage: the file cannot be read at the start
    """

    def __init__(self, path: str, single_cell: str = '') -> None:
        if path and single_cell:
            raise exceptions.Misconfigured(
                option='[nova_source] cell',
                problem='cells_file says which cell a host is in',
                fix='Set one of both',
            )
        if single_cell and not _UUID.match(single_cell.lower()):
            raise exceptions.Misconfigured(
                option='[nova_source] cell',
                problem=f'expected a uuid, got {single_cell!r}',
                fix='See nova-manage cell_v2 list_cells',
            )
        self.path = path
        self.single_cell = single_cell.lower()
        self._file_state: tuple[int, int, int] | None = None
        self.cell_by_host: dict[str, str] = {}
        self.read_file()

    def read_file(self) -> dict[str, str]:
        """Return host -> uuid of its cell, from the file as it is now.

        :raises Misconfigured, InvalidMessage: the file cannot be read; its former content stays in
            force
        """
        if not self.path:
            return {}
        try:
            stat = os.stat(self.path)
            mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if mark == self._file_state:
                return self.cell_by_host
            if stat.st_size > FILE_BYTES_MAX:
                raise exceptions.invalid(self.path, f'expected at most {FILE_BYTES_MAX} bytes')
            with open(self.path, encoding='utf-8', errors='replace') as file:
                text = file.read()
        except OSError as e:
            raise exceptions.Misconfigured(
                option='[nova_source] cells_file',
                problem=f'{self.path}: {e.strerror or e}',
                fix='Make it with: nova-manage cell_v2 list_hosts > NEW && mv NEW FILE',
            ) from None
        self.cell_by_host = parse(text, self.path)
        self._file_state = mark
        return self.cell_by_host
