# SPDX-License-Identifier: Apache-2.0
"""Worlds on stores of every kind, and whether their tables have followed the database."""

from collections.abc import Callable
from typing import Any

from gantt.core.table.host_table import HostTable
from tests.builders import CLEAN
from tests.world import World, sqlite_store

#: Stores whose clock is ours; None: the one in memory.
OURS: dict[str, Any] = {'memory': None, 'sqlite': sqlite_store}
KINDS = (*OURS, 'postgresql', 'mysql')


def store_of(kind: str, make_store: Callable[[str], Any]) -> Any:
    """What a world of this kind of store is made with.

    :param make_store: the fixture
    """
    return OURS[kind] if kind in OURS else make_store(kind)


def followed(world: World) -> None:
    """Time passes; every table is as if it had been read anew, and nothing lies over it."""
    world.turn(times=3)
    for scheduler in list(world.schedulers):
        fresh = world.another_scheduler()
        world.schedulers.remove(fresh)
        fresh.cache.fold()
        ours, theirs = (process.cache.working for process in (scheduler, fresh))
        assert _known(ours) == _known(theirs)
        assert not ours.pools._picked_amounts
        assert not ours._usage.picks_by_host
        assert not ours.others._usage.picks_by_host
    assert world.audit() == CLEAN


def _known(table: HostTable) -> tuple[Any, ...]:
    """What is used of all providers, and what they have."""
    shared = {
        pid: (pool.used, pool.inventories, pool.aggregates, pool.root, pool.parent, pool.traits)
        for pid, pool in table.pools.by_id.items()
    }
    alone = {
        row.id: (row.used, row.facts, row.aggregates, row.parent) for row in table.others.hosts
    }
    return {row.id: row.used for row in table.hosts}, shared, alone
