# SPDX-License-Identifier: Apache-2.0
"""The change feed: the source that a host table is built from and kept up to date with."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, HostChange
from gantt.core.resources.shared_pool import SharedPool
from gantt.core.table.metrics import DeclaredMetric


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
