# SPDX-License-Identifier: Apache-2.0
"""Room in the row of a claim for what it takes of its host, and for whose it is

Expands: columns that older processes leave empty, and indexes that have nothing of their rows.
Nothing is filled, see ``gantt-manage db contract``.

Revision: 0016_expand_narrow_claims
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0016_expand_narrow_claims'
down_revision = '0015_expand_services_alarm'
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


def _text(length, collation='C'):
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation=collation), 'postgresql')
        .with_variant(
            mysql.VARCHAR(length, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
        )
    )


LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)


def upgrade():
    op.add_column(
        'meta', sa.Column('claims_form', sa.SmallInteger(), nullable=False, server_default='0')
    )
    op.add_column('meta', sa.Column('claims_moved', _ascii(64), nullable=True))
    op.add_column('services', sa.Column('revision', _ascii(64), nullable=True))
    for name in ('vcpu', 'pcpu', 'memory_mb', 'disk_gb'):
        op.add_column('claims', sa.Column(name, sa.BigInteger(), nullable=True))
    for name, kind in (
        ('other', LongText),
        ('project_id', _text(1024, None)),
        ('user_id', _text(1024, None)),
        ('consumer_type', _text(255)),
        ('sole', _ascii(100)),
    ):
        op.add_column('claims', sa.Column(name, kind, nullable=True))
    if op.get_bind().dialect.name == 'postgresql':
        _index_beside_writers()
    else:  # SQLite has one writer, MariaDB lets others write meanwhile
        _index()


def _index(**options):
    part = sa.text('left(project_id, 64)') if options else 'project_id'
    op.create_index(
        'ix_claims_sole', 'claims', ['sole'], unique=True,
        postgresql_where=sa.text('sole IS NOT NULL'),
        sqlite_where=sa.text('sole IS NOT NULL'), **options,
    )  # fmt: skip
    op.create_index(
        'ix_claims_project_id', 'claims', [part], mysql_length=64, mariadb_length=64,
        postgresql_where=sa.text('consumer_type IS NOT NULL'),
        sqlite_where=sa.text('consumer_type IS NOT NULL'), **options,
    )  # fmt: skip


def _index_beside_writers():
    """It waits for all transactions under way, and leaves half an index where it is ended."""
    with op.get_context().autocommit_block():
        usual = {
            name: op.get_bind().exec_driver_sql(f'SHOW {name}').scalar_one()
            for name in ('lock_timeout', 'statement_timeout')
        }
        for name in usual:
            op.execute(f'SET {name} = 0')
        for name in ('ix_claims_sole', 'ix_claims_project_id'):
            op.execute(f'DROP INDEX CONCURRENTLY IF EXISTS {name}')
        _index(postgresql_concurrently=True)
        for name, value in usual.items():
            op.execute(f"SET {name} = '{value}'")
