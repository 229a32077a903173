# SPDX-License-Identifier: Apache-2.0
"""``[database]``: the options of oslo.db, and how Gantt waits and tries again."""

from typing import Any

from oslo_config import cfg
from oslo_db import options

from gantt.conf import FloatOpt

GROUP = 'database'

OPTS = [
    cfg.IntOpt(
        'transaction_attempts',
        default=8,
        min=1,
        max=100,
        help='How often a transaction is run before the database counts as away. It is run '
        'again after a deadlock, a serialization failure, a lock wait that took too long '
        "and a lost connection; oslo.db's own db_max_retries is not used.",
    ),
    FloatOpt(
        'transaction_seconds',
        default=15.0,
        min=0.1,
        max=300.0,
        help='How long a transaction is tried for, all attempts together.',
    ),
    FloatOpt(
        'lock_wait_seconds',
        default=0.5,
        min=0.05,
        max=60.0,
        help='How long one statement waits for a row that another transaction keeps locked. '
        'After that requests are planned without that host, reports of it wait, and a request '
        'for that very host is answered "busy". MariaDB and MySQL count whole seconds, 1 at '
        'least.',
    ),
    FloatOpt(
        'idle_transaction_seconds',
        default=1.5,
        min=0.5,
        max=3600.0,
        help='The server ends a transaction that has been idle for so long: the row locks of '
        'a process that was stopped in the middle, or that the network cut off, go with it. '
        'MariaDB counts whole seconds; MySQL has no such bound. Transactions that only read '
        'have 60 s.',
    ),
    cfg.IntOpt(
        'statement_seconds',
        default=60,
        min=1,
        max=3600,
        help='The longest that one statement may take.',
    ),
    FloatOpt(
        'answer_seconds',
        default=10.0,
        min=1.0,
        max=3600.0,
        help='The longest that the answer to a statement on the way of a request, a report or '
        'the change feed is waited for, also where the network still acknowledges what is '
        'sent: then the connection is closed and the transaction is tried on another one. '
        'Long reads, such as all hosts at the start, wait for statement_seconds and 10 more.',
    ),
    cfg.IntOpt(
        'connect_seconds',
        default=5,
        min=1,
        max=60,
        help='The longest that one attempt to connect may take.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register oslo.db's options and ours on ``conf``."""
    conf.register_opts(options.database_opts, GROUP)
    conf.register_opts(OPTS, GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return our options; oslo.db lists its own under its own namespace."""
    return [(GROUP, OPTS)]
