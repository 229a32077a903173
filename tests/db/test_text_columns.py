# SPDX-License-Identifier: Apache-2.0
"""Columns of text by which rows are found: each database compares them as Python does."""

import pytest
import sqlalchemy as sa

from gantt.db.engine.engine import CollatedType
from gantt.db.schema import models
from tests.conftest import READERS

TEXT = 'key'
#: What an ASCII column may hold, and what others may.
ALIKE_ASCII = ['Key', 'key ', 'key  ', 'key\t', ' key']
ALIKE = [*ALIKE_ASCII, 'kéy', 'ke\u0301y', 'ｋｅｙ', 'key\u00a0']


def is_text(column):
    return isinstance(column.type, sa.String | CollatedType)


def key_columns(table):
    """Columns of text that some key or index of the table has."""
    keys = [table.primary_key, *table.indexes]
    keys += [
        constraint
        for constraint in table.constraints
        if isinstance(constraint, sa.UniqueConstraint)
    ]
    return sorted({c.name for key in keys for c in key.columns if is_text(c)})


def a_row(table):
    """A row with something in each column, of ids that are all 1."""
    values = {sa.LargeBinary: b'{}', sa.Double: 1.0}
    return {
        column.name: TEXT
        if is_text(column)
        else next((value for kind, value in values.items() if isinstance(column.type, kind)), 1)
        for column in table.columns
        if not (column.foreign_keys and column.nullable)
    }


@pytest.mark.parametrize('kind', READERS)
def test_every_key_of_every_table_is_compared_as_python_compares(make_store, kind):
    store = make_store(kind)
    checked, wrong = 0, []
    with store.database.engine.connect() as connection, connection.begin() as transaction:
        for table in models.metadata.sorted_tables:
            connection.execute(table.delete())
        for table in models.metadata.sorted_tables:
            connection.execute(table.insert().values(a_row(table)))
            for name in key_columns(table):
                column = table.c[name]
                alike = ALIKE if isinstance(column.type, CollatedType) else ALIKE_ASCII
                for text in [TEXT, *alike]:
                    checked += 1
                    query = sa.select(sa.func.count()).select_from(table).where(column == text)
                    if connection.execute(query).scalar_one() != (text == TEXT):
                        wrong.append(f'{table.name}.{name} and {text!r}')
        transaction.rollback()
    assert wrong == []
    assert checked > 300
