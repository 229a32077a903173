# SPDX-License-Identifier: Apache-2.0
"""The table of nova-manage cell_v2 list_hosts: several cells, and files that are none."""

import pytest

from gantt import exceptions
from gantt.nova.source.cells import Cells, parse

ONE, TWO = '3f08903e-ffa4-442a-bd00-09d817a78499', '7f1e1e00-56a1-4f9b-9d6a-0f0e7e6a5c01'
LINE = '+-----------+--------------------------------------+-----------+\n'
TABLE = (
    f'{LINE}| Cell Name |              Cell UUID               |  Hostname |\n{LINE}'
    f'|   cell1   | {ONE} | compute-1 |\n|    None   | {TWO.upper()} | compute-2 |\n{LINE}'
)


def test_hosts_of_several_cells():
    assert parse(TABLE, 'f') == {'compute-1': ONE, 'compute-2': TWO}


@pytest.mark.parametrize(
    ('text', 'problem'),
    [
        pytest.param(TABLE[: TABLE.index('ute-2')], 'f: expected .* as the last', id='cut'),
        pytest.param(TABLE[: TABLE.index('|    None')], 'f: expected .* as the last', id='cut-row'),
        pytest.param(TABLE[:-2], 'f: expected .* as the last', id='cut-end'),
        pytest.param(TABLE.replace(LINE, ''), 'f: expected the output', id='bare'),
        pytest.param('', 'f: expected the output', id='empty'),
        pytest.param(TABLE[: TABLE.index('|   cell1')], 'f: expected the output', id='no-host'),
        pytest.param(TABLE.replace(ONE, 'cell-one'), 'line 4: expected the uuid', id='no-uuid'),
        pytest.param(TABLE.replace('| compute-2 ', ''), 'line 5: expected 3 columns', id='columns'),
        pytest.param(TABLE.replace('compute-2', 'compute-1'), "'compute-1' is in two", id='twice'),
        pytest.param(
            TABLE.replace('compute-2', '         '), 'line 5: expected the name', id='name'
        ),
    ],
)
def test_a_file_that_is_wrong_names_its_line(text, problem):
    with pytest.raises(exceptions.InvalidMessage, match=problem):
        parse(text, 'f')


def test_a_file_that_is_not_there_names_the_option(tmp_path):
    with pytest.raises(exceptions.Misconfigured, match=r'\[nova_source\] cells_file'):
        Cells(str(tmp_path / 'none'))


@pytest.mark.parametrize(
    ('path', 'cell', 'problem'),
    [
        pytest.param('/some/file', ONE, 'Set one of both', id='both'),
        pytest.param('', 'cell1', "expected a uuid, got 'cell1'", id='no-uuid'),
    ],
)
def test_one_cell_is_a_uuid_and_instead_of_a_file(path, cell, problem):
    with pytest.raises(exceptions.Misconfigured, match=rf'\[nova_source\] cell.*{problem}'):
        Cells(path, cell)


def test_what_a_file_said_holds_while_it_is_wrong(tmp_path):
    path = tmp_path / 'cells'
    path.write_text(TABLE)
    cells = Cells(str(path))
    path.write_text('nonsense')
    with pytest.raises(exceptions.InvalidMessage):
        cells.read_file()
    assert cells.cell_by_host == {'compute-1': ONE, 'compute-2': TWO}
