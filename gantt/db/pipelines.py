# SPDX-License-Identifier: Apache-2.0
"""psycopg's pipelines, with nothing said after their end.

PostgreSQL counts how long a transaction is idle from the answer to Sync on, and
stops counting at any message.  psycopg ends a pipeline with Sync and then asks
for a Flush, which has no answer: a process that stands still after that keeps
its row locks for as long as it stands, whatever
``idle_in_transaction_session_timeout`` says.  Sync flushes as well, so the other
message is left out.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg


class Pipeline(psycopg.Pipeline):
    """Ends with Sync."""

    def _exit_gen(self) -> Any:
        sent = False
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
            sent = True
        finally:
            yield from self._fetch_gen(flush=not sent)


class Connection(psycopg.Connection[Any]):
    """Its pipelines are such; those of ``executemany`` too."""

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """See psycopg."""
        with super().pipeline() as made:
            made.__class__ = Pipeline
            yield made

    @contextlib.contextmanager
    def _pipeline_nolock(self) -> Iterator[psycopg.Pipeline]:
        with super()._pipeline_nolock() as made:
            made.__class__ = Pipeline
            yield made
