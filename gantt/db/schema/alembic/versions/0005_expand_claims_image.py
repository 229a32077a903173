# SPDX-License-Identifier: Apache-2.0
"""The properties of a consumer's image beside its claim, for those who weigh by them

Expands: a column that older processes leave empty.

Revision: 0005_expand_claims_image
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0005_expand_claims_image'
down_revision = '0004_expand_declared_metrics'
branch_labels = None
depends_on = None

LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)


def upgrade():
    op.add_column('claims', sa.Column('image', LongText, nullable=True))
