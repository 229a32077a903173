# SPDX-License-Identifier: Apache-2.0
"""Who says what a host has

Expands: older processes leave it empty, which is as they work: its reports say it.

Revision: 0019_expand_inventories_by
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0019_expand_inventories_by'
down_revision = '0018_expand_placement'
branch_labels = None
depends_on = None

Word = (
    sa.String(32)
    .with_variant(sa.String(32, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(32, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)


def upgrade():
    op.add_column('provider_facts', sa.Column('inventories_by', Word, nullable=True))
