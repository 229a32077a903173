# SPDX-License-Identifier: Apache-2.0
"""What a claim below takes and whose it is; claims below are found by their project

Expands: columns that older processes leave null, and an index.

Revision: 0026_expand_amounts_below
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0026_expand_amounts_below'
down_revision = '0025_expand_group_plans'
branch_labels = None
depends_on = None


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


def upgrade():
    for name in ('vcpu', 'pcpu', 'memory_mb', 'disk_gb'):
        op.add_column('claims_below', sa.Column(name, sa.BigInteger()))
    op.add_column('claims_below', sa.Column('other', LongText))
    op.add_column('claims_below', sa.Column('user_id', Note))
    op.add_column('claims_below', sa.Column('consumer_type', Name))
    op.create_index('ix_claims_below_project_id_state', 'claims_below', ['project_id', 'state'])
