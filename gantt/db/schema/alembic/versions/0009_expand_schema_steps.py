# SPDX-License-Identifier: Apache-2.0
"""The steps that the schema has taken, by name

Expands: a table that older processes know nothing of. A release that is older than the schema
reads there whether the steps that it does not know only add.

Revision: 0009_expand_schema_steps
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0009_expand_schema_steps'
down_revision = '0008_expand_shadows'
branch_labels = None
depends_on = None

#: Those before this one; it and the later ones are noted as they are taken.
BEFORE = (
    '0001_expand_first_tables', '0002_expand_table_log', '0003_expand_journals',
    '0004_expand_declared_metrics', '0005_expand_claims_image', '0006_expand_nova_heard',
    '0007_expand_claims_flavor', '0008_expand_shadows',
)  # fmt: skip


def upgrade():
    name = (
        sa.String(64)
        .with_variant(sa.String(64, collation='C'), 'postgresql')
        .with_variant(
            mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb'
        )
    )
    steps = op.create_table(
        'schema_steps',
        sa.Column('revision', name, nullable=False),
        sa.PrimaryKeyConstraint('revision', name='pk_schema_steps'),
    )
    op.bulk_insert(steps, [{'revision': one} for one in BEFORE])
