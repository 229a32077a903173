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

#: Library -> ``module:name`` of it -> names of that class; before each, the reason to use them.
NAMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    # No message after Sync, as locks would outlive a stopped process; BEGIN without a round trip:
    # a part of what took a single request from 0.96 ms and more to 0.60 and less (decision 0042).
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
    # Watched waits; columns parsed once, which takes longer than a few rows do (decision 0067).
    'PyMySQL': {
        'pymysql.connections:Connection': (
            '_create_ssl_ctx',
            '_read_ok_packet',
            '_read_packet',
            '_read_query_result',
            '_read_timeout',
            '_result',
            '_sock',
        ),
        'pymysql.connections:MySQLResult': ('_get_descriptions', '_read_row_from_packet'),
    },
    # It has no way back to the options from before a file that is wrong.
    'oslo.config': {'oslo_config.cfg:ConfigOpts': ('_mutable_ns', '_mutate_hooks')},
    # It has no way to leave a thread without a context, as it was before a request.
    'oslo.context': {'oslo_context.context:_request_store': ()},
    # A log that root begins is handed to the owner of its directory before it is opened.
    'oslo.log': {'oslo_log.log:_get_log_file_path': ()},
    # A body within the bound passes by its limiter, which makes objects of webob for each request.
    'oslo.middleware': {'oslo_middleware.base:ConfigurableMiddleware': ('_conf_get',)},
    # It polls connections whose requests wait: with thousands of them, milliseconds at each turn.
    'waitress': {
        'waitress.adjustments:Adjustments': ('send_bytes',),
        'waitress.wasyncore:dispatcher': ('_fileno', '_map'),
    },
}


@functools.cache
def check(library: str) -> None:
    """Check for the names of one library, once.

    :raises Misconfigured: its installed release lacks one of them
    """
    missing = [*_missing_names(NAMES[library])]
    if missing:
        raise exceptions.Misconfigured(
            option=library,
            problem=f'{importlib.metadata.version(library)} is installed, which has no '
            f'{", ".join(missing)}',
            fix='Install a release that requirements.txt of Gantt names',
        )


def _missing_names(classes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for path, names in classes.items():
        module, _, name = path.partition(':')
        try:
            owner = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            yield path
            continue
        known_names = set(dir(owner)).union(*map(_attribute_names, _method_codes(owner)))
        yield from (f'{path}.{member}' for member in names if member not in known_names)


def _method_codes(found: Any) -> Iterator[CodeType]:
    """Yield the code of the methods of a class and of its base classes."""
    for base_class in getattr(found, '__mro__', ()):
        for value in vars(base_class).values():
            code = getattr(getattr(value, 'fget', value), '__code__', None)
            if code is not None:
                yield code


def _attribute_names(code: CodeType) -> set[str]:
    """Return the names of the attributes of ``self`` that a method sets or reads."""
    return set(code.co_names)
