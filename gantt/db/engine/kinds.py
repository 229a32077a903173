# SPDX-License-Identifier: Apache-2.0
"""Types of columns that are the same on every database."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

# SQLite counts up only in a column that is exactly INTEGER PRIMARY KEY.
Serial = sa.BigInteger().with_variant(sa.Integer, 'sqlite')


def storable(text: str) -> str:
    """Text without what a database cannot keep: NUL, and halves of characters."""
    if '\x00' in text:
        text = text.replace('\x00', '\ufffd')
    if text.isascii():
        return text
    return text.encode('utf-8', 'replace').decode()


class Spoken(sa.TypeDecorator):
    """Text that somebody outside chose.

    :param length: None: long
    :param collated: compared byte by byte, so that what is sorted here is
        sorted the same way there
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, length: int | None = None, collated: bool = True) -> None:
        super().__init__()
        self.length = length
        self.collated = collated

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        """The type of the column."""
        if dialect.name in ('mysql', 'mariadb'):
            words = {'charset': 'utf8mb4', 'collation': 'utf8mb4_bin'}
            return mysql.VARCHAR(self.length, **words) if self.length else mysql.MEDIUMTEXT(**words)
        if self.length is None:
            return sa.Text()
        exact = self.collated and dialect.name == 'postgresql'
        return sa.String(self.length, collation='C' if exact else None)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        """What is stored."""
        return None if value is None else storable(value)


def ascii_of(length: int) -> sa.String:
    on_mysql = mysql.VARCHAR(length, charset='ascii', collation='ascii_bin')
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation='C'), 'postgresql')
        .with_variant(on_mysql, 'mysql', 'mariadb')
    )


Id = ascii_of(64)
Word = ascii_of(32)
Name = Spoken(255)
Note = Spoken(1024, collated=False)
LongText = Spoken()
Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), 'mysql', 'mariadb')
Amount = sa.BigInteger
Seconds: sa.Double[float] = sa.Double()
