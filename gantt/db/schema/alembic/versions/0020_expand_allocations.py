# SPDX-License-Identifier: Apache-2.0
"""Allocations written by requests: whom a claim was made for, and what is known of consumers

Expands: a column that older processes leave empty, and a table.  A claim without a guest is its
consumer's.

Revision: 0020_expand_allocations
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0020_expand_allocations'
down_revision = '0019_expand_inventories_by'
branch_labels = None
depends_on = None

Id = (
    sa.String(64)
    .with_variant(sa.String(64, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)


def upgrade():
    op.create_table(
        'written_consumers',
        sa.Column('uuid', Id, primary_key=True),
        sa.Column('generation', sa.BigInteger(), nullable=False),
        sa.Column('digest', Id, nullable=False),
        sa.Column('stamp', sa.BigInteger(), nullable=False),
    )
    op.add_column('claims', sa.Column('guest', Id, nullable=True))
    if op.get_bind().dialect.name == 'postgresql':
        _index_beside_writers()
    else:  # SQLite has one writer, MariaDB lets others write meanwhile
        _index()


def _index(**options):
    op.create_index(
        'ix_claims_guest', 'claims', ['guest'],
        postgresql_where=sa.text('guest IS NOT NULL'),
        sqlite_where=sa.text('guest IS NOT NULL'), **options,
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
        op.execute('DROP INDEX CONCURRENTLY IF EXISTS ix_claims_guest')
        _index(postgresql_concurrently=True)
        for name, value in usual.items():
            op.execute(f"SET {name} = '{value}'")
