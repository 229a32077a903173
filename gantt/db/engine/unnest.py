# SPDX-License-Identifier: Apache-2.0
"""Statements for psycopg itself that take many rows: an array for each column.

A statement that SQLAlchemy would build for each batch anew is written once, and the server
prepares it once for batches of any size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.db.engine.arrays import numbers, texts

#: Names of columns, with the names of their types in a cast.
Typed = Sequence[tuple[str, str]]

#: Array types; all other columns are text.
_KINDS = {
    sa.BigInteger: 'bigint',
    sa.Integer: 'int',
    sa.Double: 'float8',
    sa.LargeBinary: 'bytea',
}


def sql(text: str) -> Any:
    """Return a statement of ours for psycopg: it consists of constants and placeholders only."""
    return ' '.join(text.split()).encode()


def columns_of(table: sa.Table, *but: str) -> list[tuple[str, str]]:
    """Return the columns of a table, except some."""
    return [
        (
            column.name,
            next(
                (kind_name for kind, kind_name in _KINDS.items() if isinstance(column.type, kind)),
                'text',
            ),
        )
        for column in table.c
        if column.name not in but
    ]


def unnest(columns: Typed, name: str) -> str:
    """Return a FROM clause of rows of these columns, under a name."""
    arrays = ', '.join(f'%{"b" if kind == "bytea" else "s"}::{kind}[]' for _, kind in columns)
    return f'unnest({arrays}) AS {name} ({", ".join(column for column, _ in columns)})'


def names(columns: Typed) -> str:
    """Return the columns' names as a list in SQL."""
    return ', '.join(column for column, _ in columns)


def arrays(found: Sequence[Mapping[str, Any]], columns: Typed) -> list[Any]:
    """Return the columns of rows, each as one array."""
    return [array(kind, [row[column] for row in found]) for column, kind in columns]


def array(kind: str, values: Sequence[Any]) -> Any:
    """Return one column as an array."""
    if kind == 'text':
        return texts(values)
    return list(values) if kind == 'bytea' else numbers(values)
