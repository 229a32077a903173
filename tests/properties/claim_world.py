# SPDX-License-Identifier: Apache-2.0
"""Stores for property tests: made outside fixtures, one for each example."""

import contextlib
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from devel.memory_store.memory import MemoryStore
from gantt.db.stores.store import SqlStore
from gantt.scheduler.ports import Store


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder with a synced, empty SQLite file; it goes when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix='gantt-properties-')
    SqlStore.for_url(f'sqlite:///{folder.name}/template.db').close()
    return folder


@contextlib.contextmanager
def a_store(kind: str) -> Iterator[Store]:
    """An empty store, ``memory`` or ``sqlite``."""
    if kind == 'memory':
        yield MemoryStore()
        return
    with tempfile.TemporaryDirectory(dir=_folder().name) as own:
        path = pathlib.Path(own) / 'gantt.db'
        shutil.copy(pathlib.Path(_folder().name) / 'template.db', path)
        store = SqlStore.for_url(f'sqlite:///{path}')
        try:
            yield store
        finally:
            store.close()
