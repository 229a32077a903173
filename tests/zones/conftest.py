# SPDX-License-Identifier: Apache-2.0
"""Zones of a test: made by name, started, and stopped in the end."""

import concurrent.futures
import shutil

import pytest

from gantt.db.stores import stores_for_url
from tests.zones.tree import Zone


@pytest.fixture
def zone(tmp_path, sqlite_template):
    """``zone('east')``: a zone with a database of its own."""
    made: list[Zone] = []

    def make(name: str, **settings) -> Zone:
        path = shutil.copy(sqlite_template, tmp_path / f'{name}.db')
        found = Zone(name, stores_for_url(f'sqlite:///{path}'), **settings).start()
        made.append(found)
        return found

    yield make
    # Each waits for a moment for what is inside: all of them together.
    with concurrent.futures.ThreadPoolExecutor(max(1, len(made))) as threads:
        list(threads.map(Zone.stop, made))
    for one in made:
        one.store.database.close()
