# SPDX-License-Identifier: Apache-2.0
"""One batch of the group commit as values: what was read, what follows from it.

No SQL here: ``commit`` and ``commit_postgresql`` feed a book with the rows they read
under lock, in the same order, and write what it then says.

    judge requests → judge groups → judge consumers → accept under the locks → what to write
"""

import uuid
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
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
from gantt.core.claims.place_commit import judge_plans, judge_takes, steps_group
from gantt.core.claims.places import GroupPlanRecord, PlaceTaken, lives_on, taken_over
from gantt.core.claims.request_state import judge_request, takes_over
from gantt.core.messages.layout import Layout
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.group_rule import GroupRule
from gantt.core.topology.free import room_of
from gantt.db.claims.batch_entry import BatchEntry, inheriting, one_of_each_group, owned
from gantt.db.hosts import pools, providers, rows

#: Columns of a request that change where it is carried on.
CORRECTED = (*('state', 'attempt', 'owner', 'deadline', 'token', 'answer', 'updated_at', 'claims'),)
#: No draft waits for anybody.
_NONE: Mapping[str, str] = {}


class CommitBatch:
    """A batch, from the rows read under lock to the rows to write.

    :param locked: id -> reason, of the drafts that wait for rows which others keep locked
    """

    def __init__(self, batch: Sequence[RequestDraft], locked: Mapping[str, str] = _NONE) -> None:
        self.batch = batch
        self.token = uuid.uuid4().hex
        self.now = 0.0
        self.entries = [BatchEntry(draft) for draft in batch]
        for entry in self.entries if locked else ():
            if entry.draft.id in locked:
                entry.end(CommitStatus.LOCKED, reason=locked[entry.draft.id])
        self.groups: dict[str, int] = {}
        self.bumped: list[str] = []
        #: claims that end with this batch: of overtaken attempts, and what gave way
        self.released: list[tuple[Claim, str]] = []
        #: id of a claim to be made -> the claims that give way to it
        self.rivals: dict[str, list[Claim]] = {}
        #: ids of the live claims of the consumers, as they were judged
        self.known: set[str] = set()
        self.claims: list[Claim] = []
        #: consumer -> other live claims of it, where it may inherit
        self._others: dict[str, list[Claim]] = {}
        #: (claim, provider) -> the claim, which has inherited there
        self.inherited: dict[tuple[str, int], Claim] = {}
        #: places that are another one's with this batch, as they were and as they become
        self.handed: list[tuple[Claim, Claim]] = []
        #: places that live on where the claims of their creates end
        self.again: list[Claim] = []
        #: places of attempts that were overtaken: they end where the next one does not take them
        self._going_back: list[Claim] = []
        #: places that drafts name, by id, as they are under the locks
        self._places: Mapping[str, Claim] = {}
        #: plans of groups that are stored already, by group
        self.plans: Mapping[str, GroupPlanRecord] = {}
        #: providers on which places are another one's now
        self.renamed: set[int] = set()
        self.touched: set[int] = set()
        #: Those of them that are no hosts.
        self.no_hosts: set[int] = set()
        #: provider id -> what is added to the hot classes, less what take-overs gave back
        self.core_amounts: dict[int, list[int]] = {}
        self.other_amounts: dict[tuple[int, str], int] = {}

    # -- requests ------------------------------------------------------------
    def insertable(self) -> list[RequestDraft]:
        """Drafts whose row is to be inserted where it is not there, ascending."""
        fresh = (entry.draft for entry in self.going() if not entry.draft.continues)
        return sorted(fresh, key=lambda draft: draft.id)

    def request_values(self, draft: RequestDraft) -> dict[str, Any]:
        """A request row, as it becomes where all of the draft is accepted."""
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
        """Which drafts go on, by the request rows under lock.

        :param found: id -> row, see ``request_state.Row``; also with claims
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
        """Drafts that nothing has stopped yet."""
        return [entry for entry in self.entries if entry.outcome is None]

    def take_overs(self) -> list[str]:
        """Requests whose earlier attempt's claims are to be released."""
        return [entry.draft.id for entry in self.entries if entry.took_over]

    # -- groups ----------------------------------------------------------------
    def swaps(self) -> list[RequestDraft]:
        """Drafts with a group, one for each group, ascending by its uuid."""
        return one_of_each_group(entry.draft for entry in self.going())

    def judge_groups(self, found: Mapping[str, GroupRule]) -> None:
        """Stop the drafts that were planned under another rule or generation of their group."""
        named = self.groups_going()
        self.groups.update({uuid: found[uuid].generation for uuid in named & found.keys()})
        ended = {entry.draft.id for entry in self.entries if entry.outcome is not None}
        changed = behind_others(self.batch, ended, found)
        for entry in self.going():
            if entry.draft.id in changed:
                entry.end(CommitStatus.GROUP_CHANGED)

    def groups_going(self) -> set[str]:
        """Groups of the drafts that nothing has stopped yet."""
        return {group.uuid for e in self.going() for group in swaps_of(e.draft)}

    def planned_groups(self) -> list[str]:
        """Groups that drafts still going store a plan of, ascending."""
        plans = (entry.draft.plan for entry in self.going())
        return sorted({plan.group_uuid for plan in plans if plan is not None})

    def judge_plans(
        self,
        plans: Mapping[str, GroupPlanRecord],
        living: Mapping[str, Sequence[Claim]],
        below: Mapping[str, Collection[str]],
    ) -> None:
        """Stop the drafts whose plan was made beside something else.

        :param plans: as they are stored, of :meth:`planned_groups`
        :param living: the live claims of members of these
        :param below: the zones below where members of these live
        """
        self.plans = plans
        revisions = {uuid: plan.revision for uuid, plan in plans.items()}
        why = judge_plans((entry.draft for entry in self.going()), revisions, living, below)
        for entry in self.going():
            if entry.draft.id in why:
                entry.end(CommitStatus.GROUP_CHANGED, reason=why[entry.draft.id])

    def has_unseen_places(self, living: Mapping[str, Sequence[Claim]]) -> bool:
        """Whether a place would have to give way that :meth:`judge_consumers` was not given.

        :param living: as :meth:`judge_plans` was given it
        """
        makes = {made.claim.consumer for entry in self.going() for made in entry.draft.claims}
        ended = {claim.id for claim in (*(one for one, _ in self.released), *self._going_back)}
        seen = self.known | ended
        places = (claim for of_group in living.values() for claim in of_group)
        return any(one.consumer in makes and one.id not in seen for one in places)

    # -- claims ---------------------------------------------------------------------
    def claim_ids(self) -> list[str]:
        """Ids of the claims to be made."""
        return [made.claim.id for entry in self.going() for made in entry.draft.claims]

    def judge_claims(self, live: set[str]) -> None:
        """Stop a draft whose claim is there and live: its guest runs in spite of everything."""
        for entry in self.going():
            if any(made.claim.id in live for made in entry.draft.claims):
                entry.end(CommitStatus.DROPPED)

    # -- consumers -------------------------------------------------------------------
    def owners(self) -> dict[str, tuple[str | None, str | None, str]]:
        """Return whose the consumers are, as the drafts still going say that claim for them."""
        claims = (claim for entry in self.going() for claim in owned(entry.draft))
        return {
            claim.consumer: (claim.project_id, claim.user_id, claim.consumer_type)
            for claim in claims
        }

    def limited_consumers(self) -> set[str]:
        """Those that drafts for one project name, whose owners ``judge_consumers`` is to know."""
        return consumers_to_own(entry.draft for entry in self.going())

    def judge_consumers(
        self, live: Iterable[Claim], owners: Mapping[str, str | None] = NO_OWNERS
    ) -> None:
        """Stop the drafts that may not claim; note which claims give way to which."""
        ended = {claim.id for claim in (*(one for one, _ in self.released), *self._going_back)}
        going = [entry.draft for entry in self.going()]
        live = [claim for claim in live if claim.id not in ended]
        self.known = {claim.id for claim in live}
        self.rivals, outcomes = judge_rivals(live, going, owners)
        for entry in self.going():
            entry.outcome = outcomes.get(entry.draft.id)

    def movers(self) -> set[str]:
        """Consumers that move, or whose claims leave, and take of pools: that counts once."""
        moving = (made.claim for entry in self.going() for made in entry.draft.claims)
        concerned = [claim for claim in moving if claim.purpose.is_move]
        return {
            guest_of(claim)
            for claim in (*concerned, *self._leaving())
            if inheritance.of_pools(claim)
        }

    def inherit(self, live: Iterable[Claim]) -> None:
        """Let claims of moves take of pools only what they need more than their consumers have.

        :param live: the live claims of :meth:`movers`, read under the locks of all providers
        """
        leaving = {claim.id for claim in self._leaving()}
        for claim in live:
            if claim.id not in leaving:
                self._others.setdefault(guest_of(claim), []).append(claim)
        for entry in self.going():
            claims = [inheriting(made, self._others) for made in entry.draft.claims]
            entry.draft = msgspec.structs.replace(entry.draft, claims=claims)

    # -- providers ---------------------------------------------------------------
    def wanted(self) -> set[int]:
        """Providers to lock: all that a draft names, those read back included."""
        named = (entry.draft for entry in self.entries if not entry.is_locked)
        wanted = {pid for claim in self._leaving() for pid in claim.allocations}
        for draft in named:
            for made in draft.claims:
                wanted.update(made.claim.allocations)
            for place in draft.takes_places:
                wanted.update(place.provider_ids)
            for ended in draft.ends_places:
                wanted.update(ended.provider_ids)
        return wanted

    def other_providers(self) -> set[int]:
        """Of the providers to lock those that claims take from that are not their host."""
        named = (entry.draft for entry in self.entries if not entry.is_locked)
        return {
            pid
            for draft in named
            for made in draft.claims
            if len(made.claim.allocations) > 1
            for pid in made.claim.allocations
            if pid != made.claim.provider_id
        }

    def _leaving(self) -> Iterable[Claim]:
        yield from (claim for claim, _ in self.released)
        yield from (claim for rivals in self.rivals.values() for claim in rivals)
        yield from self._going_back

    def overtake(self, claims: Iterable[Claim]) -> None:
        """Release what the earlier attempt of a request had claimed; places go back."""
        for claim in claims:
            if lives_on(claim, self.now) is not None:
                self._going_back.append(claim)
            else:
                self.released.append((claim, 'taken over'))

    # -- places of plans -----------------------------------------------------------
    def places_named(self) -> list[str]:
        """Ids of the places that drafts still going take over or end, ascending."""
        drafts = [entry.draft for entry in self.going()]
        taken = {one.claim_id for draft in drafts for one in draft.takes_places}
        return sorted(taken | {one.claim_id for draft in drafts for one in draft.ends_places})

    def judge_places(self, places: Mapping[str, Claim], locked: providers.LockedProviders) -> None:
        """Stop the drafts that do not get the places that they need.

        :param places: those of :meth:`places_named`, by id, under the locks
        """
        self._places = places
        gone: set[str] = set()
        hosts = map(locked.row, locked.hosts())
        closed = {
            row.id: f'{row.name} {why}'
            for row in hosts
            if (why := why_closed(row, over_full=False))
        }
        for entry in self.going():
            entry.places = judge_takes(entry.draft, places, gone, closed)
            entry.outcome = entry.places.ends
            gone.update(entry.draft.takes_places[i].claim_id for i in entry.places.taken)

    def read_under_lock(self) -> tuple[set[int], set[tuple[int, int]]]:
        """Of drafts still going: hosts that layouts are on; (pool, host) of what is shared."""
        laid_on, served = set[int](), set[tuple[int, int]]()
        for entry in self.going():
            for made in entry.draft.claims:
                host = made.claim.provider_id
                if made.claim.layout is not None:
                    laid_on.add(host)
                for pid in made.served_by:
                    served.add((pid, host))
        return laid_on, served

    def finish(
        self,
        locked: providers.LockedProviders,
        layouts: Mapping[int, Mapping[str, Layout]],
        serves: Mapping[int, frozenset[int]],
    ) -> None:
        """Accept what fits, and change the counters under lock accordingly.

        :param layouts: host -> claim -> what it takes inside, of the live claims on the
            hosts of ``read_under_lock``
        :param serves: pool -> hosts, of those that are shared, as it is under the lock
        """
        ended = {claim.id for claim, _ in self.released}
        insides = {
            pid: room_of(
                locked.templates[pid].facts,
                [layout for claim_id, layout in of.items() if claim_id not in ended],
            )
            for pid, of in layouts.items()
            if pid in locked.templates
        }
        for claim, _ in self.released:
            self._give_back(locked, claim)
        going = self.going()
        states = {
            pid: locked.state(pid, insides.get(pid), serves.get(pid, frozenset()))
            for pid in locked.counters
        }
        found = accept(states, [entry.draft for entry in going], self.rivals)
        for entry in going:
            acceptance = found[entry.draft.id]
            entry.accepted = acceptance.accepted
            for index in entry.accepted:
                self._make(locked, entry.draft, entry.draft.claims[index])
            if not (entry.draft.whole and acceptance.refusal is not None):
                entry.taken = entry.places.taken
            for index in entry.taken:
                self._take(locked, entry.draft, entry.draft.takes_places[index])
            self._decide(entry, acceptance.refusal)
            if entry.draft.ends_places:
                self._end_places(locked, entry)
        taken = {place.id for place, _ in self.handed}
        for place in self._going_back:
            if place.id not in taken:
                self._end(locked, place, 'taken over')
        self.bumped = sorted(
            {
                e.draft.group.uuid
                for e in going
                if e.draft.group is not None and e.outcome and steps_group(e.draft, e.outcome)
            }
        )
        for group in self.bumped:
            self.groups[group] += 1

    def _make(
        self, locked: providers.LockedProviders, draft: RequestDraft, made: ClaimDraft
    ) -> None:
        claim = msgspec.structs.replace(
            made.claim,
            state=State.RESERVED,
            lease_until=self.lease_of(draft)
            if made.claim.lifecycle in EXPIRES
            else made.claim.lease_until,
            created_at=self.now,
            updated_at=self.now,
        )
        self.claims.append(claim)
        for pid, amounts in claim.allocations.items():
            self._add(locked, pid, amounts, 1)
        self._replace(locked, claim.id, draft)

    def lease_of(self, draft: RequestDraft) -> float:
        """Until when its claims are reserved; those of a plan as long as all of it."""
        until = self.now + draft.lease_seconds
        known = None if draft.plan is None else self.plans.get(draft.plan.group_uuid)
        return until if known is None else max(until, known.lease_until)

    def _take(self, locked: providers.LockedProviders, draft: RequestDraft, by: PlaceTaken) -> None:
        place = self._places[by.claim_id]
        until = self.lease_of(draft)
        taken = taken_over(place, by, draft.id, draft.attempt, until, self.now)
        self.handed.append((place, taken))
        self._rename(locked, taken)
        self._replace(locked, place.id, draft)

    def _replace(
        self, locked: providers.LockedProviders, claim_id: str, draft: RequestDraft
    ) -> None:
        """End what gives way to a claim."""
        reason = f'replaced by {draft.id}'
        for rival in self.rivals.get(claim_id, ()):
            self._end(locked, rival, reason)

    def _end_places(self, locked: providers.LockedProviders, entry: BatchEntry) -> None:
        """End the places that a plan gives back, as far as no create has them by now."""
        plan = entry.draft.plan
        if plan is None or entry.outcome is None or entry.outcome.outcome != CommitStatus.PLACED:
            return
        ended = {claim.id for claim, _ in self.released}
        for one in entry.draft.ends_places:
            place = self._places.get(one.claim_id)
            if place is None or place.id in ended or place.group != plan.group_uuid:
                continue
            if place.is_free_place and place.allocations.keys() <= set(one.provider_ids):
                self.released.append((place, f'given back by {entry.draft.id}'))
                self._give_back(locked, place)

    def _end(self, locked: providers.LockedProviders, claim: Claim, reason: str) -> None:
        """Release a claim; a place lives on for its plan, and takes what it took."""
        self.released.append((claim, reason))
        again = lives_on(claim, self.now)
        if again is None:
            self._give_back(locked, claim)
        else:
            self.again.append(again)
            self._rename(locked, again)

    def _rename(self, locked: providers.LockedProviders, place: Claim) -> None:
        if place.provider_id in locked.counters:
            self.renamed.add(place.provider_id)

    def _give_back(self, locked: providers.LockedProviders, claim: Claim) -> None:
        for pid, amounts in claim.allocations.items():
            self._add(locked, pid, amounts, -1)
            if pid in locked.counters:
                rows.unflag(locked.counters[pid])
        others = self._others.get(guest_of(claim), [])
        for before, now in inheritance.heirs(claim, others):
            others[others.index(before)] = now
            for pid, amounts in inheritance.gained(before, now).items():
                self._add(locked, pid, amounts, 1)
                self.inherited[now.id, pid] = now

    def _add(
        self, locked: providers.LockedProviders, pid: int, amounts: Mapping[str, int], sign: int
    ) -> None:
        if pid not in locked.counters:
            return  # removed since; what was taken there went with it
        self.touched.add(pid)
        amounts = rows.counted(locked.counters[pid], amounts, sign)
        rows.add(locked.counters[pid], amounts, sign)
        core_amounts = self.core_amounts.setdefault(pid, [0] * len(CORE_CLASSES))
        for name, amount in amounts.items():
            index = rows.CORE_CLASS_INDEX.get(name)
            if index is not None:
                core_amounts[index] += sign * amount
            else:
                key = (pid, name)
                self.other_amounts[key] = self.other_amounts.get(key, 0) + sign * amount

    @staticmethod
    def _decide(entry: BatchEntry, refusal: Refusal | None) -> None:
        draft = entry.draft
        if entry.is_whole and draft.completes:
            outcome = CommitStatus.PLACED
        elif entry.accepted or entry.taken:
            outcome = CommitStatus.PARTIAL
        else:
            outcome = CommitStatus.DROPPED
        if refusal is None and entry.places.reason:
            refusal = Refusal(RefusalKind.PLACE, entry.places.reason)
        entry.outcome = RequestOutcome(
            id=draft.id,
            outcome=outcome,
            accepted=entry.accepted,
            taken=entry.taken,
            attempt=draft.attempt,
            reason='' if refusal is None else refusal.reason,
            refused=None if refusal is None else refusal.kind,
        )

    # -- what to write -------------------------------------------------------------
    def step(self, locked: providers.LockedProviders, stamp: int) -> None:
        """Count up the generations and versions of what is written."""
        for pid in self.touched:
            row = locked.counters[pid]
            row.generation += 1
            row.version += 1
            row.claims_stamp = stamp
            if not locked.is_host(pid):
                self.no_hosts.add(pid)
        for pid in self.renamed - self.touched:
            row = locked.counters[pid]
            row.version += 1
            row.claims_stamp = stamp

    def deleted_requests(self) -> list[str]:
        """Rows that leave nothing behind: inserted here, or taken over, and nothing made."""
        gone = (CommitStatus.DROPPED, CommitStatus.GROUP_CHANGED, CommitStatus.BARRED)
        return [
            entry.draft.id
            for entry in self.entries
            if (entry.fresh or entry.took_over) and entry.outcome and entry.outcome.outcome in gone
        ]

    def corrected_requests(self) -> list[dict[str, Any]]:
        """Rows to write again: not as inserted, or found there and carried on."""
        values = []
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
            values.append({'b_id': row['id'], **{name: row[name] for name in CORRECTED}})
        return values

    def decisions(self) -> Iterable[DecisionRecord]:
        """Decisions of the drafts of which something was made."""
        for entry in self.entries:
            if entry.has_effect and entry.draft.decision is not None:
                yield entry.draft.decision

    def plans_made(self) -> Iterable[GroupPlanRecord]:
        """Plans to be stored, with the lease that their places have."""
        for entry in self.entries:
            plan = entry.draft.plan
            if plan is not None and entry.has_effect:
                yield msgspec.structs.replace(plan, lease_until=self.lease_of(entry.draft))

    def replacing(self) -> Iterable[GroupSwap]:
        """Rules that become those of their groups."""
        for entry in self.entries:
            group = entry.draft.group
            if group is not None and group.replaces and entry.has_effect:
                yield group

    def result(
        self, locked: providers.LockedProviders, path: CommitPath = CommitPath.PORTABLE
    ) -> CommitResult:
        """What to answer, once all of this is committed."""
        return CommitResult(
            outcomes=[entry.outcome for entry in self.entries if entry.outcome],
            hosts=list(map(locked.row, locked.hosts())),
            pools=pools.usages(locked, self.touched),
            freed=sorted({pid for claim, _ in self.released for pid in claim.allocations}),
            handed=sorted(self.renamed),
            groups=self.groups,
            now=self.now,
            path=path,
        )
