# SPDX-License-Identifier: Apache-2.0
"""All tables of the first release

Types and names are written out, so that later code does not change what this step does.

Revision: 0001_expand_initial
"""

import time

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0001_expand_initial'
down_revision = None

#: Core classes: each has columns of its own in the rows of providers and claims.
HOT = ('vcpu', 'pcpu', 'memory_mb', 'disk_gb')
#: Of others rows are made as they are declared.
CLASSES = (
    *('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB', 'PCI_DEVICE', 'SRIOV_NET_VF', 'NUMA_SOCKET'),
    *('NUMA_CORE', 'NUMA_THREAD', 'NUMA_MEMORY_MB', 'IPV4_ADDRESS', 'VGPU', 'VGPU_DISPLAY_HEAD'),
    *('NET_BW_EGR_KILOBIT_PER_SEC', 'NET_BW_IGR_KILOBIT_PER_SEC'),
    *('NET_PACKET_RATE_KILOPACKET_PER_SEC', 'NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC'),
    *('NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC', 'MEM_ENCRYPTION_CONTEXT', 'FPGA', 'PGPU'),
)
#: How full PostgreSQL makes the pages of tables whose rows change all the time, in percent.
FILL_FACTORS = {'requests': 70, 'group_rules': 50, 'providers': 50, 'claims': 70}


class Text(sa.TypeDecorator):
    """Text that every database compares whole, with case and with the spaces at its end.

    :param is_sorted: PostgreSQL orders it byte by byte, as the others do
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, length=None, charset='utf8mb4', is_sorted=True):
        super().__init__()
        self.length, self.charset, self.is_sorted = length, charset, is_sorted

    def load_dialect_impl(self, dialect):
        """Return the type of the column."""
        if dialect.name in ('mysql', 'mariadb'):
            # MySQL has no such collation: there only the doors keep spaces from ends of names.
            binary = 'nopad_bin' if dialect.is_mariadb else 'bin'
            words = {'charset': self.charset, 'collation': f'{self.charset}_{binary}'}
            return mysql.VARCHAR(self.length, **words) if self.length else mysql.MEDIUMTEXT(**words)
        if self.length is None:
            return sa.Text()
        exact = self.is_sorted and dialect.name == 'postgresql'
        return sa.String(self.length, collation='C' if exact else None)


Id, Word, UniqueKey = Text(64, 'ascii'), Text(32, 'ascii'), Text(100, 'ascii')
Name, Note, LongText = Text(255), Text(1024, is_sorted=False), Text()
Blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), 'mysql', 'mariadb')
Serial = sa.BigInteger().with_variant(sa.Integer, 'sqlite')
Amount, Seconds, Count, Flag = sa.BigInteger(), sa.Double(), sa.Integer(), sa.SmallInteger()


def column(name, kind, *, index=False, unique=False, default=None):
    return sa.Column(name, kind, nullable=False, index=index, unique=unique, server_default=default)


def maybe(name, kind, *, index=False, unique=False):
    return sa.Column(name, kind, nullable=True, index=index, unique=unique)


def counts(*names):
    return [column(name, Amount, default='0') for name in names]


def key(name, kind, of=None, *, index=False, cascade=True):
    """Return a column of the primary key.

    :param of: table that it refers to
    :param cascade: the row goes with the one that it refers to
    """
    refers = [sa.ForeignKey(f'{of}.id', ondelete='CASCADE' if cascade else None)] if of else []
    return sa.Column(name, kind, *refers, primary_key=True, autoincrement=False, index=index)


def number(name):
    """Return the column that counts up and is the primary key."""
    return sa.Column(name, Serial, primary_key=True, autoincrement=True)


def index(table, *columns, unique=False):
    """Make an index of the rows of which the first column is not null."""
    op.create_index(
        f'ix_{table}_{"_".join(columns)}',
        table,
        [*columns],
        unique=unique,
        postgresql_where=sa.text(f'{columns[0]} IS NOT NULL'),
        sqlite_where=sa.text(f'{columns[0]} IS NOT NULL'),
    )


def upgrade():
    _site()
    _providers()
    _claims()
    _records()
    _zones()
    if op.get_bind().dialect.name == 'postgresql':
        _store_as_postgresql_does_best()
    # Another database, even one made anew after a loss, has another number: the hosts register
    # again and what they run is adopted.
    meta = sa.table('meta', sa.column('id', Flag), sa.column('incarnation', Amount))
    op.bulk_insert(meta, [{'id': 1, 'incarnation': int(time.time())}])
    classes = sa.table('resource_classes', sa.column('name', Name))
    op.bulk_insert(classes, [{'name': name} for name in CLASSES])


def _site():
    op.create_table('meta', key('id', Flag), column('incarnation', Amount))
    op.create_table('schema_steps', key('revision', Id))
    op.create_table(
        'services',
        key('name', Name),
        column('kind', Word),
        column('host', Name),
        column('version', Name),
        column('configuration', Id),
        column('problem', Note),
        column('started_at', Seconds),
        column('configured_at', Seconds),
        column('seen_at', Seconds),
        maybe('alarm', Note),
    )
    op.create_table(
        'quotas', key('project_id', Name), key('name', Name), column('hard_limit', Amount)
    )
    op.create_table(
        'declared_metrics',
        number('id'),
        column('name', Name, unique=True),
        column('unit', Note),
        maybe('lower', Seconds),
        maybe('upper', Seconds),
        maybe('stale_seconds', Seconds),
        column('description', Note),
    )
    op.create_table(
        'nova_events',
        key('id', Id),
        column('casts', LongText),
        column('unclaimed', LongText),
        column('synced_at', Seconds),
    )


def _providers():
    op.create_table(
        'providers',
        number('id'),
        column('uuid', Id, unique=True),
        column('name', Name, unique=True),
        column('kind', Word),
        maybe('root_id', Amount),
        maybe('parent_id', Amount),
        maybe('placement_name', Name),
        maybe('changed_at', Seconds),
        *counts('generation', 'version', 'claims_stamp', 'facts_stamp'),
        *counts('epoch', 'sequence', 'full_sequence'),
        column('reported_at', Seconds, default='0'),
        column('over_committed', Flag, default='0'),
        *counts('sparse_classes', 'refusals'),
        *counts(*(f'{kind}_{name}' for kind in ('cap', 'used', 'foreign') for name in HOT)),
        sqlite_autoincrement=True,
    )
    for name in ('root_id', 'parent_id', 'placement_name'):
        index('providers', name, unique=name == 'placement_name')
    op.create_table(
        'provider_facts',
        key('provider_id', Amount, 'providers'),
        column('node', Name),
        maybe('cell', Id),
        maybe('zone', Name),
        column('build_topic', Name),
        column('boot_nonce', Name),
        maybe('journal', Id),
        *counts('journal_count'),
        column('reporter', Word),
        maybe('disabled', Note),
        maybe('disabled_by', Name),
        maybe('service_disabled', Note),
        column('facts', LongText),
        maybe('signing_key', LongText),
        maybe('inventories_by', Word),
    )
    op.create_table('former_hosts', key('name', Name), column('epoch', Amount))
    for table in ('resource_classes', 'traits'):
        op.create_table(
            table, number('id'), column('name', Name, unique=True), maybe('changed_at', Seconds)
        )
    op.create_table(
        'inventories',
        key('provider_id', Amount, 'providers'),
        key('class_id', Serial, 'resource_classes', cascade=False),
        column('total', Amount),
        column('reserved', Amount),
        column('min_unit', Amount),
        maybe('max_unit', Amount),
        column('step_size', Amount),
        column('allocation_ratio', Seconds),
        column('cap', Amount),
        *counts('used', 'foreign_use'),
    )
    op.create_table(
        'provider_traits',
        key('provider_id', Amount, 'providers'),
        key('trait_id', Serial, 'traits', cascade=False, index=True),
    )
    op.create_table(
        'provider_aggregates',
        key('provider_id', Amount, 'providers'),
        key('uuid', Id, index=True),
    )
    op.create_table(
        'aggregates',
        number('id'),
        column('uuid', Id, unique=True),
        column('name', Name, unique=True),
        *counts('generation'),
        sqlite_autoincrement=True,
    )
    op.create_table(
        'aggregate_metadata',
        key('aggregate_id', Serial, 'aggregates'),
        key('key', Name),
        column('value', LongText),
    )
    op.create_table(
        'aggregate_members',
        key('aggregate_id', Serial, 'aggregates'),
        key('host', Name, index=True),
    )
    op.create_table(
        'host_events',
        number('number'),
        column('host', Name),
        column('kind', Word),
        column('message', Note),
        column('actor', Name),
        column('created_at', Seconds),
        sqlite_autoincrement=True,
    )
    op.create_index('ix_host_events_host_number', 'host_events', ['host', 'number'])
    op.create_table(
        'changes',
        number('id'),
        column('kind', Word),
        column('ref', Id),
        sqlite_autoincrement=True,
    )


def _claims():
    op.create_table(
        'requests',
        key('id', Id),
        column('fingerprint', Id),
        column('state', Word),
        column('owner', Name),
        column('attempt', Count),
        column('deadline', Seconds),
        column('token', Id),
        maybe('answer', Blob),
        column('created_at', Seconds),
        column('updated_at', Seconds),
        *counts('claims'),
    )
    op.create_table(
        'group_rules',
        key('uuid', Id),
        column('name', Name),
        column('policy', Word),
        column('max_per_host', Count),
        maybe('project_id', Name, index=True),
        column('generation', Amount),
        column('members', LongText),
        maybe('policies', LongText),
        maybe('rule_generation', Amount),
    )
    op.create_table(
        'group_plans',
        key('group_uuid', Id),
        column('request_id', Id, index=True),
        maybe('project_id', Name, index=True),
        maybe('user_id', Note),
        column('description', Blob),
        column('plan', Blob),
        column('revision', Count),
        column('lease_until', Seconds, index=True),
        column('created_at', Seconds),
        column('updated_at', Seconds),
    )
    op.create_table(
        'written_consumers',
        key('uuid', Id),
        column('generation', Amount),
        column('digest', Id),
        column('stamp', Amount),
    )
    op.create_table(
        'claims',
        key('id', Id),
        maybe('request_id', Id, index=True),
        column('attempt', Count),
        column('member', Count),
        column('consumer', Id, index=True),
        column('provider_id', Amount),
        column('state', Word),
        column('live', Flag),
        column('lifecycle', Word),
        column('purpose', Word),
        column('lease_until', Seconds),
        maybe('expires_at', Seconds),
        maybe('group_uuid', Id),
        maybe('move_id', Id),
        maybe('parent_key', Name),
        maybe('layout', LongText),
        maybe('image', LongText),
        maybe('flavor', Name),
        column('adopted', Flag, default='0'),
        column('absences', Count, default='0'),
        column('reason', Note),
        column('created_at', Seconds),
        column('updated_at', Seconds),
        *(maybe(name, Amount) for name in HOT),
        maybe('other', LongText),
        maybe('project_id', Note),
        maybe('user_id', Note),
        column('consumer_type', Name),
        maybe('unique_key', UniqueKey),
        maybe('guest', Id),
        maybe('member_name', Name),
        maybe('former_reservation', LongText),
    )
    op.create_index('ix_claims_provider_id_live', 'claims', ['provider_id', 'live'])
    for name in ('expires_at', 'group_uuid', 'move_id', 'guest', 'parent_key', 'unique_key'):
        index('claims', name, unique=name == 'unique_key')
    # Of projects of any length, which no index takes.
    is_postgresql = op.get_bind().dialect.name == 'postgresql'
    op.create_index(
        'ix_claims_project_id',
        'claims',
        [sa.text('left(project_id, 64)') if is_postgresql else 'project_id'],
        mysql_length=64,
        mariadb_length=64,
    )
    op.create_table(
        'allocations',
        key('claim_id', Id),
        key('provider_id', Amount, index=True),
        *counts(*HOT),
        maybe('other', LongText),
        maybe('inherits', LongText),
    )


def _records():
    op.create_table(
        'decisions',
        number('number'),
        column('id', Id, unique=True),
        column('request_id', Id, index=True),
        column('outcome', Word),
        maybe('project_id', Note),
        column('reason', LongText),
        column('worker', Name),
        column('table_seq', Amount),
        column('host_set', Id),
        column('packed', Blob),
        column('created_at', Seconds),
        maybe('origin', Id),
        column('kind', Word),
        sqlite_autoincrement=True,
    )
    index('decisions', 'origin', 'number')
    op.create_table(
        'decision_consumers', key('consumer', Id), key('decision_id', Id, index=True)
    )
    op.create_table(
        'host_sets',
        key('digest', Id),
        column('provider_ids', Blob),
        column('used_at', Seconds),
    )
    op.create_table(
        'table_log',
        key('id', Id),
        column('worker', Name),
        column('first_event', Amount),
        column('number', Count),
        column('last_event', Amount),
        column('checkpoint', Flag),
        column('chunk', Blob),
        column('created_at', Seconds),
    )
    op.create_index('ix_table_log_worker_first', 'table_log', ['worker', 'first_event'])
    op.create_table(
        'shadows',
        number('number'),
        column('id', Id, unique=True),
        column('request_id', Id),
        column('origin', Name),
        column('consumer', Id),
        column('purpose', Word),
        column('verdict', Word),
        maybe('gantt_host', Name),
        maybe('nova_host', Name),
        column('reason', Note),
        column('created_at', Seconds),
        sqlite_autoincrement=True,
    )


def _zones():
    op.create_table('zone', key('id', Flag), column('uuid', Id), column('secret', Blob))
    op.create_table(
        'child_zones',
        key('uuid', Id),
        column('name', Name, unique=True),
        column('url', LongText),
        column('credential', Name),
        column('enabled', Flag),
        column('last_resort', Flag),
        column('scale', Seconds),
        column('score_offset', Seconds),
        column('score_set', Id),
        column('incarnation', Amount),
        column('revision', Seconds),
        maybe('synced_incarnation', Amount),
        maybe('trusted', Flag),
    )
    op.create_table(
        'parent_zones',
        key('name', Name),
        column('identity', Name, unique=True),
        column('project_id', Name),
        column('enabled', Flag),
        column('lease_seconds_max', Count),
        maybe('trusted', Flag),
        maybe('certificate_sha256', Id),
    )
    op.create_table(
        'parent_allocations',
        key('request_id', Id),
        column('parent', Name, index=True),
        column('request_key', Id),
        column('receipt', LongText),
        column('until', Seconds),
    )
    op.create_table(
        'child_claims',
        key('claim_id', Id),
        key('child', Id, index=True),
        column('request_id', Id, index=True),
        column('request_key', Id),
        column('consumer', Id, index=True),
        column('purpose', Word),
        maybe('project_id', Name),
        maybe('parent', Name, index=True),
        column('state', Word),
        column('sealed_host', LongText),
        column('created_at', Seconds),
        column('updated_at', Seconds),
        maybe('group_uuid', Id, index=True),
        maybe('restored', Flag),
        *(maybe(name, Amount) for name in HOT),
        maybe('other', LongText),
        maybe('user_id', Note),
        maybe('consumer_type', Name),
    )
    op.create_index('ix_child_claims_project_id_state', 'child_claims', ['project_id', 'state'])
    op.create_table(
        'group_zones',
        key('group_uuid', Id),
        column('zone_uuid', Id),
        column('request_id', Id, index=True),
        column('until', Seconds),
    )
    op.create_table(
        'zone_releases',
        key('child', Id),
        key('request_key', Id),
        column('tries', Count),
        column('next_at', Seconds, index=True),
        column('created_at', Seconds),
    )
    op.create_table(
        'allocation_orders',
        key('parent', Name),
        key('consumer', Id),
        key('purpose', Word),
        column('order_no', Amount),
        column('request_key', Id),
        column('updated_at', Seconds, index=True),
    )
    op.create_table(
        'delegated_consumers',
        key('consumer', Id),
        key('purpose', Word),
        column('request_id', Id, index=True),
        maybe('order_no', Amount),
    )


def _store_as_postgresql_does_best():
    # A row that finds room on its own page for its next version needs no new entry in any index.
    for table, percent in FILL_FACTORS.items():
        op.execute(f'ALTER TABLE {table} SET (fillfactor = {percent})')
    # Long values by lz4 where the server has it: the default costs several times as much.
    for table, name in (('requests', 'answer'), ('decisions', 'packed')):
        op.execute(
            f"""
            DO $$ BEGIN
                ALTER TABLE {table} ALTER COLUMN {name} SET COMPRESSION lz4;
            EXCEPTION WHEN feature_not_supported OR syntax_error THEN
                ALTER TABLE {table} ALTER COLUMN {name} SET STORAGE EXTERNAL;
            END $$
            """
        )
