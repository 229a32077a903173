# SPDX-License-Identifier: Apache-2.0
"""What must hold of groups when the trouble is over, beside what was looked at at every write."""

from collections.abc import Iterable, Sequence

from devel.sim import judge
from devel.sim.database import NO_LIMIT, SimDatabase
from devel.sim.groups.callers import GroupCallers
from devel.sim.groups.planners import PlannerProcess
from devel.sim.groups.watch import GroupWatch
from devel.sim.schedulers import LATE_SECONDS
from gantt.core.records.decision import Outcome


def violations(
    database: SimDatabase,
    planners: Sequence[PlannerProcess],
    callers: GroupCallers,
    watch: GroupWatch,
) -> list[str]:
    """A line for each promise that was not kept."""
    found: list[str] = []
    if not database.restored:
        found += [*watch.broken, *callers.broken]
        found += judge.one_outcome(callers)
        found += _planned_once(callers, watch)
        found += _one_server_each(callers, database)
    for planner in planners:
        found += judge.views_are_equal(planner.name, planner.planner.cache.working, database)
        found += _nobody_waits(planner)
    return found


def _planned_once(callers: GroupCallers, watch: GroupWatch) -> Iterable[str]:
    """What planners answered is what was committed, whoever is asked again."""
    for request_id, answers in callers.planned.items():
        committed = watch.answers.get(request_id)
        if any(one != committed for one in answers):
            yield f'G5: request {request_id} was answered a plan that is not the one of its claims'


def _one_server_each(callers: GroupCallers, database: SimDatabase) -> Iterable[str]:
    """A claim is told to one server, and is where that was told."""
    claims = {one.id: one for one in database.store.claims(limit=NO_LIMIT)}
    told: dict[str, str] = {}
    for answers in callers.answers_received.values():
        for answer in (one.answer for one in answers):
            chosen = [of[0] for of in answer.selections if of]
            for one in chosen if answer.outcome is Outcome.PLACED else ():
                claim_id = one.claim_id or ''
                if told.setdefault(claim_id, one.consumer) != one.consumer:
                    yield f'G2: claim {claim_id} was told to two servers'
                claim = claims.get(claim_id)
                if claim is None or (claim.host, claim.consumer) != (one.host, one.consumer):
                    yield f'G5: {one.consumer} was told claim {claim_id}, which is not its own'


def _nobody_waits(planner: PlannerProcess) -> Iterable[str]:
    """Every call was answered, within its budget."""
    now = planner.loop.now
    for call in planner.calls_seen:
        last = now if call.answered_at is None else call.answered_at
        if planner.alive and last > call.until + LATE_SECONDS:
            yield f'wait: {planner.name}: {call.request.request_id} was not answered in time'
