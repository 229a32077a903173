# SPDX-License-Identifier: Apache-2.0
"""Zones: who this one is, the ones below and above it, and what it has claimed below

Expands: tables that older processes leave alone, and an index that has nothing of their rows.

Revision: 0022_expand_zones
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0022_expand_zones'
down_revision = '0021_expand_inherits'
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


def _text(length):
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation='C'), 'postgresql')
        .with_variant(
            mysql.VARCHAR(length, charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
        )
    )


LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)
Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), 'mysql', 'mariadb')
Id, Name, Word = _ascii(64), _text(255), _ascii(32)


def upgrade():
    op.create_table(
        'zone',
        sa.Column('id', sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column('uuid', Id, nullable=False),
        sa.Column('secret', Blob, nullable=False),
    )
    op.create_table(
        'child_zones',
        sa.Column('uuid', Id, primary_key=True),
        sa.Column('name', Name, nullable=False, unique=True),
        sa.Column('url', LongText, nullable=False),
        sa.Column('credential', Name, nullable=False),
        sa.Column('enabled', sa.SmallInteger(), nullable=False),
        sa.Column('last_resort', sa.SmallInteger(), nullable=False),
        sa.Column('scale', sa.Double(), nullable=False),
        sa.Column('score_offset', sa.Double(), nullable=False),
        sa.Column('score_set', Id, nullable=False),
        sa.Column('incarnation', sa.BigInteger(), nullable=False),
        sa.Column('revision', sa.Double(), nullable=False),
    )
    op.create_table(
        'parent_zones',
        sa.Column('name', Name, primary_key=True),
        sa.Column('identity', Name, nullable=False, unique=True),
        sa.Column('project_id', Name, nullable=False),
        sa.Column('enabled', sa.SmallInteger(), nullable=False),
        sa.Column('lease_seconds_max', sa.Integer(), nullable=False),
    )
    op.create_table(
        'claims_below',
        sa.Column('claim_id', Id, primary_key=True),
        sa.Column('child', Id, primary_key=True, index=True),
        sa.Column('request_id', Id, nullable=False, index=True),
        sa.Column('request_key', Id, nullable=False),
        sa.Column('consumer', Id, nullable=False, index=True),
        sa.Column('purpose', Word, nullable=False),
        sa.Column('project_id', Name),
        sa.Column('parent', Name, index=True),
        sa.Column('state', Word, nullable=False),
        sa.Column('place', LongText, nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
    )
    op.create_table(
        'consumers_on_their_way',
        sa.Column('consumer', Id, primary_key=True),
        sa.Column('purpose', Word, primary_key=True),
        sa.Column('request_id', Id, nullable=False, index=True),
    )
    if op.get_bind().dialect.name == 'postgresql':
        _index_beside_writers()
    else:  # SQLite has one writer, MariaDB lets others write meanwhile
        _index()


def _index(**options):
    op.create_index(
        'ix_claims_parent_key', 'claims', ['parent_key'],
        postgresql_where=sa.text('parent_key IS NOT NULL'),
        sqlite_where=sa.text('parent_key IS NOT NULL'), **options,
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
        op.execute('DROP INDEX CONCURRENTLY IF EXISTS ix_claims_parent_key')
        _index(postgresql_concurrently=True)
        for name, value in usual.items():
            op.execute(f"SET {name} = '{value}'")
