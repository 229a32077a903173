# SPDX-License-Identifier: Apache-2.0
"""Statements are compiled once for all engines of a test process, not once for each engine.

A service compiles each statement once in its life.  Tests open an engine each, and compiling
was more than a third of what their processes did.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import LRUCache

#: Some thousand of them are known; each has some 20 KB.
COMPILED_MAX = 3000

_compiled: 'LRUCache[Any, Any]' = LRUCache(COMPILED_MAX)


class CompiledOfAll:
    """An engine's cache of statements: the dialect in its keys stands for all that are alike.

    What a dialect has learnt of its server is a part of the key.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        self._dialect = dialect

    def _key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        dialect = self._dialect
        assert key[0] is dialect
        learnt = (
            type(dialect),
            getattr(dialect, 'server_version_info', None),
            getattr(dialect, 'default_schema_name', None),
            getattr(dialect, '_sql_mode', None),
            dialect.insert_executemany_returning,
            dialect.update_returning,
        )
        return (learnt, *key[1:])

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return _compiled.get(self._key(key), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        _compiled[self._key(key)] = compiled

    def clear(self) -> None:
        _compiled.clear()


def share() -> None:
    """Have every engine that is made from now on use what others have compiled."""
    plain = sa.Engine.__init__

    def init(engine: sa.Engine, *arguments: Any, **options: Any) -> None:
        plain(engine, *arguments, **options)
        if engine._compiled_cache is not None:
            engine._compiled_cache = CompiledOfAll(engine.dialect)  # type: ignore[assignment]

    sa.Engine.__init__ = init  # type: ignore[method-assign]
