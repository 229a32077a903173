# SPDX-License-Identifier: Apache-2.0
"""Statements for psycopg itself that take many rows: an array for each column.

What SQLAlchemy would make of a statement for each batch anew is written once, and the server
prepares it once for batches of any size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.db.engine.arrays import numbers, texts

#: Names of columns, with their types as they are called in a cast.
Typed = Sequence[tuple[str, str]]

#: All others are text.
_KINDS = {
    sa.BigInteger: 'bigint',
    sa.Integer: 'int',
    sa.Double: 'float8',
    sa.LargeBinary: 'bytea',
}


def sql(text: str) -> Any:
    """A statement of ours for psycopg: made of constants and placeholders only."""
    return ' '.join(text.split()).encode()


def columns_of(table: sa.Table, *but: str) -> list[tuple[str, str]]:
    """The columns of a table, without some."""
    return [
        (c.name, next((of for kind, of in _KINDS.items() if isinstance(c.type, kind)), 'text'))
        for c in table.c
        if c.name not in but
    ]


def unnest(columns: Typed, name: str) -> str:
    """Rows of these columns, to be read from under a name."""
    arrays = ', '.join(f'%{"b" if kind == "bytea" else "s"}::{kind}[]' for _, kind in columns)
    return f'unnest({arrays}) AS {name} ({", ".join(column for column, _ in columns)})'


def names(columns: Typed) -> str:
    """As they are listed in a statement."""
    return ', '.join(column for column, _ in columns)


def arrays(found: Sequence[Mapping[str, Any]], columns: Typed) -> list[Any]:
    """The columns of rows, each as one array."""
    return [array(kind, [row[column] for row in found]) for column, kind in columns]


def array(kind: str, values: Sequence[Any]) -> Any:
    """One column."""
    if kind == 'text':
        return texts(values)
    return list(values) if kind == 'bytea' else numbers(values)
