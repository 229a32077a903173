# SPDX-License-Identifier: Apache-2.0
"""Common parts of all tables: their metadata, and columns of counters."""

import sqlalchemy as sa

from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.db.engine.engine import Amount

metadata = sa.MetaData(
    naming_convention={
        'ix': 'ix_%(table_name)s_%(column_0_N_name)s',
        'uq': 'uq_%(table_name)s_%(column_0_N_name)s',
        'fk': 'fk_%(table_name)s_%(column_0_N_name)s',
        'pk': 'pk_%(table_name)s',
    }
)

#: Column suffix of each class with columns in the rows of providers and claims.
CORE_CLASS_COLUMNS = {name: name.lower() for name in CORE_CLASSES}


def count(name: str) -> sa.Column:
    return sa.Column(name, Amount, nullable=False, server_default='0')
