# SPDX-License-Identifier: Apache-2.0
"""Stores that break one rule each: the simulator must find every one of them.

Each takes the place of one attribute of the stores in memory, its ``port``.
"""

import dataclasses
from collections.abc import Callable

import msgspec

from devel.memory_store.claims import MemoryClaims
from devel.memory_store.database import MemoryDatabase, atomic
from devel.memory_store.reports import MemoryReports
from devel.memory_store.requests import MemoryRequests
from devel.memory_store.stores import MemoryStores, memory_stores
from devel.sim import plan
from gantt.core.claims.claim import State
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult

_replace = msgspec.structs.replace


def replacing(broken: type) -> Callable[[Clock], MemoryStores]:
    """Return what makes the stores of a run of which one is broken."""

    def make(clock: Clock) -> MemoryStores:
        stores = memory_stores(clock, report_seconds=plan.REPORT_SECONDS)
        return dataclasses.replace(stores, **{broken.port: broken(stores.database)})

    return make


def _end(database, claim, state, reason):
    database.tables.put_claim(_replace(claim, state=state, reason=reason, updated_at=database.now))


class BrokenReports(MemoryReports):
    port = 'reports'

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database, plan.REPORT_SECONDS)


class ConfirmsInAnyEpoch(MemoryClaims):
    """An agent that was replaced may still start guests."""

    port = 'claims'

    @atomic
    def confirm_claims(self, words):
        row = self.database.tables.named(words.name)
        return super().confirm_claims(_replace(words, epoch=row.epoch if row else words.epoch))


class SweepsWhatIsConfirmed(MemoryClaims):
    """The lease goes on after the confirmation."""

    port = 'claims'

    @atomic
    def sweep(self, limit):
        swept = super().sweep(limit)
        outcomes = []
        for claim in list(self.database.tables.all_live()):
            if claim.lease_until < self.database.now and not claim.adopted:
                _end(self.database, claim, State.EXPIRED, 'lease ran out')
                outcomes.append(ClaimOutcome(claim_id=claim.id, outcome='ok', state='expired'))
        return ClaimResult(
            outcomes=swept.outcomes + outcomes, hosts=swept.hosts + self.database.tables.write()
        )


class NeverSweeps(MemoryClaims):
    """What nobody confirmed stays reserved."""

    port = 'claims'

    def sweep(self, limit):
        return ClaimResult(outcomes=[])


class ForgetsWhatWasPlaced(MemoryRequests):
    """A repeat is placed anew."""

    port = 'requests'

    @atomic
    def commit(self, batch):
        for draft in batch:
            row = self.database.tables.requests.get(draft.id)
            if row is not None and row.state == 'placed':
                del self.database.tables.requests[draft.id]
        return super().commit(batch)

    def load_request(self, request_id):
        request = super().load_request(request_id)
        return None if request is not None and request.state == 'placed' else request


class GivesUpWhatIsPlaced(MemoryRequests):
    """A cancel ends what runs."""

    port = 'requests'

    @atomic
    def cancel_request(self, request_id, reason):
        for claim in self.database.tables.of_request(request_id, live=True):
            _end(self.database, claim, State.RELEASED, reason)
        self.database.tables.write()
        return super().cancel_request(request_id, reason)


class ForgetsToTell(BrokenReports):
    """What reports change is not in the feed, nor found by the comparison."""

    @atomic
    def apply_reports(self, reports):
        position, versions = (
            self.database.tables.position,
            {p: row.version for p, row in self.database.tables.hosts.items()},
        )
        result = super().apply_reports(reports)
        self.database.tables.position = position
        for provider_id, row in self.database.tables.hosts.items():
            self.database.tables.hosts[provider_id] = _replace(
                row, version=versions.get(provider_id, row.version)
            )
        return _replace(result, hosts=[])


class KnowsNoEpochs(BrokenReports):
    """An agent that starts again counts from one, and is taken for one that is late.

    The host was up for long before the run, so that it does not catch up within it.
    """

    @atomic
    def _register(self, message):
        before = self.database.tables.named(message.name)
        registered, change = super()._register(message)
        if before is not None and before.epoch != registered.epoch:
            row = self.database.tables.named(message.name)
            self.database.tables.hosts[row.id] = _replace(row, sequence=before.sequence + 10_000)
        return registered, change


class ReleasesAgain(MemoryClaims):
    """A release that comes twice gives the room back twice."""

    port = 'claims'

    @atomic
    def release_claims(self, words):
        over = [
            claim
            for claim_id in words.claim_ids
            if (claim := self.database.tables.claims.get(claim_id)) is not None
            and not claim.is_live
        ]
        result = super().release_claims(words)
        for claim in over:
            row = self.database.tables.hosts[claim.provider_id]
            used = {
                name: max(0, n - claim.allocations[row.id].get(name, 0))
                for name, n in row.used.items()
            }
            self.database.tables.hosts[row.id] = _replace(row, used=used)
        return result
