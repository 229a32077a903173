# SPDX-License-Identifier: Apache-2.0
"""Claims changed under the lock of their providers.

Always the provider's row first, then the claim, only from the state that it
was read in, and only what came back is taken off the usage.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims import inheritance
from gantt.core.claims.claim import (
    ENDS_PLACE,
    LIVE,
    Claim,
    Event,
    State,
    guest_of,
    happen,
    state_after,
)
from gantt.core.claims.places import lives_on
from gantt.db.claims import places
from gantt.db.engine import session
from gantt.db.engine.arrays import Update
from gantt.db.engine.retry import Again
from gantt.db.hosts import claim_rows, inherited, providers, rows, sole
from gantt.db.hosts.base import is_id
from gantt.db.schema import models
from gantt.scheduler.ports import ClaimOutcome, ClaimResult

_c = models.claims
_a = models.allocations
_p = models.providers

#: Columns that change in the life of a claim; the layout is written by itself.
CHANGED = (
    *('state', 'live', 'lifecycle', 'consumer', 'lease_until', 'expires_at', 'move_id'),
    *('adopted', 'absences', 'reason', 'updated_at'),
)
#: What is sole is lost with what it stands for, and never gained.
WRITE = Update(_c, {'b_id': 'id', 'b_state': 'state'}, CHANGED, stays={'sole': 'is_sole'})
WRITE_LAYOUT = (
    _c.update().where(_c.c.id == sa.bindparam('b_id')).values(layout=sa.bindparam('layout'))
)


def owners_of(tx: session.Tx, consumers: Iterable[str]) -> dict[str, str | None]:
    """The project of each of these consumers of whom a claim is stored, live or ended."""
    found = claim_rows.owners(tx, list(filter(is_id, consumers)))
    return {consumer: of['project_id'] for consumer, of in found.items()}


# -- changing -----------------------------------------------------------------------
class Changes:
    """Claims that change under the lock of their providers."""

    def __init__(self, tx: session.Tx, memory: rows.Memory) -> None:
        self.tx = tx
        self.memory = memory
        self.locked = providers.LockedProviders({}, {}, {})
        self.touched: set[int] = set()
        #: Providers whose usage changed: their generation grows, once for all of it.
        self.grown: set[int] = set()
        self._writes: list[dict[str, Any]] = []
        self._layouts: list[dict[str, Any]] = []
        self._places: list[tuple[Claim, Claim]] = []
        self._again: list[Claim] = []
        self.inheritances = Inheritances(tx)

    def lock(self, provider_ids: Iterable[int]) -> None:
        """Lock the providers; before any claim is read that is to be changed."""
        self.locked = providers.lock(self.tx, self.memory, set(provider_ids))

    def change(self, before: Claim, now: Claim, *, ends_place: bool = False) -> None:
        """A claim as it becomes; usage follows where it ends.

        :param ends_place: a place that a create has ends with the create's claim
        :raises ClaimUnreadable: nobody knows what would be written over
        """
        if before.problem:
            raise exceptions.ClaimUnreadable(claim=before.id, problem=before.problem)
        if before.is_taken or now.is_taken:
            self._places.append((before, now))
        else:
            self._writes.append(
                {
                    'b_id': before.id,
                    'b_state': before.state.value,
                    'is_sole': int(sole.sole_of(now) is not None),
                    **{name: claim_rows.CLAIM[name](now) for name in CHANGED},
                }
            )
        if now.layout != before.layout:
            self._layouts.append({'b_id': before.id, 'layout': claim_rows.CLAIM['layout'](now)})
        self.touch(before.provider_id)
        if before.is_live and not now.is_live:
            again = None if ends_place else lives_on(before, self.tx.now)
            if again is not None:
                self._again.append(again)  # what it takes is taken still
                return
            self.count(before, -1)
            self.inheritances.end(self.locked, before)

    def count(self, claim: Claim, sign: int) -> None:
        """Add or take off what a claim uses, on every provider that it is on."""
        for pid, amounts in claim.allocations.items():
            row = self.locked.counters.get(pid)
            if row is not None:
                rows.add(row, amounts, sign)
                self.grown.add(pid)
                self.touch(pid)

    def touch(self, provider_id: int) -> None:
        """The claims on a provider change."""
        row = self.locked.counters.get(provider_id)
        if row is not None:
            row.claims_stamp = self.tx.stamp
            self.touched.add(provider_id)

    def write(self) -> None:
        """Write the claims, then the providers.

        :raises Again: a claim is not in the state any more that it was read in
        """
        self._writes.sort(key=lambda values: values['b_id'])
        if self._writes and WRITE.run(self.tx, self._writes) != len(self._writes):
            raise Again('a claim was written meanwhile')
        if self._places:
            places.write(self.tx, self._places)
        if self._again:
            places.insert(self.tx, self._again)
        if self._layouts:
            self.tx.many(WRITE_LAYOUT, sorted(self._layouts, key=lambda values: values['b_id']))
        for pid in self.grown:
            self.locked.counters[pid].generation += 1
        providers.save(self.tx, self.locked, self.touched)

    def result(self, outcomes: list[ClaimOutcome]) -> ClaimResult:
        """What became of the claims, with the touched hosts as they become."""
        hosts = providers.changes_of(self.tx, self.memory, self.locked, self.touched)
        return ClaimResult(outcomes=outcomes, hosts=hosts)

    def end(self, claims: Iterable[Claim], event: Event, reason: str) -> list[ClaimOutcome]:
        """Let ``event`` happen to claims under lock; their fates."""
        outcomes = []
        for claim in claims:
            state = state_after(claim, event)
            if state is not claim.state:
                becomes = happen(claim, event, reason, self.tx.now)
                self.change(claim, becomes, ends_place=event in ENDS_PLACE)
            outcomes.append(
                ClaimOutcome(claim_id=claim.id, outcome=_outcome(claim, state), state=state.value)
            )
        return outcomes


class Inheritances:
    """What ended claims took of pools goes over to those that inherit it; the pools are locked."""

    def __init__(self, tx: session.Tx) -> None:
        self._tx = tx
        # guest -> its live claims by id, as they become
        self._others: dict[str, dict[str, Claim]] = {}
        self._ended: set[str] = set()

    def end(self, locked: providers.LockedProviders, ended: Claim) -> None:
        """One claim more has ended; what it used is taken off already."""
        self._ended.add(ended.id)
        if not inheritance.of_pools(ended):
            return
        others = self._of(ended)
        alive = [one for one in others.values() if one.id not in self._ended]
        for before, now in inheritance.heirs(ended, alive):
            others[now.id] = now
            for pid, amounts in inheritance.gained(before, now).items():
                row = locked.counters.get(pid)
                if row is not None:
                    rows.add(row, amounts, 1)
                    write_inherited(self._tx, now, pid)

    def read(self, ending: Iterable[Claim]) -> None:
        """Read what may inherit of claims that end, of all their guests at once."""
        guests = {guest_of(claim) for claim in ending if inheritance.of_pools(claim)}
        wanted = sorted(guests - self._others.keys())
        if wanted:
            self._others |= {guest: {} for guest in wanted}
            theirs = [claim_rows.of_guests(wanted), claim_rows.is_live]
            for one in claim_rows.load_claims(self._tx, where=theirs):
                if guest_of(one) in wanted:
                    self._others[guest_of(one)][one.id] = one

    def _of(self, ended: Claim) -> dict[str, Claim]:
        self.read([ended])
        return self._others[guest_of(ended)]


def write_inherited(tx: session.Tx, claim: Claim, provider_id: int) -> None:
    """What a claim takes of one provider, and inherits there, as it has become."""
    values = claim_rows.amount_values(claim.allocations[provider_id])
    values['inherits'] = inherited.text_of(claim.inherits.get(provider_id))
    where = (_a.c.claim_id == claim.id, _a.c.provider_id == provider_id)
    tx.run(_a.update().where(*where).values(values))
    # By the time of its last change a claim is known to be as it was read.
    tx.run(_c.update().where(_c.c.id == claim.id).values(updated_at=tx.now))


def _outcome(claim: Claim, state: State) -> str:
    if claim.state not in LIVE:
        return 'gone'
    return 'ok' if state is not claim.state else 'kept'


def providers_of(claims: Iterable[Claim]) -> set[int]:
    """Every provider that these claims are on."""
    found = set()
    for claim in claims:
        found.add(claim.provider_id)
        found.update(claim.allocations)
    return found


def lock_claims(changes: Changes, ids: Sequence[str], on: set[int]) -> list[Claim]:
    """Claims of any host, under the locks of all that they are on.

    :param on: the providers that they were on before anything was locked
    """
    changes.lock(on)
    claims = claim_rows.load_claims(changes.tx, ids=ids) if ids else []
    if providers_of(claims) - on:
        raise Again('a claim went to another provider meanwhile')
    return claims


def end_claims(
    changes: Changes, ids: Sequence[str], on: set[int], event: Event, reason: str
) -> ClaimResult:
    """Lock, read, let ``event`` happen, write: for claims of any host.

    :param ids: of the claims
    :param on: the providers that they were on before anything was locked
    """
    outcomes = changes.end(lock_claims(changes, ids, on), event, reason)
    changes.write()
    return changes.result(outcomes)
