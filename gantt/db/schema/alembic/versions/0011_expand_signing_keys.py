# SPDX-License-Identifier: Apache-2.0
"""The key that the words of a host are signed with

Expands: a column that older processes leave as it is.

Revision: 0011_expand_signing_keys
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0011_expand_signing_keys'
down_revision = '0010_expand_decisions_found'
branch_labels = None
depends_on = None

LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)


def upgrade():
    op.add_column('provider_facts', sa.Column('signing_key', LongText, nullable=True))
