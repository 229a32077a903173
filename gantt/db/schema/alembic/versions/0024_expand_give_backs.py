# SPDX-License-Identifier: Apache-2.0
"""What zones below are to end, the order of allocations, and claims that were read back

Expands: tables that older processes leave alone, and columns that they leave null.

Revision: 0024_expand_give_backs
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0024_expand_give_backs'
down_revision = '0023_expand_group_places'
branch_labels = None
depends_on = None


def _ascii(length):
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation='C'), 'postgresql')
        .with_variant(
            mysql.VARCHAR(length, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb'
        )
    )


Id, Word = _ascii(64), _ascii(32)
Name = (
    sa.String(255)
    .with_variant(sa.String(255, collation='C'), 'postgresql')
    .with_variant(
        mysql.VARCHAR(255, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
    )
)


def upgrade():
    op.create_table(
        'give_backs',
        sa.Column('child', Id, primary_key=True),
        sa.Column('request_key', Id, primary_key=True),
        sa.Column('tries', sa.Integer(), nullable=False),
        sa.Column('next_at', sa.Double(), nullable=False, index=True),
        sa.Column('created_at', sa.Double(), nullable=False),
    )
    op.create_table(
        'allocation_orders',
        sa.Column('parent', Name, primary_key=True),
        sa.Column('consumer', Id, primary_key=True),
        sa.Column('purpose', Word, primary_key=True),
        sa.Column('order_no', sa.BigInteger(), nullable=False),
        sa.Column('request_key', Id, nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False, index=True),
    )
    op.add_column('consumers_on_their_way', sa.Column('order_no', sa.BigInteger()))
    op.add_column('claims_below', sa.Column('read_back', sa.SmallInteger()))
    op.add_column('child_zones', sa.Column('own_incarnation', sa.BigInteger()))
