# SPDX-License-Identifier: Apache-2.0
"""Many rows by one statement, where the database can take them as one value.

PostgreSQL is sent all rows as one JSON text: a parameter and a statement for
the batch instead of one for each row.  Elsewhere the driver runs the statement
for each row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from gantt.db import session
from gantt.db.models import storable

_DIALECT = postgresql.dialect()


def texts(values: Sequence[str | None]) -> str:
    """Texts as PostgreSQL writes an array of them, without what it cannot keep.

    psycopg looks at each element of a list for its type; a statement with forty
    arrays takes longer to bind that way than to run.
    """
    if None in values:
        return '{' + ','.join('NULL' if v is None else _quoted(storable(v)) for v in values) + '}'
    together = '","'.join(values)  # type: ignore[arg-type]
    if '\\' in together or '\0' in together or together.count('"') != 2 * (len(values) - 1):
        return '{' + ','.join(_quoted(storable(v)) for v in values if v is not None) + '}'
    if not together.isascii():
        together = storable(together)
    return '{"' + together + '"}' if values else '{}'


def _quoted(text: str) -> str:
    return '"' + text.replace('\\', '\\\\').replace('"', '\\"') + '"'


def numbers(values: Sequence[float | None]) -> str:
    """Numbers, whole or not, likewise."""
    if None in values:
        return '{' + ','.join('NULL' if v is None else str(v) for v in values) + '}'
    return '{' + ','.join(map(str, values)) + '}'


class Update:
    """Rows of one table changed by key.

    :param match: name in the given rows -> column that must have that value
    :param columns: columns written, under their own names
    """

    def __init__(self, table: sa.Table, match: Mapping[str, str], columns: Sequence[str]) -> None:
        self.portable = (
            table.update()
            .where(*[table.c[column] == sa.bindparam(name) for name, column in match.items()])
            .values({name: sa.bindparam(name) for name in columns})
        )
        #: What the columns' types do to a value before it is stored.
        self._stored = {
            name: stored
            for name in columns
            if isinstance(table.c[name].type, sa.TypeDecorator)
            and (stored := table.c[name].type.bind_processor(_DIALECT)) is not None
        }
        fields = [*match.items(), *((name, name) for name in columns)]
        kinds = ', '.join(
            f'{name} {table.c[column].type.compile(_DIALECT)}' for name, column in fields
        )
        self._together = sa.text(
            f'UPDATE {table.name} AS t SET '  # noqa: S608 - names of columns only
            + ', '.join(f'{name} = v.{name}' for name in columns)
            + f' FROM json_to_recordset(CAST(:rows AS json)) AS v ({kinds}) WHERE '
            + ' AND '.join(f't.{column} = v.{name}' for name, column in match.items())
        )

    def run(self, tx: session.Tx, rows: Sequence[dict[str, Any]]) -> int:
        """How many rows were matched."""
        if tx.kind != 'postgresql' or not rows:
            return tx.many(self.portable, rows)
        if self._stored:
            rows = [
                row | {name: stored(row[name]) for name, stored in self._stored.items()}
                for row in rows
            ]
        return tx.run(self._together, rows=msgspec.json.encode(rows).decode())
