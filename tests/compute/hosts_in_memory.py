# SPDX-License-Identifier: Apache-2.0
"""A small real world for the compute side: a store that keeps the promises, and a machine.

The store is the production one in memory; the port to it can be cut, and can
lose answers.  The machine remembers every start, so that a test can ask
whether one happened twice or without permission.
"""

import pathlib
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from devel.doubles import ManualClock
from devel.memory_store.stores import MemoryStores, memory_stores
from gantt import exceptions
from gantt.compute.agent.agent import AgentSettings
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings, with_agent
from gantt.compute.agent.journal import SqliteJournal
from gantt.compute.ports import GuestError, HostReadings, RunningGuest, report_outcome
from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import ClaimColumns, ClaimDraft, RequestDraft
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import (
    ClaimUpdate,
    HostReport,
    Registered,
    RegisterHost,
    ReportedMetric,
)
from gantt.core.messages.resource_classes import Inventory
from tests.builders import register_host

SMALL = {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 10}


def new_uuid() -> str:
    return str(uuid.uuid4())


class HostsInMemory:
    """The scheduler's side: claims are made here, and looked at."""

    def __init__(self, store: Callable[[ManualClock], Any] = memory_stores) -> None:
        self.clock = ManualClock()
        self.store = store(self.clock)
        self.port = Port(self.store)

    def claim(self, host: str, lease: float = 120.0, **resources: int) -> Build:
        """A reserved claim on a host, as the build message that a conductor would send."""
        rows = {c.row.name: c.row for c in self.store.feed.load_everything().hosts}
        row = rows[host]
        claim = Claim(
            id=new_uuid(),
            request_id=new_uuid(),
            consumer=new_uuid(),
            provider_id=row.id,
            host=host,
            allocations={row.id: resources or SMALL},
        )
        draft = RequestDraft(
            id=claim.request_id,
            fingerprint='-',
            owner='test',
            lease_seconds=lease,
            claims=ClaimColumns.of([ClaimDraft(claim=claim)]),
        )
        (fate,) = self.store.requests.commit([draft]).outcomes
        assert fate.accepted == [0], fate
        return Build(
            claim_id=claim.id,
            consumer=claim.consumer,
            host=host,
            resources=resources or SMALL,
            lease_seconds=lease,
        )

    def state(self, build: Build) -> str:
        claim = self.store.claims.load_claim(build.claim_id)
        return claim.state.value if claim else 'unknown'

    def cancel(self, build: Build) -> None:
        claim = self.store.claims.load_claim(build.claim_id)
        self.store.requests.cancel_request(claim.request_id, 'test')

    def adopted(self) -> list[Claim]:
        return [c for c in self.store.claims.list_claims(limit=1000) if c.adopted]

    def live(self, host: str) -> set[str]:
        """Consumers with a confirmed claim on a host."""
        return {
            c.consumer
            for c in self.store.claims.list_claims(host=host, limit=1000)
            if c.state is State.CONFIRMED
        }

    def audit(self) -> None:
        assert not any(self.store.claims.audit().values()), self.store.claims.audit()


class Port:
    """The scheduler as a host reaches it; ``away`` cuts the line, ``lose`` an answer."""

    def __init__(self, store: MemoryStores) -> None:
        self.store = store
        self.away = False
        self.lose: Callable[[str], bool] = lambda word: False
        self.before: Callable[[str, object], None] = lambda word, message: None
        self.reports: list[HostReport] = []
        self.words: list[tuple[str, ClaimUpdate]] = []

    def _line(self, word: str, message: object) -> None:
        self.before(word, message)
        if self.away:
            raise exceptions.Unavailable('the line is cut')

    def _answer(self, word: str) -> None:
        if self.lose(word):
            raise exceptions.Unavailable('the answer is lost')

    def register(self, message: RegisterHost) -> Registered:
        self._line('register', message)
        registered, _ = register_host(self.store, message)
        self._answer('register')
        return registered

    def report(self, report: HostReport) -> str | None:
        self._line('report', report)
        self.reports.append(report)
        (fate,) = self.store.reports.apply_reports([report]).outcomes
        if not report.full:
            return None
        self._answer('report')
        if fate.outcome == 'gone':
            raise exceptions.StaleEpoch(
                host=report.name, epoch=report.epoch, current=fate.current_epoch
            )
        if fate.outcome == 'unknown_host':
            raise exceptions.NotFound(kind='host', name=report.name)
        return report_outcome(report, fate.outcome, fate.current_sequence)

    def _say(self, word: str, update: ClaimUpdate) -> dict[str, str]:
        self._line(word, update)
        self.words.append((word, update))
        answer = getattr(self.store.claims, f'{word}_claims')(update)
        self._answer(word)
        return {f.claim_id: f.outcome for f in answer.outcomes}

    def confirm(self, update: ClaimUpdate) -> dict[str, str]:
        return self._say('confirm', update)

    def refuse(self, update: ClaimUpdate) -> dict[str, str]:
        return self._say('refuse', update)

    def release(self, update: ClaimUpdate) -> dict[str, str]:
        return self._say('release', update)


class Machine:
    """A machine whose guests survive the agent; it remembers every start.

    :param allowed: asked at each start whether the claim is confirmed
    """

    def __init__(self, allowed: Callable[[Build], bool]) -> None:
        self.running: dict[str, RunningGuest] = {}
        self.starts: list[str] = []
        self.without_permission: list[str] = []
        self.inventories = {
            'VCPU': Inventory(total=8),
            'MEMORY_MB': Inventory(total=16_384),
            'DISK_GB': Inventory(total=100),
        }
        self.foreign: dict[str, int] = {}
        self.lists = True
        self.broken = ''
        self._allowed = allowed

    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        return HostReadings(
            inventories=self.inventories,
            foreign=self.foreign,
            metrics={'starts': ReportedMetric(value=len(self.starts))},
        )

    def guests(self) -> list[RunningGuest] | None:
        if self.broken == 'list':
            raise GuestError(consumer='-', problem='cannot be listed')
        return list(self.running.values()) if self.lists else None

    def objection(self, build: Build) -> str:
        return ''

    def start(self, build: Build) -> None:
        self.starts.append(build.claim_id)
        if not self._allowed(build):
            self.without_permission.append(build.claim_id)
        if self.broken == 'start':
            raise GuestError(consumer=build.consumer, problem='does not start')
        self.running[build.claim_id] = RunningGuest(
            consumer=build.consumer, claim_id=build.claim_id, resources=build.resources
        )

    def stop(self, guest: RunningGuest) -> None:
        if self.broken == 'stop':
            raise GuestError(consumer=guest.consumer, problem='does not stop')
        self.running.pop(guest.claim_id, None)

    def await_start(self, claim_id: str, seconds: float) -> bool:
        return True


class House:
    """One host: a machine that stays, an agent that comes and goes."""

    def __init__(
        self,
        memory_hosts: HostsInMemory,
        folder: pathlib.Path,
        name: str = 'cmp-1',
        terms: AgentSettings | None = None,
    ) -> None:
        self.town = memory_hosts
        self.name = name
        self.terms = terms
        self.path = folder / f'{name}.journal'
        self.machine = Machine(lambda build: memory_hosts.state(build) == 'confirmed')
        self.journal: SqliteJournal | None = None
        self.member: HostAgent = self.boot()

    def boot(self) -> HostAgent:
        """A fresh agent process on the same machine and the same journal."""
        self.close()
        self.journal = SqliteJournal(self.path, wall=self.town.clock.wall)
        self.member = with_agent(
            RegisterHost(name=self.name, boot_nonce='-'),
            self.town.port,
            self.machine,
            self.journal,
            HostAgentSettings(report_seconds=60, terms=self.terms),
            random.Random(1),
            self.town.clock.wall,
        )
        return self.member

    @property
    def agent(self):
        assert self.member.agent is not None
        return self.member.agent

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()
        self.journal = None


def a_delete(build: Build) -> Delete:
    return Delete(consumer=build.consumer, host=build.host, claim_id=build.claim_id)
