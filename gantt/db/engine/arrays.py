# SPDX-License-Identifier: Apache-2.0
"""Statements for many rows, where the database can take them as one value.

PostgreSQL and MariaDB are sent all rows as one JSON text: a parameter and a statement for the batch
instead of one for each row.  With SQLite, which runs in the process, the driver runs the statement
for each row.  Statements for psycopg itself take an array for each column: SQLAlchemy would build
them for each batch anew, and these are written once and prepared once for batches of any size.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from gantt.db.engine import session
from gantt.db.engine.engine import storable

_POSTGRESQL = postgresql.dialect()
_MYSQL = mysql.dialect()
#: Longer texts go row by row: a server takes at most max_allowed_packet, 16 MiB or more.
_ARRAY_CHARACTERS_MAX = 4 << 20


def texts(values: Sequence[str | None]) -> str:
    """Return texts as the text of a PostgreSQL array, without characters that it cannot store.

    psycopg checks the type of each element of a list; a statement with forty arrays takes longer to
    bind that way than to run.
    """
    if None in values:
        return (
            '{'
            + ','.join('NULL' if value is None else _quoted(storable(value)) for value in values)
            + '}'
        )
    together = '","'.join(values)  # type: ignore[arg-type]
    if '\\' in together or '\0' in together or together.count('"') != 2 * (len(values) - 1):
        return (
            '{' + ','.join(_quoted(storable(value)) for value in values if value is not None) + '}'
        )
    if not together.isascii():
        together = storable(together)
    return '{"' + together + '"}' if values else '{}'


def _quoted(text: str) -> str:
    return '"' + text.replace('\\', '\\\\').replace('"', '\\"') + '"'


def numbers(values: Sequence[float | None]) -> str:
    """Return numbers, whole or not, as the text of a PostgreSQL array."""
    if None in values:
        return '{' + ','.join('NULL' if number is None else str(number) for number in values) + '}'
    return '{' + ','.join(map(str, values)) + '}'


class _TextOfArray(sa.types.UserDefinedType[str]):
    """An array that is bound as its text, and is an array to the server from the start.

    A cast of a text to an array is not constant to PostgreSQL: a plan that reads the whole table
    would parse the text once for each row.

    :param kind: type of its elements
    """

    cache_ok = True
    render_bind_cast = True

    def __init__(self, kind: type[sa.types.TypeEngine[Any]]) -> None:
        self.kind = kind

    def get_col_spec(self, **_: Any) -> str:
        return self.kind().compile(_POSTGRESQL) + '[]'


def select_by_array(tx: session.Tx, column: sa.ColumnElement[Any], values: Sequence[str]) -> Any:
    """Return a condition: a text column has one of the values.

    PostgreSQL gets them as one value: writing and parsing a statement with a thousand parameters
    takes longer than running it.
    """
    if tx.kind == 'postgresql':
        return column == sa.any_(sa.literal(texts(values), _TextOfArray(sa.Text)))
    return column.in_(values)


def is_in_array(column: sa.ColumnElement[Any], name: str, kind: Any) -> Any:
    """Return a condition: a column has one value of an array, bound as text; for PostgreSQL.

    One statement for any number of values, see :func:`texts` and :func:`numbers`: it is prepared
    once, and not written anew for each batch.
    """
    return column == sa.any_(sa.bindparam(name, type_=_TextOfArray(kind)))


def lock_by_key(statement: Any, table: sa.Table) -> Any:
    """Force MariaDB and MySQL to read only the named rows of a locking query or update.

    By default the optimizer reads all of a small table to find many rows; then the transaction
    waits for other rows, too.
    """
    for dialect in ('mysql', 'mariadb'):
        statement = statement.with_hint(
            text='FORCE INDEX (PRIMARY)', selectable=table, dialect_name=dialect
        )
    return statement


class JoinedUpdate:
    """An update of a table by rows that come as one JSON text, for MariaDB and MySQL.

    :param fields: fields of the rows: name -> type
    :param on: condition that joins a row ``v`` to its row ``t``
    :param changes: assignments
    :param where: condition on both rows, else the row stays as it is
    """

    def __init__(
        self, table: sa.Table, fields: Mapping[str, Any], on: str, changes: str, where: str = ''
    ) -> None:
        # Without the collation of text: that of the table's column counts.
        kinds = {
            name: kind.compile(_MYSQL).partition(' COLLATE ')[0] for name, kind in fields.items()
        }
        columns = ', '.join(
            f"{name} {kind} PATH '$.{name}' ERROR ON ERROR" for name, kind in kinds.items()
        )
        # Not the optimizer's choice: in the other order, and where the table is small, it
        # reads, and locks, all of it.
        self._statement = sa.text(
            f"UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS ({columns})) AS v "  # noqa: S608 - names only
            f'STRAIGHT_JOIN {table.name} AS t FORCE INDEX (PRIMARY) ON {on} SET {changes}'
            + (f' WHERE {where}' if where else '')
        )

    def run(self, tx: session.Tx, rows: Sequence[dict[str, Any]]) -> int | None:
        """Return the number of rows matched; None: too long for one statement, nothing was done."""
        text = msgspec.json.encode([_plain(row) for row in rows])
        return (
            tx.run(self._statement, rows=text.decode())
            if len(text) <= _ARRAY_CHARACTERS_MAX
            else None
        )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with booleans as numbers: the database would read true as text from JSON."""
    return {name: int(value) if isinstance(value, bool) else value for name, value in row.items()}


class BulkUpdate:
    """An update of rows of one table by key.

    :param match: name in the given rows -> column that must have that value
    :param columns: columns written, under their own names
    :param stays: column -> name in the given rows of a number: where it is 1 the column stays as it
        is, else it becomes null
    """

    def __init__(
        self,
        table: sa.Table,
        match: Mapping[str, str],
        columns: Sequence[str],
        stays: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        values: dict[str, Any] = {name: sa.bindparam(name) for name in columns}
        for column, name in stays.items():
            is_set = sa.bindparam(name, type_=sa.Integer) == 1
            values[column] = sa.case((is_set, table.c[column]), else_=None)
        self.portable = (
            table.update()
            .where(*[table.c[column] == sa.bindparam(name) for name, column in match.items()])
            .values(values)
        )
        #: Conversions of the columns' types before a value is stored.
        self._stored = {
            name: stored
            for name in columns
            if isinstance(table.c[name].type, sa.TypeDecorator)
            and (stored := table.c[name].type.bind_processor(_POSTGRESQL)) is not None
        }
        fields: dict[str, Any] = {name: table.c[column].type for name, column in match.items()}
        fields |= {name: table.c[name].type for name in columns}
        fields |= {name: sa.Integer() for name in stays.values()}
        kinds = ', '.join(f'{name} {kind.compile(_POSTGRESQL)}' for name, kind in fields.items())
        changes = [(name, f'v.{name}') for name in columns]
        changes += [
            (column, f'CASE WHEN v.{name} = 1 THEN t.{column} END')
            for column, name in stays.items()
        ]
        self._together = sa.text(
            f'UPDATE {table.name} AS t SET '  # noqa: S608 - names of columns only
            + ', '.join(f'{name} = {value}' for name, value in changes)
            + f' FROM json_to_recordset(CAST(:rows AS json)) AS v ({kinds}) WHERE '
            + ' AND '.join(f't.{column} = v.{name}' for name, column in match.items())
        )

        self._joined_update = JoinedUpdate(
            table,
            fields,
            on=' AND '.join(f't.{column} = v.{name}' for name, column in match.items()),
            changes=', '.join(f't.{name} = {value}' for name, value in changes),
        )

    def run(self, tx: session.Tx, rows: Sequence[dict[str, Any]]) -> int:
        """Return the number of rows matched."""
        if tx.kind == 'sqlite' or len(rows) < 2:
            return tx.run_many(self.portable, rows)
        if self._stored:
            rows = [
                row | {name: convert(row[name]) for name, convert in self._stored.items()}
                for row in rows
            ]
        if tx.kind == 'mysql':
            matched = self._joined_update.run(tx, rows)
            return tx.run_many(self.portable, rows) if matched is None else matched
        return tx.run(self._together, rows=msgspec.json.encode(rows).decode())


#: Names of columns, with the names of their types in a cast.
TypedColumns = Sequence[tuple[str, str]]

#: Array types; all other columns are text.
_ARRAY_TYPES = {
    sa.BigInteger: 'bigint',
    sa.Integer: 'int',
    sa.Double: 'float8',
    sa.LargeBinary: 'bytea',
}


def sql(text: str) -> Any:
    """Return a statement of ours for psycopg: it consists of constants and placeholders only."""
    return ' '.join(text.split()).encode()


def columns_of(table: sa.Table, *but: str) -> list[tuple[str, str]]:
    """Return (name, array type) of each column of a table, without the columns ``but``."""
    return [
        (
            column.name,
            next(
                (
                    kind_name
                    for kind, kind_name in _ARRAY_TYPES.items()
                    if isinstance(column.type, kind)
                ),
                'text',
            ),
        )
        for column in table.c
        if column.name not in but
    ]


def unnest(columns: TypedColumns, name: str) -> str:
    """Return a FROM clause of rows of these columns, under a name."""
    arrays = ', '.join(f'%{"b" if kind == "bytea" else "s"}::{kind}[]' for _, kind in columns)
    return f'unnest({arrays}) AS {name} ({", ".join(column for column, _ in columns)})'


def names(columns: TypedColumns) -> str:
    """Return the columns' names as a list in SQL."""
    return ', '.join(column for column, _ in columns)


def arrays(records: Sequence[Mapping[str, Any]], columns: TypedColumns) -> list[Any]:
    """Return the columns of rows, each as one array."""
    return [array(kind, [row[column] for row in records]) for column, kind in columns]


def columns(rows: Sequence[Sequence[Any]], of: TypedColumns) -> list[Any]:
    """Return the columns of rows, each as one array."""
    by_column = zip(*rows, strict=True) if rows else [()] * len(of)
    return [array(kind, values) for (_, kind), values in zip(of, by_column, strict=True)]


def array(kind: str, values: Sequence[Any]) -> Any:
    """Return one column as an array."""
    if kind == 'text':
        return texts(values)
    return list(values) if kind == 'bytea' else numbers(values)
