# SPDX-License-Identifier: Apache-2.0
"""The table of plans of groups; a row is locked behind the one of its group's rule."""

import sqlalchemy as sa

from gantt.db.engine.engine import Blob, Id, Name, Note, Seconds
from gantt.db.schema.base import metadata

# See ``core.claims.places.GroupPlanRecord``; its places are claims of the group.
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
