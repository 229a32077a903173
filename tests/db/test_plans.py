# SPDX-License-Identifier: Apache-2.0
"""The group commit on PostgreSQL costs what a batch costs, not what history left behind.

Its statements are planned once for each connection, maybe when the tables were
empty; a plan that reads a whole table would be kept while the table grows.
"""

import re

import pytest

from gantt.db.claims import commit_postgresql

STATEMENTS = (
    'REQUESTS',
    'CONTINUED',
    'REPEATED',
    'GROUPS_UNSEEN',
    'GROUPS',
    'CONSUMERS',
    'RIVALS',
    'PROVIDERS',
    'WRITE',
)


@pytest.mark.postgresql
@pytest.mark.parametrize('name', STATEMENTS)
def test_no_statement_of_the_commit_reads_a_whole_table(open_store, name):
    text = getattr(commit_postgresql, name).decode()
    numbers = iter(range(1, 100))
    text = re.sub('%[bs]', lambda _: f'${next(numbers)}', text)
    wanted = next(numbers) - 1
    store = open_store('postgresql')
    with store.commits.connection() as connection:
        raw = connection.connection.driver_connection
        raw.execute(f'PREPARE it AS {text}'.encode())
        nothing = ', '.join(['NULL'] * wanted)
        plan = '\n'.join(row[0] for row in raw.execute(f'EXPLAIN EXECUTE it ({nothing})'.encode()))
        raw.rollback()
    assert 'Seq Scan' not in plan, plan
    assert name != 'RIVALS' or 'ix_claims_consumer' in plan, plan
