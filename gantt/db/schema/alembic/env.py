# SPDX-License-Identifier: Apache-2.0
"""Run alembic, always on the connection that ``gantt.db.schema.migration`` hands over."""

import sqlalchemy as sa
from alembic import context

from gantt.db.schema import models

connection = context.config.attributes.get('connection')
if connection is None:
    raise SystemExit('run migrations with: gantt-manage db sync')


def note_step(ctx, step, heads, run_args):
    """Keep the name of a step that was taken, in its own transaction where there are such."""
    steps = models.schema_steps
    revision = step.up_revision_id
    there = sa.select(steps.c.revision).where(steps.c.revision == revision)
    if ctx.connection.execute(there).first() is None:
        ctx.connection.execute(steps.insert().values(revision=revision))


context.configure(
    connection=connection,
    target_metadata=models.metadata,
    transactional_ddl=connection.dialect.name == 'postgresql',
    render_as_batch=connection.dialect.name == 'sqlite',
    on_version_apply=note_step,
)
with context.begin_transaction():
    context.run_migrations()
connection.commit()
