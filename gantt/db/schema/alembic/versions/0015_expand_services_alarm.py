# SPDX-License-Identifier: Apache-2.0
"""Processes of the site say what an operator has to look into

Expands: a column that older processes write nothing into.

Revision: 0015_expand_services_alarm
"""

import sqlalchemy as sa
from alembic import op

from sqlalchemy.dialects import mysql

revision = '0015_expand_services_alarm'
down_revision = '0014_expand_host_events'
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


def upgrade():
    op.add_column('services', sa.Column('alarm', _text(1024, None), nullable=True))
