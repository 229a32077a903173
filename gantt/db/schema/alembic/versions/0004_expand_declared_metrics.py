# SPDX-License-Identifier: Apache-2.0
"""Metrics that operators declare

Expands: a table that older processes know nothing of.

Revision: 0004_expand_declared_metrics
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0004_expand_declared_metrics'
down_revision = '0003_expand_journals'
branch_labels = None
depends_on = None

Serial = sa.BigInteger().with_variant(sa.Integer, 'sqlite')


def _words(length, collated=True):
    found = sa.String(length).with_variant(
        mysql.VARCHAR(length, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
    )
    if not collated:
        return found
    return found.with_variant(sa.String(length, collation='C'), 'postgresql')


def upgrade():
    op.create_table(
        'declared_metrics',
        sa.Column('id', Serial, nullable=False),
        sa.Column('name', _words(255), nullable=False),
        sa.Column('unit', _words(1024, collated=False), nullable=False),
        sa.Column('lower', sa.Double(), nullable=True),
        sa.Column('upper', sa.Double(), nullable=True),
        sa.Column('stale_seconds', sa.Double(), nullable=True),
        sa.Column('description', _words(1024, collated=False), nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_declared_metrics'),
        sa.UniqueConstraint('name', name='uq_declared_metrics_name'),
    )
