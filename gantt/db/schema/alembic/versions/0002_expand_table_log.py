# SPDX-License-Identifier: Apache-2.0
"""The change logs of host tables, so that decisions can be replayed

Expands: makes a table only.

Revision: 0002_expand_table_log
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0002_expand_table_log'
down_revision = '0001_expand_first_tables'
branch_labels = None
depends_on = None


def _text(length, charset, collation, plain):
    on_mysql = mysql.VARCHAR(length, charset=charset, collation=collation)
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation=plain), 'postgresql')
        .with_variant(on_mysql, 'mysql', 'mariadb')
    )


def upgrade():
    op.create_table(
        'table_log',
        sa.Column('id', _text(64, 'ascii', 'ascii_bin', 'C'), nullable=False),
        sa.Column('worker', _text(255, 'utf8mb4', 'utf8mb4_bin', 'C'), nullable=False),
        sa.Column('first_event', sa.BigInteger(), nullable=False),
        sa.Column('number', sa.Integer(), nullable=False),
        sa.Column('last_event', sa.BigInteger(), nullable=False),
        sa.Column('checkpoint', sa.SmallInteger(), nullable=False),
        sa.Column('chunk', sa.LargeBinary().with_variant(mysql.LONGBLOB(), 'mysql', 'mariadb'), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_table_log'),
    )
    op.create_index('ix_table_log_worker_first', 'table_log', ['worker', 'first_event'], unique=False)
