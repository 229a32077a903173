# SPDX-License-Identifier: Apache-2.0
"""A small real world: the production scheduler over a real store, time in our hands.

No threads run: a test calls ``world.turn()`` and everything that is due happens.
"""

import functools
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from devel.doubles import ManualClock, MemoryRecorder
from devel.memory_store.stores import memory_stores
from gantt import plugin_loader
from gantt.core.messages.report import (
    ClaimUpdate,
    HostReport,
    RegisterHost,
    ReportedMetric,
    Running,
)
from gantt.core.messages.request import GroupRef, Policy, Purpose, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records import members
from gantt.core.records.decision import Answer
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.groups.service.group_members import GroupMembers
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import SqlStores, sql_stores


def new_uuid() -> str:
    return str(uuid.uuid4())


class Replies:
    """A carrier that keeps every answer by its handle."""

    def __init__(self) -> None:
        self.answers: dict[object, Answer] = {}
        self.sends = 0

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        self.sends += 1
        for handle, answer in answers:
            assert handle not in self.answers, 'a caller was answered twice'
            self.answers[handle] = members.encodable_answer(answer)

    send_soon = send


class Host:
    """A compute host that reports the truth."""

    def __init__(self, world: 'World', name: str, **facts: object) -> None:
        self.world = world
        self.name = name
        self.facts = facts
        self.running: dict[str, Running] = {}
        self.register()

    def register(self) -> None:
        self.epoch = self.world.scheduler.register_host(
            RegisterHost(name=self.name, boot_nonce=new_uuid())
        ).epoch
        self.sequence = 0

    def stamp(self) -> int:
        self.sequence += 1
        return self.sequence

    def report(self, **changed: object) -> None:
        body: dict = {
            'inventories': {
                'VCPU': Inventory(total=8, allocation_ratio=2.0),
                'MEMORY_MB': Inventory(total=32_768),
                'DISK_GB': Inventory(total=500),
            },
            'metrics': {'load': ReportedMetric(value=0.5)},
            'running': list(self.running.values()),
            'pending': [],
        }
        body.update(self.facts)
        body.update(changed)
        self.world.scheduler.report(
            HostReport(name=self.name, epoch=self.epoch, sequence=self.stamp(), full=True, **body)
        )

    def words(self, *claim_ids: str, reason: str = '') -> ClaimUpdate:
        return ClaimUpdate(
            name=self.name,
            epoch=self.epoch,
            sequence=self.stamp(),
            claim_ids=list(claim_ids),
            reason=reason,
        )

    def confirm(self, *claim_ids: str) -> list[str]:
        return [f.outcome for f in self.world.scheduler.confirm(self.words(*claim_ids))]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder of this process, with an empty database in it to copy."""
    folder = tempfile.TemporaryDirectory()
    engine = session.build_engine(f'sqlite:///{folder.name}/empty.db')
    migration.sync(engine)
    engine.dispose()
    return folder


def sqlite_store(clock: Clock) -> SqlStores:
    """Return an empty store on SQLite whose clock is ours, for tests of read views."""
    url = f'{_folder().name}/{new_uuid()}.db'
    shutil.copy(f'{_folder().name}/empty.db', url)
    engine = session.build_engine(f'sqlite:///{url}')

    def connected(connection: Any, record: object) -> None:
        # The database reads the time from this, see session.CLOCK.
        connection.create_function('gantt_clock', 0, clock.wall)

    sa.event.listen(engine, 'connect', connected)
    return sql_stores(engine)


class World:
    """Schedulers (any number, one store), hosts and callers.

    :param store: or what makes one of our clock, as ``sqlite_store`` does
    """

    def __init__(self, store: object = None, hosts: int = 0, **settings: object) -> None:
        self.clock = ManualClock()
        self.store = store(self.clock) if callable(store) else store
        self.store = self.store or memory_stores(clock=self.clock)
        self.replies = Replies()
        self.recorder = MemoryRecorder()
        self.settings = settings
        self.schedulers: list[Scheduler] = []
        self.scheduler = self.another_scheduler()
        self.hosts = {f'cmp-{i}': Host(self, f'cmp-{i}') for i in range(1, hosts + 1)}
        for host in self.hosts.values():
            host.report()
        self.turn()

    def another_scheduler(self) -> Scheduler:
        pipeline = plugin_loader.load_pipeline()
        settings = SchedulerSettings(worker=f'worker-{len(self.schedulers) + 1}', **self.settings)
        scheduler = Scheduler(
            self.store, pipeline, self.recorder, settings, self.clock, make_hook=GroupMembers
        )
        scheduler.cache.fetch()
        self.schedulers.append(scheduler)
        return scheduler

    def turn(self, seconds: float = 0.2, times: int = 1) -> None:
        """Let time pass and everything happen that is due."""
        for _ in range(times):
            self.clock.advance(seconds)
            for scheduler in self.schedulers:
                scheduler.report_queue.step()
                scheduler.housekeeping.step()
                scheduler.placing.step()

    def ask(self, request: SelectDestinations, by: Scheduler | None = None) -> object:
        """Submit; the answer will be in ``replies.answers`` under the handle returned."""
        handle = object()
        (by or self.scheduler).submit(request, handle, self.replies)
        return handle

    def select(
        self, request: SelectDestinations, by: Scheduler | None = None, turns: int = 30
    ) -> Answer:
        """Submit and turn until the answer is there."""
        handle = self.ask(request, by)
        for _ in range(turns):
            if handle in self.replies.answers:
                break
            self.turn()
        return self.replies.answers[handle]

    def audit(self) -> dict[str, list[str]]:
        return self.store.claims.audit()


def a_request(
    count: int = 1,
    *,
    vcpu: int = 1,
    ram: int = 1024,
    disk: int = 1,
    group: GroupRef | None = None,
    **fields: object,
) -> SelectDestinations:
    """Return a request for ``count`` equal members."""
    top = {k: fields.pop(k) for k in list(fields) if k in SelectDestinations.__struct_fields__}
    spec = RequestSpec(
        resources={'VCPU': vcpu, 'MEMORY_MB': ram, 'DISK_GB': disk}, group=group, **fields
    )
    if 'purpose' in fields:
        spec = msgspec.structs.replace(spec, purpose=Purpose(fields['purpose']))
    top.setdefault('request_id', new_uuid())
    top.setdefault('consumers', [new_uuid() for _ in range(count)])
    return SelectDestinations(spec=spec, **top)


def a_group(policy: str = 'anti-affinity', **fields: object) -> GroupRef:
    return GroupRef(uuid=new_uuid(), policy=Policy(policy), **fields)


def hosts_of(answer: Answer) -> list[str]:
    return [selections[0].host for selections in answer.selections]
