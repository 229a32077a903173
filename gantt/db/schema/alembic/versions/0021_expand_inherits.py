# SPDX-License-Identifier: Apache-2.0
"""What a claim inherits of a pool when another claim of its consumer ends.

A column that may be null: no row is written for it, and the release before leaves it out.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0021_expand_inherits'
down_revision = '0020_expand_allocations'

LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)


def upgrade():
    op.add_column('allocations', sa.Column('inherits', LongText, nullable=True))
