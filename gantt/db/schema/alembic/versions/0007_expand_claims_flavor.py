# SPDX-License-Identifier: Apache-2.0
"""The name of a consumer's flavor beside its claim, for those who keep flavors apart

Expands: a column that older processes leave empty.

Revision: 0007_expand_claims_flavor
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0007_expand_claims_flavor'
down_revision = '0006_expand_nova_heard'
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
    op.add_column('claims', sa.Column('flavor', Name, nullable=True))
