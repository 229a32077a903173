# SPDX-License-Identifier: Apache-2.0
"""Changes of claims under the lock of their providers.

Order: the provider's row first, then the claim.  A claim changes only from the state that it was
read in, and only its own amounts are taken off the usage.
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
#: A sole key is removed when it no longer holds, and never added.
WRITE = Update(_c, {'b_id': 'id', 'b_state': 'state'}, CHANGED, stays={'sole': 'is_sole'})
WRITE_LAYOUT = (
    _c.update().where(_c.c.id == sa.bindparam('b_id')).values(layout=sa.bindparam('layout'))
)


def owners_of(tx: session.Tx, consumers: Iterable[str]) -> dict[str, str | None]:
    """Return consumer -> project, of the consumers with a stored claim, live or ended."""
    owner_columns = claim_rows.owners(tx, list(filter(is_id, consumers)))
    return {consumer: columns['project_id'] for consumer, columns in owner_columns.items()}


# -- changing -----------------------------------------------------------------------
class Changes:
    """Changes of claims under the lock of their providers."""

    def __init__(self, tx: session.Tx, memory: rows.Memory) -> None:
        self.tx = tx
        self.memory = memory
        self.locked = providers.LockedProviders({}, {}, {})
        self.touched: set[int] = set()
        #: Providers with changed usage: their generation grows once per transaction.
        self.grown: set[int] = set()
        self._writes: list[dict[str, Any]] = []
        self._layouts: list[dict[str, Any]] = []
        self._places: list[tuple[Claim, Claim]] = []
        self._again: list[Claim] = []
        self.inheritances = Inheritances(tx)

    def lock(self, provider_ids: Iterable[int]) -> None:
        """Lock the providers; call before reading any claim that is to be changed."""
        self.locked = providers.lock(self.tx, self.memory, set(provider_ids))

    def change(self, before: Claim, now: Claim, *, ends_place: bool = False) -> None:
        """Record a claim's new state; usage is reduced if it ends.

        :param ends_place: a taken place ends with the create's claim
        :raises ClaimUnreadable: the stored values are unknown and must not be overwritten
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
            place_again = None if ends_place else lives_on(before, self.tx.now)
            if place_again is not None:
                self._again.append(place_again)  # its amounts stay in use
                return
            before = self.inheritances.current(before)
            self.count(before, -1)
            self.inheritances.end(self.locked, before)

    def count(self, claim: Claim, sign: int) -> None:
        """Add or subtract a claim's amounts, on every provider that it is on."""
        for pid, amounts in claim.allocations.items():
            row = self.locked.counters.get(pid)
            if row is not None:
                rows.add(row, amounts, sign)
                self.grown.add(pid)
                self.touch(pid)

    def touch(self, provider_id: int) -> None:
        """Mark a provider's claims as changed."""
        row = self.locked.counters.get(provider_id)
        if row is not None:
            row.claims_stamp = self.tx.stamp
            self.touched.add(provider_id)

    def write(self) -> None:
        """Write the claims, then the providers.

        :raises Again: a claim's state has changed since it was read
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
        """Return the outcomes of the claims, with the touched hosts as they become."""
        hosts = providers.changes_of(self.tx, self.memory, self.locked, self.touched)
        return ClaimResult(outcomes=outcomes, hosts=hosts)

    def end(self, claims: Iterable[Claim], event: Event, reason: str) -> list[ClaimOutcome]:
        """Apply ``event`` to claims under lock; return their outcomes."""
        outcomes = []
        for claim in claims:
            state = state_after(claim, event)
            if state is not claim.state:
                claim_now = happen(claim, event, reason, self.tx.now)
                self.change(claim, claim_now, ends_place=event in ENDS_PLACE)
            outcomes.append(
                ClaimOutcome(claim_id=claim.id, outcome=_outcome(claim, state), state=state.value)
            )
        return outcomes


class Inheritances:
    """Transfer of pool amounts from ended claims to claims that inherit them; pools are locked."""

    def __init__(self, tx: session.Tx) -> None:
        self._tx = tx
        # guest -> its live claims by id, as they become
        self._others: dict[str, dict[str, Claim]] = {}
        self._ended: set[str] = set()
        # claims that have inherited in this transaction, by id, as they became
        self._heirs: dict[str, Claim] = {}

    def current(self, claim: Claim) -> Claim:
        """Return a claim as read, with what it has inherited in this transaction."""
        return self._heirs.get(claim.id, claim)

    def end(self, locked: providers.LockedProviders, ended: Claim) -> None:
        """Record an ended claim, whose usage is subtracted already, and pass its amounts on."""
        self._ended.add(ended.id)
        if not inheritance.of_pools(ended):
            return
        others = self._of(ended)
        live_claims = [claim for claim in others.values() if claim.id not in self._ended]
        for before, now in inheritance.heirs(ended, live_claims):
            others[now.id] = self._heirs[now.id] = now
            for pid, amounts in inheritance.gained(before, now).items():
                row = locked.counters.get(pid)
                if row is not None:
                    rows.add(row, amounts, 1)
                    write_inherited(self._tx, now, pid)

    def read(self, ending: Iterable[Claim]) -> None:
        """Read the possible heirs of claims that end, for all their guests at once."""
        guests = {guest_of(claim) for claim in ending if inheritance.of_pools(claim)}
        missing_guests = sorted(guests - self._others.keys())
        if missing_guests:
            self._others |= {guest: {} for guest in missing_guests}
            filters = [claim_rows.of_guests(missing_guests), claim_rows.is_live]
            for claim in claim_rows.load_claims(self._tx, where=filters):
                if guest_of(claim) in missing_guests:
                    self._others[guest_of(claim)][claim.id] = claim

    def _of(self, ended: Claim) -> dict[str, Claim]:
        self.read([ended])
        return self._others[guest_of(ended)]


def write_inherited(tx: session.Tx, claim: Claim, provider_id: int) -> None:
    """Write a claim's current amounts and inheritance on one provider."""
    values = claim_rows.amount_values(claim.allocations[provider_id])
    values['inherits'] = inherited.text_of(claim.inherits.get(provider_id))
    where = (_a.c.claim_id == claim.id, _a.c.provider_id == provider_id)
    tx.run(_a.update().where(*where).values(values))
    # The time of its last change guards the claim against concurrent writes.
    tx.run(_c.update().where(_c.c.id == claim.id).values(updated_at=tx.now))


def _outcome(claim: Claim, state: State) -> str:
    if claim.state not in LIVE:
        return 'gone'
    return 'ok' if state is not claim.state else 'kept'


def providers_of(claims: Iterable[Claim]) -> set[int]:
    """Return every provider that these claims are on."""
    provider_ids = set()
    for claim in claims:
        provider_ids.add(claim.provider_id)
        provider_ids.update(claim.allocations)
    return provider_ids


def lock_claims(changes: Changes, ids: Sequence[str], on: set[int]) -> list[Claim]:
    """Return claims of any host, read under the locks of all their providers.

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
    """Lock and read claims of any host, apply ``event``, write them, and return the outcomes.

    :param ids: of the claims
    :param on: the providers that they were on before anything was locked
    """
    outcomes = changes.end(lock_claims(changes, ids, on), event, reason)
    changes.write()
    return changes.result(outcomes)
