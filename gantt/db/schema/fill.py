# SPDX-License-Identifier: Apache-2.0
"""How full PostgreSQL makes the pages of tables whose rows change all the time.

A row that finds room on its own page for its next version needs no new entry in
any index.  By a statement of its own: SQLAlchemy has an option of tables for it
only since 2.1.
"""

import sqlalchemy as sa

#: Table -> percent.
FACTORS = {'requests': 70, 'group_rules': 50, 'providers': 50, 'claims': 70}


def set_on_create(metadata: sa.MetaData) -> None:
    """Have these tables made so wherever they are made from their models."""
    for name, percent in FACTORS.items():
        statement = sa.DDL(f'ALTER TABLE {name} SET (fillfactor = {percent})')
        sa.event.listen(
            metadata.tables[name], 'after_create', statement.execute_if(dialect='postgresql')
        )
