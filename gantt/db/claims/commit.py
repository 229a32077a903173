# SPDX-License-Identifier: Apache-2.0
"""The group commit, in SQL that every database understands.

Steps, each set-based and always in this order, so that transactions wait for
each other but never in a circle:

1. insert the request rows ascending, lock those that were there;
2. insert and lock the group rules ascending, compare rules and generations;
3. read the live claims of the consumers (``core.claims.commit.resolve_rivals``);
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
from gantt.db.claims.batch import CONTINUED_COLUMNS, CommitBatch, drafts_creating_groups
from gantt.db.claims.held import owners_of, zones_of_groups
from gantt.db.claims.unit_of_work import DELETE_SHARES, UnitOfWork
from gantt.db.engine import session
from gantt.db.engine.arrays import lock_by_key
from gantt.db.engine.pipelines import WorkDuringCommit
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts import pools, providers, rows
from gantt.db.hosts.claim_rows import is_live, layouts_on, load_claims, of_guests
from gantt.db.records import decisions
from gantt.db.schema import models

_requests = models.requests
_group_rules = models.group_rules

_ids: Any = sa.bindparam('ids', expanding=True)
LOCK_REQUESTS = lock_by_key(
    sa.select(
        *[column for column in _requests.c if column.name not in ('created_at', 'updated_at')]
    )
    .where(_requests.c.id.in_(_ids))
    .order_by(_requests.c.id)
    .with_for_update(),
    _requests,
)
SELECT_REQUESTS_WITH_TOKEN = sa.select(_requests.c.id).where(
    _requests.c.id.in_(_ids), _requests.c.token == sa.bindparam('token')
)
DELETE_REQUESTS = _requests.delete().where(_requests.c.id.in_(_ids))
UPDATE_REQUEST = (
    _requests.update()
    .where(_requests.c.id == sa.bindparam('b_id'))
    .values(session.bound(*CONTINUED_COLUMNS))
)
LOCK_GROUPS = lock_by_key(
    groups.SELECT_RULES.where(_group_rules.c.uuid.in_(_ids))
    .order_by(_group_rules.c.uuid)
    .with_for_update(key_share=True),
    _group_rules,
)
INCREMENT_GENERATION = (
    _group_rules.update()
    .where(
        _group_rules.c.uuid == sa.bindparam('b_uuid'),
        _group_rules.c.generation == sa.bindparam('b_generation'),
    )
    .values(generation=_group_rules.c.generation + 1)
)
UPDATE_GROUP_RULE = (
    _group_rules.update()
    .where(_group_rules.c.uuid == sa.bindparam('b_uuid'))
    .values(rule_generation=None, **session.bound('policy', 'max_per_host', 'policies'))
)


SELECT_EXISTING_CLAIMS = sa.select(models.claims.c.id, models.claims.c.live).where(
    models.claims.c.id.in_(_ids)
)
SELECT_LIVE_CLAIMS_OF_CONSUMERS = sa.select(models.claims.c.id).where(
    models.claims.c.consumer.in_(_ids), is_live
)
DELETE_CLAIMS = models.claims.delete().where(models.claims.c.id.in_(_ids))


NO_LOCKED_DRAFTS: Mapping[str, str] = {}


class BatchCommitter:
    """Writer of batches; its state is a cache.

    :ivar meanwhile: a callback that runs while the server works on a COMMIT, where possible
    """

    def __init__(self, memory: rows.RowCache) -> None:
        self.memory = memory
        self.meanwhile: WorkDuringCommit | None = None

    def commit(
        self,
        transactions: session.Transactions,
        batch: Sequence[RequestDraft],
        skipped: Mapping[str, str] = NO_LOCKED_DRAFTS,
    ) -> CommitResult:
        """Run the group commit; see ``core.claims.commit``.

        :param skipped: id of a draft -> reason why it is left out
        :raises DatabaseUnavailable: the outcome is not known, send again with the same ids
        :raises RowsLocked: rows stay locked that other drafts need; nothing was written
        """
        if not batch:
            return CommitResult(outcomes=[], now=transactions.read(lambda tx: tx.now))
        tried: list[tuple[CommitBatch, CommitResult]] = []

        def work(tx: session.Tx) -> CommitResult:
            commit_batch = CommitBatch(batch, skipped)
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
        if not commit_batch.is_plain:
            self._groups(tx, commit_batch)
        self._consumers(tx, commit_batch)
        stored_ids = tx.all(SELECT_EXISTING_CLAIMS, ids=commit_batch.claim_ids())
        if stored_ids:
            commit_batch.check_claims({row.id for row in stored_ids if row.live})
        unit = UnitOfWork(tx, self.memory)
        unit.lock(commit_batch.providers_to_lock())
        place_ids = [] if commit_batch.is_plain else commit_batch.named_reservations()
        if place_ids:
            reservations_named = {claim.id: claim for claim in load_claims(tx, ids=place_ids)}
            commit_batch.check_reservations(reservations_named, unit.locked)
        moving_consumers = sorted(commit_batch.moving_consumers())
        if moving_consumers:
            of_movers = [of_guests(moving_consumers), is_live]
            commit_batch.inherit(unit, load_claims(tx, where=of_movers))
        laid_on, served = commit_batch.read_under_lock()
        serves: Mapping[int, frozenset[int]] = {}
        if served:
            shares = pools.shared_in(tx, {pool for pool, _ in served})
            serves = pools.serving(tx, unit.locked, served, shares)
        commit_batch.finish(unit, layouts_on(tx, laid_on) if laid_on else {}, serves)
        if not commit_batch.is_plain:
            self.step_groups(tx, commit_batch)
        unit.write_added_amounts()
        if stored_ids:
            new_ids = {claim.id for claim in unit.created}
            _delete_tombstones(tx, [row.id for row in stored_ids if row.id in new_ids])
        self._write_claims(tx, commit_batch, unit, host_sets)
        self.write_requests(tx, commit_batch)
        providers.announce_written(tx, unit.locked, sorted(unit.touched_providers))
        unit.increment_versions()
        return commit_batch.result(unit)

    def _requests(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        tx.insert_new(_requests, commit_batch.request_rows(), 'id')
        request_rows = tx.all(LOCK_REQUESTS, ids=commit_batch.open_request_ids())
        inserted = {row.id for row in request_rows if row.token == commit_batch.token}
        commit_batch.check_requests({row.id: row for row in request_rows}, inserted)
        overdue = commit_batch.requests_taken_over()
        if overdue:
            commit_batch.release_earlier_attempt(load_claims(tx, request_ids=overdue, live=True))

    def _groups(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        group_uuids = sorted(commit_batch.open_group_uuids())
        if not group_uuids:
            return
        makers = drafts_creating_groups(commit_batch.drafts_with_group())
        tx.insert_new(_group_rules, [group_values(draft, tx.stamp) for draft in makers], 'uuid')
        commit_batch.check_groups(groups.rules_of(tx.all(LOCK_GROUPS, ids=group_uuids)))

    def _consumers(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        consumers = sorted(commit_batch.owners())
        live_claims = load_claims(tx, consumers=consumers, live=True) if consumers else []
        if commit_batch.is_plain:
            commit_batch.check_consumers(live_claims)
        elif consumers:
            # A plan whose inputs have changed is computed again, whatever rejects it.
            living = self._plans(tx, commit_batch)
            commit_batch.check_consumers(live_claims, self.owners(tx, commit_batch))
            if commit_batch.has_unseen_reservations(living):
                raise RetryTransaction('a place came to be meanwhile')
        else:
            self._plans(tx, commit_batch)

    def _plans(self, tx: session.Tx, commit_batch: CommitBatch) -> Mapping[str, Sequence[Claim]]:
        """Check plans against their members' claims, which are read after the claims that give way.

        A create that takes over a free reservation in between is seen here; a later one changes the
        claims that give way, which is guarded.  Nothing would guard that a reservation created in
        between gives way.

        :returns: the claims of members, by group
        """
        planned = commit_batch.planned_groups()
        if not planned:
            return {}
        plans = {plan.group_uuid: plan for plan in group_plans.load(tx, planned)}
        living = group_plans.member_claims_by_group(tx, planned)
        commit_batch.check_plans(plans, living, zones_of_groups(tx, planned))
        return living

    @staticmethod
    def owners(tx: session.Tx, commit_batch: CommitBatch) -> Mapping[str, str | None]:
        """Return the owners of the consumers of drafts for one project; mostly there are none."""
        limited = commit_batch.limited_consumers()
        return owners_of(tx, limited) if limited else NO_OWNERS

    def step_groups(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """Increase the generation of every group that gained a member, and announce it."""
        stepped = [
            {'b_uuid': uuid, 'b_generation': commit_batch.groups[uuid] - 1}
            for uuid in commit_batch.incremented_groups
        ]
        if stepped and tx.run_many(INCREMENT_GENERATION, stepped) != len(stepped):
            raise RetryTransaction('a group was written meanwhile')
        replaced = [
            {
                'b_uuid': group.uuid,
                'policy': str(group.policy),
                'max_per_host': group.max_per_host,
                'policies': group.policies,
            }
            for group in commit_batch.group_preconditions()
        ]
        if replaced and tx.run_many(UPDATE_GROUP_RULE, replaced) != len(replaced):
            raise RetryTransaction('a group was removed meanwhile')
        providers.announce(tx, 'group', commit_batch.incremented_groups)

    def _write_claims(
        self, tx: session.Tx, commit_batch: CommitBatch, unit: UnitOfWork, host_sets: set[str]
    ) -> None:
        decisions.save(tx, host_sets, list(commit_batch.decisions()), commit_batch.now)
        unit.write_claims()
        written = unit.new_live_claims
        if written:
            # Inserts for the same consumers were waited for, and may be confirmed by now.
            consumers = sorted({claim.consumer for claim in written})
            live_ids = {row.id for row in tx.all(SELECT_LIVE_CLAIMS_OF_CONSUMERS, ids=consumers)}
            if live_ids - commit_batch.judged_ids - {claim.id for claim in written}:
                raise RetryTransaction('a claim for the same consumer came to be meanwhile')
        if not commit_batch.is_plain and (plans := list(commit_batch.plans_to_store())):
            group_plans.save(tx, plans, commit_batch.plans)

    def write_requests(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """Delete the request rows without effect, correct those not as inserted."""
        deleted_ids = commit_batch.requests_to_delete()
        if deleted_ids:
            tx.run(DELETE_REQUESTS, ids=deleted_ids)
        corrected = commit_batch.requests_to_update()
        if corrected and tx.run_many(UPDATE_REQUEST, corrected) != len(corrected):
            raise RetryTransaction('a request row was written meanwhile')


def find_committed(
    tx: session.Tx, tried: Sequence[tuple[CommitBatch, CommitResult]]
) -> CommitResult | None:
    """Return the result of the transaction that turns out to be committed, if any.

    Each transaction writes its token into the request rows it leaves; one that leaves none has
    no effect that matters.
    """
    for commit_batch, result in tried:
        ids = [draft.id for draft in commit_batch.batch]
        if tx.all(SELECT_REQUESTS_WITH_TOKEN, ids=ids, token=commit_batch.token):
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


def _delete_tombstones(tx: session.Tx, tombstones: Sequence[str]) -> None:
    # A request that was given up may be sent again under the same id; the claims of its
    # first attempt were never reported to any client.
    if tombstones:
        tx.run(DELETE_SHARES, ids=list(tombstones))
        tx.run(DELETE_CLAIMS, ids=list(tombstones))
