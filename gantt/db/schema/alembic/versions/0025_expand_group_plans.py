# SPDX-License-Identifier: Apache-2.0
"""Plans of groups, the places that are claims of their members, and sets of policies

Expands: a table that older processes leave alone, and columns that they leave null.

Revision: 0025_expand_group_plans
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0025_expand_group_plans'
down_revision = '0024_expand_give_backs'
branch_labels = None
depends_on = None

Id = (
    sa.String(64)
    .with_variant(sa.String(64, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)


def _text(length, collation='C'):
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation=collation), 'postgresql')
        .with_variant(
            mysql.VARCHAR(length, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
        )
    )


Name, Note = _text(255), _text(1024, None)
LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)
Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), 'mysql', 'mariadb')


def upgrade():
    op.create_table(
        'group_plans',
        sa.Column('group_uuid', Id, primary_key=True),
        sa.Column('request_id', Id, nullable=False, index=True),
        sa.Column('project_id', Name, index=True),
        sa.Column('user_id', Note),
        sa.Column('description', Blob, nullable=False),
        sa.Column('plan', Blob, nullable=False),
        sa.Column('revision', sa.Integer(), nullable=False),
        sa.Column('lease_until', sa.Double(), nullable=False, index=True),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
    )
    op.add_column('group_rules', sa.Column('policies', LongText))
    op.add_column('claims', sa.Column('member_name', Name))
    op.add_column('claims', sa.Column('planned', LongText))
