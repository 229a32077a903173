# SPDX-License-Identifier: Apache-2.0
"""Which zones are of the same owner, and the allocations of zones above with their receipts

Expands: a table that older processes leave alone, and columns that they leave null.

Revision: 0028_expand_owners_of_zones
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0028_expand_owners_of_zones'
down_revision = '0027_expand_exact_text'
branch_labels = None
depends_on = None

def upgrade():
    # MySQL has no collation that compares spaces at the end.
    is_mariadb = getattr(op.get_bind().dialect, 'is_mariadb', False)
    binary = 'nopad_bin' if is_mariadb else 'bin'

    def text(length, charset):
        on_mysql = mysql.VARCHAR(length, charset=charset, collation=f'{charset}_{binary}')
        return (
            sa.String(length)
            .with_variant(sa.String(length, collation='C'), 'postgresql')
            .with_variant(on_mysql, 'mysql', 'mariadb')
        )

    long_text = mysql.MEDIUMTEXT(charset='utf8mb4', collation=f'utf8mb4_{binary}')
    op.add_column('child_zones', sa.Column('trusted', sa.SmallInteger()))
    op.add_column('parent_zones', sa.Column('trusted', sa.SmallInteger()))
    op.add_column('parent_zones', sa.Column('certificate_sha256', text(64, 'ascii')))
    op.create_table(
        'allocations_above',
        sa.Column('request_id', text(64, 'ascii'), primary_key=True),
        sa.Column('parent', text(255, 'utf8mb4'), nullable=False, index=True),
        sa.Column('request_key', text(64, 'ascii'), nullable=False),
        sa.Column(
            'receipt', sa.Text().with_variant(long_text, 'mysql', 'mariadb'), nullable=False
        ),
        sa.Column('until', sa.Double(), nullable=False),
    )
