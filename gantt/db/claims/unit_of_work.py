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

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims import inheritance
from gantt.core.claims.allocations import WRITTEN_REASON, ClaimChanges
from gantt.core.claims.claim import (
    LIVE_STATES,
    RESERVATION_ENDING_EVENTS,
    Claim,
    Event,
    State,
    after_event,
    guest_of,
    state_after,
)
from gantt.core.claims.reservations import restored_reservation
from gantt.db.claims import groups
from gantt.db.engine import session
from gantt.db.engine.arrays import BulkUpdate, JoinedUpdate, lock_by_key
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult

_claims = models.claims
_allocations = models.allocations
_providers = models.providers
_inventories = models.inventories

# -- rows of claims -------------------------------------------------------------------
#: Columns that change in the life of a claim; the layout is written by itself.
TRANSITION_COLUMNS = (
    *('state', 'live', 'lifecycle', 'consumer', 'lease_until', 'expires_at', 'move_id'),
    *('adopted', 'absences', 'reason', 'updated_at'),
)
#: A unique key is removed when it no longer holds, and never added.
UPDATE_CLAIMS = BulkUpdate(
    _claims,
    {'b_id': 'id', 'b_state': 'state'},
    TRANSITION_COLUMNS,
    stays={'unique_key': 'has_unique_key'},
)
UPDATE_LAYOUT = (
    _claims.update().where(_claims.c.id == sa.bindparam('b_id')).values(session.bound('layout'))
)
#: Columns of owner, consumer and amounts; the state stays.
_OWNER_AND_AMOUNT_COLUMNS = (
    *('project_id', 'user_id', 'consumer_type', 'consumer', 'guest', 'unique_key'),
    *('updated_at', *claim_rows.AMOUNT_COLUMNS),
)
UPDATE_OWNER_AND_AMOUNTS = BulkUpdate(
    _claims, {'b_id': 'id', 'b_state': 'state'}, _OWNER_AND_AMOUNT_COLUMNS
)
DELETE_SHARES = _allocations.delete().where(
    _allocations.c.claim_id.in_(sa.bindparam('ids', expanding=True))
)
#: Columns of a place that change: its consumer changes while it lives, its amounts do not.
_RESERVATION_COLUMNS = (
    *('request_id', 'attempt', 'member', 'consumer', 'state', 'live', 'lifecycle', 'purpose'),
    *('lease_until', 'expires_at', 'move_id', 'image', 'flavor', 'adopted', 'absences', 'reason'),
    *('updated_at', 'former_reservation', 'project_id', 'user_id', 'unique_key', 'consumer_type'),
)
UPDATE_RESERVATION = (
    _claims.update()
    .where(_claims.c.id == sa.bindparam('b_id'), _claims.c.state == sa.bindparam('b_state'))
    .values(session.bound(*_RESERVATION_COLUMNS))
)
#: The place was read before all locks were held: each change of a claim has another time.
UPDATE_UNCHANGED_RESERVATION = UPDATE_RESERVATION.where(
    _claims.c.updated_at == sa.bindparam('b_updated_at')
)
#: Likewise: a write of allocations may have changed the amounts of a claim that was read before.
RELEASE_UNCHANGED_CLAIMS = lock_by_key(
    _claims.update()
    .where(
        _claims.c.id.in_(sa.bindparam('ids', expanding=True)),
        _claims.c.updated_at.in_(sa.bindparam('marks', expanding=True)),
    )
    .values(
        state=State.RELEASED.value,
        live=0,
        expires_at=None,
        unique_key=None,
        former_reservation=None,
        reason=sa.bindparam('reason'),
        updated_at=sa.bindparam('now'),
    ),
    _claims,
)


# -- rows of providers, by added amounts -------------------------------------------------
def _added(column: str) -> Any:
    return sa.bindparam(f'add_{column}', type_=sa.BigInteger)


ADD_USAGE = (
    _providers.update()
    .where(
        _providers.c.id == sa.bindparam('b_id'),
        *[
            sa.or_(
                _added(c) <= 0,
                _providers.c[f'used_{c}'] + _providers.c[f'foreign_{c}'] + _added(c)
                <= _providers.c[f'cap_{c}'],
            )
            for c in CORE_CLASS_COLUMNS.values()
        ],
    )
    .values(
        generation=_providers.c.generation + 1,
        version=_providers.c.version + 1,
        claims_stamp=sa.bindparam('stamp', type_=sa.BigInteger),
        over_committed=sa.bindparam('over_full', type_=sa.SmallInteger),
        **{f'used_{c}': _providers.c[f'used_{c}'] + _added(c) for c in CORE_CLASS_COLUMNS.values()},
    )
)
_ADD_USAGE_JOINED = JoinedUpdate(
    _providers,
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
_added_amount = sa.bindparam('add', type_=sa.BigInteger)
ADD_OTHER_USAGE = (
    _inventories.update()
    .where(
        _inventories.c.provider_id == sa.bindparam('b_provider'),
        _inventories.c.class_id == providers.CLASS_ID,
        sa.or_(
            _added_amount <= 0,
            _inventories.c.used + _inventories.c.foreign_use + _added_amount <= _inventories.c.cap,
        ),
    )
    .values(used=_inventories.c.used + _added_amount)
)
#: Claims on the provider changed, their amounts did not.
INCREMENT_VERSION = (
    _providers.update()
    .where(_providers.c.id == sa.bindparam('b_id'))
    .values(
        version=_providers.c.version + 1, claims_stamp=sa.bindparam('stamp', type_=sa.BigInteger)
    )
)


class UnitOfWork:
    """Changes of claims in one transaction.

    Rows of claims are written at its end, in one order:
    ``doc/source/decisions/0096-unit-of-work-for-claims.rst``.

    :ivar locked: providers under lock, with the values that they are to have
    :ivar touched_providers: providers whose rows are written
    :ivar grown: those of ``touched_providers`` with changed usage: their generation grows once
    :ivar created: new claims
    """

    def __init__(self, tx: session.Tx, memory: rows.RowCache) -> None:
        self.tx = tx
        self.memory = memory
        self.locked = providers.LockedProviders({}, {}, {})
        self.touched_providers: set[int] = set()
        self.grown: set[int] = set()
        self.created: list[Claim] = []
        # rows of claims to update, one for each claim; their layouts
        self._writes: list[dict[str, Any]] = []
        self._layouts: list[dict[str, Any]] = []
        # claims with other amounts, or another owner
        self._rewritten: list[Claim] = []
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

    def lock(self, provider_ids: Iterable[int], group_uuids: Collection[str] = ()) -> None:
        """Lock groups, then providers; call before reading any claim that is to be changed."""
        if group_uuids:
            groups.lock_groups(self.tx, group_uuids)
        self.locked = providers.lock(self.tx, self.memory, set(provider_ids))

    # -- claims ------------------------------------------------------------------------
    def add_claim(self, claim: Claim) -> None:
        """Record a new claim, and add its amounts to the usage."""
        self.created.append(claim)
        self.mark_changed(claim.provider_id)
        if claim.state in LIVE_STATES:
            self.add_usage(claim, 1)

    def change_claim(self, before: Claim, now: Claim, *, ends_place: bool = False) -> None:
        """Record a claim's new state or amounts; free its amounts if it ends.

        :param ends_place: a reservation that a create took over ends, too, instead of going back to
            its plan
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
                    **{name: claim_rows.CLAIM_COLUMNS[name](now) for name in TRANSITION_COLUMNS},
                }
            )
        if now.layout != before.layout:
            self._layouts.append(
                {'b_id': before.id, 'layout': claim_rows.CLAIM_COLUMNS['layout'](now)}
            )
        self.mark_changed(before.provider_id)
        if before.is_live and not now.is_live:
            self._free_ended_claim(before, ends_place)
        elif now.is_live and now.allocations != before.allocations:
            self._rewrite(before, now)

    def _rewrite(self, before: Claim, now: Claim) -> None:
        self.add_usage(before, -1)
        self.add_usage(now, 1)
        self._rewritten.append(now)

    def apply_changes(self, changes: ClaimChanges, heirs: Iterable[tuple[Claim, Claim]]) -> None:
        """Record the changes of a writer of allocations; no reservation goes back to its plan.

        :param heirs: claims of other consumers that inherit amounts: (claim before, claim after)
        """
        for claim in changes.gone:
            self._released.setdefault(WRITTEN_REASON, []).append(claim)
            self.add_usage(claim, -1)
            self.mark_changed(claim.provider_id)
        for claim in changes.new:
            self.add_claim(claim)
        for before, now in changes.changed:
            self._rewrite(before, now)
            self.mark_changed(now.provider_id)
        for before, now in heirs:
            self.add_inherited_usage(before, now)

    def end_by_event(
        self, claims: Iterable[Claim], event: Event, reason: str
    ) -> list[ClaimOutcome]:
        """Apply ``event`` to claims under lock; return their outcomes."""
        outcomes = []
        for claim in claims:
            state = state_after(claim, event)
            if state is not claim.state:
                claim_now = after_event(claim, event, reason, self.tx.now)
                self.change_claim(claim, claim_now, ends_place=event in RESERVATION_ENDING_EVENTS)
            outcomes.append(
                ClaimOutcome(claim_id=claim.id, outcome=_outcome(claim, state), state=state.value)
            )
        return outcomes

    def hand_over(self, place: Claim, now: Claim) -> None:
        """Hand a reservation, as read before the locks, over to the consumer of a create."""
        self._taken.append((place, now))
        self.mark_changed(place.provider_id)

    def release_claim(self, claim: Claim, reason: str) -> None:
        """End a claim, as read before the locks."""
        self._released.setdefault(reason, []).append(claim)
        self._free_ended_claim(claim)

    def _free_ended_claim(self, ended: Claim, ends_place: bool = False) -> None:
        """Free the amounts of an ended claim, unless its reservation goes back to its plan."""
        place_again = None if ends_place else restored_reservation(ended, self.tx.now)
        if place_again is None:
            self.subtract_usage(ended)
        else:
            self._again.append(place_again)
            self.mark_changed(ended.provider_id)

    # -- usage --------------------------------------------------------------------------
    def subtract_usage(self, ended: Claim) -> None:
        """Subtract an ended claim's amounts from the usage; other claims inherit their share."""
        ended = self._heirs.get(ended.id, ended)
        self._ended.add(ended.id)
        self.add_usage(ended, -1)
        for pid in ended.allocations.keys() & self.locked.counters.keys():
            rows.clear_over_full_flag(self.locked.counters[pid])
        if not inheritance.has_pool_amounts(ended):
            return
        self.read_heirs([ended])
        others = self._others[guest_of(ended)]
        live_claims = [claim for claim in others.values() if claim.id not in self._ended]
        for before, now in inheritance.heirs(ended, live_claims):
            others[now.id] = self._heirs[now.id] = now
            self.add_inherited_usage(before, now)

    def add_usage(self, claim: Claim, sign: int) -> None:
        """Add or subtract a claim's amounts, on every provider that it is on."""
        for pid, amounts in claim.allocations.items():
            self._add_amounts(pid, amounts, sign)

    def add_inherited_usage(self, before: Claim, now: Claim) -> None:
        """Add to the usage the amounts that a claim inherits from an ended claim."""
        for pid, amounts in inheritance.amounts_gained(before, now).items():
            self._add_amounts(pid, amounts, 1)
            self._inherited[now.id, pid] = now

    def _add_amounts(self, pid: int, amounts: Mapping[str, int], sign: int) -> None:
        row = self.locked.counters.get(pid)
        if row is not None:  # else it was removed since, with its usage
            rows.add_usage(row, amounts, sign)
            row.claims_stamp = self.tx.stamp
            self.grown.add(pid)
            self.touched_providers.add(pid)

    def mark_changed(self, provider_id: int) -> None:
        """Mark a provider's claims as changed."""
        row = self.locked.counters.get(provider_id)
        if row is not None:
            row.claims_stamp = self.tx.stamp
            self.touched_providers.add(provider_id)

    # -- heirs --------------------------------------------------------------------------
    def read_heirs(self, ending: Iterable[Claim]) -> None:
        """Read the possible heirs of claims that end, for all their guests at once."""
        guests = {guest_of(claim) for claim in ending if inheritance.has_pool_amounts(claim)}
        missing_guests = sorted(guests - self._others.keys())
        if missing_guests:
            filters = [claim_rows.of_guests(missing_guests), claim_rows.is_live]
            self.remember_heirs(missing_guests, claim_rows.load_claims(self.tx, where=filters))

    def remember_heirs(self, guests: Iterable[str], live_claims: Iterable[Claim]) -> None:
        """Remember the possible heirs of claims of these guests, as read under the locks."""
        self._others |= {guest: {} for guest in guests}
        for claim in live_claims:
            if guest_of(claim) in self._others:
                self._others[guest_of(claim)][claim.id] = claim

    def others_of(self, guest: str) -> list[Claim]:
        """Return the other live claims of a guest, as far as they were read."""
        return list(self._others.get(guest, {}).values())

    # -- writing ------------------------------------------------------------------------
    def increment_generation(self, pid: int, by: int = 1) -> None:
        """Increase a provider's generation by ``by``."""
        self.locked.counters[pid].generation += by
        self.touched_providers.add(pid)

    def set_generation(self, pid: int, generation: int) -> None:
        """Set a provider's generation to that which a writer of allocations has computed."""
        self.locked.counters[pid].generation = generation
        self.grown.discard(pid)
        self.touched_providers.add(pid)

    def write(self) -> None:
        """Write the claims, then the providers as they become.

        :raises RetryTransaction: a claim's state, or a provider, has changed since it was read
        """
        self.write_claims()
        for pid in self.grown:
            self.increment_generation(pid)
        providers.save(self.tx, self.locked, self.touched_providers)

    def write_stated(self, *, usage_only: bool) -> None:
        """Write claims and providers for a writer of allocations: owners and generations are set.

        :param usage_only: providers changed only in the counters that claims change
        """
        self.write_claims(has_owners=True)
        providers.save(self.tx, self.locked, self.touched_providers, usage_only=usage_only)

    def write_claims(self, *, has_owners: bool = False) -> None:
        """Write the claims that changed or are new.

        :param has_owners: new claims state their owners; else the owners of the consumer's stored
            claims hold
        :raises RetryTransaction: a claim was changed, or one for the same consumer created,
            since they were read
        """
        for reason, claims in self._released.items():
            _end_as_read(self.tx, claims, reason)
        self._writes.sort(key=lambda values: values['b_id'])
        if self._writes and UPDATE_CLAIMS.run(self.tx, self._writes) != len(self._writes):
            raise RetryTransaction('a claim was written meanwhile')
        _write_places(self.tx, UPDATE_RESERVATION, self._places)
        _write_places(self.tx, UPDATE_UNCHANGED_RESERVATION, self._taken)
        if self.created or self._again:
            new_claims = [*self.created, *self._again]
            if not has_owners:
                new_claims = claim_rows.with_stored_owners(self.tx, new_claims)
            claim_rows.insert_claims(self.tx, new_claims)
        if self._layouts:
            self.tx.run_many(
                UPDATE_LAYOUT, sorted(self._layouts, key=lambda values: values['b_id'])
            )
        if self._rewritten:
            _rewrite(self.tx, sorted(self._rewritten, key=lambda claim: claim.id))
        for (_, pid), claim in sorted(self._inherited.items()):
            _write_inherited(self.tx, claim, pid)

    @property
    def new_live_claims(self) -> list[Claim]:
        """The claims that are live and new to their consumer: created, restored or handed over."""
        return [*self.created, *self._again, *(place for _, place in self._taken)]

    @property
    def providers_handed_over(self) -> set[int]:
        """Ids of the providers with reservations that were handed over to a consumer."""
        claims = (*self._again, *(place for _, place in self._taken))
        return {claim.provider_id for claim in claims} & self.locked.counters.keys()

    def increment_versions(self) -> None:
        """Increase versions and generations in memory, as :meth:`write_added_amounts` does."""
        for pid in self.grown:
            self.increment_generation(pid)
        for pid in self.touched_providers:
            self.locked.counters[pid].version += 1

    def write_added_amounts(self) -> None:
        """Write the added amounts, under the guard of room.

        :raises RetryTransaction: a provider has no room for them any more, or was removed
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
        others = self.added_other_amounts()
        if _write_usage(self.tx, used) != len(used):
            raise RetryTransaction('a provider was written meanwhile')
        if others and self.tx.run_many(ADD_OTHER_USAGE, others) != len(others):
            raise RetryTransaction('a provider was written meanwhile')
        touched_ids = sorted(self.touched_providers - self.grown)
        touched = [{'b_id': pid, 'stamp': self.tx.stamp} for pid in touched_ids]
        if touched and self.tx.run_many(INCREMENT_VERSION, touched) != len(touched):
            raise RetryTransaction('a provider was removed meanwhile')

    def added_other_amounts(self) -> list[dict[str, Any]]:
        """Return the bound values of ``ADD_OTHER_USAGE``, in the order of its locks."""
        return [
            {'b_provider': pid, 'b_class': name, 'add': amount}
            for pid in sorted(self.grown)
            for name, amount in sorted(self.locked.added_others(pid).items())
        ]

    def result(self, outcomes: list[ClaimOutcome]) -> ClaimResult:
        """Return the outcomes of the claims, with the touched hosts as they become."""
        hosts = providers.changes_of(self.tx, self.memory, self.locked, self.touched_providers)
        return ClaimResult(outcomes=outcomes, hosts=hosts)


def _write_usage(tx: session.Tx, used: Sequence[dict[str, Any]]) -> int:
    """Write the usage of providers that still have room; return their number."""
    if tx.kind == 'mysql' and len(used) > 1:
        written_count = _ADD_USAGE_JOINED.run(tx, used)
        if written_count is not None:
            return written_count
    return tx.run_many(ADD_USAGE, used)


def _end_as_read(tx: session.Tx, claims: Sequence[Claim], reason: str) -> None:
    """End claims that were read before all locks were held.

    :raises RetryTransaction: a claim was changed meanwhile
    """
    ids, marks = sorted(claim.id for claim in claims), sorted({c.updated_at for c in claims})
    if ids and tx.run(
        RELEASE_UNCHANGED_CLAIMS, ids=ids, marks=marks, reason=reason, now=tx.now
    ) != len(ids):
        raise RetryTransaction('a claim that ends was written meanwhile')


def _write_places(tx: session.Tx, statement: Any, pairs: Sequence[tuple[Claim, Claim]]) -> None:
    """Write the new state of claims that are, or were, reservations of a group plan.

    :param statement: ``UPDATE_RESERVATION`` for claims read under lock,
        ``UPDATE_UNCHANGED_RESERVATION`` for others
    :param pairs: (claim as read, claim as it is to be)
    :raises RetryTransaction: a claim was changed meanwhile, or its consumer got another claim
    """
    if not pairs:
        return
    values = [
        {
            'b_id': before.id,
            'b_state': before.state.value,
            **(
                {'b_updated_at': before.updated_at}
                if statement is UPDATE_UNCHANGED_RESERVATION
                else {}
            ),
            **{name: claim_rows.CLAIM_COLUMNS[name](now) for name in _RESERVATION_COLUMNS},
        }
        for before, now in sorted(pairs, key=lambda pair: (pair[1].consumer, pair[0].id))
    ]
    with claim_rows.unique_key_guard():
        written = tx.run_many(statement, values)
    if written != len(values):
        raise RetryTransaction('a place was written meanwhile')


def _rewrite(tx: session.Tx, claims: Sequence[Claim]) -> None:
    """Write the owners of claims, and their amounts on all providers.

    :raises RetryTransaction: a claim was changed meanwhile, or its consumer got another claim
    """
    values = [
        {
            'b_id': claim.id,
            'b_state': claim.state.value,
            **{name: claim_rows.CLAIM_COLUMNS[name](claim) for name in _OWNER_AND_AMOUNT_COLUMNS},
        }
        for claim in claims
    ]
    with claim_rows.unique_key_guard():
        written = UPDATE_OWNER_AND_AMOUNTS.run(tx, values)
    if written != len(values):
        raise RetryTransaction('a claim was written meanwhile')
    tx.run(DELETE_SHARES, ids=[claim.id for claim in claims])
    claim_rows.insert_shares(tx, claims)


def _write_inherited(tx: session.Tx, claim: Claim, provider_id: int) -> None:
    """Write a claim's current amounts and inheritance on one provider."""
    values = claim_rows.amount_values(claim.allocations[provider_id])
    values['inherits'] = claim_rows.inherits_text(claim.inherits.get(provider_id))
    where = (_allocations.c.claim_id == claim.id, _allocations.c.provider_id == provider_id)
    tx.run(_allocations.update().where(*where).values(values))
    # The time of its last change guards the claim against concurrent writes.
    tx.run(_claims.update().where(_claims.c.id == claim.id).values(updated_at=tx.now))


def _outcome(claim: Claim, state: State) -> str:
    if claim.state not in LIVE_STATES:
        return 'gone'
    return 'ok' if state is not claim.state else 'kept'


def providers_of(claims: Iterable[Claim]) -> set[int]:
    """Return the ids of every provider that the claims have amounts on."""
    provider_ids = set()
    for claim in claims:
        provider_ids.add(claim.provider_id)
        provider_ids.update(claim.allocations)
    return provider_ids


def lock_claims(changes: UnitOfWork, ids: Sequence[str], on: set[int]) -> list[Claim]:
    """Return claims of any host, read under the locks of all their providers.

    :param on: the providers that the claims were on before anything was locked
    """
    changes.lock(on)
    claims = claim_rows.load_claims(changes.tx, ids=ids) if ids else []
    if providers_of(claims) - on:
        raise RetryTransaction('a claim went to another provider meanwhile')
    return claims


def end_claims(
    changes: UnitOfWork, ids: Sequence[str], on: set[int], event: Event, reason: str
) -> ClaimResult:
    """Lock and read claims of any host, apply ``event``, write them, and return the outcomes.

    :param ids: of the claims
    :param on: the providers that the claims were on before anything was locked
    """
    outcomes = changes.end_by_event(lock_claims(changes, ids, on), event, reason)
    changes.write()
    return changes.result(outcomes)
