# SPDX-License-Identifier: Apache-2.0
"""State of one batch of the group commit: the rows read and the rows that follow from them.

No SQL here: ``commit`` and ``commit_postgresql`` feed a batch the rows that they read under
lock, in the same order, and write the rows that it returns.  Its claims, and what they take, are
recorded in a ``UnitOfWork``.

    check requests → check groups → check consumers → accept under the locks → what to write
"""

import uuid
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gantt.core.claims import inheritance
from gantt.core.claims.acceptance import Refusal, accepted_claims, why_closed
from gantt.core.claims.claim import EXPIRING_LIFECYCLES, Claim, State, guest_of
from gantt.core.claims.commit import (
    NO_OWNERS,
    ClaimColumns,
    ClaimDraft,
    CommitPath,
    CommitResult,
    CommitStatus,
    DecisionRecord,
    GroupPrecondition,
    RefusalKind,
    RequestDraft,
    RequestOutcome,
    consumers_to_own,
    is_plain,
    preconditions_of,
    requests_with_changed_group,
    resolve_rivals,
)
from gantt.core.claims.request_state import check_request_row, takes_over
from gantt.core.claims.reservation_commit import (
    NO_RESERVATIONS,
    check_plans,
    check_taken_reservations,
    increments_group_generation,
)
from gantt.core.claims.reservations import (
    GroupPlanRecord,
    ReplacedReservation,
    TakenReservation,
    reservation_taken_over,
    restored_reservation,
)
from gantt.core.messages.layout import Layout
from gantt.core.resources.group_rule import GroupRule
from gantt.core.topology.free import free_topology_of
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.hosts import pools, providers


def one_of_each_group(drafts: Iterable[RequestDraft]) -> list[RequestDraft]:
    """Return a draft for each group, ascending by uuid: the first that may create it, if any."""
    draft_of_group: dict[str, RequestDraft] = {}
    makers: set[str] = set()
    for draft in drafts:
        group = draft.group
        if group is not None and group.uuid not in makers:
            if group.may_be_first:
                makers.add(group.uuid)
                draft_of_group[group.uuid] = draft
            else:
                draft_of_group.setdefault(group.uuid, draft)
    return [draft_of_group[key] for key in sorted(draft_of_group)]


def drafts_creating_groups(drafts: Iterable[RequestDraft]) -> list[RequestDraft]:
    """Return the drafts whose group is created if absent."""
    return [draft for draft in drafts if draft.group is not None and draft.group.may_be_first]


def named_providers(drafts: Iterable[RequestDraft]) -> set[int]:
    """Return the providers that drafts claim on, or have reservations on."""
    provider_ids: set[int] = set()
    for draft in drafts:
        provider_ids |= draft.claims.provider_ids()
        for taken in draft.taken_reservations:
            provider_ids.update(taken.provider_ids)
        for released in draft.released_reservations:
            provider_ids.update(released.provider_ids)
    return provider_ids


class BatchEntry:
    """Progress of one draft through a commit batch."""

    __slots__ = (
        'accepted',
        'draft',
        'outcome',
        'is_new_request',
        'reservations',
        'row',
        'taken',
        'took_over',
    )

    def __init__(self, draft: RequestDraft) -> None:
        self.draft = draft
        self.outcome: RequestOutcome | None = None
        self.is_new_request = False  # its row was inserted by this transaction
        self.took_over = False  # its row was of an older attempt, whose claims end
        self.row: Any = None  # of ``requests`` under lock; None: there is none
        self.accepted: list[int] = []  # positions of the claims that are created
        self.reservations = NO_RESERVATIONS  # which of its reservations it gets
        self.taken: list[int] = []  # positions of the reservations that it takes over

    def end(self, outcome: CommitStatus, **more: Any) -> None:
        """Stop the draft: none of its claims is created."""
        attempt = self.draft.attempt if self.row is None else self.row.attempt
        self.outcome = RequestOutcome(id=self.draft.id, outcome=outcome, attempt=attempt, **more)

    @property
    def is_locked(self) -> bool:
        """True where the draft waits for rows that other transactions keep locked."""
        return self.outcome is not None and self.outcome.outcome is CommitStatus.LOCKED

    @property
    def claims_before(self) -> int:
        """The number of claims that earlier batches created for this attempt."""
        return 0 if self.is_new_request or self.took_over else self.row.claims

    @property
    def has_effect(self) -> bool:
        """True where a claim of the draft was created or taken over, or a plan is stored."""
        if self.accepted or self.taken:
            return True
        is_placed = self.outcome is not None and self.outcome.outcome is CommitStatus.PLACED
        return is_placed and self.draft.plan is not None

    @property
    def is_whole(self) -> bool:
        """True where all claims of the draft were accepted."""
        claim_ids, reservations = self.draft.claims.ids, self.draft.taken_reservations
        return len(self.accepted) == len(claim_ids) and len(self.taken) == len(reservations)

    @property
    def claims_made(self) -> int:
        """Number of claims for the request's row; 0 for a plan, whose reservations do not count."""
        return 0 if self.draft.plan is not None else len(self.accepted)


def _owner(
    claim: Claim | TakenReservation | ReplacedReservation,
) -> tuple[str | None, str | None, str]:
    return claim.project_id, claim.user_id, claim.consumer_type


def draft_without_inherited(
    made: ClaimDraft, others_of: Callable[[str], Sequence[Claim]]
) -> ClaimDraft:
    """Return a draft whose claim leaves out amounts on pools that its consumer has already.

    :param others_of: returns the other live claims of a consumer
    """
    claim = made.claim
    if not (claim.purpose.is_move and inheritance.has_pool_amounts(claim)):
        return made
    held_amounts = inheritance.held_outside_host(others_of(guest_of(claim)))
    return msgspec.structs.replace(made, claim=inheritance.with_inherited(claim, held_amounts))


#: Columns of a request that change where it is carried on.
CONTINUED_COLUMNS = (
    *('state', 'attempt', 'owner', 'deadline', 'token', 'answer', 'updated_at', 'claims'),
)
#: No draft waits for locked rows.
_NO_LOCKED_DRAFTS: Mapping[str, str] = {}


class CommitBatch:
    """State of one batch, from the rows read under lock to the rows to write.

    :param locked: draft id -> reason, of drafts that wait for rows which other transactions lock
    :ivar is_plain: no draft takes over an attempt, or has a group, a plan, reservations or one
        project alone: as most batches
    """

    def __init__(
        self, batch: Sequence[RequestDraft], locked: Mapping[str, str] = _NO_LOCKED_DRAFTS
    ) -> None:
        self.batch = batch
        self.is_plain = all(map(is_plain, batch))
        # Written to each row: it shows after a lost answer to COMMIT whether this batch is stored.
        self.token = uuid.uuid4().hex
        self.now = 0.0  # by the clock of the database, read in this transaction
        self.entries = [BatchEntry(draft) for draft in batch]
        for entry in self.entries if locked else ():
            if entry.draft.id in locked:
                entry.end(CommitStatus.LOCKED, reason=locked[entry.draft.id])
        # Uuid of each group of the batch -> its generation, as it will be; and those that grow.
        self.groups: dict[str, int] = {}
        self.incremented_groups: list[str] = []
        #: claims that end with this batch: of overtaken attempts, and claims that give way
        self.released: list[tuple[Claim, str]] = []
        #: id of a claim to be created -> the claims that give way to it
        self.rivals: dict[str, list[Claim]] = {}
        #: ids of the live claims of the consumers, as they were judged
        self.judged_ids: set[str] = set()
        #: ids of the reservations that creates of this batch take over
        self._taken: set[str] = set()
        #: reservations of overtaken attempts: they end unless the next attempt takes them
        self._returning_reservations: list[Claim] = []
        #: reservations that drafts name, by id, as read under the locks
        self._reservations: Mapping[str, Claim] = {}
        #: stored plans of groups, by group
        self.plans: Mapping[str, GroupPlanRecord] = {}

    # -- requests ------------------------------------------------------------
    def drafts_to_insert(self) -> list[RequestDraft]:
        """Return the drafts whose request row is inserted if absent, ascending by id."""
        fresh = (entry.draft for entry in self.open_entries() if not entry.draft.continues)
        return sorted(fresh, key=lambda draft: draft.id)

    def request_rows(self) -> list[dict[str, Any]]:
        """Return the request rows to insert where they are absent, ascending by id."""
        return [self.request_values(draft) for draft in self.drafts_to_insert()]

    def request_values(self, draft: RequestDraft) -> dict[str, Any]:
        """Return a request row as it becomes if all of the draft is accepted."""
        return {
            'id': draft.id,
            'fingerprint': draft.fingerprint,
            'state': 'placed' if draft.completes else 'open',
            'owner': draft.owner,
            'attempt': draft.attempt,
            'deadline': self.now + draft.budget_seconds,
            'token': self.token,
            'answer': draft.answer if draft.completes else None,
            'created_at': self.now,
            'updated_at': self.now,
            'claims': 0 if draft.plan is not None else len(draft.claims.ids),
        }

    def check_requests(self, found: Mapping[str, Any], inserted: Container[str]) -> None:
        """Judge which drafts go on, by the request rows under lock.

        :param found: id -> row, see ``request_state.JudgedRequest``; with the count of claims
        :param inserted: ids whose row this transaction inserted
        """
        for entry in self.open_entries():
            draft = entry.draft
            entry.is_new_request = draft.id in inserted
            if not entry.is_new_request:
                entry.row = found.get(draft.id)
                entry.outcome = check_request_row(entry.row, draft, self.now)
                entry.took_over = entry.outcome is None and takes_over(entry.row, draft)

    def open_entries(self) -> list[BatchEntry]:
        """Return the entries of the drafts that no check has stopped so far."""
        return [entry for entry in self.entries if entry.outcome is None]

    def open_request_ids(self) -> list[str]:
        """Return the ids of the requests that nothing has stopped yet."""
        return [entry.draft.id for entry in self.open_entries()]

    def requests_taken_over(self) -> list[str]:
        """Return the requests whose earlier attempt's claims are to be released."""
        return [entry.draft.id for entry in self.entries if entry.took_over]

    # -- groups ----------------------------------------------------------------
    def drafts_with_group(self) -> list[RequestDraft]:
        """Return the drafts with a group, one for each group, ascending by its uuid."""
        return one_of_each_group(entry.draft for entry in self.open_entries())

    def check_groups(self, found: Mapping[str, GroupRule]) -> None:
        """Stop the drafts that were planned under an outdated rule or generation of their group."""
        group_uuids = self.open_group_uuids()
        self.groups.update({uuid: found[uuid].generation for uuid in group_uuids & found.keys()})
        stopped_ids = {entry.draft.id for entry in self.entries if entry.outcome is not None}
        changed_ids = requests_with_changed_group(self.batch, stopped_ids, found)
        for entry in self.open_entries():
            if entry.draft.id in changed_ids:
                entry.end(CommitStatus.GROUP_CHANGED)

    def open_group_uuids(self) -> set[str]:
        """Return the groups of the drafts that nothing has stopped yet."""
        return {group.uuid for e in self.open_entries() for group in preconditions_of(e.draft)}

    def planned_groups(self) -> list[str]:
        """Return the groups that drafts still going store a plan of, ascending."""
        plans = (entry.draft.plan for entry in self.open_entries())
        return sorted({plan.group_uuid for plan in plans if plan is not None})

    def check_plans(
        self,
        plans: Mapping[str, GroupPlanRecord],
        living: Mapping[str, Sequence[Claim]],
        below: Mapping[str, Collection[str]],
    ) -> None:
        """Stop the drafts whose plan was computed beside other plans, reservations or zones.

        :param plans: the stored plans of :meth:`planned_groups`
        :param living: the live claims of members of these groups
        :param below: the child zones where members of these groups live
        """
        self.plans = plans
        revisions = {uuid: plan.revision for uuid, plan in plans.items()}
        reasons = check_plans(
            (entry.draft for entry in self.open_entries()), revisions, living, below
        )
        for entry in self.open_entries():
            if entry.draft.id in reasons:
                entry.end(CommitStatus.GROUP_CHANGED, reason=reasons[entry.draft.id])

    def has_unseen_reservations(self, living: Mapping[str, Sequence[Claim]]) -> bool:
        """Return whether a reservation unknown to :meth:`check_consumers` would have to give way.

        :param living: as passed to :meth:`check_plans`
        """
        consumers = {
            consumer for entry in self.open_entries() for consumer in entry.draft.claims.consumers
        }
        seen_ids = self.judged_ids | self._ending_ids()
        reservations = (claim for of_group in living.values() for claim in of_group)
        return any(
            reservation.consumer in consumers and reservation.id not in seen_ids
            for reservation in reservations
        )

    def _ending_ids(self) -> set[str]:
        """Return the ids of the claims of overtaken attempts."""
        return {claim.id for claim, _ in self.released} | {
            c.id for c in self._returning_reservations
        }

    # -- claims ---------------------------------------------------------------------
    def claim_ids(self) -> list[str]:
        """Return the ids of the claims to be created."""
        return [claim_id for entry in self.open_entries() for claim_id in entry.draft.claims.ids]

    def check_claims(self, live: set[str]) -> None:
        """Stop each draft one of whose claims is stored and live already."""
        for entry in self.open_entries():
            if not live.isdisjoint(entry.draft.claims.ids):
                entry.end(CommitStatus.DROPPED)

    # -- consumers -------------------------------------------------------------------
    def owners(self) -> dict[str, tuple[str | None, str | None, str]]:
        """Return the owners of the consumers, as the drafts still going state them."""
        owners: dict[str, tuple[str | None, str | None, str]] = {}
        for entry in self.open_entries():
            draft, claims = entry.draft, entry.draft.claims
            owner_of_kind = [_owner(kind.claim) for kind in claims.kinds]
            for consumer, kind in zip(claims.consumers, claims.kind, strict=True):
                owners[consumer] = owner_of_kind[kind]
            for taken in draft.taken_reservations:
                owners[taken.consumer] = _owner(taken)
            for replaced in draft.replaced_reservations:
                owners[replaced.consumer] = _owner(replaced)
        return owners

    def limited_consumers(self) -> set[str]:
        """Return the consumers of drafts for one project; their owners are needed."""
        return consumers_to_own(entry.draft for entry in self.open_entries())

    def check_consumers(
        self, live: Iterable[Claim], owners: Mapping[str, str | None] = NO_OWNERS
    ) -> None:
        """Stop the drafts that may not claim; record which live claims give way to new ones."""
        ending_ids = self._ending_ids()
        open_entries = [entry.draft for entry in self.open_entries()]
        live = [claim for claim in live if claim.id not in ending_ids]
        self.judged_ids = {claim.id for claim in live}
        self.rivals, outcomes = resolve_rivals(live, open_entries, owners)
        for entry in self.open_entries():
            entry.outcome = outcomes.get(entry.draft.id)

    def moving_consumers(self) -> set[str]:
        """Return the guests with claims on pools that move or give way: their use counts once."""
        drafts = (entry.draft for entry in self.open_entries())
        move_claims = [
            claim_draft.claim
            for draft in drafts
            if any(kind.claim.purpose.is_move for kind in draft.claims.kinds)
            for claim_draft in draft.claims
        ]
        return {
            guest_of(claim)
            for claim in (*move_claims, *self._leaving_claims())
            if inheritance.has_pool_amounts(claim)
        }

    def inherit(self, unit: UnitOfWork, live: Iterable[Claim]) -> None:
        """Reduce the amounts of moves' claims on pools by what their consumers have there already.

        :param live: the live claims of :meth:`moving_consumers`, read with all providers locked
        """
        leaving = {claim.id for claim in self._leaving_claims()}
        unit.remember_heirs(
            self.moving_consumers(), [claim for claim in live if claim.id not in leaving]
        )
        for entry in self.open_entries():
            claims = [draft_without_inherited(made, unit.others_of) for made in entry.draft.claims]
            entry.draft = msgspec.structs.replace(entry.draft, claims=ClaimColumns.of(claims))

    # -- providers ---------------------------------------------------------------
    def providers_to_lock(self) -> set[int]:
        """Return the providers to lock: those that drafts name, and those of claims giving way."""
        drafts = [entry.draft for entry in self.entries if not entry.is_locked]
        leaving_ids = {pid for claim in self._leaving_claims() for pid in claim.allocations}
        return named_providers(drafts) | leaving_ids

    def pools_to_lock(self) -> set[int]:
        """Return the ids of the pools that claims take from, all to be locked."""
        drafts = (entry.draft for entry in self.entries if not entry.is_locked)
        return {pid for draft in drafts for pid in draft.claims.pools}

    def _leaving_claims(self) -> Iterable[Claim]:
        yield from (claim for claim, _ in self.released)
        yield from (claim for rivals in self.rivals.values() for claim in rivals)
        yield from self._returning_reservations

    def release_earlier_attempt(self, claims: Iterable[Claim]) -> None:
        """Release the claims of a request's earlier attempt; reservations go back to plans."""
        for claim in claims:
            if restored_reservation(claim, self.now) is not None:
                self._returning_reservations.append(claim)
            else:
                self.released.append((claim, 'taken over'))

    # -- reservations of plans -----------------------------------------------------------
    def named_reservations(self) -> list[str]:
        """Return the ids of the reservations that the open drafts take over or end, ascending."""
        drafts = [entry.draft for entry in self.open_entries()]
        taken_ids = {
            reservation.claim_id for draft in drafts for reservation in draft.taken_reservations
        }
        return sorted(
            taken_ids
            | {
                reservation.claim_id
                for draft in drafts
                for reservation in draft.released_reservations
            }
        )

    def check_reservations(
        self, reservations: Mapping[str, Claim], locked: providers.LockedProviders
    ) -> None:
        """Stop the drafts that do not get the reservations that they need.

        :param reservations: the claims of :meth:`named_reservations`, by id, under the locks
        """
        self._reservations = reservations
        taken_ids: set[str] = set()
        hosts = map(locked.row, locked.hosts())
        closed_hosts = {
            row.id: f'{row.name} {reason}'
            for row in hosts
            if (reason := why_closed(row, over_full=False))
        }
        for entry in self.open_entries():
            entry.reservations = check_taken_reservations(
                entry.draft, reservations, taken_ids, closed_hosts
            )
            entry.outcome = entry.reservations.ends
            taken_ids.update(
                entry.draft.taken_reservations[i].claim_id for i in entry.reservations.taken
            )

    def read_under_lock(self) -> tuple[set[int], set[tuple[int, int]]]:
        """Return (hosts of layouts, (pool, host) of shared pools) of the drafts still going."""
        laid_on, served = set[int](), set[tuple[int, int]]()
        for entry in self.open_entries():
            claims = entry.draft.claims
            for host, kind in zip(claims.providers, claims.kind, strict=True):
                claim_draft = claims.kinds[kind]
                if claim_draft.claim.layout is not None:
                    laid_on.add(host)
                for pid in claim_draft.served_by:
                    served.add((pid, host))
        return laid_on, served

    def finish(
        self,
        unit: UnitOfWork,
        layouts: Mapping[int, Mapping[str, Layout]],
        serves: Mapping[int, frozenset[int]],
    ) -> None:
        """Accept the claims that fit, and record them in the unit of work.

        :param layouts: host -> claim -> its layout, of the live claims on the hosts of
            ``read_under_lock``
        :param serves: pool -> hosts, of the shared pools, as read under the lock
        """
        locked = unit.locked
        released_ids = {claim.id for claim, _ in self.released}
        rooms = {
            pid: free_topology_of(
                locked.templates[pid].facts,
                [
                    layout
                    for claim_id, layout in layout_of_claim.items()
                    if claim_id not in released_ids
                ],
            )
            for pid, layout_of_claim in layouts.items()
            if pid in locked.templates
        }
        for claim, reason in self.released:
            unit.release_claim(claim, reason)
        open_entries = self.open_entries()
        states = {
            pid: locked.state(pid, rooms.get(pid), serves.get(pid, frozenset()))
            for pid in locked.counters
        }
        acceptances = accepted_claims(states, [entry.draft for entry in open_entries], self.rivals)
        for entry in open_entries:
            acceptance = acceptances[entry.draft.id]
            entry.accepted = acceptance.accepted
            for index in entry.accepted:
                self._create_claim(unit, entry.draft, entry.draft.claims[index])
            if not (entry.draft.whole and acceptance.refusal is not None):
                entry.taken = entry.reservations.taken
            for index in entry.taken:
                self._take_reservation(unit, entry.draft, entry.draft.taken_reservations[index])
            self._set_outcome(entry, acceptance.refusal)
            if entry.draft.released_reservations:
                self._end_reservations(unit, entry)
        for reservation in self._returning_reservations:
            if reservation.id not in self._taken:
                self._end_claim(unit, reservation, 'taken over')
        self.incremented_groups = sorted(
            {
                e.draft.group.uuid
                for e in open_entries
                if e.draft.group is not None
                and e.outcome
                and increments_group_generation(e.draft, e.outcome)
            }
        )
        for group in self.incremented_groups:
            self.groups[group] += 1

    def _create_claim(self, unit: UnitOfWork, draft: RequestDraft, made: ClaimDraft) -> None:
        claim = msgspec.structs.replace(
            made.claim,
            state=State.RESERVED,
            lease_until=self.lease_of(draft)
            if made.claim.lifecycle in EXPIRING_LIFECYCLES
            else made.claim.lease_until,
            created_at=self.now,
            updated_at=self.now,
        )
        unit.add_claim(claim)
        self._end_replaced_claims(unit, claim.id, draft)

    def lease_of(self, draft: RequestDraft) -> float:
        """Return the time until which a draft's claims are reserved; a plan's share one lease."""
        until = self.now + draft.lease_seconds
        stored_plan = None if draft.plan is None else self.plans.get(draft.plan.group_uuid)
        return until if stored_plan is None else max(until, stored_plan.lease_until)

    def _take_reservation(
        self, unit: UnitOfWork, draft: RequestDraft, by: TakenReservation
    ) -> None:
        reservation = self._reservations[by.claim_id]
        until = self.lease_of(draft)
        unit.hand_over(
            reservation,
            reservation_taken_over(reservation, by, draft.id, draft.attempt, until, self.now),
        )
        self._taken.add(reservation.id)
        self._end_replaced_claims(unit, reservation.id, draft)

    def _end_replaced_claims(self, unit: UnitOfWork, claim_id: str, draft: RequestDraft) -> None:
        """End the claims that a new claim replaces."""
        reason = f'replaced by {draft.id}'
        for rival in self.rivals.get(claim_id, ()):
            self._end_claim(unit, rival, reason)

    def _end_reservations(self, unit: UnitOfWork, entry: BatchEntry) -> None:
        """End the reservations that a plan releases, except those that a create has taken over."""
        plan = entry.draft.plan
        if plan is None or entry.outcome is None or entry.outcome.outcome != CommitStatus.PLACED:
            return
        released_ids = {claim.id for claim, _ in self.released}
        for released in entry.draft.released_reservations:
            reservation = self._reservations.get(released.claim_id)
            if (
                reservation is None
                or reservation.id in released_ids
                or reservation.group != plan.group_uuid
            ):
                continue
            if reservation.is_free_reservation and reservation.allocations.keys() <= set(
                released.provider_ids
            ):
                self._end_claim(unit, reservation, f'given back by {entry.draft.id}')

    def _end_claim(self, unit: UnitOfWork, claim: Claim, reason: str) -> None:
        self.released.append((claim, reason))
        unit.release_claim(claim, reason)

    @staticmethod
    def _set_outcome(entry: BatchEntry, refusal: Refusal | None) -> None:
        draft = entry.draft
        if entry.is_whole and draft.completes:
            outcome = CommitStatus.PLACED
        elif entry.accepted or entry.taken:
            outcome = CommitStatus.PARTIAL
        else:
            outcome = CommitStatus.DROPPED
        if refusal is None and entry.reservations.reason:
            refusal = Refusal(RefusalKind.RESERVATION, entry.reservations.reason)
        entry.outcome = RequestOutcome(
            id=draft.id,
            outcome=outcome,
            accepted=entry.accepted,
            taken=entry.taken,
            attempt=draft.attempt,
            reason='' if refusal is None else refusal.reason,
            refused=None if refusal is None else refusal.kind,
        )

    # -- rows to write -------------------------------------------------------------
    def requests_to_delete(self) -> list[str]:
        """Return the request rows to delete: inserted or taken over, without any effect."""
        ending_statuses = (CommitStatus.DROPPED, CommitStatus.GROUP_CHANGED, CommitStatus.REJECTED)
        return [
            entry.draft.id
            for entry in self.entries
            if (entry.is_new_request or entry.took_over)
            and entry.outcome
            and entry.outcome.outcome in ending_statuses
        ]

    def requests_to_update(self) -> list[dict[str, Any]]:
        """Return the request rows to correct: not as inserted, or stored before and carried on."""
        corrections = []
        for entry in self.entries:
            outcome = entry.outcome.outcome if entry.outcome else None
            if outcome not in (CommitStatus.PLACED, CommitStatus.PARTIAL):
                continue
            placed = outcome is CommitStatus.PLACED
            if entry.is_new_request and entry.is_whole:
                continue
            row = self.request_values(entry.draft)
            row |= {
                'state': 'placed' if placed else 'open',
                'answer': row['answer'] if placed else None,
                'claims': entry.claims_before + entry.claims_made,
            }
            corrections.append(
                {'b_id': row['id'], **{name: row[name] for name in CONTINUED_COLUMNS}}
            )
        return corrections

    def decisions(self) -> Iterable[DecisionRecord]:
        """Yield the decisions of the drafts that had an effect."""
        for entry in self.entries:
            if entry.has_effect and entry.draft.decision is not None:
                yield entry.draft.decision

    def plans_to_store(self) -> Iterable[GroupPlanRecord]:
        """Yield the plans to store, with the lease of their reservations."""
        for entry in self.entries:
            plan = entry.draft.plan
            if plan is not None and entry.has_effect:
                yield msgspec.structs.replace(plan, lease_until=self.lease_of(entry.draft))

    def group_preconditions(self) -> Iterable[GroupPrecondition]:
        """Yield the rules that drafts store in place of the groups' own rules."""
        for entry in self.entries:
            group = entry.draft.group
            if group is not None and group.replaces and entry.has_effect:
                yield group

    def result(self, unit: UnitOfWork, path: CommitPath = CommitPath.PORTABLE) -> CommitResult:
        """Return the result to answer once this batch is committed."""
        locked = unit.locked
        return CommitResult(
            outcomes=self.outcomes(),
            hosts=list(map(locked.row, locked.hosts())),
            pools=pools.usages(locked, unit.grown) if locked.pools else [],
            freed=sorted({pid for claim, _ in self.released for pid in claim.allocations}),
            handed=sorted(unit.providers_handed_over),
            groups=self.groups,
            now=self.now,
            path=path,
        )

    def outcomes(self) -> list[RequestOutcome]:
        """Return the outcomes of the drafts, in their order."""
        return [entry.outcome for entry in self.entries if entry.outcome]
