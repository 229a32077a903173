# SPDX-License-Identifier: Apache-2.0
"""Private names of libraries that are used here, checked before the first use of a library.

A library may move them in any release.  ``requirements.txt`` keeps to known releases; with others,
the error is reported at the start, and not by what goes wrong later: a method of ours that replaces
one which a library does not call any more is no error by itself.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from gantt import exceptions

#: Library -> ``module:name`` of it -> names of that class.
NAMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    'psycopg': {
        'psycopg:Connection': (
            '_commit_gen',
            '_exec_command',
            '_get_tx_start_command',
            '_num_transactions',
            '_pipeline',
            '_pipeline_nolock',
            '_rollback_gen',
            '_start_query',
            '_tpc',
        ),
        'psycopg:Pipeline': (
            '_communicate_gen',
            '_enqueue_sync',
            '_exit',
            '_exit_gen',
            '_fetch_gen',
            '_sync_gen',
        ),
    },
    'PyMySQL': {
        'pymysql.connections:Connection': (
            '_create_ssl_ctx',
            '_read_ok_packet',
            '_read_packet',
            '_read_query_result',
            '_result',
            '_sock',
        ),
        'pymysql.connections:MySQLResult': ('_get_descriptions', '_read_row_from_packet'),
    },
    'oslo.context': {'oslo_context.context:_request_store': ()},
    'oslo.log': {'oslo_log.log:_get_log_file_path': ()},
    'oslo.middleware': {'oslo_middleware.base:ConfigurableMiddleware': ('_conf_get',)},
    'waitress': {'waitress.wasyncore:dispatcher': ('_fileno', '_map')},
}


@functools.cache
def check(library: str) -> None:
    """Check for the names of one library, once.

    :raises Misconfigured: its installed release lacks one of them
    """
    missing = [*_missing(NAMES[library])]
    if missing:
        raise exceptions.Misconfigured(
            option=library,
            problem=f'{importlib.metadata.version(library)} is installed, which has no '
            f'{", ".join(missing)}',
            fix='Install a release that requirements.txt of Gantt names',
        )


def _missing(classes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for path, names in classes.items():
        module, _, name = path.partition(':')
        try:
            owner = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            yield path
            continue
        known_names = set(dir(owner)).union(*map(_names_of, _codes(owner)))
        yield from (f'{path}.{member}' for member in names if member not in known_names)


def _codes(found: Any) -> Iterator[CodeType]:
    """Yield the code of the methods of a class and of those above it."""
    for base_class in getattr(found, '__mro__', ()):
        for value in vars(base_class).values():
            code = getattr(getattr(value, 'fget', value), '__code__', None)
            if code is not None:
                yield code


def _names_of(code: CodeType) -> set[str]:
    """Return attributes that it sets or reads: those of an object come from methods."""
    return set(code.co_names)
