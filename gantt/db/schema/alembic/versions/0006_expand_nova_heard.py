# SPDX-License-Identifier: Apache-2.0
"""What was heard of hosts and aggregates of an unmodified Nova

Expands: a table that older processes know nothing of.

Revision: 0006_expand_nova_heard
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0006_expand_nova_heard'
down_revision = '0005_expand_claims_image'
branch_labels = None
depends_on = None

LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)
Id = (
    sa.String(64)
    .with_variant(sa.String(64, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)


def upgrade():
    op.create_table(
        'nova_heard',
        sa.Column('id', Id, nullable=False),
        sa.Column('casts', LongText, nullable=False),
        sa.Column('unclaimed', LongText, nullable=False),
        sa.Column('synced_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_nova_heard'),
    )
