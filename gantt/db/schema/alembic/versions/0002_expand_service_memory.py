# SPDX-License-Identifier: Apache-2.0
"""Memory of processes, as they note it themselves

Processes of release 1.0 do not write the column, and do not read it.

Revision: 0002_expand_service_memory
After: 0001_expand_initial
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0002_expand_service_memory'
down_revision = '0001_expand_initial'


def upgrade():
    dialect = op.get_bind().dialect
    kind = sa.String(1024)
    if dialect.name in ('mysql', 'mariadb'):
        binary = 'nopad_bin' if dialect.is_mariadb else 'bin'
        kind = mysql.VARCHAR(1024, charset='utf8mb4', collation=f'utf8mb4_{binary}')
    op.add_column('services', sa.Column('memory', kind, nullable=True))
