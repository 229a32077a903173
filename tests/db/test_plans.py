# SPDX-License-Identifier: Apache-2.0
"""The group commit on PostgreSQL costs what a batch costs, not what history left behind.

Its statements are planned once for each connection, maybe when the tables were
empty; a plan that reads a whole table would be kept while the table grows.
"""

import re

import pytest

from gantt.db.claims import commit_postgresql as pessimistic
from gantt.db.claims import one_trip

STATEMENTS = {
    'REQUESTS': pessimistic.INSERT_REQUESTS,
    'CONTINUED': pessimistic.LOCK_CONTINUED_REQUESTS,
    'REPEATED': pessimistic.SELECT_REPEATED_REQUESTS,
    'GROUPS_UNSEEN': pessimistic.INSERT_GROUPS,
    'GROUPS': pessimistic.LOCK_GROUPS,
    'PROVIDERS': pessimistic.LOCK_PROVIDERS,
    'POOLS': pessimistic.SELECT_POOLS,
    'SHARED_IN': pessimistic.SELECT_SHARING_AGGREGATES,
    'USE_OTHERS': pessimistic.ADD_OTHER_USAGE,
    'STORED': pessimistic.SELECT_CLAIMS_OF_CONSUMERS,
    'NEWCOMERS': pessimistic.CHECK_CONCURRENT_CLAIMS,
    'WRITE': pessimistic.WRITE_BATCH,
    'PROVIDERS at once': one_trip.LOCK_PROVIDERS,
    'CLAIMS at once': one_trip.INSERT_CLAIMS,
    'WRITE at once': one_trip.WRITE_BATCH,
}
#: The server may have analyzed the tables of a test while they were empty: all plans of them cost
#: the same then.
NEVER_ANALYZED = (
    """UPDATE pg_class SET reltuples = -1, relpages = 0
       WHERE relnamespace = 'public'::regnamespace""",
    """DELETE FROM pg_statistic WHERE starelid IN (
       SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)""",
)
OF_CONSUMERS = ('STORED', 'NEWCOMERS', 'WRITE at once')


@pytest.mark.postgresql
@pytest.mark.parametrize('name', STATEMENTS)
def test_no_statement_of_the_commit_reads_a_whole_table(open_store, name):
    text = STATEMENTS[name].decode()
    numbers = iter(range(1, 100))
    text = re.sub('%[bs]', lambda _: f'${next(numbers)}', text)
    columns = next(numbers) - 1
    store = open_store('postgresql')
    with store.database.commits.connection() as connection:
        raw = connection.connection.driver_connection
        for forget in NEVER_ANALYZED:
            raw.execute(forget)
        raw.execute(f'PREPARE it AS {text}'.encode())
        nothing = ', '.join(['NULL'] * columns)
        plan = '\n'.join(row[0] for row in raw.execute(f'EXPLAIN EXECUTE it ({nothing})'.encode()))
        raw.rollback()
    assert 'Seq Scan' not in plan, plan
    # The whole of an index is the whole of its table.
    scans = re.findall(r'Index Scan .*\n(.*)', plan)
    assert all('Index Cond' in condition for condition in scans), plan
    assert name not in OF_CONSUMERS or 'ix_claims_consumer' in plan, plan
