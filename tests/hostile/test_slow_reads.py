# SPDX-License-Identifier: Apache-2.0
"""A reader that is slow does not put back what a later one has read."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devel.doubles import ManualClock
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import SqlStores
from gantt.zones.model.messages import ZoneRecord
from gantt.zones.service.directory import ZoneDirectory
from tests.builders import new_uuid
from tests.world import sqlite_store

LONG = 30.0
MOMENT = 0.3  # for which the later reader is waited for, which may wait for the slow one


class SlowFirst:
    """A store whose first answer to a method arrives only after ``go`` is set."""

    def __init__(self, store: Any, method: str) -> None:
        self.read, self.go = threading.Event(), threading.Event()
        self._store, self._method = store, method

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        return self._slow(real) if name == self._method else real

    def _slow(self, real: Callable[[], Any]) -> Callable[[], Any]:
        def answer() -> Any:
            rows = real()
            if not self.read.is_set():
                self.read.set()
                assert self.go.wait(LONG)
            return rows

        return answer


def read_twice(slow: SlowFirst, read: Callable[[], None], change: Callable[[], None]) -> None:
    """Read; change what is read before the first reader has its answer; read again."""
    first, second = threading.Thread(target=read), threading.Thread(target=read)
    first.start()
    assert slow.read.wait(LONG)
    change()
    second.start()
    second.join(MOMENT)
    slow.go.set()
    for thread in (first, second):
        thread.join(LONG)
        assert not thread.is_alive()


@pytest.fixture
def store() -> Iterator[SqlStores]:
    opened = sqlite_store(ManualClock())
    yield opened
    opened.database.close()


def test_a_limit_that_was_set_during_a_slow_read_is_in_force(store: SqlStores) -> None:
    slow = SlowFirst(store.quotas, 'limits')
    checks = QuotaChecks(
        quotas=slow,
        claims=store.claims,
        groups=store.groups,
        settings=SchedulerSettings(worker='here'),
        clock=ManualClock(),
        count=lambda name: None,
    )
    read_twice(slow, checks.read, lambda: store.quotas.set_quotas('red', {'live_claims': 1}))
    assert checks.last_limits().of('red', True)['live_claims'] == 1


def test_a_zone_that_was_removed_during_a_slow_read_is_gone(store: SqlStores) -> None:
    zone = ZoneRecord(uuid=new_uuid(), name='child', url='http://127.0.0.1:1')
    store.zones.save_child_zone(zone)
    slow = SlowFirst(store.zones, 'child_zones')
    directory = ZoneDirectory(slow, ManualClock())
    read_twice(
        slow,
        directory.refresh,
        lambda: store.zones.remove_child_zone(zone.uuid),
    )
    assert directory.children() == []
