# SPDX-License-Identifier: Apache-2.0
"""Zones of a test: made by name, started, and stopped in the end."""

import pytest

from gantt.db.stores.store import SqlStore
from tests.zones.tree import Zone


@pytest.fixture
def zone(tmp_path):
    """``zone('east')``: a zone with a database of its own."""
    made: list[Zone] = []

    def make(name: str, **settings) -> Zone:
        store = SqlStore.for_url(f'sqlite:///{tmp_path}/{name}.db')
        found = Zone(name, store, **settings).start()
        made.append(found)
        return found

    yield make
    for one in reversed(made):
        one.stop()
        one.store.close()
