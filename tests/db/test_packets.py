# SPDX-License-Identifier: Apache-2.0
"""Answers of MariaDB are read as PyMySQL itself reads them."""

import pymysql
import pytest
import sqlalchemy as sa

from gantt.db.engine import packets

pytestmark = pytest.mark.mysql

#: Of every length that is written in another way, and of every type that is made out.
LONG = [f"REPEAT('ä', {length})" for length in (0, 1, 125, 126, 127, 32_767, 32_768, 8_400_000)]
VALUES = [
    *("NULL, 'a', NULL", 'CAST(0.1 AS DOUBLE) + CAST(0.2 AS DOUBLE)', '1732678745.123456e0'),
    *('-9223372036854775808', '1.50', "x'00ff'", "DATE '2024-02-29'", "TIME '25:00:01'"),
    *("TIMESTAMP '2024-02-29 01:02:03.000004'", "b'101'", 'TRUE', "JSON_ARRAY(1, 'ä')"),
]


@pytest.fixture
def connections(store_url):
    """One of ours and one of PyMySQL, to one database."""
    url = sa.make_url(store_url('mysql'))
    where = {
        **{'host': url.host, 'port': url.port, 'user': url.username, 'database': url.database},
        **{'password': url.password or '', 'charset': 'utf8mb4'},
    }
    opened = [packets.PacketConnection(**where), pymysql.connect(**where)]
    yield opened
    for connection in opened:
        connection.close()


def answer(connection, statement, kind=pymysql.cursors.Cursor):
    with connection.cursor(kind) as cursor:
        cursor.execute(statement)
        return cursor.description, cursor.fetchall(), cursor.rowcount


@pytest.mark.parametrize('values', [*LONG, *VALUES, ', '.join(VALUES)])
def test_an_answer_is_the_same_the_first_time_and_later(connections, values):
    own, plain = connections
    statement = f'SELECT {values} UNION ALL SELECT {values}'
    expected = answer(plain, statement)
    assert [answer(own, statement) for _ in range(3)] == [expected] * 3
    assert answer(own, statement, pymysql.cursors.SSCursor) == answer(
        plain, statement, pymysql.cursors.SSCursor
    )


def test_columns_that_are_others_since_are_read_as_they_are(connections):
    own, plain = connections
    answer(plain, 'CREATE TABLE changing (a INTEGER)')
    answer(plain, 'INSERT INTO changing VALUES (1)')
    plain.commit()
    rows = []
    for kind in ('BIGINT', 'VARCHAR(20)', 'DOUBLE', 'VARBINARY(20)'):
        rows.append(answer(own, 'SELECT a FROM changing')[1])
        own.commit()
        answer(plain, f'ALTER TABLE changing MODIFY a {kind}')
        assert answer(own, 'SELECT a FROM changing') == answer(plain, 'SELECT a FROM changing')
        own.commit()
        plain.commit()
    assert rows == [((1,),), ((1,),), (('1',),), ((1.0,),)]


def test_what_is_remembered_is_bounded(connections, monkeypatch):
    monkeypatch.setattr(packets, 'KNOWN_ANSWERS_MAX', 4)
    own, _ = connections
    for n in range(20):
        assert answer(own, f'SELECT {n} AS column_{n}')[1] == ((n,),)
        assert len(own.known_columns) <= 4


def test_an_error_is_told_and_the_connection_goes_on(connections):
    own, _ = connections
    with pytest.raises(pymysql.err.ProgrammingError):
        answer(own, 'SELECT a FROM nowhere')
    assert answer(own, 'SELECT 1')[1] == ((1,),)
