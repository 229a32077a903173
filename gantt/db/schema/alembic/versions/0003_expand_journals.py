# SPDX-License-Identifier: Apache-2.0
"""The journal out of which a host registered, so that a late registration is known as one

Expands: columns that older processes leave as they are.

Revision: 0003_expand_journals
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0003_expand_journals'
down_revision = '0002_expand_table_log'
branch_labels = None
depends_on = None

Id = (
    sa.String(64)
    .with_variant(sa.String(64, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)


def upgrade():
    op.add_column('provider_facts', sa.Column('journal', Id, nullable=True))
    op.add_column(
        'provider_facts',
        sa.Column('journal_count', sa.BigInteger(), server_default='0', nullable=False),
    )
