# SPDX-License-Identifier: Apache-2.0
"""Promises that must hold when the trouble is over, checked from outside.

After a restore of the database to an earlier state the rule is weaker: what
was acknowledged may be forgotten, and guests are found again by adoption.
"""

from collections.abc import Iterable, Sequence

from devel.sim.computes import Host
from devel.sim.conductors import RETRIED_OUTCOMES, AnswerReceived, Conductors
from devel.sim.database import NO_LIMIT, SimDatabase, audited
from devel.sim.plan import SimPlan
from devel.sim.schedulers import SchedulerProcess
from devel.sim.sites import ZoneSite
from gantt.core.claims.claim import Claim, State
from gantt.core.records.decision import Answer, Outcome
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import HostRow
from gantt.core.table.host_table import HostTable
from gantt.scheduler import table_log


def violations(
    plan: SimPlan, sites: Sequence[ZoneSite], callers: Iterable[Conductors]
) -> list[str]:
    """Return a line for each promise that was not kept."""
    lines = [line for site in sites for line in _of_zone(plan, site)]
    if not any(site.database.restored for site in sites):
        for caller in callers:
            lines += [*caller.broken, *one_outcome(caller)]
    return lines


def _of_zone(plan: SimPlan, site: ZoneSite) -> Iterable[str]:
    database, live = site.database, site.database.live()
    yield from database.broken
    yield from audited(database.stores.claims.audit())
    yield from _guests_have_claims(site.hosts, live)
    yield from _claims_have_guests(site.hosts, live)
    rows = [
        change.row
        for change in database.stores.feed.load_everything().hosts
        if change.row is not None
    ]
    yield from _hosts_hold_what_runs(site.hosts, rows)
    if not (plan.has('restore') or plan.has('twin')):
        for claim in database.stores.claims.list_claims(limit=NO_LIMIT):
            if claim.adopted:
                yield f'P2: claim {claim.id} is adopted: the one before was lost'
        if not plan.has('shrink'):
            for row in rows:
                if row.over_committed:
                    yield f'P1: {row.name} is over-committed, and the world did not do it'
    for process in site.processes:
        yield from views_are_equal(process.name, process.scheduler.cache.working, database)
        if not process.frozen_until:  # who was frozen has answered when it could
            yield from nobody_waits(process)


def _guests_have_claims(hosts: Iterable[Host], live: Iterable[Claim]) -> Iterable[str]:
    confirmed = {(c.host, c.consumer) for c in live if c.state is State.CONFIRMED}
    for host in hosts:
        yield from host.machine.wrong
        for guest in host.machine.running.values():
            if (host.name, guest.consumer) not in confirmed:
                yield f'P2: guest {guest.claim_id} runs on {host.name} without a live claim'


def _claims_have_guests(hosts: Iterable[Host], live: Iterable[Claim]) -> Iterable[str]:
    running = {
        (host.name, guest.consumer) for host in hosts for guest in host.machine.running.values()
    }
    for claim in live:
        if (claim.host, claim.consumer) not in running:
            yield f'P3: claim {claim.id} on {claim.host} is {claim.state.value}, and nothing runs'


def _hosts_hold_what_runs(hosts: Iterable[Host], rows: Iterable[HostRow]) -> Iterable[str]:
    flagged = {row.name for row in rows if row.over_committed}
    for host in hosts:
        vcpus_used = sum(g.resources['VCPU'] for g in host.machine.running.values())
        if vcpus_used > host.machine.vcpus and host.name not in flagged:
            yield (
                f'P1: guests on {host.name} take {vcpus_used} VCPU of {host.machine.vcpus}, '
                'and it is not flagged'
            )


def one_outcome(conductors: Conductors) -> Iterable[str]:
    """Check that a placed request is answered so again, and with the same places."""
    for request_id, answers in conductors.answers_received.items():
        placed = [received for received in answers if received.answer.outcome is Outcome.PLACED]
        if not placed:
            continue
        if len({_places(received.answer) for received in placed}) > 1:
            yield f'P4: request {request_id} was placed in two ways'
        first = min(received.answered_at for received in placed)
        for received in answers:
            if received.sent_at >= first and not _is_allowed_answer(
                request_id, received, conductors
            ):
                yield f'P4: request {request_id} was placed, then {received.answer.outcome.value}'


def _places(answer: Answer) -> tuple[tuple[str, str | None], ...]:
    return tuple((chosen[0].host, chosen[0].claim_id) for chosen in answer.selections)


def _is_allowed_answer(request_id: str, received: AnswerReceived, conductors: Conductors) -> bool:
    outcome = received.answer.outcome
    if outcome is Outcome.PLACED or outcome in RETRIED_OUTCOMES:
        return True
    if outcome is Outcome.REUSED:
        return request_id in conductors.reused
    return outcome is Outcome.CANCELLED and request_id in conductors.cancelled


def views_are_equal(who: str, table: HostTable, database: SimDatabase) -> Iterable[str]:
    """Check that the table of a process is that of the database."""
    in_table = _view(table_log.everything_of(table))
    stored = _view(database.stores.feed.load_everything())
    for name in sorted(in_table.keys() | stored.keys()):
        if in_table.get(name) != stored.get(name):
            yield (
                f'view: {who} believes of {name} {in_table.get(name)}, '
                f'the database has {stored.get(name)}'
            )


def _view(everything: table_log.Everything) -> dict[str, tuple[object, ...]]:
    """Return what decides placements, by host and group."""
    view: dict[str, tuple[object, ...]] = {
        change.row.name: (
            sorted((name, amount) for name, amount in change.row.used.items() if amount),
            sorted(placed.claim_id for placed in change.placed),
            {name: inventory.cap for name, inventory in change.row.facts.inventories.items()},
            change.row.is_open,
        )
        for change in everything.hosts
        if change.row is not None
    }
    # A guarded group without a placed member may be missing: its presence is no news.
    view.update(
        (f'group {uuid}', (n,))
        for uuid, n in everything.groups.items()
        if not GroupRule('', generation=n).is_untouched
    )
    return view


def nobody_waits(process: SchedulerProcess) -> Iterable[str]:
    """Check that every call was answered, within its budget."""
    now, late = process.loop.now, process.late_seconds
    for request_seen in process.requests_seen:
        subject = f'{process.name}: request {request_seen.request.request_id}'
        if request_seen.answered_at is None:
            if request_seen.until + late < now:
                yield f'wait: {subject} was never answered'
        elif request_seen.answered_at > request_seen.until + late:
            after = request_seen.answered_at - request_seen.until
            yield f'wait: {subject} was answered {after:.1f} s after its budget'
