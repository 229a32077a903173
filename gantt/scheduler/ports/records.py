# SPDX-License-Identifier: Apache-2.0
"""Ports for the feed of changes and for records: decisions, logs, services, retention."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.commit import DecisionRecord
from gantt.core.records.history import History
from gantt.core.records.process import ServiceNote, ServiceRecord
from gantt.core.records.shadow import ComparedChoice, ShadowVerdict
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, HostChange
from gantt.core.resources.provider import SharedPool
from gantt.core.table.metrics import DeclaredMetric


class Records(Protocol):
    """Decisions, and recent history."""

    def save_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Store decisions that no commit has stored (refusals)."""

    def load_decision(
        self, id_or_request: str, project: str | None = None
    ) -> tuple[bytes, bytes, float] | None:
        """Return packed decision, provider ids and creation time; by decision id or request id.

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
        """Return parts from the last checkpoint before ``position``, in order; [] without it."""

    def purge_table_log(self, keep_seconds: float) -> int:
        """Cut logs to what decisions of ``keep_seconds`` need; return how many were cut."""


class Shadows(Protocol):
    """Decisions of Nova and of Gantt side by side, as shadow mode compares them."""

    def save_shadows(self, found: Sequence[ComparedChoice], keep: int) -> None:
        """Store comparisons, and keep the newest ``keep`` of all."""

    def list_shadows(
        self, verdicts: Sequence[ShadowVerdict] | None, limit: int
    ) -> list[ComparedChoice]:
        """Return comparisons, newest first.

        :param verdicts: only these
        """

    def count_shadows(self) -> dict[ShadowVerdict, int]:
        """Return the number of stored comparisons by verdict."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the feed that are missing: not committed yet, or never.

    :ivar first: the first of them; ``last`` is the last
    :ivar since: the database's clock when they were first missed
    :ivar before: transactions from this number on have not drawn them; 0: not known
    """

    first: int
    last: int
    since: float
    before: int = 0


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """News since a position, as read by one poll.

    :ivar groups: generations, 0 for a deleted group
    :ivar rules: of the existing groups among them
    :ivar providers: ids of those that are no hosts, and of those that became one
    :ivar pools: those of these providers that hosts share, as they are now
    :ivar standalone: those that may be requested alone, as they are now
    :ivar whole: these are all existing groups, and all providers that are no hosts
    :ivar now: the database's clock at the read
    :ivar incarnation: another number than before: reload everything
    :ivar gaps: missing numbers up to the position, to be given to the next poll
    :ivar is_lost: the feed alone does not lead on from here: compare everything
    :ivar went_back: the database is at an older state than was known: reload everything
    """

    position: int
    hosts: list[HostChange] = []
    aggregates: list[Aggregate] | None = None  # whole list where any changed
    metrics: list[DeclaredMetric] | None = None  # the same
    groups: dict[str, int] = {}
    rules: dict[str, GroupRule] = {}
    providers: list[int] = []
    pools: list[SharedPool] = []
    standalone: list[HostChange] = []
    whole: bool = False
    now: float = 0.0
    incarnation: int = 1
    gaps: list[Gap] = []
    is_lost: bool = False
    went_back: bool = False


class Everything(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state that a host table is built from, with its feed position."""

    position: int
    hosts: list[HostChange]
    aggregates: list[Aggregate]
    groups: dict[str, int]
    resource_classes: frozenset[str]
    now: float
    incarnation: int
    metrics: list[DeclaredMetric] = []
    pools: list[SharedPool] = []
    standalone: list[HostChange] = []
    rules: dict[str, GroupRule] = {}
    gaps: list[Gap] = []


class ChangeFeed(Protocol):
    """News of all hosts, aggregates and groups."""

    @property
    def connections_lost(self) -> int:
        """Number of broken connections so far: another server may have taken over since."""

    def load_everything(self) -> Everything:
        """Return all hosts with their placed claims, aggregates and groups."""

    def poll(self, position: int, known: dict[int, int], gaps: Sequence[Gap] = ()) -> Feed:
        """Return what changed since ``position``, or appeared in ``gaps``.

        :param known: provider id -> version, of hosts that this process wrote
            itself; entries not newer are left out.  A database with an older
            version, or without the position, went back
        :returns: with the generation of a group, the hosts of its members
        """

    def compare(self, known: dict[int, int]) -> Feed:
        """Return the full comparison: every host whose version differs from ``known``, deleted
        ones, all aggregates and all generations of groups.

        :param known: a copy: versions that were known before this began
        """

    def read_groups(
        self, uuids: Collection[str], also: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        """Return the rules of existing groups, and the hosts of their members.

        :param also: hosts to be read as well, where members were
        """
