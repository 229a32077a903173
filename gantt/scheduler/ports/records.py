# SPDX-License-Identifier: Apache-2.0
"""Records for people and for replay: decisions, processes, logs of host tables."""

from collections.abc import Sequence
from typing import Protocol

from gantt.core.claims.commit import DecisionRecord
from gantt.core.records.history import History
from gantt.core.records.process import ServiceNote, ServiceRecord
from gantt.core.records.shadow import Compared, ShadowVerdict


class Records(Protocol):
    """Decisions, and recent history."""

    def save_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Store decisions that no commit has stored (refusals)."""

    def load_decision(
        self, id_or_request: str, project: str | None = None
    ) -> tuple[bytes, bytes, float] | None:
        """Return packed decision, provider ids, created at; by decision or newest of a request id.

        A unique prefix of at least 6 characters suffices.  Else the newest of the id that its
        request has elsewhere (``DecisionRecord.origin``), or about that consumer.

        :param project: only decisions of this project: others may have been given any
            request id
        """

    def list_decisions(
        self,
        *,
        outcome: str | None = None,
        project: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        consumer: str | None = None,
    ) -> list[DecisionRecord]:
        """Return decisions, newest first, without the packed part; of one project, or of all.

        :param consumer: only decisions about this one
        """

    def history(self, *, seconds: float, parts: int, most: int) -> History:
        """Return the last ``seconds`` in ``parts``; of the newest ``most`` decisions at most."""


class Retention(Protocol):
    """Bounds of what is kept."""

    @property
    def is_purged(self) -> bool:
        """True where purges have read all requests and claims, and found nothing to delete."""

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
        """Delete rows past their bound, at most ``limit`` of a kind; return the number deleted.

        :param decisions: number of the newest decisions to keep
        :param decision_bytes: bound of their packed size; None: no bound
        :param decision_seconds: younger ones are kept, regardless of number, within these bytes
        :param again: purge only kinds of which ``limit`` rows were deleted the last time
        """


class Services(Protocol):
    """Processes of the site, as they record themselves."""

    def note_service(self, note: ServiceNote) -> None:
        """Store the note of a process, in place of its last one."""

    def forget_service(self, name: str) -> None:
        """Forget a process that ends."""

    def list_services(self) -> list[ServiceRecord]:
        """Return processes that noted themselves within the last day, the one seen last first."""


class TableLogs(Protocol):
    """The change logs of host tables, for replay."""

    def save_table_log(
        self, worker: str, first: int, last: int, checkpoint: bool, chunks: list[bytes]
    ) -> None:
        """Store events ``first`` to ``last`` of a worker's table; see ``table_log``."""

    def load_table_log(self, worker: str, position: int) -> list[list[bytes]]:
        """Return parts from the last checkpoint before ``position``, in order; [] without one."""

    def purge_table_log(self, keep_seconds: float) -> int:
        """Cut logs to what decisions of ``keep_seconds`` need; return how many were cut."""


class Shadows(Protocol):
    """Decisions of Nova and of Gantt side by side, as shadow mode compares them."""

    def save_shadows(self, found: Sequence[Compared], keep: int) -> None:
        """Store comparisons, and keep the newest ``keep`` of all."""

    def list_shadows(self, verdicts: Sequence[ShadowVerdict] | None, limit: int) -> list[Compared]:
        """Return comparisons, newest first.

        :param verdicts: only these
        """

    def count_shadows(self) -> dict[ShadowVerdict, int]:
        """Return the number of stored comparisons by verdict."""
