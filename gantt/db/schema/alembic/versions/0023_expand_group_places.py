# SPDX-License-Identifier: Apache-2.0
"""The zone of a group whose members stay together, and the group of a claim below

Expands: a table that older processes leave alone, and a column that they leave null.

Revision: 0023_expand_group_places
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0023_expand_group_places'
down_revision = '0022_expand_zones'
branch_labels = None
depends_on = None

Id = (
    sa.String(64)
    .with_variant(sa.String(64, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)


def upgrade():
    op.create_table(
        'group_places',
        sa.Column('group_uuid', Id, primary_key=True),
        sa.Column('place', Id, nullable=False),
        sa.Column('request_id', Id, nullable=False, index=True),
        sa.Column('until', sa.Double(), nullable=False),
    )
    op.add_column('claims_below', sa.Column('group_uuid', Id))
    op.create_index('ix_claims_below_group_uuid', 'claims_below', ['group_uuid'])
