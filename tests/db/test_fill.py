# SPDX-License-Identifier: Apache-2.0
"""Pages of busy tables are left with room, whether made by migrations or from the models."""

import pytest
import sqlalchemy as sa

from gantt.db.engine import session
from gantt.db.schema import migration, models
from tests.db.conftest import drop_tables

pytestmark = pytest.mark.postgresql


@pytest.fixture
def engine(postgresql_url):
    """An engine on a database without any table; others find it so again."""
    built = session.build_engine(postgresql_url)
    drop_tables(built)
    yield built
    drop_tables(built)
    built.dispose()


@pytest.mark.parametrize('make', [migration.sync, models.metadata.create_all], ids=['sync', 'all'])
def test_busy_tables_have_room_on_their_pages(make, engine):
    make(engine)
    with engine.connect() as connection:
        tables = connection.execute(
            sa.text("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r'")
        ).all()
    expected = {name: [f'fillfactor={percent}'] for name, percent in models.FILL_FACTORS.items()}
    assert {name: options for name, options in tables if options} == expected
