# SPDX-License-Identifier: Apache-2.0
"""Decisions are found by whom they are about, and by the id that their request has elsewhere

Expands: a column that older processes leave empty, and a table that they know nothing of.

Revision: 0010_expand_decisions_found
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0010_expand_decisions_found'
down_revision = '0009_expand_schema_steps'
branch_labels = None
depends_on = None

Id = (
    sa.String(64)
    .with_variant(sa.String(64, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)


def upgrade():
    op.add_column('decisions', sa.Column('origin', Id, nullable=True))
    op.create_index(
        'ix_decisions_origin_number', 'decisions', ['origin', 'number'],
        postgresql_where=sa.text('origin IS NOT NULL'),
        sqlite_where=sa.text('origin IS NOT NULL'),
    )  # fmt: skip
    op.create_table(
        'decision_consumers',
        sa.Column('consumer', Id, nullable=False),
        sa.Column('decision_id', Id, nullable=False),
        sa.PrimaryKeyConstraint('consumer', 'decision_id', name='pk_decision_consumers'),
    )
    op.create_index(
        'ix_decision_consumers_decision_id', 'decision_consumers', ['decision_id']
    )
