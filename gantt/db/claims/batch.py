# SPDX-License-Identifier: Apache-2.0
"""State of one batch of the group commit: the rows read and the rows that follow from them.

No SQL here: ``commit`` and ``commit_postgresql`` feed a batch the rows that they read under
lock, in the same order, and write the rows that it returns.  Its claims, and what they take, are
recorded in a ``UnitOfWork``.

    judge requests → judge groups → judge consumers → accept under the locks → what to write
"""

import uuid
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gantt.core.claims import inheritance
from gantt.core.claims.acceptance import Refusal, accept, why_closed
from gantt.core.claims.claim import EXPIRES, Claim, State, guest_of
from gantt.core.claims.commit import (
    NO_OWNERS,
    ClaimDraft,
    CommitPath,
    CommitResult,
    CommitStatus,
    DecisionRecord,
    GroupSwap,
    RefusalKind,
    RequestDraft,
    RequestOutcome,
    behind_others,
    consumers_to_own,
    judge_rivals,
    swaps_of,
)
from gantt.core.claims.request_state import judge_request, takes_over
from gantt.core.claims.reservation_commit import (
    NO_RESERVATIONS,
    check_plans,
    check_taken_reservations,
    steps_group,
)
from gantt.core.claims.reservations import (
    GroupPlanRecord,
    ReplacedReservation,
    TakenReservation,
    restored_reservation,
    taken_over,
)
from gantt.core.messages.layout import Layout
from gantt.core.resources.group_rule import GroupRule
from gantt.core.topology.free import room_of
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


def makers_of(swaps: Iterable[RequestDraft]) -> list[RequestDraft]:
    """Return the drafts whose group is created if absent."""
    return [draft for draft in swaps if draft.group is not None and draft.group.may_be_first]


def owned(draft: RequestDraft) -> Iterator[Claim | TakenReservation | ReplacedReservation]:
    """Yield the claims that a draft creates, takes over or lets go, with their owners."""
    for claim_draft in draft.claims:
        yield claim_draft.claim
    yield from draft.taken_reservations
    yield from draft.replaced_reservations


class BatchEntry:
    """Progress of one draft through a commit batch."""

    __slots__ = (
        'accepted',
        'draft',
        'outcome',
        'fresh',
        'reservations',
        'row',
        'taken',
        'took_over',
    )

    def __init__(self, draft: RequestDraft) -> None:
        self.draft = draft
        self.outcome: RequestOutcome | None = None
        self.fresh = False  # its row was inserted by this transaction
        self.took_over = False  # its row was of an older attempt, whose claims end
        self.row: Any = None  # of ``requests`` under lock; None: there is none
        self.accepted: list[int] = []  # positions of the claims that are created
        self.reservations = NO_RESERVATIONS  # which of its reservations it gets
        self.taken: list[int] = []  # positions of the reservations that it takes over

    def end(self, outcome: CommitStatus, **more: Any) -> None:
        """Stop this draft: none of it is created."""
        attempt = self.draft.attempt if self.row is None else self.row.attempt
        self.outcome = RequestOutcome(id=self.draft.id, outcome=outcome, attempt=attempt, **more)

    @property
    def is_locked(self) -> bool:
        """True where it waits for rows that others keep locked."""
        return self.outcome is not None and self.outcome.outcome is CommitStatus.LOCKED

    @property
    def claims_before(self) -> int:
        """The number of claims that earlier batches created for this attempt."""
        return 0 if self.fresh or self.took_over else self.row.claims

    @property
    def has_effect(self) -> bool:
        """True where some of it was created, taken over, or planned."""
        if self.accepted or self.taken:
            return True
        is_placed = self.outcome is not None and self.outcome.outcome is CommitStatus.PLACED
        return is_placed and self.draft.plan is not None

    @property
    def is_whole(self) -> bool:
        """True where all of this draft was accepted."""
        claim_drafts, reservations = self.draft.claims, self.draft.taken_reservations
        return len(self.accepted) == len(claim_drafts) and len(self.taken) == len(reservations)

    @property
    def claims_made(self) -> int:
        """The count in its row: of the reservations of a plan only those that no create takes."""
        return 0 if self.draft.plan is not None else len(self.accepted)


def inheriting(made: ClaimDraft, others_of: Callable[[str], Sequence[Claim]]) -> ClaimDraft:
    """Return a draft whose claim takes no more of pools than its consumer needs.

    :param others_of: returns the other live claims of a consumer
    """
    claim = made.claim
    if not (claim.purpose.is_move and inheritance.of_pools(claim)):
        return made
    held_amounts = inheritance.held(others_of(guest_of(claim)))
    return msgspec.structs.replace(made, claim=inheritance.reduced(claim, held_amounts))


#: Columns of a request that change where it is carried on.
CORRECTED = (*('state', 'attempt', 'owner', 'deadline', 'token', 'answer', 'updated_at', 'claims'),)
#: No draft waits for locked rows.
_NONE: Mapping[str, str] = {}


class CommitBatch:
    """State of one batch, from the rows read under lock to the rows to write.

    :param locked: id -> reason, of the drafts that wait for rows which other transactions lock
    """

    def __init__(self, batch: Sequence[RequestDraft], locked: Mapping[str, str] = _NONE) -> None:
        self.batch = batch
        # Written to each row: it shows after a lost answer to COMMIT whether this batch is stored.
        self.token = uuid.uuid4().hex
        self.now = 0.0  # by the clock of the database, read in this transaction
        self.entries = [BatchEntry(draft) for draft in batch]
        for entry in self.entries if locked else ():
            if entry.draft.id in locked:
                entry.end(CommitStatus.LOCKED, reason=locked[entry.draft.id])
        # Uuid of each group of the batch -> its generation, as it will be; and those that grow.
        self.groups: dict[str, int] = {}
        self.bumped: list[str] = []
        #: claims that end with this batch: of overtaken attempts, and claims that give way
        self.released: list[tuple[Claim, str]] = []
        #: id of a claim to be created -> the claims that give way to it
        self.rivals: dict[str, list[Claim]] = {}
        #: ids of the live claims of the consumers, as they were judged
        self.known: set[str] = set()
        #: ids of the reservations that creates of this batch take over
        self._taken: set[str] = set()
        #: reservations of overtaken attempts: they end unless the next attempt takes them
        self._going_back: list[Claim] = []
        #: reservations that drafts name, by id, as read under the locks
        self._reservations: Mapping[str, Claim] = {}
        #: stored plans of groups, by group
        self.plans: Mapping[str, GroupPlanRecord] = {}

    # -- requests ------------------------------------------------------------
    def insertable(self) -> list[RequestDraft]:
        """Return the drafts whose request row is inserted if absent, ascending by id."""
        fresh = (entry.draft for entry in self.going() if not entry.draft.continues)
        return sorted(fresh, key=lambda draft: draft.id)

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
            'claims': 0 if draft.plan is not None else len(draft.claims),
        }

    def judge_requests(self, found: Mapping[str, Any], inserted: Container[str]) -> None:
        """Judge which drafts go on, by the request rows under lock.

        :param found: id -> row, see ``request_state.JudgedRequest``; with the count of claims
        :param inserted: ids whose row this transaction inserted
        """
        for entry in self.going():
            draft = entry.draft
            entry.fresh = draft.id in inserted
            if not entry.fresh:
                entry.row = found.get(draft.id)
                entry.outcome = judge_request(entry.row, draft, self.now)
                entry.took_over = entry.outcome is None and takes_over(entry.row, draft)

    def going(self) -> list[BatchEntry]:
        """Return the drafts that nothing has stopped yet."""
        return [entry for entry in self.entries if entry.outcome is None]

    def take_overs(self) -> list[str]:
        """Return the requests whose earlier attempt's claims are to be released."""
        return [entry.draft.id for entry in self.entries if entry.took_over]

    # -- groups ----------------------------------------------------------------
    def swaps(self) -> list[RequestDraft]:
        """Return the drafts with a group, one for each group, ascending by its uuid."""
        return one_of_each_group(entry.draft for entry in self.going())

    def judge_groups(self, found: Mapping[str, GroupRule]) -> None:
        """Stop the drafts that were planned under another rule or generation of their group."""
        group_uuids = self.groups_going()
        self.groups.update({uuid: found[uuid].generation for uuid in group_uuids & found.keys()})
        stopped_ids = {entry.draft.id for entry in self.entries if entry.outcome is not None}
        changed_ids = behind_others(self.batch, stopped_ids, found)
        for entry in self.going():
            if entry.draft.id in changed_ids:
                entry.end(CommitStatus.GROUP_CHANGED)

    def groups_going(self) -> set[str]:
        """Return the groups of the drafts that nothing has stopped yet."""
        return {group.uuid for e in self.going() for group in swaps_of(e.draft)}

    def planned_groups(self) -> list[str]:
        """Return the groups that drafts still going store a plan of, ascending."""
        plans = (entry.draft.plan for entry in self.going())
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
        reasons = check_plans((entry.draft for entry in self.going()), revisions, living, below)
        for entry in self.going():
            if entry.draft.id in reasons:
                entry.end(CommitStatus.GROUP_CHANGED, reason=reasons[entry.draft.id])

    def has_unseen_reservations(self, living: Mapping[str, Sequence[Claim]]) -> bool:
        """Return whether a reservation unknown to :meth:`judge_consumers` would have to give way.

        :param living: as passed to :meth:`check_plans`
        """
        consumers = {
            claim_draft.claim.consumer
            for entry in self.going()
            for claim_draft in entry.draft.claims
        }
        ending_ids = {
            claim.id
            for claim in (
                *(released_claim for released_claim, _ in self.released),
                *self._going_back,
            )
        }
        seen_ids = self.known | ending_ids
        reservations = (claim for of_group in living.values() for claim in of_group)
        return any(
            reservation.consumer in consumers and reservation.id not in seen_ids
            for reservation in reservations
        )

    # -- claims ---------------------------------------------------------------------
    def claim_ids(self) -> list[str]:
        """Return the ids of the claims to be created."""
        return [
            claim_draft.claim.id for entry in self.going() for claim_draft in entry.draft.claims
        ]

    def judge_claims(self, live: set[str]) -> None:
        """Stop a draft whose claim is stored and live: its guest runs in spite of everything."""
        for entry in self.going():
            if any(claim_draft.claim.id in live for claim_draft in entry.draft.claims):
                entry.end(CommitStatus.DROPPED)

    # -- consumers -------------------------------------------------------------------
    def owners(self) -> dict[str, tuple[str | None, str | None, str]]:
        """Return the owners of the consumers, as the drafts still going state them."""
        claims = (claim for entry in self.going() for claim in owned(entry.draft))
        return {
            claim.consumer: (claim.project_id, claim.user_id, claim.consumer_type)
            for claim in claims
        }

    def limited_consumers(self) -> set[str]:
        """Return the consumers of drafts for one project; their owners are needed."""
        return consumers_to_own(entry.draft for entry in self.going())

    def judge_consumers(
        self, live: Iterable[Claim], owners: Mapping[str, str | None] = NO_OWNERS
    ) -> None:
        """Stop the drafts that may not claim; note which claims give way to which."""
        ending_ids = {
            claim.id
            for claim in (
                *(released_claim for released_claim, _ in self.released),
                *self._going_back,
            )
        }
        going = [entry.draft for entry in self.going()]
        live = [claim for claim in live if claim.id not in ending_ids]
        self.known = {claim.id for claim in live}
        self.rivals, outcomes = judge_rivals(live, going, owners)
        for entry in self.going():
            entry.outcome = outcomes.get(entry.draft.id)

    def movers(self) -> set[str]:
        """Return the consumers that move or whose claims leave, and use pools; these count once."""
        moving = (claim_draft.claim for entry in self.going() for claim_draft in entry.draft.claims)
        move_claims = [claim for claim in moving if claim.purpose.is_move]
        return {
            guest_of(claim)
            for claim in (*move_claims, *self._leaving())
            if inheritance.of_pools(claim)
        }

    def inherit(self, unit: UnitOfWork, live: Iterable[Claim]) -> None:
        """Reduce what claims of moves take of pools to what their consumers do not hold already.

        :param live: the live claims of :meth:`movers`, read under the locks of all providers
        """
        leaving = {claim.id for claim in self._leaving()}
        unit.keep_heirs(self.movers(), [claim for claim in live if claim.id not in leaving])
        for entry in self.going():
            claims = [inheriting(made, unit.others_of) for made in entry.draft.claims]
            entry.draft = msgspec.structs.replace(entry.draft, claims=claims)

    # -- providers ---------------------------------------------------------------
    def wanted(self) -> set[int]:
        """Return the providers to lock: all that a draft names, those read back included."""
        drafts = (entry.draft for entry in self.entries if not entry.is_locked)
        provider_ids = {pid for claim in self._leaving() for pid in claim.allocations}
        for draft in drafts:
            for claim_draft in draft.claims:
                provider_ids.update(claim_draft.claim.allocations)
            for taken in draft.taken_reservations:
                provider_ids.update(taken.provider_ids)
            for released in draft.released_reservations:
                provider_ids.update(released.provider_ids)
        return provider_ids

    def other_providers(self) -> set[int]:
        """Return the providers to lock that claims take from and that are not their host."""
        drafts = (entry.draft for entry in self.entries if not entry.is_locked)
        return {
            pid
            for draft in drafts
            for claim_draft in draft.claims
            if len(claim_draft.claim.allocations) > 1
            for pid in claim_draft.claim.allocations
            if pid != claim_draft.claim.provider_id
        }

    def _leaving(self) -> Iterable[Claim]:
        yield from (claim for claim, _ in self.released)
        yield from (claim for rivals in self.rivals.values() for claim in rivals)
        yield from self._going_back

    def overtake(self, claims: Iterable[Claim]) -> None:
        """Release the claims of a request's earlier attempt; reservations go back."""
        for claim in claims:
            if restored_reservation(claim, self.now) is not None:
                self._going_back.append(claim)
            else:
                self.released.append((claim, 'taken over'))

    # -- reservations of plans -----------------------------------------------------------
    def reservations_named(self) -> list[str]:
        """Return the ids of the reservations that going drafts take over or end, ascending."""
        drafts = [entry.draft for entry in self.going()]
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

        :param reservations: the claims of :meth:`reservations_named`, by id, under the locks
        """
        self._reservations = reservations
        taken_ids: set[str] = set()
        hosts = map(locked.row, locked.hosts())
        closed_hosts = {
            row.id: f'{row.name} {reason}'
            for row in hosts
            if (reason := why_closed(row, over_full=False))
        }
        for entry in self.going():
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
        for entry in self.going():
            for claim_draft in entry.draft.claims:
                host = claim_draft.claim.provider_id
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
            pid: room_of(
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
            unit.release(claim, reason)
        going = self.going()
        states = {
            pid: locked.state(pid, rooms.get(pid), serves.get(pid, frozenset()))
            for pid in locked.counters
        }
        acceptances = accept(states, [entry.draft for entry in going], self.rivals)
        for entry in going:
            acceptance = acceptances[entry.draft.id]
            entry.accepted = acceptance.accepted
            for index in entry.accepted:
                self._make(unit, entry.draft, entry.draft.claims[index])
            if not (entry.draft.whole and acceptance.refusal is not None):
                entry.taken = entry.reservations.taken
            for index in entry.taken:
                self._take(unit, entry.draft, entry.draft.taken_reservations[index])
            self._decide(entry, acceptance.refusal)
            if entry.draft.released_reservations:
                self._end_reservations(unit, entry)
        for reservation in self._going_back:
            if reservation.id not in self._taken:
                self._end(unit, reservation, 'taken over')
        self.bumped = sorted(
            {
                e.draft.group.uuid
                for e in going
                if e.draft.group is not None and e.outcome and steps_group(e.draft, e.outcome)
            }
        )
        for group in self.bumped:
            self.groups[group] += 1

    def _make(self, unit: UnitOfWork, draft: RequestDraft, made: ClaimDraft) -> None:
        claim = msgspec.structs.replace(
            made.claim,
            state=State.RESERVED,
            lease_until=self.lease_of(draft)
            if made.claim.lifecycle in EXPIRES
            else made.claim.lease_until,
            created_at=self.now,
            updated_at=self.now,
        )
        unit.make(claim)
        self._replace(unit, claim.id, draft)

    def lease_of(self, draft: RequestDraft) -> float:
        """Return the time until which a draft's claims are reserved; a plan's share one lease."""
        until = self.now + draft.lease_seconds
        stored_plan = None if draft.plan is None else self.plans.get(draft.plan.group_uuid)
        return until if stored_plan is None else max(until, stored_plan.lease_until)

    def _take(self, unit: UnitOfWork, draft: RequestDraft, by: TakenReservation) -> None:
        reservation = self._reservations[by.claim_id]
        until = self.lease_of(draft)
        unit.take(
            reservation, taken_over(reservation, by, draft.id, draft.attempt, until, self.now)
        )
        self._taken.add(reservation.id)
        self._replace(unit, reservation.id, draft)

    def _replace(self, unit: UnitOfWork, claim_id: str, draft: RequestDraft) -> None:
        """End the claims that give way to a claim."""
        reason = f'replaced by {draft.id}'
        for rival in self.rivals.get(claim_id, ()):
            self._end(unit, rival, reason)

    def _end_reservations(self, unit: UnitOfWork, entry: BatchEntry) -> None:
        """End the reservations that a plan gives back, except those that a create has taken."""
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
                self._end(unit, reservation, f'given back by {entry.draft.id}')

    def _end(self, unit: UnitOfWork, claim: Claim, reason: str) -> None:
        self.released.append((claim, reason))
        unit.release(claim, reason)

    @staticmethod
    def _decide(entry: BatchEntry, refusal: Refusal | None) -> None:
        draft = entry.draft
        if entry.is_whole and draft.completes:
            outcome = CommitStatus.PLACED
        elif entry.accepted or entry.taken:
            outcome = CommitStatus.PARTIAL
        else:
            outcome = CommitStatus.DROPPED
        if refusal is None and entry.reservations.reason:
            refusal = Refusal(RefusalKind.PLACE, entry.reservations.reason)
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
    def deleted_requests(self) -> list[str]:
        """Return the request rows to delete: inserted or taken over, without any effect."""
        ending_statuses = (CommitStatus.DROPPED, CommitStatus.GROUP_CHANGED, CommitStatus.BARRED)
        return [
            entry.draft.id
            for entry in self.entries
            if (entry.fresh or entry.took_over)
            and entry.outcome
            and entry.outcome.outcome in ending_statuses
        ]

    def corrected_requests(self) -> list[dict[str, Any]]:
        """Return the request rows to correct: not as inserted, or stored before and carried on."""
        corrections = []
        for entry in self.entries:
            outcome = entry.outcome.outcome if entry.outcome else None
            if outcome not in (CommitStatus.PLACED, CommitStatus.PARTIAL):
                continue
            placed = outcome is CommitStatus.PLACED
            if entry.fresh and entry.is_whole:
                continue
            row = self.request_values(entry.draft)
            row |= {
                'state': 'placed' if placed else 'open',
                'answer': row['answer'] if placed else None,
                'claims': entry.claims_before + entry.claims_made,
            }
            corrections.append({'b_id': row['id'], **{name: row[name] for name in CORRECTED}})
        return corrections

    def decisions(self) -> Iterable[DecisionRecord]:
        """Yield the decisions of the drafts that had an effect."""
        for entry in self.entries:
            if entry.has_effect and entry.draft.decision is not None:
                yield entry.draft.decision

    def plans_made(self) -> Iterable[GroupPlanRecord]:
        """Yield the plans to store, with the lease of their reservations."""
        for entry in self.entries:
            plan = entry.draft.plan
            if plan is not None and entry.has_effect:
                yield msgspec.structs.replace(plan, lease_until=self.lease_of(entry.draft))

    def replacing(self) -> Iterable[GroupSwap]:
        """Yield the rules that replace those of their groups."""
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
            pools=pools.usages(locked, unit.grown),
            freed=sorted({pid for claim, _ in self.released for pid in claim.allocations}),
            handed=sorted(unit.handed),
            groups=self.groups,
            now=self.now,
            path=path,
        )

    def outcomes(self) -> list[RequestOutcome]:
        """Return the outcomes of the drafts, in their order."""
        return [entry.outcome for entry in self.entries if entry.outcome]
