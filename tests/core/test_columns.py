# SPDX-License-Identifier: Apache-2.0
"""The columns of the host table follow from their declarations."""

import numpy as np

from gantt.core.plugin import KNOWN_COLUMNS
from gantt.core.table import columns
from gantt.plugin_api import COLUMNS
from tests.core.builders import a_change, a_host, a_table


def test_what_plug_ins_may_name_is_what_is_declared():
    assert columns.COLUMNS.keys() | columns.OBJECT_COLUMNS.keys() == KNOWN_COLUMNS == COLUMNS


def test_plain_columns_are_read_from_the_row_with_every_write():
    table = a_table(a_host(1), a_host(2))
    for version in (2, 3):
        table.apply(a_change(a_host(2, version=version, reported_at=5.0, disabled='x' * version)))
        for name, read in columns.PLAIN_COLUMNS:
            assert [read(row) for row in table.hosts] == getattr(table, name).tolist(), name


def test_an_unused_place_holds_what_is_declared():
    table = a_table(a_host(1))
    for name, column in columns.COLUMNS.items():
        array = table.arrays[name]
        assert array.dtype == np.dtype(columns.COLUMN_TYPES[name])
        assert (array[..., 1:] == column.fill).all(), name
