# SPDX-License-Identifier: Apache-2.0
"""Stores on real databases, each path through the group commit its own kind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from gantt.db.engine import retry
from gantt.db.schema import models
from gantt.stores import SqlStores, stores_for_url
from tests.services import UNHURRIED

#: ``portable``: PostgreSQL by the statements that every database understands.
KINDS = [
    'sqlite',
    pytest.param('postgresql', marks=pytest.mark.postgresql),
    pytest.param('portable', marks=pytest.mark.postgresql),
    pytest.param('mysql', marks=pytest.mark.mysql),
]
SERVERS = KINDS[1:]


@pytest.fixture
def open_store(store_url: Callable[[str], str]) -> Iterator[Callable[..., SqlStores]]:
    """``open_store(kind)``: a store on an empty database; ``open_store(like=store)``: one more."""
    opened: list[SqlStores] = []

    def open_one(kind: str = '', like: SqlStores | None = None, **options: Any) -> SqlStores:
        if like is None:
            url = store_url(kind.replace('portable', 'postgresql'))
            options.setdefault('fast', not kind.startswith('portable'))
        else:
            url = like.database.engine.url.render_as_string(hide_password=False)
        options.setdefault('timeouts', UNHURRIED)
        store = stores_for_url(url, **options)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.database.close()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, open_store: Callable[..., SqlStores]) -> SqlStores:
    """A store of each kind."""
    return open_store(request.param)


@pytest.fixture
def quick() -> retry.RetryPolicy:
    """Gives up soon."""
    return retry.RetryPolicy(attempts=3, seconds=2.0)


def drop_tables(engine: sa.Engine) -> None:
    """Drop every table of a database, whoever created it."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.begin() as connection:
        metadata.drop_all(connection)


def contents(store: SqlStores) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in the order of its key."""
    with store.database.engine.connect() as connection:
        # No transaction that a slow machine could leave idle for too long.
        connection.execution_options(isolation_level='AUTOCOMMIT')
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for table in models.metadata.sorted_tables
        }
