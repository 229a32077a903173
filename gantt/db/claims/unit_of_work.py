# SPDX-License-Identifier: Apache-2.0
"""One unit of work for all writers of claims: it locks providers, counts usage and steps rows.

Commits of schedulers, reports of hosts, events of Nova, operators and writers of allocations share
it.  All of them keep one order: rows of requests, groups or written consumers, then providers
ascending by id, then claims.  A claim changes only from the state that it was read in, and only its
own amounts are taken off the usage.

Usage is counted in memory, on rows under lock, and written in one of two ways: as it becomes, under
the version that was read; or, by commits, as added amounts under the guard of room.  Where locks
are local to a node of a cluster the second lets commits to one host succeed one after another.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from gantt.core.claims.reservations import restored_reservation
from gantt.db.engine import session
from gantt.db.engine.arrays import Joined, Update, by_key
from gantt.db.engine.retry import Again
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.scheduler.ports import ClaimOutcome, ClaimResult

_c = models.claims
_a = models.allocations
_p = models.providers
_i = models.inventories

# -- rows of claims -------------------------------------------------------------------
#: Columns that change in the life of a claim; the layout is written by itself.
CHANGED = (
    *('state', 'live', 'lifecycle', 'consumer', 'lease_until', 'expires_at', 'move_id'),
    *('adopted', 'absences', 'reason', 'updated_at'),
)
#: A unique key is removed when it no longer holds, and never added.
WRITE = Update(
    _c, {'b_id': 'id', 'b_state': 'state'}, CHANGED, stays={'unique_key': 'has_unique_key'}
)
WRITE_LAYOUT = (
    _c.update().where(_c.c.id == sa.bindparam('b_id')).values(layout=sa.bindparam('layout'))
)
#: Columns of a place that change: its consumer changes while it lives, its amounts do not.
_OF_PLACE = (
    *('request_id', 'attempt', 'member', 'consumer', 'state', 'live', 'lifecycle', 'purpose'),
    *('lease_until', 'expires_at', 'move_id', 'image', 'flavor', 'adopted', 'absences', 'reason'),
    *('updated_at', 'planned', 'project_id', 'user_id', 'unique_key', 'consumer_type'),
)
WRITE_PLACE = (
    _c.update()
    .where(_c.c.id == sa.bindparam('b_id'), _c.c.state == sa.bindparam('b_state'))
    .values({name: sa.bindparam(name) for name in _OF_PLACE})
)
#: The place was read before all locks were held: each change of a claim has another time.
TAKE_PLACE = WRITE_PLACE.where(_c.c.updated_at == sa.bindparam('b_updated_at'))
#: Likewise: a write of allocations may have changed the amounts of a claim that was read before.
END = by_key(
    _c.update()
    .where(
        _c.c.id.in_(sa.bindparam('ids', expanding=True)),
        _c.c.updated_at.in_(sa.bindparam('marks', expanding=True)),
    )
    .values(
        state=State.RELEASED.value,
        live=0,
        expires_at=None,
        unique_key=None,
        planned=None,
        reason=sa.bindparam('reason'),
        updated_at=sa.bindparam('now'),
    ),
    _c,
)


# -- rows of providers, by added amounts -------------------------------------------------
def _added(column: str) -> Any:
    return sa.bindparam(f'add_{column}', type_=sa.BigInteger)


USE = (
    _p.update()
    .where(
        _p.c.id == sa.bindparam('b_id'),
        *[
            sa.or_(
                _added(c) <= 0,
                _p.c[f'used_{c}'] + _p.c[f'foreign_{c}'] + _added(c) <= _p.c[f'cap_{c}'],
            )
            for c in CORE_CLASS_COLUMNS.values()
        ],
    )
    .values(
        generation=_p.c.generation + 1,
        version=_p.c.version + 1,
        claims_stamp=sa.bindparam('stamp', type_=sa.BigInteger),
        over_committed=sa.bindparam('over_full', type_=sa.SmallInteger),
        **{f'used_{c}': _p.c[f'used_{c}'] + _added(c) for c in CORE_CLASS_COLUMNS.values()},
    )
)
_USE_JOINED = Joined(
    _p,
    dict.fromkeys(
        ['b_id', 'stamp', 'over_full', *(f'add_{c}' for c in CORE_CLASS_COLUMNS.values())],
        sa.BigInteger(),
    ),
    on='t.id = v.b_id',
    changes='t.generation = t.generation + 1, t.version = t.version + 1, '
    't.claims_stamp = v.stamp, t.over_committed = v.over_full, '
    + ', '.join(f't.used_{c} = t.used_{c} + v.add_{c}' for c in CORE_CLASS_COLUMNS.values()),
    where=' AND '.join(
        f'(v.add_{c} <= 0 OR t.used_{c} + t.foreign_{c} + v.add_{c} <= t.cap_{c})'
        for c in CORE_CLASS_COLUMNS.values()
    ),
)
_add = sa.bindparam('add', type_=sa.BigInteger)
USE_OTHER = (
    _i.update()
    .where(
        _i.c.provider_id == sa.bindparam('b_provider'),
        _i.c.class_id == providers.CLASS_ID,
        sa.or_(_add <= 0, _i.c.used + _i.c.foreign_use + _add <= _i.c.cap),
    )
    .values(used=_i.c.used + _add)
)
#: Claims on the provider changed, their amounts did not.
TOUCH = (
    _p.update()
    .where(_p.c.id == sa.bindparam('b_id'))
    .values(version=_p.c.version + 1, claims_stamp=sa.bindparam('stamp', type_=sa.BigInteger))
)


class UnitOfWork:
    """Changes of claims in one transaction.

    Rows of claims are written at its end, in one order:
    ``doc/source/decisions/0096-unit-of-work-for-claims.rst``.

    :ivar locked: providers under lock, as they become
    :ivar touched: providers whose rows are written
    :ivar grown: those of them with changed usage: their generation grows once
    :ivar made: new claims
    """

    def __init__(self, tx: session.Tx, memory: rows.Memory) -> None:
        self.tx = tx
        self.memory = memory
        self.locked = providers.LockedProviders({}, {}, {})
        self.touched: set[int] = set()
        self.grown: set[int] = set()
        self.made: list[Claim] = []
        # rows of claims to update, one for each claim; their layouts, and their amounts
        self._writes: list[dict[str, Any]] = []
        self._layouts: list[dict[str, Any]] = []
        self._amounts: list[Claim] = []
        # places as they were read under lock, and as they become
        self._places: list[tuple[Claim, Claim]] = []
        # of claims that were read before the locks: places that creates take, and ended ones
        self._taken: list[tuple[Claim, Claim]] = []
        # reason -> claims that end
        self._released: dict[str, list[Claim]] = {}
        # places that live on where the claims of their creates end
        self._again: list[Claim] = []
        # guest -> other live claims by id, as they become: the possible heirs of those that end
        self._others: dict[str, dict[str, Claim]] = {}
        # ids of claims that end here, and so inherit nothing
        self._ended: set[str] = set()
        # claims that have inherited in this transaction, by id; and (claim, provider) to write
        self._heirs: dict[str, Claim] = {}
        self._inherited: dict[tuple[str, int], Claim] = {}

    def lock(self, provider_ids: Iterable[int]) -> None:
        """Lock the providers; call before reading any claim that is to be changed."""
        self.locked = providers.lock(self.tx, self.memory, set(provider_ids))

    # -- claims ------------------------------------------------------------------------
    def make(self, claim: Claim) -> None:
        """Record a new claim; what it takes is used."""
        self.made.append(claim)
        if claim.is_live:
            self.count(claim, 1)
        self.touch(claim.provider_id)

    def change(self, before: Claim, now: Claim, *, ends_place: bool = False) -> None:
        """Record a claim's new state, or amounts; what it took is free if it ends.

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
                    'has_unique_key': int(claim_rows.unique_key_of(now) is not None),
                    **{name: claim_rows.CLAIM[name](now) for name in CHANGED},
                }
            )
        if now.layout != before.layout:
            self._layouts.append({'b_id': before.id, 'layout': claim_rows.CLAIM['layout'](now)})
        self.touch(before.provider_id)
        if before.is_live and not now.is_live:
            self._leave(before, ends_place)
        elif now.is_live and now.allocations != before.allocations:
            self.count(before, -1)
            self.count(now, 1)
            self._amounts.append(now)

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

    def take(self, place: Claim, now: Claim) -> None:
        """Hand a place, as read before the locks, to the consumer of a create."""
        self._taken.append((place, now))
        self.touch(place.provider_id)

    def release(self, claim: Claim, reason: str) -> None:
        """End a claim, as read before the locks."""
        self._released.setdefault(reason, []).append(claim)
        self._leave(claim)

    def _leave(self, ended: Claim, ends_place: bool = False) -> None:
        """Free what an ended claim took, unless its place lives on for its plan."""
        place_again = None if ends_place else restored_reservation(ended, self.tx.now)
        if place_again is None:
            self.free(ended)
        else:
            self._again.append(place_again)
            self.touch(ended.provider_id)

    # -- usage --------------------------------------------------------------------------
    def free(self, ended: Claim) -> None:
        """Take off what an ended claim took, also of late, and pass on what others inherit."""
        ended = self._heirs.get(ended.id, ended)
        self._ended.add(ended.id)
        self.count(ended, -1)
        for pid in ended.allocations.keys() & self.locked.counters.keys():
            rows.unflag(self.locked.counters[pid])
        if not inheritance.of_pools(ended):
            return
        self.read_heirs([ended])
        others = self._others[guest_of(ended)]
        live_claims = [claim for claim in others.values() if claim.id not in self._ended]
        for before, now in inheritance.heirs(ended, live_claims):
            others[now.id] = self._heirs[now.id] = now
            self.inherit(before, now)

    def count(self, claim: Claim, sign: int) -> None:
        """Add or subtract a claim's amounts, on every provider that it is on."""
        for pid, amounts in claim.allocations.items():
            self._use(pid, amounts, sign)

    def inherit(self, before: Claim, now: Claim) -> None:
        """Add what a claim takes over of another one."""
        for pid, amounts in inheritance.gained(before, now).items():
            self._use(pid, amounts, 1)
            self._inherited[now.id, pid] = now

    def _use(self, pid: int, amounts: Mapping[str, int], sign: int) -> None:
        row = self.locked.counters.get(pid)
        if row is not None:  # else it was removed since, with its usage
            rows.add(row, amounts, sign)
            row.claims_stamp = self.tx.stamp
            self.grown.add(pid)
            self.touched.add(pid)

    def touch(self, provider_id: int) -> None:
        """Mark a provider's claims as changed."""
        row = self.locked.counters.get(provider_id)
        if row is not None:
            row.claims_stamp = self.tx.stamp
            self.touched.add(provider_id)

    # -- heirs --------------------------------------------------------------------------
    def read_heirs(self, ending: Iterable[Claim]) -> None:
        """Read the possible heirs of claims that end, for all their guests at once."""
        guests = {guest_of(claim) for claim in ending if inheritance.of_pools(claim)}
        missing_guests = sorted(guests - self._others.keys())
        if missing_guests:
            filters = [claim_rows.of_guests(missing_guests), claim_rows.is_live]
            self.keep_heirs(missing_guests, claim_rows.load_claims(self.tx, where=filters))

    def keep_heirs(self, guests: Iterable[str], live_claims: Iterable[Claim]) -> None:
        """Remember the possible heirs of claims of these guests, as read under the locks."""
        self._others |= {guest: {} for guest in guests}
        for claim in live_claims:
            if guest_of(claim) in self._others:
                self._others[guest_of(claim)][claim.id] = claim

    def others_of(self, guest: str) -> list[Claim]:
        """Return the other live claims of a guest, as far as they were read."""
        return list(self._others.get(guest, {}).values())

    # -- writing ------------------------------------------------------------------------
    def step(self, pid: int, by: int = 1) -> None:
        """Increase a provider's generation."""
        self.locked.counters[pid].generation += by
        self.touched.add(pid)

    def write(self) -> None:
        """Write the claims, then the providers as they become.

        :raises Again: a claim's state, or a provider, has changed since it was read
        """
        self.write_claims()
        for pid in self.grown:
            self.step(pid)
        providers.save(self.tx, self.locked, self.touched)

    def write_claims(self) -> None:
        """Write the claims that changed or are new.

        :raises Again: a claim was changed, or one for the same consumer created, since they were
            read
        """
        for reason, claims in self._released.items():
            end_as_read(self.tx, claims, reason)
        self._writes.sort(key=lambda values: values['b_id'])
        if self._writes and WRITE.run(self.tx, self._writes) != len(self._writes):
            raise Again('a claim was written meanwhile')
        _write_places(self.tx, WRITE_PLACE, self._places)
        _write_places(self.tx, TAKE_PLACE, self._taken)
        if self.made or self._again:
            claim_rows.insert_claims(self.tx, [*self.made, *self._again])
        if self._layouts:
            self.tx.many(WRITE_LAYOUT, sorted(self._layouts, key=lambda values: values['b_id']))
        for claim in self._amounts:
            _write_amounts(self.tx, claim)
        for (_, pid), claim in sorted(self._inherited.items()):
            _write_inherited(self.tx, claim, pid)

    @property
    def written_live(self) -> list[Claim]:
        """The claims that live on for a consumer that they did not have."""
        return [*self.made, *self._again, *(place for _, place in self._taken)]

    @property
    def handed(self) -> set[int]:
        """The providers with places that change their consumer."""
        claims = (*self._again, *(place for _, place in self._taken))
        return {claim.provider_id for claim in claims} & self.locked.counters.keys()

    def step_all(self) -> None:
        """Step the rows in memory as :meth:`write_added` does in the database."""
        for pid in self.grown:
            self.step(pid)
        for pid in self.touched:
            self.locked.counters[pid].version += 1

    def write_added(self) -> None:
        """Write the added amounts, under the guard of room.

        :raises Again: a provider has no room for them any more, or was removed
        """
        used = [
            {
                'b_id': pid,
                'stamp': self.tx.stamp,
                'over_full': self.locked.counters[pid].over_committed,
                **{
                    f'add_{column}': amount
                    for column, amount in zip(
                        CORE_CLASS_COLUMNS.values(), self.locked.added(pid), strict=True
                    )
                },
            }
            for pid in sorted(self.grown)
        ]
        if _run_use(self.tx, used) != len(used):
            raise Again('a provider was written meanwhile')
        others = self.added_others()
        if others and self.tx.many(USE_OTHER, others) != len(others):
            raise Again('a provider was written meanwhile')
        touched_ids = sorted(self.touched - self.grown)
        touched = [{'b_id': pid, 'stamp': self.tx.stamp} for pid in touched_ids]
        if touched and self.tx.many(TOUCH, touched) != len(touched):
            raise Again('a provider was removed meanwhile')

    def added_others(self) -> list[dict[str, Any]]:
        """Return the bound values of ``USE_OTHER``, in the order of its locks."""
        return [
            {'b_provider': pid, 'b_class': name, 'add': amount}
            for pid in sorted(self.grown)
            for name, amount in sorted(self.locked.added_others(pid).items())
        ]

    def result(self, outcomes: list[ClaimOutcome]) -> ClaimResult:
        """Return the outcomes of the claims, with the touched hosts as they become."""
        hosts = providers.changes_of(self.tx, self.memory, self.locked, self.touched)
        return ClaimResult(outcomes=outcomes, hosts=hosts)


def _run_use(tx: session.Tx, used: Sequence[dict[str, Any]]) -> int:
    """Write the usage of providers that still have room; return their number."""
    if tx.kind == 'mysql' and len(used) > 1:
        written_count = _USE_JOINED.run(tx, used)
        if written_count is not None:
            return written_count
    return tx.many(USE, used)


def end_as_read(tx: session.Tx, claims: Sequence[Claim], reason: str) -> None:
    """End claims that were read before all locks were held.

    :raises Again: one was changed meanwhile
    """
    ids, marks = sorted(claim.id for claim in claims), sorted({c.updated_at for c in claims})
    if ids and tx.run(END, ids=ids, marks=marks, reason=reason, now=tx.now) != len(ids):
        raise Again('a claim that ends was written meanwhile')


def _write_places(tx: session.Tx, statement: Any, pairs: Sequence[tuple[Claim, Claim]]) -> None:
    """Write the new state of places.

    :param pairs: (as read, as it becomes)
    :raises Again: one was written meanwhile, or another claim for its consumer was created
    """
    if not pairs:
        return
    values = [
        {
            'b_id': before.id,
            'b_state': before.state.value,
            **({'b_updated_at': before.updated_at} if statement is TAKE_PLACE else {}),
            **{name: claim_rows.CLAIM[name](now) for name in _OF_PLACE},
        }
        for before, now in sorted(pairs, key=lambda pair: (pair[1].consumer, pair[0].id))
    ]
    with claim_rows.unique_key_guard():
        written = tx.many(statement, values)
    if written != len(values):
        raise Again('a place was written meanwhile')


def _write_amounts(tx: session.Tx, claim: Claim) -> None:
    """Write a claim's current amounts on all providers."""
    values = {name: claim_rows.CLAIM[name](claim) for name in claim_rows.AMOUNTS}
    tx.run(_c.update().where(_c.c.id == claim.id).values(values))
    tx.run(_a.delete().where(_a.c.claim_id == claim.id))
    tx.many(_a.insert(), claim_rows.allocation_values(claim))


def _write_inherited(tx: session.Tx, claim: Claim, provider_id: int) -> None:
    """Write a claim's current amounts and inheritance on one provider."""
    values = claim_rows.amount_values(claim.allocations[provider_id])
    values['inherits'] = claim_rows.inherits_text(claim.inherits.get(provider_id))
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


def lock_claims(changes: UnitOfWork, ids: Sequence[str], on: set[int]) -> list[Claim]:
    """Return claims of any host, read under the locks of all their providers.

    :param on: the providers that they were on before anything was locked
    """
    changes.lock(on)
    claims = claim_rows.load_claims(changes.tx, ids=ids) if ids else []
    if providers_of(claims) - on:
        raise Again('a claim went to another provider meanwhile')
    return claims


def end_claims(
    changes: UnitOfWork, ids: Sequence[str], on: set[int], event: Event, reason: str
) -> ClaimResult:
    """Lock and read claims of any host, apply ``event``, write them, and return the outcomes.

    :param ids: of the claims
    :param on: the providers that they were on before anything was locked
    """
    outcomes = changes.end(lock_claims(changes, ids, on), event, reason)
    changes.write()
    return changes.result(outcomes)
