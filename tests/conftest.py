# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every directory of tests shares."""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import gc
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import mysql_url, postgresql_url, rabbit_url

__all__ = ['mysql_url', 'postgresql_url', 'rabbit_url']

#: Every kind of store; use with ``make_store``.
STORES = [
    'memory',
    'sqlite',
    pytest.param('postgresql', marks=pytest.mark.postgresql),
    pytest.param('mysql', marks=pytest.mark.mysql),
]


#: What broken connections warn of once nobody refers to them.
LEFT = (
    'ignore:unclosed <:ResourceWarning',
    'ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning',
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What the tests marked ``leaves_sockets`` leave behind is no warning."""
    if item.get_closest_marker('leaves_sockets'):
        for ignored in LEFT:
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(autouse=True)
def _no_sockets_for_later_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """They go with the test that left them, and warn in no later one."""
    yield
    if request.node.get_closest_marker('leaves_sockets'):
        gc.collect()


@pytest.fixture(scope='session')
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema and nothing else; copy it."""
    from gantt.db import migration, session

    path = tmp_path_factory.mktemp('sqlite') / 'template.db'
    engine = session.build_engine(f'sqlite:///{path}')
    migration.sync(engine)
    engine.dispose()
    return path


@pytest.fixture
def store_url(
    request: pytest.FixtureRequest, sqlite_template: Path, tmp_path: Path
) -> Callable[[str], str]:
    """``store_url(kind)``: a synced, empty database of this test."""
    from gantt.db import migration, session

    numbers = itertools.count()

    def url(kind: str) -> str:
        if kind == 'sqlite':
            path = tmp_path / f'gantt-{next(numbers)}.db'
            shutil.copy(sqlite_template, path)
            return f'sqlite:///{path}'
        found = request.getfixturevalue(f'{kind}_url')
        # On a loaded machine a migration may well not get to run for a second or two.
        engine = session.build_engine(found, waits=session.Waits(idle_transaction=60))
        migration.sync(engine)
        migration.empty(engine)
        engine.dispose()
        return found

    return url


@pytest.fixture
def make_store(store_url: Callable[[str], str]) -> Iterator[Callable[[str], Any]]:
    """``make_store(kind)``: an empty store, 'memory', 'sqlite', 'postgresql' or 'mysql'.

    One call per kind and test: the second empties what the first one holds.
    """
    made: list[Any] = []

    def make(kind: str) -> Any:
        if kind == 'memory':
            from gantt.db.memory import MemoryStore

            return MemoryStore()
        from gantt.db.store import SqlStore

        store = SqlStore.for_url(store_url(kind))
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Ids without colons: gabbi's plugin takes every test with one for its own, and stumbles."""
    if isinstance(val, bytes):
        val = ascii(val)[2:-1]
    if isinstance(val, str) and ':' in val:
        return val.replace(':', ';')
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse other ids with colons by name: the plugin's own words say nothing of the test."""
    for item in items:
        if ':' in item.name and item.path.name != 'test_gabbi.py':
            raise pytest.UsageError(f'{item.nodeid}: the id of a test may hold no colon')
