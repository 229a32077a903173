# SPDX-License-Identifier: Apache-2.0
"""Facts that may be of any type: what Nova's queries and extra specs name.

A host's word may come from several places, of which the first that has one
counts; each is asked once per distinct value.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.nova import facts as nova_facts
from gantt.core.nova.facts import Fact
from gantt.core.table.columns import BoolArray, IntArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class Values(msgspec.Struct, frozen=True):
    """A value of any type per host.

    :ivar sources: the first in which a host has something counts
    :ivar count: of hosts
    :ivar prints: a number is text beside text, as all ``stats`` are text in Nova
    :ivar whole: a list is the text that Python prints of it, and has no members
    """

    sources: Sequence[Fact]
    count: int
    prints: bool = False
    whole: bool = False

    @property
    def numbers(self) -> np.ndarray | None:
        """The values where they are one number per host; what is not a number is not known."""
        return self.sources[0].numbers if len(self.sources) == 1 else None

    def found(self) -> BoolArray:
        """Which hosts have the fact."""
        mask = np.zeros(self.count, np.bool_)
        for source in self.sources:
            mask |= source.is_there()
        return mask

    def where(self, says: Callable[[Any], bool | None], negated: bool = False) -> BoolArray:
        """Which hosts the predicate, or its opposite, holds for; None is neither."""

        def decide(value: Any) -> bool:
            return says(value) is (not negated)

        if len(self.sources) == 1:
            return self.sources[0].where(decide)
        mask, left = np.zeros(self.count, np.bool_), np.ones(self.count, np.bool_)
        for source in self.sources:
            mask |= source.where(decide) & left
            left &= ~source.is_there()
        return mask

    def plain(self) -> list[Any]:
        """The values by host, None where there is none."""
        found: list[Any] = [None] * self.count
        for source in reversed(self.sources):
            for row in np.flatnonzero(source.is_there()).tolist():
                found[row] = source.at(row)
        return found


def of_query(hosts: 'HostTable', spec: RequestSpec, key: str, rows: IntArray | None) -> Values:
    """What ``$key`` is in a query of JsonFilter; points lead inside."""
    path = key.split('.', nova_facts.STEPS_MAX)
    if path[0] == 'stats' and len(path) > 1:
        found = [fact.inside(path[2:]) for fact in nova_facts.stats(hosts, path[1])]
    else:
        own = nova_facts.fact(hosts, path[0])
        found = [] if own is None else [own.inside(path[1:])]
    is_stat = path[0] == 'stats' and len(path) == 2
    return _of_rows(hosts, found, rows, prints=is_stat)


def of_extra_spec(hosts: 'HostTable', spec: RequestSpec, key: str, rows: IntArray | None) -> Values:
    """What ``capabilities:key`` is to an extra spec; colons lead inside."""
    return _of_rows(hosts, capability(hosts, key.split(':')), rows)


def of_extra_spec_whole(
    hosts: 'HostTable', spec: RequestSpec, key: str, rows: IntArray | None
) -> Values:
    """The same, lists as Python prints them."""
    return _of_rows(hosts, capability(hosts, key.split(':')), rows, whole=True)


def capability(hosts: 'HostTable', path: Sequence[str]) -> list[Fact]:
    """What hosts have at a path, best source first: their own attribute, else ``stats``."""
    if path[0] == 'stats' and len(path) > 1:
        return [fact.inside(path[2:]) for fact in nova_facts.stats(hosts, path[1])]
    own = nova_facts.fact(hosts, path[0])
    facts = ([own] if own is not None else []) + nova_facts.stats(hosts, path[0])
    return [fact.inside(path[1:]) for fact in facts]


def reads_of_query(key: str) -> tuple[str, ...] | None:
    """Columns that ``$key`` follows from; None: any."""
    path = key.split('.', nova_facts.STEPS_MAX)
    if path[0] == 'stats' and len(path) > 1:
        return nova_facts.STATS_READ
    return nova_facts.reads_of(path[0])


def reads_of_extra_spec(key: str) -> tuple[str, ...] | None:
    """Columns that ``capabilities:key`` follows from; None: any."""
    path = key.split(':')
    if path[0] == 'stats' and len(path) > 1:
        return nova_facts.STATS_READ
    own = nova_facts.reads_of(path[0])
    return None if own is None else (*own, *nova_facts.STATS_READ)


def _of_rows(
    hosts: 'HostTable',
    found: list[Fact],
    rows: IntArray | None,
    prints: bool = False,
    whole: bool = False,
) -> Values:
    if rows is None:
        return Values(found, len(hosts), prints, whole)
    return Values([fact.of_rows(rows) for fact in found], len(rows), prints, whole)
