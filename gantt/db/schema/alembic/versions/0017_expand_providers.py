# SPDX-License-Identifier: Apache-2.0
"""Providers that are no hosts: a name of their own, and their trees found by indexes

Expands: a column that older processes leave empty, and indexes that have nothing of their rows.
Nothing is filled: who has no root is a root, and hosts are named when they register again.

Revision: 0017_expand_providers
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0017_expand_providers'
down_revision = '0016_expand_narrow_claims'
branch_labels = None
depends_on = None

Name = (
    sa.String(255)
    .with_variant(sa.String(255, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(255, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb')
)
COLUMNS = ('root_id', 'parent_id', 'own_name')


def upgrade():
    op.add_column('providers', sa.Column('own_name', Name, nullable=True))
    if op.get_bind().dialect.name == 'postgresql':
        _index_beside_writers()
    else:  # SQLite has one writer, MariaDB lets others write meanwhile
        _index()


def _index(**options):
    for column in COLUMNS:
        op.create_index(
            f'ix_providers_{column}', 'providers', [column], unique=column == 'own_name',
            postgresql_where=sa.text(f'{column} IS NOT NULL'),
            sqlite_where=sa.text(f'{column} IS NOT NULL'), **options,
        )  # fmt: skip


def _index_beside_writers():
    """It waits for all transactions under way, and leaves half an index where it is ended."""
    with op.get_context().autocommit_block():
        usual = {
            name: op.get_bind().exec_driver_sql(f'SHOW {name}').scalar_one()
            for name in ('lock_timeout', 'statement_timeout')
        }
        for name in usual:
            op.execute(f'SET {name} = 0')
        for column in COLUMNS:
            op.execute(f'DROP INDEX CONCURRENTLY IF EXISTS ix_providers_{column}')
        _index(postgresql_concurrently=True)
        for name, value in usual.items():
            op.execute(f"SET {name} = '{value}'")
