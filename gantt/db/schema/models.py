# SPDX-License-Identifier: Apache-2.0
"""The tables.

Row locks are always taken in the order of this module: requests, group_rules, providers ascending
by id, then the rows that refer to a provider.  A writer of allocations by requests locks
``written_consumers`` ascending before providers.  The row of a provider is the lock for all rows of
that provider.

Every claim writes a provider's row, so it is kept narrow: it has usage and capacity of the core
classes and the counters, and no column that a claim changes is indexed.

A provider is a host if it has a row in ``provider_facts``: that is the record of a host, with its
long facts.  ``name`` is that of the service host, by which hosts are found; other providers get one
that no host can have, see ``db.hosts.trees``.  ``placement_name`` is the name in Placement.
Providers form trees; a root has neither ``parent_id`` nor ``root_id``.

``providers.generation`` grows with every change of usage or of a fact, ``version`` with every
write, ``claims_stamp`` changes with every change of a live claim there, ``facts_stamp`` with every
change of a field of ``HostRow`` beyond usage and counters.  The stamps let a process cache decoded
rows.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.db.engine.engine import (
    Amount,
    Blob,
    Id,
    LongText,
    Name,
    Note,
    Seconds,
    Serial,
    Word,
    ascii_of,
)

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
    """Return an integer column with the default 0."""
    return sa.Column(name, Amount, nullable=False, server_default='0')


def part_of(name: str, whole: str, kind: Any = sa.BigInteger) -> sa.Column:
    """Return a key column of rows that are deleted with their row of another table."""
    key = sa.ForeignKey(f'{whole}.id', ondelete='CASCADE')
    return sa.Column(name, kind, key, primary_key=True, autoincrement=False)


def sparse_index(name: str, *columns: str, unique: bool = False) -> sa.Index:
    """Return an index of the rows with a value in the first column, or of all on MariaDB."""
    where = sa.text(f'{columns[0]} IS NOT NULL')
    return sa.Index(name, *columns, unique=unique, postgresql_where=where, sqlite_where=where)


def _core_class_columns(prefix: str) -> list[sa.Column]:
    return [count(f'{prefix}_{suffix}') for suffix in CORE_CLASS_COLUMNS.values()]


meta = sa.Table(
    'meta',
    metadata,
    sa.Column('id', sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column('incarnation', sa.BigInteger, nullable=False),
)

#: Every step of the schema that was taken: an older release reads whether the steps that it does
#: not know only add, see ``migration``.
schema_steps = sa.Table('schema_steps', metadata, sa.Column('revision', Id, primary_key=True))

requests = sa.Table(
    'requests',
    metadata,
    sa.Column('id', Id, primary_key=True),
    sa.Column('fingerprint', Id, nullable=False),
    sa.Column('state', Word, nullable=False),  # open | placed | cancelled
    sa.Column('owner', Name, nullable=False),
    sa.Column('attempt', sa.Integer, nullable=False),
    sa.Column('deadline', Seconds, nullable=False),
    # Token of the transaction that wrote the row last: distinguishes a lost COMMIT from a done one.
    sa.Column('token', Id, nullable=False),
    sa.Column('answer', Blob),
    sa.Column('created_at', Seconds, nullable=False),
    sa.Column('updated_at', Seconds, nullable=False),
    count('claims'),  # number of claims created, for the audit
)

group_rules = sa.Table(
    'group_rules',
    metadata,
    sa.Column('uuid', Id, primary_key=True),
    sa.Column('name', Name, nullable=False),
    sa.Column('policy', Word, nullable=False),
    sa.Column('max_per_host', sa.Integer, nullable=False),
    sa.Column('project_id', Name, index=True),
    sa.Column('generation', sa.BigInteger, nullable=False),
    sa.Column('members', LongText, nullable=False),  # as stated at creation, JSON; claims count too
    sa.Column('policies', LongText),  # JSON; null: the policy is one of Nova's
    # Number of the rule: as sent to child zones, or as the parent zone sent it; null: neither yet.
    sa.Column('rule_generation', sa.BigInteger),
)

providers = sa.Table(
    'providers',
    metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('uuid', Id, nullable=False, unique=True),
    sa.Column('name', Name, nullable=False, unique=True),
    sa.Column('kind', Word, nullable=False),  # host | pool | nested
    sa.Column('root_id', sa.BigInteger),  # null: it is a root itself
    sa.Column('parent_id', sa.BigInteger),
    sa.Column('placement_name', Name),  # null: a host that was renamed, until it registers
    sa.Column('changed_at', Seconds),  # last change by requests; null: never
    count('generation'),
    count('version'),
    count('claims_stamp'),
    count('facts_stamp'),
    count('epoch'),
    count('sequence'),
    count('full_sequence'),
    sa.Column('reported_at', Seconds, nullable=False, server_default='0'),
    sa.Column('over_committed', sa.SmallInteger, nullable=False, server_default='0'),
    # Number of inventories of classes without columns here.
    count('sparse_classes'),
    count('refusals'),
    *_core_class_columns('cap'),
    *_core_class_columns('used'),
    *_core_class_columns('foreign'),
    *(
        sparse_index('ix_providers_' + column, column, unique=column == 'placement_name')
        for column in ('root_id', 'parent_id', 'placement_name')
    ),
    sqlite_autoincrement=True,  # ids are never reused
)

# The record of a host: no other provider has one.
provider_facts = sa.Table(
    'provider_facts',
    metadata,
    part_of('provider_id', 'providers'),
    sa.Column('node', Name, nullable=False),
    sa.Column('cell', Id),
    sa.Column('zone', Name),
    sa.Column('build_topic', Name, nullable=False),
    sa.Column('boot_nonce', Name, nullable=False),
    sa.Column('journal', Id),
    count('journal_count'),
    sa.Column('reporter', Word, nullable=False),
    sa.Column('disabled', Note),
    sa.Column('disabled_by', Name),
    sa.Column('service_disabled', Note),
    sa.Column('facts', LongText, nullable=False),  # HostFacts, JSON, see ``db.hosts.details``
    sa.Column('signing_key', LongText),  # HostKey, JSON
    # Source of its inventories: null: its reports; 'api': requests to Placement's interface.
    sa.Column('inventories_by', Word),
)

# Removed hosts: an epoch is never assigned twice.
former_hosts = sa.Table(
    'former_hosts',
    metadata,
    sa.Column('name', Name, primary_key=True),
    sa.Column('epoch', sa.BigInteger, nullable=False),
)

resource_classes = sa.Table(
    'resource_classes',
    metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('name', Name, nullable=False, unique=True),
    sa.Column('changed_at', Seconds),
)

inventories = sa.Table(
    'inventories',
    metadata,
    part_of('provider_id', 'providers'),
    sa.Column(
        'class_id',
        Serial,
        sa.ForeignKey('resource_classes.id'),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column('total', Amount, nullable=False),
    sa.Column('reserved', Amount, nullable=False),
    sa.Column('min_unit', Amount, nullable=False),
    sa.Column('max_unit', Amount),
    sa.Column('step_size', Amount, nullable=False),
    sa.Column('allocation_ratio', Seconds, nullable=False),
    sa.Column('cap', Amount, nullable=False),
    # For the core classes both are in the provider's row, and are 0 here.
    count('used'),
    count('foreign_use'),
)

declared_metrics = sa.Table(
    'declared_metrics',
    metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('name', Name, nullable=False, unique=True),
    sa.Column('unit', Note, nullable=False),
    sa.Column('lower', Seconds),
    sa.Column('upper', Seconds),
    sa.Column('stale_seconds', Seconds),
    sa.Column('description', Note, nullable=False),
)

traits = sa.Table(
    'traits',
    metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('name', Name, nullable=False, unique=True),
    sa.Column('changed_at', Seconds),
)

provider_traits = sa.Table(
    'provider_traits',
    metadata,
    part_of('provider_id', 'providers'),
    sa.Column(
        'trait_id',
        Serial,
        sa.ForeignKey('traits.id'),
        primary_key=True,
        autoincrement=False,
        index=True,
    ),
)

# Aggregates of a provider by uuid, as in Placement; they need no row in ``aggregates``.
provider_aggregates = sa.Table(
    'provider_aggregates',
    metadata,
    part_of('provider_id', 'providers'),
    sa.Column('uuid', Id, primary_key=True, index=True),
)

aggregates = sa.Table(
    'aggregates',
    metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('uuid', Id, nullable=False, unique=True),
    sa.Column('name', Name, nullable=False, unique=True),
    count('generation'),
    sqlite_autoincrement=True,  # ids are never reused
)

aggregate_metadata = sa.Table(
    'aggregate_metadata',
    metadata,
    part_of('aggregate_id', 'aggregates', Serial),
    sa.Column('key', Name, primary_key=True),
    sa.Column('value', LongText, nullable=False),
)

# Members are kept by name, so that a host may be put into an aggregate before it is known.
aggregate_members = sa.Table(
    'aggregate_members',
    metadata,
    part_of('aggregate_id', 'aggregates', Serial),
    sa.Column('host', Name, primary_key=True, index=True),
)

# Consumers whose allocations were written by requests: the lock of such writers, and the fields of
# ``core.claims.allocations.ConsumerState``.  Other consumers have no row.
written_consumers = sa.Table(
    'written_consumers',
    metadata,
    sa.Column('uuid', Id, primary_key=True),
    sa.Column('generation', sa.BigInteger, nullable=False),
    sa.Column('digest', Id, nullable=False),
    sa.Column(
        'stamp', sa.BigInteger, nullable=False
    ),  # stamp of the transaction that wrote it last
)

# project_id: a project, or ``default``; see core.claims.quota.
quotas = sa.Table(
    'quotas',
    metadata,
    sa.Column('project_id', Name, primary_key=True),
    sa.Column('name', Name, primary_key=True),
    sa.Column('hard_limit', sa.BigInteger, nullable=False),
)

claims = sa.Table(
    'claims',
    metadata,
    sa.Column('id', Id, primary_key=True),
    sa.Column('request_id', Id, index=True),
    sa.Column('attempt', sa.Integer, nullable=False),
    sa.Column('member', sa.Integer, nullable=False),
    sa.Column('consumer', Id, nullable=False, index=True),
    sa.Column('provider_id', sa.BigInteger, nullable=False),
    sa.Column('state', Word, nullable=False),
    # 1 while reserved or confirmed: unlike the state it changes once in a life.
    sa.Column('live', sa.SmallInteger, nullable=False),
    sa.Column('lifecycle', Word, nullable=False),
    sa.Column('purpose', Word, nullable=False),
    sa.Column('lease_until', Seconds, nullable=False),
    # lease_until where the sweeper may end the claim, else null: a small index.
    sa.Column('expires_at', Seconds),
    sa.Column('group_uuid', Id),
    sa.Column('move_id', Id),
    sa.Column('parent_key', Name),
    sa.Column('layout', LongText),
    sa.Column('image', LongText),
    sa.Column('flavor', Name),  # the image's properties, JSON
    sa.Column('adopted', sa.SmallInteger, nullable=False, server_default='0'),
    sa.Column('absences', sa.Integer, nullable=False, server_default='0'),
    sa.Column('reason', Note, nullable=False),
    sa.Column('created_at', Seconds, nullable=False),
    sa.Column('updated_at', Seconds, nullable=False),
    # Amounts on its host; null: none.
    *[sa.Column(suffix, Amount) for suffix in CORE_CLASS_COLUMNS.values()],
    sa.Column('other', LongText),  # class -> amount, JSON
    sa.Column('project_id', Note),
    sa.Column('user_id', Note),
    sa.Column('consumer_type', Name, nullable=False),
    sa.Column('unique_key', ascii_of(100)),  # key that no other reserved claim may have
    sa.Column('guest', Id),  # null: the consumer, see ``core.claims.claim.guest_of``
    sa.Column('member_name', Name),
    sa.Column('former_reservation', LongText),  # JSON; null: no create has the reservation
    sparse_index('ix_claims_unique_key', 'unique_key', unique=True),
    sa.Index('ix_claims_provider_id_live', 'provider_id', 'live'),
    *(
        sparse_index('ix_claims_' + column, column)
        for column in ('expires_at', 'group_uuid', 'move_id', 'guest', 'parent_key')
    ),
)

#: Characters of a project in its index: an index does not take texts of any length.
PROJECT_PART = 64


class ProjectPart(sa.ColumnElement[str]):
    """The beginning of a project, as used in queries; MariaDB truncates by itself."""

    type = Note
    inherit_cache = True
    _traverse_internals = [('of', sa.sql.visitors.InternalTraversal.dp_clauseelement)]

    def __init__(self, of: sa.ColumnElement[str]) -> None:
        self.of = of


@compiles(ProjectPart)
def _whole(element: ProjectPart, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.of, **options))


@compiles(ProjectPart, 'postgresql')
def _beginning(element: ProjectPart, compiler: Any, **options: Any) -> str:
    return f'left({compiler.process(element.of, **options)}, {PROJECT_PART})'


sa.Index(
    'ix_claims_project_id',
    ProjectPart(claims.c.project_id),
    mysql_length=PROJECT_PART,
    mariadb_length=PROJECT_PART,
    _table=claims,
)

# Amounts of claims on other providers than their hosts.
allocations = sa.Table(
    'allocations',
    metadata,
    sa.Column('claim_id', Id, primary_key=True),
    sa.Column('provider_id', sa.BigInteger, primary_key=True, autoincrement=False, index=True),
    *[count(suffix) for suffix in CORE_CLASS_COLUMNS.values()],
    sa.Column('other', LongText),  # class -> amount, JSON
    sa.Column('inherits', LongText),  # the same, when another claim of the consumer ends
)

decisions = sa.Table(
    'decisions',
    metadata,
    sa.Column('number', Serial, primary_key=True),  # newest first, and the bound
    sa.Column('id', Id, nullable=False, unique=True),
    sa.Column('request_id', Id, nullable=False, index=True),
    sa.Column('outcome', Word, nullable=False),
    sa.Column('project_id', Note),
    sa.Column('reason', LongText, nullable=False),
    sa.Column('worker', Name, nullable=False),
    sa.Column('table_seq', sa.BigInteger, nullable=False),
    sa.Column('host_set', Id, nullable=False),
    sa.Column('packed', Blob, nullable=False),
    sa.Column('created_at', Seconds, nullable=False),
    sa.Column('origin', Id),  # id of its request in another system
    sa.Column('kind', Word, nullable=False),  # of what was requested: host | pool
    sparse_index('ix_decisions_origin_number', 'origin', 'number'),
    sqlite_autoincrement=True,  # ids are never reused
)

# Consumers of decisions without a commit: those of others are found by their claims.
decision_consumers = sa.Table(
    'decision_consumers',
    metadata,
    sa.Column('consumer', Id, primary_key=True),
    sa.Column('decision_id', Id, primary_key=True, index=True),
)

host_sets = sa.Table(
    'host_sets',
    metadata,
    sa.Column('digest', Id, primary_key=True),
    sa.Column('provider_ids', Blob, nullable=False),
    sa.Column('used_at', Seconds, nullable=False),
)

# Changes of the host tables of workers, for replay: parts in chunks.
table_log = sa.Table(
    'table_log',
    metadata,
    sa.Column('id', Id, primary_key=True),
    sa.Column('worker', Name, nullable=False),
    sa.Column('first_event', sa.BigInteger, nullable=False),
    sa.Column('number', sa.Integer, nullable=False),
    sa.Column('last_event', sa.BigInteger, nullable=False),
    sa.Column('checkpoint', sa.SmallInteger, nullable=False),
    sa.Column('chunk', Blob, nullable=False),
    sa.Column('created_at', Seconds, nullable=False),
    sa.Index('ix_table_log_worker_first', 'worker', 'first_event'),
)

# Events received of a host or an aggregate of Nova, by a digest of its name or uuid.
nova_events_seen = sa.Table(
    'nova_events',
    metadata,
    sa.Column('id', Id, primary_key=True),
    sa.Column('casts', LongText, nullable=False),  # ids of the last ones, JSON
    sa.Column('unclaimed', LongText, nullable=False),  # uuids of guests, JSON
    sa.Column('synced_at', Seconds, nullable=False),
)

# Choices of Nova next to the decisions here.
shadows = sa.Table(
    'shadows',
    metadata,
    sa.Column('number', Serial, primary_key=True),  # newest first, and the bound
    sa.Column('id', Id, nullable=False, unique=True),
    sa.Column('request_id', Id, nullable=False),
    sa.Column('origin', Name, nullable=False),  # id of the API request
    sa.Column('consumer', Id, nullable=False),
    sa.Column('purpose', Word, nullable=False),
    sa.Column('verdict', Word, nullable=False),
    sa.Column('gantt_host', Name),
    sa.Column('nova_host', Name),
    sa.Column('reason', Note, nullable=False),
    sa.Column('created_at', Seconds, nullable=False),
    sqlite_autoincrement=True,  # ids are never reused
)

# Processes of the site, as they report themselves.
services = sa.Table(
    'services',
    metadata,
    sa.Column('name', Name, primary_key=True),
    sa.Column('kind', Word, nullable=False),  # scheduler | planner | api
    sa.Column('host', Name, nullable=False),
    sa.Column('version', Name, nullable=False),
    sa.Column('configuration', Id, nullable=False),
    sa.Column('problem', Note, nullable=False),
    sa.Column('started_at', Seconds, nullable=False),
    sa.Column('configured_at', Seconds, nullable=False),
    sa.Column('seen_at', Seconds, nullable=False),
    sa.Column('alarm', Note),
    sa.Column('memory', Note),  # MemoryUse as JSON
)

# Changes of hosts, by name: a line each.
host_events = sa.Table(
    'host_events',
    metadata,
    sa.Column('number', Serial, primary_key=True),  # newest first
    sa.Column('host', Name, nullable=False),
    sa.Column('kind', Word, nullable=False),
    sa.Column('message', Note, nullable=False),
    sa.Column('actor', Name, nullable=False),
    sa.Column('created_at', Seconds, nullable=False),
    sa.Index('ix_host_events_host_number', 'host', 'number'),
    sqlite_autoincrement=True,  # ids are never reused
)

# Kinds: host (ref: provider id), provider (id, of one that is no host), aggregate (id),
# group (uuid), metric (id).
changes = sa.Table(
    'changes',
    metadata,
    sa.Column('id', Serial, primary_key=True),
    sa.Column('kind', Word, nullable=False),
    sa.Column('ref', Id, nullable=False),
    sqlite_autoincrement=True,  # ids are never reused
)

#: Fill factor of PostgreSQL for tables whose rows change all the time, in percent: a row that finds
#: room on its own page for its next version needs no new entry in any index.
FILL_FACTORS = {'requests': 70, 'group_rules': 50, 'providers': 50, 'claims': 70}

# Separate statements: SQLAlchemy has a table option for it only since 2.1.
for _name, _percent in FILL_FACTORS.items():
    _statement = sa.DDL(f'ALTER TABLE {_name} SET (fillfactor = {_percent})')
    sa.event.listen(
        metadata.tables[_name], 'after_create', _statement.execute_if(dialect='postgresql')
    )


# See ``core.claims.reservations.GroupPlanRecord``; its places are claims of the group.
group_plans = sa.Table(
    'group_plans',
    metadata,
    sa.Column('group_uuid', Id, primary_key=True),
    sa.Column('request_id', Id, nullable=False, index=True),
    sa.Column('project_id', Name, index=True),
    sa.Column('user_id', Note),
    sa.Column('description', Blob, nullable=False),  # JSON
    sa.Column('plan', Blob, nullable=False),
    sa.Column('revision', sa.Integer, nullable=False),
    sa.Column('lease_until', Seconds, nullable=False, index=True),
    sa.Column('created_at', Seconds, nullable=False),
    sa.Column('updated_at', Seconds, nullable=False),
)


# Identity of this zone: one row, inserted at the first read.  The secret seals its offers.
zone = sa.Table(
    'zone',
    metadata,
    sa.Column('id', sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column('uuid', Id, nullable=False),
    sa.Column('secret', Blob, nullable=False),
)

# Child zones, see ``zones.model.messages.ZoneRecord``.
child_zones = sa.Table(
    'child_zones',
    metadata,
    sa.Column('uuid', Id, primary_key=True),
    sa.Column('name', Name, nullable=False, unique=True),
    sa.Column('url', LongText, nullable=False),
    sa.Column('credential', Name, nullable=False),
    sa.Column('enabled', sa.SmallInteger, nullable=False),
    sa.Column('last_resort', sa.SmallInteger, nullable=False),
    sa.Column('scale', Seconds, nullable=False),
    sa.Column('score_offset', Seconds, nullable=False),
    sa.Column('score_set', Id, nullable=False),
    sa.Column('incarnation', sa.BigInteger, nullable=False),
    sa.Column('revision', Seconds, nullable=False),
    # Incarnation of this zone's database when all claims there were read last; null: never.
    sa.Column('synced_incarnation', sa.BigInteger),
    sa.Column('trusted', sa.SmallInteger),
)

# Parent zones that may send requests here, see ``zones.model.messages.ParentRecord``.
parent_zones = sa.Table(
    'parent_zones',
    metadata,
    sa.Column('name', Name, primary_key=True),
    sa.Column('identity', Name, nullable=False, unique=True),
    sa.Column('project_id', Name, nullable=False),
    sa.Column('enabled', sa.SmallInteger, nullable=False),
    sa.Column('lease_seconds_max', sa.Integer, nullable=False),
    sa.Column('trusted', sa.SmallInteger),
    sa.Column('certificate_sha256', Id),
)

# Allocations of parent zones: the request here for each, with its key in the parent zone.
parent_allocations = sa.Table(
    'parent_allocations',
    metadata,
    sa.Column('request_id', Id, primary_key=True),
    sa.Column('parent', Name, nullable=False, index=True),
    sa.Column('request_key', Id, nullable=False),
    sa.Column('receipt', LongText, nullable=False),  # sealed by that zone, for itself
    sa.Column('until', Seconds, nullable=False),  # by then it has claimed, or never will
)

# Claims of requests here in child zones, as far as those have reported them.
child_claims = sa.Table(
    'child_claims',
    metadata,
    sa.Column('claim_id', Id, primary_key=True),
    sa.Column('child', Id, primary_key=True, index=True),
    sa.Column('request_id', Id, nullable=False, index=True),
    sa.Column('request_key', Id, nullable=False),  # the request's id in that zone
    sa.Column('consumer', Id, nullable=False, index=True),
    sa.Column('purpose', Word, nullable=False),
    sa.Column('project_id', Name),
    sa.Column('parent', Name, index=True),  # the parent zone that sent the request; null: none
    sa.Column('state', Word, nullable=False),  # as of a claim
    sa.Column('sealed_host', LongText, nullable=False),  # sealed by that zone
    sa.Column('created_at', Seconds, nullable=False),
    sa.Column('updated_at', Seconds, nullable=False),
    sa.Column('group_uuid', Id, index=True),
    sa.Column('restored', sa.SmallInteger),  # 1: it was unknown here, and restored from the zone
    # The requested maximum; null: its amounts are not known here, as of one read back.
    *[sa.Column(suffix, Amount) for suffix in CORE_CLASS_COLUMNS.values()],
    sa.Column('other', LongText),  # class -> amount, JSON
    sa.Column('user_id', Note),
    sa.Column('consumer_type', Name),
    sa.Index('ix_child_claims_project_id_state', 'project_id', 'state'),
)

# The zone of a server group whose members have to be together: decided once, before any of them is
# claimed, and valid until none of them lives.
group_zones = sa.Table(
    'group_zones',
    metadata,
    sa.Column('group_uuid', Id, primary_key=True),
    sa.Column('zone_uuid', Id, nullable=False),  # of a child zone, or of this one
    sa.Column('request_id', Id, nullable=False, index=True),  # the request that decided
    sa.Column('until', Seconds, nullable=False),  # by then it has claimed a member, or never will
)

# Allocations that are to end in child zones, or here: until those have confirmed it.
zone_releases = sa.Table(
    'zone_releases',
    metadata,
    sa.Column('child', Id, primary_key=True),  # uuid of the zone below, or of this one
    sa.Column('request_key', Id, primary_key=True),  # the request's id in that zone
    sa.Column('tries', sa.Integer, nullable=False),
    sa.Column('next_at', Seconds, nullable=False, index=True),
    sa.Column('created_at', Seconds, nullable=False),
)

# The last allocation of a parent zone for each consumer: an older one claims nothing any more.
allocation_orders = sa.Table(
    'allocation_orders',
    metadata,
    sa.Column('parent', Name, primary_key=True),
    sa.Column('consumer', Id, primary_key=True),
    sa.Column('purpose', Word, primary_key=True),
    sa.Column('order_no', sa.BigInteger, nullable=False),
    sa.Column('request_key', Id, nullable=False),
    sa.Column('updated_at', Seconds, nullable=False, index=True),
)

# Consumers of requests that may go to child zones: another request for one conflicts here.
delegated_consumers = sa.Table(
    'delegated_consumers',
    metadata,
    sa.Column('consumer', Id, primary_key=True),
    sa.Column('purpose', Word, primary_key=True),
    sa.Column('request_id', Id, nullable=False, index=True),
    sa.Column('order_no', sa.BigInteger),  # of the opening, among all for the consumer
)
