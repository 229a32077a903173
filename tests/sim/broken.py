# SPDX-License-Identifier: Apache-2.0
"""Stores that break one rule each: the simulator must find every one of them."""

import msgspec

from devel.memory_store.memory import MemoryStore
from devel.memory_store.operators import atomic
from devel.sim import plan
from gantt.core.claims.claim import State
from gantt.scheduler.ports import ClaimOutcome, ClaimResult

_replace = msgspec.structs.replace


class Broken(MemoryStore):
    """One of them."""

    def __init__(self, clock):
        super().__init__(clock, report_seconds=plan.REPORT_SECONDS)

    def _end(self, claim, state, reason):
        self._tables.put_claim(_replace(claim, state=state, reason=reason, updated_at=self._now))


class ConfirmsInAnyEpoch(Broken):
    """An agent that was replaced may still start guests."""

    @atomic
    def confirm_claims(self, words):
        row = self._tables.named(words.name)
        return super().confirm_claims(_replace(words, epoch=row.epoch if row else words.epoch))


class SweepsWhatIsConfirmed(Broken):
    """The lease goes on after the confirmation."""

    @atomic
    def sweep(self, limit):
        swept = super().sweep(limit)
        fates = []
        for claim in list(self._tables.all_live()):
            if claim.lease_until < self._now and not claim.adopted:
                self._end(claim, State.EXPIRED, 'lease ran out')
                fates.append(ClaimOutcome(claim_id=claim.id, outcome='ok', state='expired'))
        return ClaimResult(
            outcomes=swept.outcomes + fates, hosts=swept.hosts + self._tables.write()
        )


class NeverSweeps(Broken):
    """What nobody confirmed stays reserved."""

    def sweep(self, limit):
        return ClaimResult(outcomes=[])


class ForgetsWhatWasPlaced(Broken):
    """A repeat is placed anew."""

    @atomic
    def commit(self, batch):
        for draft in batch:
            row = self._tables.requests.get(draft.id)
            if row is not None and row.state == 'placed':
                del self._tables.requests[draft.id]
        return super().commit(batch)

    def load_request(self, request_id):
        found = super().load_request(request_id)
        return None if found is not None and found.state == 'placed' else found


class GivesUpWhatIsPlaced(Broken):
    """A cancel ends what runs."""

    @atomic
    def cancel_request(self, request_id, reason):
        for claim in self._tables.of_request(request_id, live=True):
            self._end(claim, State.RELEASED, reason)
        self._tables.write()
        return super().cancel_request(request_id, reason)


class ForgetsToTell(Broken):
    """What reports change is not in the feed, nor found by the comparison."""

    @atomic
    def apply_reports(self, reports):
        position, versions = (
            self._tables.position,
            {p: row.version for p, row in self._tables.hosts.items()},
        )
        result = super().apply_reports(reports)
        self._tables.position = position
        for provider_id, row in self._tables.hosts.items():
            self._tables.hosts[provider_id] = _replace(
                row, version=versions.get(provider_id, row.version)
            )
        return _replace(result, hosts=[])


class KnowsNoEpochs(Broken):
    """An agent that starts again counts from one, and is taken for one that is late.

    The host was up for long before the run, so that it does not catch up within it.
    """

    @atomic
    def register_host(self, message):
        before = self._tables.named(message.name)
        registered, change = super().register_host(message)
        if before is not None and before.epoch != registered.epoch:
            row = self._tables.named(message.name)
            self._tables.hosts[row.id] = _replace(row, sequence=before.sequence + 10_000)
        return registered, change


class ReleasesAgain(Broken):
    """A release that comes twice gives the room back twice."""

    @atomic
    def release_claims(self, words):
        over = [
            found
            for claim_id in words.claim_ids
            if (found := self._tables.claims.get(claim_id)) is not None and not found.is_live
        ]
        result = super().release_claims(words)
        for claim in over:
            row = self._tables.hosts[claim.provider_id]
            used = {
                name: max(0, n - claim.allocations[row.id].get(name, 0))
                for name, n in row.used.items()
            }
            self._tables.hosts[row.id] = _replace(row, used=used)
        return result
