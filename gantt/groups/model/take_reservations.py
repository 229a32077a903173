# SPDX-License-Identifier: Apache-2.0
"""Decision about a create in a planned group: the reservations it takes, or why it gets none.

It depends on the reservations offered to the create
(``gantt.groups.model.member_reservations.offered_reservations``) and on the table alone, so that a
replay has the same result.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from gantt.core.messages.base import topic_of
from gantt.core.messages.keys import nova_hints
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import (
    PASSED_VERDICT,
    Decision,
    FilterCount,
    OfferedReservation,
    OfferedReservations,
    Outcome,
    ProviderAllocation,
    Selection,
)
from gantt.core.records.members import MemberColumns, MemberEvaluation, total_of
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable
from gantt.groups.model import differences

#: Name among the filters that removes all hosts but those of the reservations.
FILTER_NAME = 'PlaceOfPlan'
#: Largest number of reservations and hosts that the line of a create names.
_NAMED_MAX = 4


def decide_create(
    table: HostTable,
    request: SelectDestinations,
    seen: OfferedReservations,
    *,
    decision_id: str,
    members: Sequence[int],
    attempt: int = 1,
    worker: str = '',
    config_digest: str = '',
    seed: int = 0,
    spread: int = 1,
) -> Decision:
    """Return the decision about a create: an offered reservation for each of ``members``.

    :param seed: and ``spread``: by which its reservations were drawn; kept with the decision
    """
    columns = MemberColumns(request.request_id, attempt, request.consumers, 0, not request.dry_run)
    columns.takes_over = True
    reason, cause = why_no_reservation(seen, request)
    age = 0.0
    if not reason:
        rows = _add_members(table, request, columns, list(zip(members, seen.free, strict=True)))
        reason = _reason_text(table, seen, rows)
        age = table.oldest_report_seconds(rows)
    return Decision(
        id=decision_id,
        request_id=request.request_id,
        outcome=Outcome.REFUSED if cause else Outcome.PLACED,
        hosts=len(table),
        members=columns,
        seed=seed,
        spread=spread,
        table_seq=table.seq,
        age_seconds=age,
        config_digest=config_digest,
        reason=reason,
        cause=cause,
        provider_ids=table.provider_ids_bytes(),
        worker=worker,
        created_at=table.now,
        project_id=request.spec.project_id,
        attempt=attempt,
        planned=len(members),
        places=seen,
    )


def why_no_reservation(seen: OfferedReservations, request: SelectDestinations) -> tuple[str, str]:
    """Return why a create gets no reservation, and its cause in general; '': it gets some."""
    by_hint = f'hints.{nova_hints.PLAN_HINT}: ' if request.spec.plan is not None else ''
    where = f' ({by_hint}revision {seen.revision} of the plan of group {seen.group})'
    plan_differences = (
        differences.plan_differences(seen.planned, request.spec) if seen.planned is not None else []
    )
    if seen.why:
        listed = f': {differences.differences_text(plan_differences)}' if plan_differences else ''
        line = f'{seen.why}{listed}{where if seen.revision else ""}'
        return line, 'no place of the plan is free for it'
    if plan_differences and not seen.free:
        subject = f'member {seen.named}' if seen.named is not None else 'a member'
        difference = differences.differences_text(plan_differences)
        line = f'{subject} was planned otherwise: {difference}{where}'
        return line, 'it is not as it was planned'
    return '', ''


@contextlib.contextmanager
def without_replaced_claims(table: HostTable, seen: OfferedReservations | None) -> Iterator[None]:
    """Leave reservations that are replaced out of the table while their members are placed.

    Neither affinity nor anti-affinity counts them.  Their room is not free yet.
    """
    index, older = table.placed, list[Placed]()
    for reservation in () if seen is None else seen.replaces:
        here = index.on_provider(reservation.provider_id).get(reservation.claim_id)
        if here is not None:
            older.append(here)
            index.remove(reservation.provider_id, reservation.claim_id)
    try:
        yield
    finally:
        for placed in older:
            index.add(placed)


def with_new_reservations(
    decision: Decision, seen: OfferedReservations | None, request: SelectDestinations
) -> Decision:
    """Return a decision of filters and weighers about a request of a planned group.

    It is a create that differs from its plan, or the plan that a hint names does not apply to it.
    """
    if seen is None:
        return decision
    if seen.note:
        decision = msgspec.structs.replace(
            decision, reason=f'{decision.reason}; {seen.note}', places=seen
        )
    if not seen.replaces:
        return decision
    plan_differences = (
        differences.plan_differences(seen.planned, request.spec) if seen.planned is not None else []
    )
    why = (
        f'was planned otherwise: {differences.differences_text(plan_differences)}'
        if plan_differences
        else 'cannot be had'
    )
    names = _names_text([reservation.name for reservation in seen.replaces])
    line = f'planned anew, as the place of {names} {why}; {decision.reason}'
    return msgspec.structs.replace(decision, reason=line, places=seen)


def _add_members(
    table: HostTable,
    request: SelectDestinations,
    columns: MemberColumns,
    taken: Sequence[tuple[int, OfferedReservation]],
) -> list[int]:
    """Add the members with their reservations as evaluated; return the rows of their hosts."""
    rows = [table.row_by_id[reservation.provider_id] for _, reservation in taken]
    chosen = sorted(set(rows))
    verdicts = np.zeros(len(table), np.uint8)
    verdicts[chosen] = PASSED_VERDICT
    removed = len(table) - len(chosen)
    filters = [FilterCount(FILTER_NAME, removed, 'have no place of the plan for it')]
    evaluation: MemberEvaluation | None = None
    parts = [_allocations(table, reservation) for _, reservation in taken]
    are_listed = [
        len(allocations) > 1 or total_of(allocations) != request.spec.resources
        for allocations in parts
    ]
    for (member, reservation), row, given, is_listed in zip(
        taken, rows, parts, are_listed, strict=True
    ):
        if evaluation is None or reservation.layout is not None or evaluation.layout is not None:
            evaluation = MemberEvaluation(filters, len(chosen), verdicts, [])
            evaluation.layout = reservation.layout
            columns.evaluations.append(evaluation)
        evaluation.members.append(member)
        evaluation.rows.append(row)
        evaluation.claim_ids.append(reservation.claim_id)
        if any(are_listed):
            evaluation.allocations.append(given if is_listed else [])
    columns.places = {row: _selection(table, row, request) for row in chosen}
    return rows


def _selection(table: HostTable, row: int, request: SelectDestinations) -> Selection:
    host = table.hosts[row]
    return Selection(
        host=host.name,
        node=host.node or host.name,
        uuid=host.uuid,
        provider_id=host.id,
        consumer='',
        cell=host.cell,
        zone=table.zone_name(row),
        build_topic=topic_of(host.name),
        resources=request.spec.resources,
    )


def _allocations(table: HostTable, reservation: OfferedReservation) -> list[ProviderAllocation]:
    """Return the amounts by provider, the host first."""
    host, pools = table.hosts[table.row_by_id[reservation.provider_id]], table.pools.by_id
    parts = []
    for provider in sorted(
        reservation.allocations, key=lambda provider_id: (provider_id != host.id, provider_id)
    ):
        source: Any = host if provider == host.id else pools.get(provider)
        parts.append(
            ProviderAllocation(
                provider_id=provider,
                uuid='' if source is None else source.uuid,
                name='' if source is None else source.name,
                resources=reservation.allocations[provider],
            )
        )
    return parts


def _reason_text(table: HostTable, seen: OfferedReservations, rows: Sequence[int]) -> str:
    """Return ``placed on cmp-4: the place of web-2 in the plan of the group``."""
    hosts = list(dict.fromkeys(table.names[row] for row in rows))
    names = [reservation.name for reservation in seen.free]
    noun = 'place' if len(names) == 1 else 'places'
    return (
        f'placed on {_names_text(hosts)}: the {noun} of {_names_text(names)} in revision '
        f'{seen.revision} of the plan of group {seen.group}'
    )


def _names_text(names: Sequence[str]) -> str:
    more = f' and {len(names) - _NAMED_MAX} more' if len(names) > _NAMED_MAX else ''
    return ', '.join(names[:_NAMED_MAX]) + more
