# SPDX-License-Identifier: Apache-2.0
"""The group commit, in SQL that every database understands.

Steps, each set-based and always in this order, so that transactions wait for
each other but never in a circle:

1. insert the request rows ascending, lock those that were there;
2. insert and lock the group rules ascending, compare rules and generations;
3. read the live claims of the consumers (``core.claims.commit.judge_rivals``);
4. lock the providers ascending;
5. accept in arrival order (``core.claims.acceptance``);
6. write usage, claims, allocations, decisions, feed.

The locks decide the order of transactions.  The writes are guarded as well, for clusters
whose locks are local to a node: there the loser's write or its COMMIT fails, and the batch is
run again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import NO_OWNERS, CommitResult, RequestDraft
from gantt.core.resources.group_rule import first_generation
from gantt.db.claims import group_plans, groups
from gantt.db.claims.batch import CORRECTED, CommitBatch, makers_of
from gantt.db.claims.held import owners_of, zones_of_groups
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.engine import session
from gantt.db.engine.arrays import by_key
from gantt.db.engine.pipelines import Meanwhile
from gantt.db.engine.retry import Again
from gantt.db.hosts import pools, providers, rows
from gantt.db.hosts.claim_rows import is_live, layouts_on, load_claims, of_guests
from gantt.db.records import decisions
from gantt.db.schema import models

_r = models.requests
_g = models.group_rules

_ids: Any = sa.bindparam('ids', expanding=True)
LOCK_REQUESTS = by_key(
    sa.select(*[column for column in _r.c if column.name not in ('created_at', 'updated_at')])
    .where(_r.c.id.in_(_ids))
    .order_by(_r.c.id)
    .with_for_update(),
    _r,
)
TOKENS = sa.select(_r.c.id).where(_r.c.id.in_(_ids), _r.c.token == sa.bindparam('token'))
DELETE_REQUESTS = _r.delete().where(_r.c.id.in_(_ids))
CORRECT = (
    _r.update()
    .where(_r.c.id == sa.bindparam('b_id'))
    .values({name: sa.bindparam(name) for name in CORRECTED})
)
LOCK_GROUPS = by_key(
    groups.RULES.where(_g.c.uuid.in_(_ids)).order_by(_g.c.uuid).with_for_update(key_share=True),
    _g,
)
SWAP_GROUP = (
    _g.update()
    .where(_g.c.uuid == sa.bindparam('b_uuid'), _g.c.generation == sa.bindparam('b_generation'))
    .values(generation=_g.c.generation + 1)
)
REPLACE_RULE = (
    _g.update()
    .where(_g.c.uuid == sa.bindparam('b_uuid'))
    .values({name: sa.bindparam(name) for name in ('policy', 'max_per_host', 'policies')})
    .values(rule_generation=None)
)


IDS_TAKEN = sa.select(models.claims.c.id, models.claims.c.live).where(models.claims.c.id.in_(_ids))
LIVE_OF = sa.select(models.claims.c.id).where(models.claims.c.consumer.in_(_ids), is_live)
DELETE_CLAIMS = models.claims.delete().where(models.claims.c.id.in_(_ids))
DELETE_ALLOCATIONS = models.allocations.delete().where(models.allocations.c.claim_id.in_(_ids))


NONE_LOCKED: Mapping[str, str] = {}


class Ledger:
    """Writer of batches; its state is a cache.

    :ivar meanwhile: a callback that runs while the server works on a COMMIT, where possible
    """

    def __init__(self, memory: rows.Memory) -> None:
        self.memory = memory
        self.meanwhile: Meanwhile | None = None

    def commit(
        self,
        transactions: session.Transactions,
        batch: Sequence[RequestDraft],
        locked: Mapping[str, str] = NONE_LOCKED,
    ) -> CommitResult:
        """Run the group commit; see ``core.claims.commit``.

        :param locked: id -> reason, of drafts that are to be left alone
        :raises DatabaseUnavailable: the outcome is not known, send again with the same ids
        :raises retry.Locked: rows stay locked that other drafts need; nothing was written
        """
        if not batch:
            return CommitResult(outcomes=[], now=transactions.read(lambda tx: tx.now))
        tried: list[tuple[CommitBatch, CommitResult]] = []

        def work(tx: session.Tx) -> CommitResult:
            commit_batch = CommitBatch(batch, locked)
            result = self.write(tx, commit_batch)
            tried.append((commit_batch, result))
            return result

        def already_committed(tx: session.Tx) -> CommitResult | None:
            return find_committed(tx, tried)

        return transactions.write(work, already_committed, once_locked=True)

    def write(self, tx: session.Tx, commit_batch: CommitBatch) -> CommitResult:
        """Run steps 1 to 6 inside a transaction."""
        records = [draft.decision for draft in commit_batch.batch if draft.decision is not None]
        host_sets = decisions.fresh_sets(tx, records)
        commit_batch.now = tx.now
        self._requests(tx, commit_batch)
        self._groups(tx, commit_batch)
        self._consumers(tx, commit_batch)
        stored_ids = tx.all(IDS_TAKEN, ids=commit_batch.claim_ids())
        commit_batch.judge_claims({row.id for row in stored_ids if row.live})
        unit = UnitOfWork(tx, self.memory)
        unit.lock(commit_batch.wanted())
        place_ids = commit_batch.reservations_named()
        if place_ids:
            reservations_named = {claim.id: claim for claim in load_claims(tx, ids=place_ids)}
            commit_batch.check_reservations(reservations_named, unit.locked)
        movers = sorted(commit_batch.movers())
        if movers:
            of_movers = [of_guests(movers), is_live]
            commit_batch.inherit(unit, load_claims(tx, where=of_movers))
        laid_on, served = commit_batch.read_under_lock()
        shares = pools.shared_in(tx, {pool for pool, _ in served})
        serves = pools.serving(tx, unit.locked, served, shares) if served else {}
        commit_batch.finish(unit, layouts_on(tx, laid_on), serves)
        self.swap_groups(tx, commit_batch)
        unit.write_added()
        new_ids = {claim.id for claim in unit.made}
        _forget(tx, [row.id for row in stored_ids if row.id in new_ids])
        self._write_claims(tx, commit_batch, unit, host_sets)
        self.write_requests(tx, commit_batch)
        providers.announce(tx, 'group', commit_batch.bumped)
        providers.announce_written(tx, unit.locked, sorted(unit.touched))
        unit.step_all()
        return commit_batch.result(unit)

    def _requests(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        tx.insert_new(
            _r, [commit_batch.request_values(draft) for draft in commit_batch.insertable()], 'id'
        )
        ids = [entry.draft.id for entry in commit_batch.going()]
        request_rows = tx.all(LOCK_REQUESTS, ids=ids)
        inserted = {row.id for row in request_rows if row.token == commit_batch.token}
        commit_batch.judge_requests({row.id: row for row in request_rows}, inserted)
        overdue = commit_batch.take_overs()
        if overdue:
            commit_batch.overtake(load_claims(tx, request_ids=overdue, live=True))

    def _groups(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        group_uuids = sorted(commit_batch.groups_going())
        if not group_uuids:
            return
        makers = makers_of(commit_batch.swaps())
        tx.insert_new(_g, [group_values(draft, tx.stamp) for draft in makers], 'uuid')
        commit_batch.judge_groups(groups.rules_of(tx.all(LOCK_GROUPS, ids=group_uuids)))

    def _consumers(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        consumers = sorted(commit_batch.owners())
        if consumers:
            live_claims = load_claims(tx, consumers=consumers, live=True)
            # A plan whose inputs have changed is computed again, whatever bars it.
            living = self._plans(tx, commit_batch)
            commit_batch.judge_consumers(live_claims, self.owners(tx, commit_batch))
            if commit_batch.has_unseen_reservations(living):
                raise Again('a place came to be meanwhile')
        else:
            self._plans(tx, commit_batch)

    def _plans(self, tx: session.Tx, commit_batch: CommitBatch) -> Mapping[str, Sequence[Claim]]:
        """Judge plans by their members' claims; these are read after those that give way.

        A create that takes over a free reservation in between is seen here; a later one changes the
        claims that give way, which is guarded.  Nothing would guard that a reservation created in
        between gives way.

        :returns: the claims of members, by group
        """
        planned = commit_batch.planned_groups()
        if not planned:
            return {}
        plans = {plan.group_uuid: plan for plan in group_plans.load(tx, planned)}
        living = group_plans.places_of(tx, planned)
        commit_batch.check_plans(plans, living, zones_of_groups(tx, planned))
        return living

    @staticmethod
    def owners(tx: session.Tx, commit_batch: CommitBatch) -> Mapping[str, str | None]:
        """Return the owners of the consumers of drafts for one project; mostly there are none."""
        limited = commit_batch.limited_consumers()
        return owners_of(tx, limited) if limited else NO_OWNERS

    def swap_groups(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """Increase the generation of every group that gained a member."""
        swapped = [
            {'b_uuid': uuid, 'b_generation': commit_batch.groups[uuid] - 1}
            for uuid in commit_batch.bumped
        ]
        if swapped and tx.many(SWAP_GROUP, swapped) != len(swapped):
            raise Again('a group was written meanwhile')
        replaced = [
            {
                'b_uuid': group.uuid,
                'policy': str(group.policy),
                'max_per_host': group.max_per_host,
                'policies': group.policies,
            }
            for group in commit_batch.replacing()
        ]
        if replaced and tx.many(REPLACE_RULE, replaced) != len(replaced):
            raise Again('a group was removed meanwhile')

    def _write_claims(
        self, tx: session.Tx, commit_batch: CommitBatch, unit: UnitOfWork, host_sets: set[str]
    ) -> None:
        decisions.save(tx, host_sets, list(commit_batch.decisions()), commit_batch.now)
        unit.write_claims()
        if unit.written_live:
            # Inserts for the same consumers were waited for, and may be confirmed by now.
            consumers = sorted({claim.consumer for claim in unit.written_live})
            live_ids = {row.id for row in tx.all(LIVE_OF, ids=consumers)}
            if live_ids - commit_batch.known - {claim.id for claim in unit.written_live}:
                raise Again('a claim for the same consumer came to be meanwhile')
        if plans := list(commit_batch.plans_made()):
            group_plans.save(tx, plans, commit_batch.plans)

    def write_requests(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """Delete the request rows without effect, correct those not as inserted."""
        deleted_ids = commit_batch.deleted_requests()
        if deleted_ids:
            tx.run(DELETE_REQUESTS, ids=deleted_ids)
        corrected = commit_batch.corrected_requests()
        if corrected and tx.many(CORRECT, corrected) != len(corrected):
            raise Again('a request row was written meanwhile')


def find_committed(
    tx: session.Tx, tried: Sequence[tuple[CommitBatch, CommitResult]]
) -> CommitResult | None:
    """Return the result of the transaction that turns out to be committed, if any.

    Each transaction writes its token into the request rows it leaves; one that leaves none has
    no effect that matters.
    """
    for commit_batch, result in tried:
        ids = [draft.id for draft in commit_batch.batch]
        if tx.all(TOKENS, ids=ids, token=commit_batch.token):
            return result
    return None


def group_values(draft: RequestDraft, stamp: int) -> dict[str, Any]:
    """Return the row of a group rule that is first seen in a request.

    :param stamp: stamp that the transaction has drawn
    """
    group = draft.group
    if group is None:
        raise ValueError('the draft has no group')
    return {
        'uuid': group.uuid,
        'name': '',
        'policy': str(group.policy),
        'max_per_host': group.max_per_host,
        'project_id': draft.project_id,
        'generation': first_generation(stamp),
        'members': '[]',
        'policies': group.policies,
    }


def _forget(tx: session.Tx, tombstones: Sequence[str]) -> None:
    # A request that was given up may be sent again under the same id; the claims of its
    # first attempt were never reported to any client.
    if tombstones:
        tx.run(DELETE_ALLOCATIONS, ids=list(tombstones))
        tx.run(DELETE_CLAIMS, ids=list(tombstones))
