# SPDX-License-Identifier: Apache-2.0
"""What Placement's interface has and the book had not: aggregates of providers, times of changes

Expands: a table, and columns that older processes leave empty.  Nothing is filled: a row without a
time has not been changed since.

Revision: 0018_expand_placement
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0018_expand_placement'
down_revision = '0017_expand_providers'
branch_labels = None
depends_on = None

Id = (
    sa.String(64)
    .with_variant(sa.String(64, collation='C'), 'postgresql')
    .with_variant(mysql.VARCHAR(64, charset='ascii', collation='ascii_bin'), 'mysql', 'mariadb')
)
Seconds = sa.Double()
CHANGED = ('providers', 'resource_classes', 'traits')


def upgrade():
    op.create_table(
        'provider_aggregates',
        sa.Column(
            'provider_id', sa.BigInteger,
            sa.ForeignKey(
                'providers.id', ondelete='CASCADE',
                name='fk_provider_aggregates_provider_id_providers',
            ),
            primary_key=True, autoincrement=False,
        ),
        sa.Column('uuid', Id, primary_key=True),
    )  # fmt: skip
    op.create_index('ix_provider_aggregates_uuid', 'provider_aggregates', ['uuid'])
    for table in CHANGED:
        op.add_column(table, sa.Column('changed_at', Seconds, nullable=True))
    if op.get_bind().dialect.name == 'postgresql':
        _index_beside_writers()
    else:
        _index()


def _index(**options):
    op.create_index('ix_allocations_provider_id', 'allocations', ['provider_id'], **options)


def _index_beside_writers():
    """It waits for all transactions under way, and leaves half an index where it is ended."""
    with op.get_context().autocommit_block():
        usual = {
            name: op.get_bind().exec_driver_sql(f'SHOW {name}').scalar_one()
            for name in ('lock_timeout', 'statement_timeout')
        }
        for name in usual:
            op.execute(f'SET {name} = 0')
        op.execute('DROP INDEX CONCURRENTLY IF EXISTS ix_allocations_provider_id')
        _index(postgresql_concurrently=True)
        for name, value in usual.items():
            op.execute(f"SET {name} = '{value}'")
