# SPDX-License-Identifier: Apache-2.0
"""Stores for property tests: made outside fixtures, one for each example."""

import contextlib
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from devel.memory_store.stores import memory_stores
from gantt.stores import AllStores, stores_for_url


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder with a synced, empty SQLite file; it goes when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix='gantt-properties-')
    stores_for_url(f'sqlite:///{folder.name}/template.db').database.close()
    return folder


@contextlib.contextmanager
def a_store(kind: str) -> Iterator[AllStores]:
    """An empty store, ``memory`` or ``sqlite``."""
    if kind == 'memory':
        yield memory_stores()
        return
    with tempfile.TemporaryDirectory(dir=_folder().name) as own:
        path = pathlib.Path(own) / 'gantt.db'
        shutil.copy(pathlib.Path(_folder().name) / 'template.db', path)
        store = stores_for_url(f'sqlite:///{path}')
        try:
            yield store
        finally:
            store.database.close()
