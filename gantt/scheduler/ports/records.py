# SPDX-License-Identifier: Apache-2.0
"""Records for people and for replay: decisions, processes, logs of host tables."""

from collections.abc import Sequence
from typing import Protocol

from gantt.core.claims.commit import DecisionRecord
from gantt.core.records.history import History
from gantt.core.records.process import ServiceNote, ServiceRecord


class Decisions(Protocol):
    """Decisions, and what happened lately."""

    def save_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Keep decisions that were not stored by a commit (refusals)."""

    def load_decision(
        self, id_or_request: str, project: str | None = None
    ) -> tuple[bytes, bytes, float] | None:
        """Packed decision, provider ids, created at; by decision or newest of a request id.

        A unique prefix of at least 6 characters will do.  Else the newest of the id that its
        request has elsewhere (``DecisionRecord.origin``), or about that consumer.

        :param project: only decisions of this project: others may have been given any
            request id
        """

    def decisions(
        self,
        *,
        outcome: str | None = None,
        project: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        consumer: str | None = None,
    ) -> list[DecisionRecord]:
        """Newest first, without the packed part; of one project, or of all.

        :param consumer: only those about this one
        """

    def history(self, *, seconds: float, parts: int, most: int) -> History:
        """The last ``seconds`` in ``parts``; of the newest ``most`` decisions at most."""

    def purge(
        self,
        *,
        decisions: int,
        tombstone_seconds: float,
        request_seconds: float,
        limit: int,
        again: bool = False,
        decision_bytes: int | None = None,
        decision_seconds: float = 0.0,
    ) -> int:
        """Delete what is past its bound, at most ``limit`` rows of a kind; how many went.

        :param decisions: how many of these stay, the newest
        :param decision_bytes: of what is packed of them; None: no bound
        :param decision_seconds: younger ones stay, whatever their number, within these bytes
        :param again: look only at kinds of which ``limit`` rows went the last time
        """


class Services(Protocol):
    """Processes of the site, as they note themselves."""

    def note_service(self, note: ServiceNote) -> None:
        """Keep what a process says of itself, in place of what it said before."""

    def forget_service(self, name: str) -> None:
        """Forget a process that ends."""

    def services(self) -> list[ServiceRecord]:
        """Those that noted themselves within the last day, the one seen last first."""


class TableLogs(Protocol):
    """The change logs of host tables, for replay."""

    def save_table_log(
        self, worker: str, first: int, last: int, checkpoint: bool, chunks: list[bytes]
    ) -> None:
        """Keep events ``first`` to ``last`` of a worker's table; see ``table_log``."""

    def load_table_log(self, worker: str, position: int) -> list[list[bytes]]:
        """Parts from the last checkpoint before ``position`` on, in order; [] where it is gone."""

    def purge_table_log(self, keep_seconds: float) -> int:
        """Forget what no decision of the last ``keep_seconds`` needs; how many logs were cut."""
