# SPDX-License-Identifier: Apache-2.0
"""Course of the two flows through the code: calls, files, and changes of file.

One request of one member, from ``submit`` to ``send``, and one report, from its queue to the
host table; four hosts, the default filters and weighers, SQLite or PostgreSQL, everything warm.
Counted by ``sys.setprofile``; files of plug-ins (with a filter or weigher in them) are left out.
The yardstick is the report.
"""

import argparse
import contextlib
import importlib.metadata
import pathlib
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import msgspec

import gantt
from bench import Result, conditions
from bench.rig import postgresql_database
from devel.doubles import MemoryRecorder
from gantt import plugin_loader
from gantt.core.messages.report import HostReport, RegisterHost, Running
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Answer
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import stores_for_url

#: Calls are counted.
IS_TIMED = False
ROOT = pathlib.Path(gantt.__file__).parent
#: Files with a filter or weigher in them.
PLUGINS = {
    f'{entry.module.replace(".", "/")}.py'
    for group in (plugin_loader.FILTERS, plugin_loader.WEIGHERS)
    for entry in importlib.metadata.entry_points(group=group)
}
HOSTS, WARM = 4, 30
DATABASES = ('sqlite', 'postgresql')


class Flow(msgspec.Struct):
    """Calls and files of one run of a flow.

    :ivar path: files, in the order in which they are entered first
    """

    calls: int = 0
    changes: int = 0
    path: list[str] = []


@contextlib.contextmanager
def watched() -> Iterator[Flow]:
    """Count the calls of this thread into files of Gantt."""
    flow, last = Flow(), ''

    def called(frame: FrameType, event: str, _: Any) -> None:
        nonlocal last
        if event != 'call':
            return
        name = file_of(frame.f_code.co_filename)
        if name is None:
            return
        flow.calls += 1
        if name != last:
            flow.changes += bool(last)
            last = name
            if name not in flow.path:
                flow.path.append(name)

    sys.setprofile(called)
    try:
        yield flow
    finally:
        sys.setprofile(None)


def file_of(path: str) -> str | None:
    """Return the name in the tree of a file of Gantt that counts."""
    if not path.startswith(f'{ROOT}/'):
        return None
    name = f'gantt/{path.removeprefix(f"{ROOT}/")}'
    return None if name in PLUGINS else name


class _Site:
    """A scheduler over an empty database, and hosts that are reported for."""

    def __init__(self, url: str) -> None:
        engine = session.build_engine(url)
        migration.sync(engine)
        engine.dispose()
        self.store = stores_for_url(url)
        self.clock = SystemClock()
        pipeline = plugin_loader.load_pipeline()
        self.scheduler = Scheduler(
            self.store, pipeline, MemoryRecorder(), SchedulerSettings(worker='flow'), self.clock
        )
        self.scheduler.cache.fetch()
        self.sent: list[Answer] = []
        self.hosts: dict[str, tuple[int, int]] = {}  # name -> epoch, sequence
        self.running: dict[str, list[Running]] = {}
        for number in range(HOSTS):
            name = f'cmp-{number}'
            registered = self.scheduler.register_host(
                RegisterHost(name=name, boot_nonce=str(uuid.uuid4()))
            )
            self.hosts[name] = registered.epoch, 0
            self.report(name)
        self.turn()

    def send(self, answers: Any) -> None:
        """Take the answers of a batch as a carrier of replies does."""
        self.sent += [answer for _, answer in answers]

    send_soon = send

    def turn(self) -> None:
        """Let everything happen that is due."""
        self.scheduler.report_queue.step()
        self.scheduler.housekeeping.step()
        self.scheduler.placing.step()

    def request(self) -> None:
        """Submit one request of one member, and have it answered."""
        before = len(self.sent)
        request = SelectDestinations(
            request_id=str(uuid.uuid4()),
            spec=RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 64}),
            consumers=[str(uuid.uuid4())],
        )
        self.scheduler.submit(request, object(), self)
        self.scheduler.placing.step()
        if len(self.sent) != before + 1 or self.sent[-1].outcome.value != 'placed':
            raise RuntimeError(f'not placed: {self.sent[before:]}')
        (((chosen, *_),),) = [answer.selections for answer in self.sent[before:]]
        runs = Running(consumer=chosen.consumer, claim_id=chosen.claim_id)
        self.running.setdefault(chosen.host, []).append(runs)

    def report(self, name: str = 'cmp-0') -> None:
        """Store one report and apply it to the table."""
        epoch, sequence = self.hosts[name]
        self.hosts[name] = epoch, sequence + 1
        self.scheduler.report_soon(
            HostReport(
                name=name,
                epoch=epoch,
                sequence=sequence + 1,
                full=True,
                inventories={
                    'VCPU': Inventory(total=100_000),
                    'MEMORY_MB': Inventory(total=10_000_000),
                },
                running=self.running.get(name, []),
                pending=[],
            )
        )
        self.scheduler.report_queue.step()


@contextlib.contextmanager
def _empty_database(kind: str) -> Iterator[str]:
    """Yield the URL of an empty database, which is dropped afterwards."""
    if kind == 'postgresql':
        with postgresql_database() as url:
            yield url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f'sqlite:///{folder}/flow.db'


def flows(kind: str = DATABASES[0]) -> dict[str, Flow]:
    """Run each of the two flows once, after it has run for a while.

    :param kind: of the database, see ``DATABASES``
    """
    with _empty_database(kind) as url:
        site = _Site(url)
        try:
            by_name = {}
            verbs: dict[str, Callable[[], None]] = {'request': site.request, 'report': site.report}
            for name, verb in verbs.items():
                for _ in range(WARM):
                    verb()
                    site.turn()
                with watched() as by_name[name]:
                    verb()
            return by_name
        finally:
            site.store.database.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--database', choices=DATABASES, default=DATABASES[0])


def run(args: argparse.Namespace) -> Result:
    """Count changes of file of a request."""
    by_name = flows(args.database)
    stated = {
        name: {'calls': flow.calls, 'files': len(flow.path), 'changes': flow.changes}
        for name, flow in by_name.items()
    }
    return Result(
        bench='flow',
        value=float(by_name['request'].changes),
        unit='changes of file',
        yardstick={
            'name': 'changes of file of a report',
            'value': float(by_name['report'].changes),
        },
        ratio=by_name['request'].changes / by_name['report'].changes,
        conditions={**conditions.here(), 'database': args.database, **stated},
        audit=0,
    )
