# SPDX-License-Identifier: Apache-2.0
"""Processes of the site note themselves

Expands: a table that older processes know nothing of.

Revision: 0012_expand_services
"""

import sqlalchemy as sa
from alembic import op

from sqlalchemy.dialects import mysql

revision = '0012_expand_services'
down_revision = '0011_expand_signing_keys'
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
        'services',
        sa.Column('name', _text(255), nullable=False),
        sa.Column('kind', _ascii(32), nullable=False),
        sa.Column('host', _text(255), nullable=False),
        sa.Column('version', _text(255), nullable=False),
        sa.Column('configuration', _ascii(64), nullable=False),
        sa.Column('problem', _text(1024, None), nullable=False),
        sa.Column('started_at', sa.Double(), nullable=False),
        sa.Column('configured_at', sa.Double(), nullable=False),
        sa.Column('seen_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('name', name='pk_services'),
    )
