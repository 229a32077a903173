# SPDX-License-Identifier: Apache-2.0
"""Zones of a test: made by name, started, and stopped in the end."""

import concurrent.futures
import shutil

import pytest

from gantt.stores import stores_for_url
from gantt.zones.service import directory, follow
from tests.zones.tree import Zone


@pytest.fixture(autouse=True)
def _zones_are_followed_soon(monkeypatch):
    """A tenth of the usual time between two rounds, for which many a test waits.

    Each round begins with the records of the one before.
    """
    monkeypatch.setattr(follow, 'ROUND_SECONDS', 0.1 * follow.ROUND_SECONDS)
    monkeypatch.setattr(directory, 'FRESH_SECONDS', 0.0)


@pytest.fixture
def zone(tmp_path, sqlite_template):
    """``zone('east')``: a zone with a database of its own."""
    zones: list[Zone] = []

    def make(name: str, **settings) -> Zone:
        path = shutil.copy(sqlite_template, tmp_path / f'{name}.db')
        new_zone = Zone(name, stores_for_url(f'sqlite:///{path}'), **settings).start()
        zones.append(new_zone)
        return new_zone

    yield make
    # Each waits for a moment for what is inside: all of them together.
    with concurrent.futures.ThreadPoolExecutor(max(1, len(zones))) as threads:
        list(threads.map(Zone.stop, zones))
    for started in zones:
        started.store.database.close()
