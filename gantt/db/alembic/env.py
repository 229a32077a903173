# SPDX-License-Identifier: Apache-2.0
"""How alembic runs: always on the connection that ``gantt.db.migration`` hands over."""

from alembic import context

from gantt.db import models

connection = context.config.attributes.get('connection')
if connection is None:
    raise SystemExit('run migrations with: gantt-manage db sync')

context.configure(
    connection=connection,
    target_metadata=models.metadata,
    transactional_ddl=connection.dialect.name == 'postgresql',
    render_as_batch=connection.dialect.name == 'sqlite',
)
with context.begin_transaction():
    context.run_migrations()
connection.commit()
