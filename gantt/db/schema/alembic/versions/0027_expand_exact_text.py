# SPDX-License-Identifier: Apache-2.0
"""Text that MariaDB compares whole, with the spaces at its end, as everybody else does

Expands: no row changes.  On MariaDB processes of before cannot write meanwhile and afterwards, as
they name the collation of before beside ours: there they are stopped first.

Revision: 0027_expand_exact_text
"""

import sqlalchemy as sa
from alembic import op

revision = '0027_expand_exact_text'
down_revision = '0026_expand_amounts_below'
branch_labels = None
depends_on = None

#: Collations that take two texts for the same which differ in spaces at their end alone.
PADDING = ('ascii_bin', 'utf8mb4_bin')

COLUMNS = sa.text(
    'SELECT table_name, column_name, column_type, character_set_name, is_nullable, column_default'
    ' FROM information_schema.columns WHERE table_schema = DATABASE()'
    " AND table_name <> 'alembic_version' AND collation_name IN :padding"
    ' ORDER BY table_name, ordinal_position'
).bindparams(sa.bindparam('padding', PADDING, expanding=True))


def upgrade():
    connection = op.get_bind()
    # MySQL has no such collation of ASCII: there only the doors keep spaces from ends of names.
    if not getattr(connection.dialect, 'is_mariadb', False):
        return
    changes = {}
    for table, name, kind, charset, nullable, default in connection.execute(COLUMNS):
        changes.setdefault(table, []).append(
            f'MODIFY `{name}` {kind} CHARACTER SET {charset} COLLATE {charset}_nopad_bin '
            + ('NULL' if nullable == 'YES' else 'NOT NULL')
            + ('' if default is None or default == 'NULL' else f' DEFAULT {default}')
        )
    # A table at a time: who is ended in between goes on where it was.
    for table, columns in changes.items():
        op.execute(f'ALTER TABLE `{table}` {", ".join(columns)}')

