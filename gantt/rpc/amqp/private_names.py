# SPDX-License-Identifier: Apache-2.0
"""Private names of libraries that this package depends on, checked before the first use.

A library may move them in any release.  ``requirements.txt`` keeps to known releases; with
others, the error is reported at the start, and not by the first message.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from gantt import exceptions

_DRIVERS = 'oslo_messaging._drivers'
#: Library -> ``module:name`` of it -> names of that class.
NAMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    'oslo.messaging': {
        'oslo_messaging.transport:Transport': ('_driver',),
        'oslo_messaging.transport:_transport_opts': (),
        'oslo_messaging.rpc.client:_client_opts': (),
        f'{_DRIVERS}.amqpdriver:AMQPListener': ('_message_operations_handler',),
        f'{_DRIVERS}.amqpdriver:MessageOperationsHandler': ('_shutdown_thread',),
        f'{_DRIVERS}.amqpdriver:AMQPDriverBase': (
            '_connection_pool',
            '_default_exchange',
            '_get_connection',
            '_get_reply_queue_name',
            '_reply_q',
            '_reply_q_lock',
            '_url',
            '_waiter',
        ),
        f'{_DRIVERS}.amqpdriver:ReplyWaiter': ('_thread_exit_event',),
        f'{_DRIVERS}.base:PollStyleListenerAdapter': ('_poll_style_listener',),
        f'{_DRIVERS}.impl_rabbit:Connection': (
            '_connection_lock',
            '_consumers',
            '_ensure_publishing',
            '_heartbeat_supported_and_enabled',
            '_new_tags',
            '_publish_and_raises_on_missing_exchange',
        ),
        f'{_DRIVERS}.impl_rabbit:Consumer': ('_callback',),
        f'{_DRIVERS}.pool:Pool': (
            '_cond',
            '_current_size',
            '_item_ttl',
            '_items',
            '_max_size',
            '_min_size',
        ),
    },
    'kombu': {'kombu.connection:Connection': ('_connection', '_transport')},
    'amqp': {'amqp.transport:TCPTransport': ('_quick_recv', '_read_buffer')},
}


@functools.cache
def check() -> None:
    """Check for all names once.

    :raises Misconfigured: the installed release of a library lacks one of them
    """
    for library, classes in NAMES.items():
        missing = list(_missing(classes))
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
            cls = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            yield path
            continue
        known_names = set(dir(cls)).union(*map(_names_of, _codes(cls)))
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
