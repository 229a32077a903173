# SPDX-License-Identifier: Apache-2.0
"""The migrations: run by alembic through ``gantt.db.schema.migration``, never imported."""
