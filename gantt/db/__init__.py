# SPDX-License-Identifier: Apache-2.0
"""The database: SQLAlchemy, alembic, and the statements of PostgreSQL and MariaDB."""
