# SPDX-License-Identifier: Apache-2.0
"""Comparisons of shadow mode

Expands: a table that older processes know nothing of.

Revision: 0008_expand_shadows
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0008_expand_shadows'
down_revision = '0007_expand_claims_flavor'
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
        'shadows',
        sa.Column(
            'number',
            sa.BigInteger().with_variant(sa.Integer, 'sqlite'),
            nullable=False,
            autoincrement=True,
        ),
        sa.Column('id', _ascii(64), nullable=False),
        sa.Column('request_id', _ascii(64), nullable=False),
        sa.Column('origin', _text(255), nullable=False),
        sa.Column('consumer', _ascii(64), nullable=False),
        sa.Column('purpose', _ascii(32), nullable=False),
        sa.Column('verdict', _ascii(32), nullable=False),
        sa.Column('ours', _text(255), nullable=True),
        sa.Column('theirs', _text(255), nullable=True),
        sa.Column('why', _text(1024, None), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('number', name='pk_shadows'),
        sa.UniqueConstraint('id', name='uq_shadows_id'),
        sqlite_autoincrement=True,
    )
