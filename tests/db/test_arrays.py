# SPDX-License-Identifier: Apache-2.0
"""Arrays as PostgreSQL reads them: what is bound comes back, whatever its characters."""

from typing import NamedTuple

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.db.engine import arrays
from gantt.db.engine.engine import storable

pytestmark = pytest.mark.postgresql

ODD = st.text(alphabet='a\'"\\{},N \t\n\0é\ud800NULL', max_size=6)
TEXTS = st.lists(st.none() | ODD | st.text(max_size=20), max_size=6)
NUMBERS = st.lists(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False), max_size=6
)


class Tx(NamedTuple):
    """The kind of database, of which alone the form of a condition depends."""

    kind: str


@pytest.fixture(scope='module')
def connection(postgresql_url):
    engine = sa.create_engine(postgresql_url)
    with engine.connect() as opened:
        yield opened.connection.driver_connection
    engine.dispose()


@settings(deadline=None, max_examples=200)
@given(TEXTS)
def test_texts_come_back(connection, values):
    (texts,) = connection.execute(b'SELECT %s::text[]', [arrays.texts(values)]).fetchone()
    assert texts == [None if v is None else storable(v) for v in values]


@settings(deadline=None, max_examples=100)
@given(NUMBERS)
def test_numbers_come_back(connection, values):
    (numbers,) = connection.execute(b'SELECT %s::float8[]', [arrays.numbers(values)]).fetchone()
    assert numbers == [None if v is None else float(v) for v in values]
    whole = [v for v in values if not isinstance(v, float)]
    (numbers,) = connection.execute(b'SELECT %s::bigint[]', [arrays.numbers(whole)]).fetchone()
    assert numbers == whole


@pytest.mark.parametrize('find', [arrays.is_in_array, None], ids=['one_of', 'among'])
def test_an_array_is_a_constant_to_a_plan_that_reads_the_whole_table(postgresql_url, find):
    ids = [f'{n:036}' for n in range(20)]
    table = sa.table('of_ids', sa.column('id', sa.Text))
    engine = sa.create_engine(postgresql_url)
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE TEMPORARY TABLE of_ids (id varchar(36) COLLATE "C")')
        where = (
            arrays.select_by_array(Tx('postgresql'), table.c.id, ids)
            if find is None
            else find(table.c.id, 'ids', sa.Text)
        )
        bound = {} if find is None else {'ids': arrays.texts(ids)}
        query = sa.select(table.c.id).where(where).compile(engine)
        plan = connection.exec_driver_sql(
            'EXPLAIN ' + str(query), {**query.params, **bound}
        ).scalars()
        [line] = [line for line in plan if 'Filter:' in line]
    engine.dispose()
    assert ids[-1] in line and line.rstrip(')').endswith("}'::text[]"), line
