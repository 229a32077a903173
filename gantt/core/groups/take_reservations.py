# SPDX-License-Identifier: Apache-2.0
"""Decision about a create in a planned group: the reservations it takes, or why it gets none.

It depends on the reservations offered to the create (``core.records.offered_reservations``) and on
the table alone, so that a replay has the same result.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from gantt.core.groups import differences
from gantt.core.messages.base import topic_of
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import (
    PASSED,
    Decision,
    FilterCount,
    Outcome,
    ProviderAllocation,
    Selection,
)
from gantt.core.records.members import LookResult, MemberColumns, total_of
from gantt.core.records.offered_reservations import OfferedReservation, OfferedReservations
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable

#: Name among the filters that removes all hosts but those of the reservations.
NAME = 'PlaceOfPlan'
#: Largest number of reservations and hosts that the line of a create names.
_NAMED_MAX = 4


def decide(
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
    reason, cause = refusal(seen, request)
    age = 0.0
    if not reason:
        rows = _lay(table, request, columns, list(zip(members, seen.free, strict=True)))
        reason = _line(table, seen, rows)
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


def refusal(seen: OfferedReservations, request: SelectDestinations) -> tuple[str, str]:
    """Return why a create gets none, and the same without names and numbers; '': it gets some."""
    where = f' (revision {seen.revision} of the plan of group {seen.group})'
    plan_differences = (
        differences.differences(seen.planned, request.spec) if seen.planned is not None else []
    )
    if seen.why:
        listed = f': {differences.in_words(plan_differences)}' if plan_differences else ''
        line = f'{seen.why}{listed}{where if seen.revision else ""}'
        return line, 'no place of the plan is free for it'
    if plan_differences and not seen.free:
        subject = f'member {seen.named}' if seen.named is not None else 'a member'
        line = f'{subject} was planned otherwise: {differences.in_words(plan_differences)}{where}'
        return line, 'it is not as it was planned'
    return '', ''


@contextlib.contextmanager
def left_out(table: HostTable, seen: OfferedReservations | None) -> Iterator[None]:
    """Leave reservations out of the table that are let go for the members placed meanwhile.

    Neither affinity nor anti-affinity counts them.  Their room is not free yet.
    """
    index, older = table.placed, list[Placed]()
    for reservation in () if seen is None else seen.replaces:
        here = index.on(reservation.provider_id).get(reservation.claim_id)
        if here is not None:
            older.append(here)
            index.remove(reservation.provider_id, reservation.claim_id)
    try:
        yield
    finally:
        for placed in older:
            index.add(placed)


def planned_anew(
    decision: Decision, seen: OfferedReservations | None, request: SelectDestinations
) -> Decision:
    """Return a decision of filters and weighers about a create that differs from its plan."""
    if seen is None:
        return decision
    plan_differences = (
        differences.differences(seen.planned, request.spec) if seen.planned is not None else []
    )
    why = (
        f'was planned otherwise: {differences.in_words(plan_differences)}'
        if plan_differences
        else 'cannot be had'
    )
    names = _few([reservation.name for reservation in seen.replaces])
    line = f'planned anew, as the place of {names} {why}; {decision.reason}'
    return msgspec.structs.replace(decision, reason=line, places=seen)


def _lay(
    table: HostTable,
    request: SelectDestinations,
    columns: MemberColumns,
    taken: Sequence[tuple[int, OfferedReservation]],
) -> list[int]:
    """Add the members with their reservations as evaluated; return the rows of their hosts."""
    rows = [table.row_by_id[reservation.provider_id] for _, reservation in taken]
    chosen = sorted(set(rows))
    verdicts = np.zeros(len(table), np.uint8)
    verdicts[chosen] = PASSED
    removed = len(table) - len(chosen)
    filters = [FilterCount(NAME, removed, 'have no place of the plan for it')]
    look: LookResult | None = None
    parts = [_parts(table, reservation) for _, reservation in taken]
    are_listed = [
        len(allocations) > 1 or total_of(allocations) != request.spec.resources
        for allocations in parts
    ]
    for (member, reservation), row, given, is_listed in zip(
        taken, rows, parts, are_listed, strict=True
    ):
        if look is None or reservation.layout is not None or look.layout is not None:
            look = LookResult(filters, len(chosen), verdicts, [])
            look.layout = reservation.layout
            columns.looks.append(look)
        look.members.append(member)
        look.rows.append(row)
        look.claim_ids.append(reservation.claim_id)
        if any(are_listed):
            look.allocations.append(given if is_listed else [])
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


def _parts(table: HostTable, reservation: OfferedReservation) -> list[ProviderAllocation]:
    """Return the amounts by provider, the host first."""
    host, pools = table.hosts[table.row_by_id[reservation.provider_id]], table.pools.of_id
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


def _line(table: HostTable, seen: OfferedReservations, rows: Sequence[int]) -> str:
    """Return ``placed on cmp-4: the place of web-2 in the plan of the group``."""
    hosts = list(dict.fromkeys(table.names[row] for row in rows))
    names = [reservation.name for reservation in seen.free]
    noun = 'place' if len(names) == 1 else 'places'
    return (
        f'placed on {_few(hosts)}: the {noun} of {_few(names)} in revision {seen.revision} of the '
        f'plan of group {seen.group}'
    )


def _few(names: Sequence[str]) -> str:
    more = f' and {len(names) - _NAMED_MAX} more' if len(names) > _NAMED_MAX else ''
    return ', '.join(names[:_NAMED_MAX]) + more
