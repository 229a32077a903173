# SPDX-License-Identifier: Apache-2.0
"""The first tables: hosts, requests, claims, groups, decisions, the feed

Expands: makes tables only.  Types and class names are written out, so that a
later version of the code does not change what this step once did.

Revision: 0001_expand_first_tables
"""

import time

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0001_expand_first_tables'
down_revision = None
branch_labels = None
depends_on = None

Serial = sa.BigInteger().with_variant(sa.Integer, 'sqlite')
Amount = sa.BigInteger()
Seconds = sa.Double()


def _text(length, charset, collation, plain=None):
    on_mysql = mysql.VARCHAR(length, charset=charset, collation=collation)
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation=plain), 'postgresql')
        .with_variant(on_mysql, 'mysql', 'mariadb')
    )


Id = _text(64, 'ascii', 'ascii_bin', 'C')
Word = _text(32, 'ascii', 'ascii_bin', 'C')
Name = _text(255, 'utf8mb4', 'utf8mb4_bin', 'C')
Note = _text(1024, 'utf8mb4', 'utf8mb4_bin')
LongText = sa.Text().with_variant(
    mysql.MEDIUMTEXT(charset='utf8mb4', collation='utf8mb4_bin'), 'mysql', 'mariadb'
)
Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), 'mysql', 'mariadb')

CLASSES = (
    'VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB', 'PCI_DEVICE', 'SRIOV_NET_VF', 'NUMA_SOCKET',
    'NUMA_CORE', 'NUMA_THREAD', 'NUMA_MEMORY_MB', 'IPV4_ADDRESS', 'VGPU', 'VGPU_DISPLAY_HEAD',
    'NET_BW_EGR_KILOBIT_PER_SEC', 'NET_BW_IGR_KILOBIT_PER_SEC',
    'NET_PACKET_RATE_KILOPACKET_PER_SEC', 'NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC',
    'NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC', 'MEM_ENCRYPTION_CONTEXT', 'FPGA', 'PGPU',
)


def upgrade() -> None:
    op.create_table(
        'aggregates',
        sa.Column('id', Serial, nullable=False),
        sa.Column('uuid', Id, nullable=False),
        sa.Column('name', Name, nullable=False),
        sa.Column('generation', Amount, server_default='0', nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_aggregates'),
        sa.UniqueConstraint('name', name='uq_aggregates_name'),
        sa.UniqueConstraint('uuid', name='uq_aggregates_uuid'),
        sqlite_autoincrement=True,
    )
    op.create_table(
        'allocations',
        sa.Column('claim_id', Id, nullable=False),
        sa.Column('provider_id', Amount, autoincrement=False, nullable=False),
        sa.Column('vcpu', Amount, server_default='0', nullable=False),
        sa.Column('pcpu', Amount, server_default='0', nullable=False),
        sa.Column('memory_mb', Amount, server_default='0', nullable=False),
        sa.Column('disk_gb', Amount, server_default='0', nullable=False),
        sa.Column('other', LongText, nullable=True),
        sa.PrimaryKeyConstraint('claim_id', 'provider_id', name='pk_allocations'),
    )
    op.create_table(
        'changes',
        sa.Column('id', Serial, nullable=False),
        sa.Column('kind', Word, nullable=False),
        sa.Column('ref', Id, nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_changes'),
        sqlite_autoincrement=True,
    )
    op.create_table(
        'claims',
        sa.Column('id', Id, nullable=False),
        sa.Column('request_id', Id, nullable=True),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('member', sa.Integer(), nullable=False),
        sa.Column('consumer', Id, nullable=False),
        sa.Column('provider_id', Amount, nullable=False),
        sa.Column('state', Word, nullable=False),
        sa.Column('live', sa.SmallInteger(), nullable=False),
        sa.Column('lifecycle', Word, nullable=False),
        sa.Column('purpose', Word, nullable=False),
        sa.Column('lease_until', Seconds, nullable=False),
        sa.Column('expires_at', Seconds, nullable=True),
        sa.Column('group_uuid', Id, nullable=True),
        sa.Column('move_id', Id, nullable=True),
        sa.Column('parent_key', Name, nullable=True),
        sa.Column('layout', LongText, nullable=True),
        sa.Column('adopted', sa.SmallInteger(), server_default='0', nullable=False),
        sa.Column('absences', sa.Integer(), server_default='0', nullable=False),
        sa.Column('reason', Note, nullable=False),
        sa.Column('created_at', Seconds, nullable=False),
        sa.Column('updated_at', Seconds, nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_claims'),
    )
    op.create_index('ix_claims_consumer', 'claims', ['consumer'], unique=False)
    op.create_index('ix_claims_expires_at', 'claims', ['expires_at'], unique=False, postgresql_where=sa.text('expires_at IS NOT NULL'), sqlite_where=sa.text('expires_at IS NOT NULL'))
    op.create_index('ix_claims_group_uuid', 'claims', ['group_uuid'], unique=False, postgresql_where=sa.text('group_uuid IS NOT NULL'), sqlite_where=sa.text('group_uuid IS NOT NULL'))
    op.create_index('ix_claims_move_id', 'claims', ['move_id'], unique=False, postgresql_where=sa.text('move_id IS NOT NULL'), sqlite_where=sa.text('move_id IS NOT NULL'))
    op.create_index('ix_claims_provider_id_live', 'claims', ['provider_id', 'live'], unique=False)
    op.create_index('ix_claims_request_id', 'claims', ['request_id'], unique=False)
    op.create_table(
        'consumers',
        sa.Column('id', Serial, nullable=False),
        sa.Column('uuid', Id, nullable=True),
        sa.Column('generation', Amount, server_default='0', nullable=False),
        sa.Column('project_id', Note, nullable=True),
        sa.Column('user_id', Note, nullable=True),
        sa.Column('type', Name, nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_consumers'),
        sa.UniqueConstraint('uuid', name='uq_consumers_uuid'),
    )
    op.create_table(
        'decisions',
        sa.Column('number', Serial, nullable=False),
        sa.Column('id', Id, nullable=False),
        sa.Column('request_id', Id, nullable=False),
        sa.Column('outcome', Word, nullable=False),
        sa.Column('project_id', Note, nullable=True),
        sa.Column('reason', LongText, nullable=False),
        sa.Column('worker', Name, nullable=False),
        sa.Column('table_seq', Amount, nullable=False),
        sa.Column('host_set', Id, nullable=False),
        sa.Column('packed', Blob, nullable=False),
        sa.Column('created_at', Seconds, nullable=False),
        sa.PrimaryKeyConstraint('number', name='pk_decisions'),
        sa.UniqueConstraint('id', name='uq_decisions_id'),
        sqlite_autoincrement=True,
    )
    op.create_index('ix_decisions_request_id', 'decisions', ['request_id'], unique=False)
    op.create_table(
        'former_hosts',
        sa.Column('name', Name, nullable=False),
        sa.Column('epoch', Amount, nullable=False),
        sa.PrimaryKeyConstraint('name', name='pk_former_hosts'),
    )
    op.create_table(
        'group_rules',
        sa.Column('uuid', Id, nullable=False),
        sa.Column('name', Name, nullable=False),
        sa.Column('policy', Word, nullable=False),
        sa.Column('max_per_host', sa.Integer(), nullable=False),
        sa.Column('project_id', Name, nullable=True),
        sa.Column('generation', Amount, nullable=False),
        sa.Column('members', LongText, nullable=False),
        sa.PrimaryKeyConstraint('uuid', name='pk_group_rules'),
    )
    op.create_table(
        'host_sets',
        sa.Column('digest', Id, nullable=False),
        sa.Column('provider_ids', Blob, nullable=False),
        sa.Column('used_at', Seconds, nullable=False),
        sa.PrimaryKeyConstraint('digest', name='pk_host_sets'),
    )
    op.create_table(
        'meta',
        sa.Column('id', sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column('incarnation', Amount, nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_meta'),
    )
    op.create_table(
        'providers',
        sa.Column('id', Serial, nullable=False),
        sa.Column('uuid', Id, nullable=False),
        sa.Column('name', Name, nullable=False),
        sa.Column('kind', Word, nullable=False),
        sa.Column('root_id', Amount, nullable=True),
        sa.Column('parent_id', Amount, nullable=True),
        sa.Column('generation', Amount, server_default='0', nullable=False),
        sa.Column('version', Amount, server_default='0', nullable=False),
        sa.Column('claims_stamp', Amount, server_default='0', nullable=False),
        sa.Column('facts_stamp', Amount, server_default='0', nullable=False),
        sa.Column('epoch', Amount, server_default='0', nullable=False),
        sa.Column('sequence', Amount, server_default='0', nullable=False),
        sa.Column('full_sequence', Amount, server_default='0', nullable=False),
        sa.Column('reported_at', Seconds, server_default='0', nullable=False),
        sa.Column('over_committed', sa.SmallInteger(), server_default='0', nullable=False),
        sa.Column('cold', Amount, server_default='0', nullable=False),
        sa.Column('refusals', Amount, server_default='0', nullable=False),
        sa.Column('cap_vcpu', Amount, server_default='0', nullable=False),
        sa.Column('cap_pcpu', Amount, server_default='0', nullable=False),
        sa.Column('cap_memory_mb', Amount, server_default='0', nullable=False),
        sa.Column('cap_disk_gb', Amount, server_default='0', nullable=False),
        sa.Column('used_vcpu', Amount, server_default='0', nullable=False),
        sa.Column('used_pcpu', Amount, server_default='0', nullable=False),
        sa.Column('used_memory_mb', Amount, server_default='0', nullable=False),
        sa.Column('used_disk_gb', Amount, server_default='0', nullable=False),
        sa.Column('foreign_vcpu', Amount, server_default='0', nullable=False),
        sa.Column('foreign_pcpu', Amount, server_default='0', nullable=False),
        sa.Column('foreign_memory_mb', Amount, server_default='0', nullable=False),
        sa.Column('foreign_disk_gb', Amount, server_default='0', nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_providers'),
        sa.UniqueConstraint('name', name='uq_providers_name'),
        sa.UniqueConstraint('uuid', name='uq_providers_uuid'),
        sqlite_autoincrement=True,
    )
    op.create_table(
        'requests',
        sa.Column('id', Id, nullable=False),
        sa.Column('fingerprint', Id, nullable=False),
        sa.Column('state', Word, nullable=False),
        sa.Column('owner', Name, nullable=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('deadline', Seconds, nullable=False),
        sa.Column('token', Id, nullable=False),
        sa.Column('answer', Blob, nullable=True),
        sa.Column('created_at', Seconds, nullable=False),
        sa.Column('updated_at', Seconds, nullable=False),
        sa.Column('claims', Amount, server_default='0', nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_requests'),
    )
    op.create_table(
        'resource_classes',
        sa.Column('id', Serial, nullable=False),
        sa.Column('name', Name, nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_resource_classes'),
        sa.UniqueConstraint('name', name='uq_resource_classes_name'),
    )
    op.create_table(
        'traits',
        sa.Column('id', Serial, nullable=False),
        sa.Column('name', Name, nullable=False),
        sa.PrimaryKeyConstraint('id', name='pk_traits'),
        sa.UniqueConstraint('name', name='uq_traits_name'),
    )
    op.create_table(
        'aggregate_members',
        sa.Column('aggregate_id', Serial, autoincrement=False, nullable=False),
        sa.Column('host', Name, nullable=False),
        sa.ForeignKeyConstraint(['aggregate_id'], ['aggregates.id'], name='fk_aggregate_members_aggregate_id', ondelete='CASCADE'),
        sa.PrimaryKeyConstraint('aggregate_id', 'host', name='pk_aggregate_members'),
    )
    op.create_index('ix_aggregate_members_host', 'aggregate_members', ['host'], unique=False)
    op.create_table(
        'aggregate_metadata',
        sa.Column('aggregate_id', Serial, autoincrement=False, nullable=False),
        sa.Column('key', Name, nullable=False),
        sa.Column('value', LongText, nullable=False),
        sa.ForeignKeyConstraint(['aggregate_id'], ['aggregates.id'], name='fk_aggregate_metadata_aggregate_id', ondelete='CASCADE'),
        sa.PrimaryKeyConstraint('aggregate_id', 'key', name='pk_aggregate_metadata'),
    )
    op.create_table(
        'inventories',
        sa.Column('provider_id', Amount, autoincrement=False, nullable=False),
        sa.Column('class_id', Serial, autoincrement=False, nullable=False),
        sa.Column('total', Amount, nullable=False),
        sa.Column('reserved', Amount, nullable=False),
        sa.Column('min_unit', Amount, nullable=False),
        sa.Column('max_unit', Amount, nullable=True),
        sa.Column('step_size', Amount, nullable=False),
        sa.Column('allocation_ratio', Seconds, nullable=False),
        sa.Column('cap', Amount, nullable=False),
        sa.Column('used', Amount, server_default='0', nullable=False),
        sa.Column('foreign_use', Amount, server_default='0', nullable=False),
        sa.ForeignKeyConstraint(['class_id'], ['resource_classes.id'], name='fk_inventories_class_id'),
        sa.ForeignKeyConstraint(['provider_id'], ['providers.id'], name='fk_inventories_provider_id', ondelete='CASCADE'),
        sa.PrimaryKeyConstraint('provider_id', 'class_id', name='pk_inventories'),
    )
    op.create_table(
        'provider_facts',
        sa.Column('provider_id', Amount, autoincrement=False, nullable=False),
        sa.Column('node', Name, nullable=False),
        sa.Column('cell', Id, nullable=True),
        sa.Column('zone', Name, nullable=True),
        sa.Column('build_topic', Name, nullable=False),
        sa.Column('boot_nonce', Name, nullable=False),
        sa.Column('speaks_for', Word, nullable=False),
        sa.Column('disabled', Note, nullable=True),
        sa.Column('disabled_by', Name, nullable=True),
        sa.Column('service_disabled', Note, nullable=True),
        sa.Column('aggregates', LongText, nullable=False),
        sa.Column('facts', LongText, nullable=False),
        sa.ForeignKeyConstraint(['provider_id'], ['providers.id'], name='fk_provider_facts_provider_id', ondelete='CASCADE'),
        sa.PrimaryKeyConstraint('provider_id', name='pk_provider_facts'),
    )
    op.create_table(
        'provider_traits',
        sa.Column('provider_id', Amount, autoincrement=False, nullable=False),
        sa.Column('trait_id', Serial, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(['provider_id'], ['providers.id'], name='fk_provider_traits_provider_id', ondelete='CASCADE'),
        sa.ForeignKeyConstraint(['trait_id'], ['traits.id'], name='fk_provider_traits_trait_id'),
        sa.PrimaryKeyConstraint('provider_id', 'trait_id', name='pk_provider_traits'),
    )
    op.create_index('ix_provider_traits_trait_id', 'provider_traits', ['trait_id'], unique=False)
    # ### end Alembic commands ###
    if op.get_bind().dialect.name == 'postgresql':
        _compress_fast()
        _leave_room()
    # Another database, even one made anew after a loss, has another number:
    # the hosts register again and what they run is adopted.
    op.bulk_insert(
        sa.table('meta', sa.column('id', sa.Integer), sa.column('incarnation', sa.BigInteger)),
        [{'id': 1, 'incarnation': int(time.time())}],
    )
    op.bulk_insert(
        sa.table('resource_classes', sa.column('name', sa.String)),
        [{'name': name} for name in CLASSES],
    )


def _leave_room() -> None:
    """On the pages of tables whose rows change all the time."""
    for table, percent in (
        ('requests', 70), ('group_rules', 50), ('providers', 50), ('claims', 70),
    ):  # fmt: skip
        op.execute(f'ALTER TABLE {table} SET (fillfactor = {percent})')


def _compress_fast() -> None:
    """Long values by lz4 where the server has it: the default costs several times as much."""
    for table, column in (('requests', 'answer'), ('decisions', 'packed')):
        op.execute(
            f"""
            DO $$ BEGIN
                ALTER TABLE {table} ALTER COLUMN {column} SET COMPRESSION lz4;
            EXCEPTION WHEN feature_not_supported OR syntax_error THEN
                ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL;
            END $$
            """
        )
