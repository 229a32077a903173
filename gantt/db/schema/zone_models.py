# SPDX-License-Identifier: Apache-2.0
"""The tables of zones; rows in them are locked after the row of their request."""

import sqlalchemy as sa

from gantt.db.engine.engine import Amount, Blob, Id, LongText, Name, Note, Seconds, Word
from gantt.db.schema.base import CORE_CLASS_COLUMNS, metadata

# Identity of this zone: one row, inserted at the first read.  The secret seals its offers.
zone = sa.Table(
    'zone',
    metadata,
    sa.Column('id', sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column('uuid', Id, nullable=False),
    sa.Column('secret', Blob, nullable=False),
)

# Child zones directly below, see ``core.zones.messages.ZoneRecord``.
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
    sa.Column('own_incarnation', sa.BigInteger),
    sa.Column('trusted', sa.SmallInteger),
)

# Parent zones that may send requests here, see ``core.zones.messages.ParentRecord``.
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
allocations_above = sa.Table(
    'allocations_above',
    metadata,
    sa.Column('request_id', Id, primary_key=True),
    sa.Column('parent', Name, nullable=False, index=True),
    sa.Column('request_key', Id, nullable=False),
    sa.Column('receipt', LongText, nullable=False),  # sealed by that zone, for itself
    sa.Column('until', Seconds, nullable=False),  # by then it has claimed, or never will
)

# Claims of requests here in zones directly below, as far as those have reported them.
claims_below = sa.Table(
    'claims_below',
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
    sa.Column('place', LongText, nullable=False),  # sealed by that zone
    sa.Column('created_at', Seconds, nullable=False),
    sa.Column('updated_at', Seconds, nullable=False),
    sa.Column('group_uuid', Id, index=True),
    sa.Column('read_back', sa.SmallInteger),  # 1: it was unknown here, and read back from the zone
    # The requested maximum; null: its amounts are not known here, as of one read back.
    *[sa.Column(suffix, Amount) for suffix in CORE_CLASS_COLUMNS.values()],
    sa.Column('other', LongText),  # class -> amount, JSON
    sa.Column('user_id', Note),
    sa.Column('consumer_type', Name),
    sa.Index('ix_claims_below_project_id_state', 'project_id', 'state'),
)

# The zone of a server group whose members have to be together: decided once, before any of them is
# claimed, and valid until none of them lives.
group_places = sa.Table(
    'group_places',
    metadata,
    sa.Column('group_uuid', Id, primary_key=True),
    sa.Column('place', Id, nullable=False),  # uuid of a zone directly below, or of this one
    sa.Column('request_id', Id, nullable=False, index=True),  # the request that decided
    sa.Column('until', Seconds, nullable=False),  # by then it has claimed a member, or never will
)

# Allocations that are to end in zones directly below, or here: until those have confirmed it.
give_backs = sa.Table(
    'give_backs',
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
consumers_on_their_way = sa.Table(
    'consumers_on_their_way',
    metadata,
    sa.Column('consumer', Id, primary_key=True),
    sa.Column('purpose', Word, primary_key=True),
    sa.Column('request_id', Id, nullable=False, index=True),
    sa.Column('order_no', sa.BigInteger),  # of the opening, among all for the consumer
)
