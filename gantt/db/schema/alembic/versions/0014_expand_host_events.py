# SPDX-License-Identifier: Apache-2.0
"""What changed of hosts is kept as lines of their history

Expands: a table that older processes know nothing of.

Revision: 0014_expand_host_events
"""

import sqlalchemy as sa
from alembic import op

from sqlalchemy.dialects import mysql

revision = '0014_expand_host_events'
down_revision = '0013_expand_quotas'
branch_labels = None
depends_on = None


def _ascii(length):
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation='C'), 'postgresql')
        .with_variant(
            mysql.VARCHAR(length, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb'
        )
    )


def _text(length, collation='C'):
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation=collation), 'postgresql')
        .with_variant(
            mysql.VARCHAR(length, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
        )
    )


def upgrade():
    op.create_table(
        'host_events',
        sa.Column(
            'number',
            sa.BigInteger().with_variant(sa.Integer, 'sqlite'),
            nullable=False,
            autoincrement=True,
        ),
        sa.Column('host', _text(255), nullable=False),
        sa.Column('kind', _ascii(32), nullable=False),
        sa.Column('what', _text(1024, None), nullable=False),
        sa.Column('actor', _text(255), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('number', name='pk_host_events'),
        sqlite_autoincrement=True,
    )
    op.create_index('ix_host_events_host_number', 'host_events', ['host', 'number'])
