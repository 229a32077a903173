# SPDX-License-Identifier: Apache-2.0
"""The migrations: run by alembic through ``gantt.db.migration``, never imported."""
