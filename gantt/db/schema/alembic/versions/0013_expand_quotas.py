# SPDX-License-Identifier: Apache-2.0
"""Quotas of projects, and finding what a project has

Expands: a table that older processes know nothing of, and indexes.

Revision: 0013_expand_quotas
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0013_expand_quotas'
down_revision = '0012_expand_services'
branch_labels = None
depends_on = None

Name = (
    sa.String(255)
    .with_variant(sa.String(255, collation='C'), 'postgresql')
    .with_variant(
        mysql.VARCHAR(255, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
    )
)


def upgrade():
    op.create_table(
        'quotas',
        sa.Column('project_id', Name, nullable=False),
        sa.Column('name', Name, nullable=False),
        sa.Column('hard_limit', sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint('project_id', 'name', name='pk_quotas'),
    )
    op.create_index('ix_group_rules_project_id', 'group_rules', ['project_id'])
    op.create_index(
        'ix_consumers_project_id', 'consumers', ['project_id'],
        mysql_length=64, mariadb_length=64, postgresql_using='hash',
    )  # fmt: skip
