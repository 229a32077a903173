# SPDX-License-Identifier: Apache-2.0
"""Promises on groups that must hold when the trouble is over, beside the checks of writes."""

from collections.abc import Iterable, Sequence

from devel.sim import judge
from devel.sim.database import NO_LIMIT, SimMemoryDatabase
from devel.sim.groups.callers import GroupCallers
from devel.sim.groups.planners import PlannerProcess
from devel.sim.groups.watch import GroupWatch
from devel.sim.schedulers import LATE_SECONDS
from gantt.core.records.decision import Outcome


def violations(
    database: SimMemoryDatabase,
    planners: Sequence[PlannerProcess],
    callers: GroupCallers,
    watch: GroupWatch,
) -> list[str]:
    """Return a line for each promise that was not kept."""
    lines: list[str] = []
    if not database.restored:
        lines += watch.broken
        lines += _planned_once(callers, watch)
        lines += _one_server_each(callers, database)
    for planner in planners:
        lines += judge.views_are_equal(planner.name, planner.planner.cache.working, database)
        lines += _nobody_waits(planner)
    return lines


def _planned_once(callers: GroupCallers, watch: GroupWatch) -> Iterable[str]:
    """Check that planners answered what is committed, whichever planner answers again."""
    for request_id, answers in callers.planned.items():
        committed = watch.answers.get(request_id)
        if any(answer != committed for answer in answers):
            yield f'G5: request {request_id} was answered a plan that is not the one of its claims'


def _one_server_each(callers: GroupCallers, database: SimMemoryDatabase) -> Iterable[str]:
    """Check that a claim is reported to one server, and is where the answer has it."""
    claims = {item.id: item for item in database.stores.claims.list_claims(limit=NO_LIMIT)}
    consumer_of: dict[str, str] = {}
    for answers in callers.answers_received.values():
        for answer in (item.answer for item in answers):
            chosen = [alternates[0] for alternates in answer.selections if alternates]
            for item in chosen if answer.outcome is Outcome.PLACED else ():
                claim_id = item.claim_id or ''
                if consumer_of.setdefault(claim_id, item.consumer) != item.consumer:
                    yield f'G2: claim {claim_id} was given to two servers'
                claim = claims.get(claim_id)
                if claim is None or (claim.host, claim.consumer) != (item.host, item.consumer):
                    yield f'G5: {item.consumer} was answered claim {claim_id}, which is not its own'


def _nobody_waits(planner: PlannerProcess) -> Iterable[str]:
    """Check that every call was answered, within its budget."""
    now = planner.loop.now
    for call in planner.calls_seen:
        last = now if call.answered_at is None else call.answered_at
        if planner.alive and last > call.until + LATE_SECONDS:
            yield f'wait: {planner.name}: {call.request.request_id} was not answered in time'
