# SPDX-License-Identifier: Apache-2.0
"""Statements are compiled once for all engines of a process, and not by each engine anew.

A process of ours has one engine, and so has each statement as often as it likes from the cache of
that.  Tests make engines by the thousand: two fifths of the time of a test of a store went into
compiling statements that the test before had compiled.
"""

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import LRUCache

from gantt.db.engine import session

#: Statements of one kind of database; there are some hundred.
SIZE = 5000


@functools.cache
def _compiled(*what_text_depends_on: object) -> 'LRUCache[Any, Any]':
    return LRUCache(SIZE)


class Compiled:
    """The cache of one engine, shared by all engines of its kind."""

    def __init__(self, dialect: sa.Dialect) -> None:
        # The clock is another one in some tests, which statements have in their text.
        kind = type(dialect), dialect.server_version_info, tuple(session.CLOCK.items())
        self._shared = _compiled(*kind)

    def get(self, key: tuple[Any, ...]) -> Any:
        """Return the statement compiled for a key, which begins with the dialect of the engine."""
        return self._shared.get(key[1:])

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._shared[key[1:]] = compiled


@sa.event.listens_for(sa.Engine, 'engine_connect')
def _share(connection: sa.Connection) -> None:
    if 'compiled_cache' not in connection.get_execution_options():
        cache = Compiled(connection.dialect)
        connection.engine.update_execution_options(compiled_cache=cache)
        connection.execution_options(compiled_cache=cache)
