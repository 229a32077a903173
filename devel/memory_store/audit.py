# SPDX-License-Identifier: Apache-2.0
"""Violations of the promises P1 to P4, and broken trees, in the rows of the in-memory store."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from devel.memory_store.tables import Tables
from gantt.core.claims import reservations
from gantt.core.claims.acceptance import is_over_committed
from gantt.core.claims.claim import LIVE_STATES, Claim, State, guest_of, why_never_ended
from gantt.core.claims.inheritance import uncovered_inheritances
from gantt.core.claims.reservations import AuditedReservation
from gantt.core.messages.layout import layout_with_amounts
from gantt.core.messages.request import Lifecycle
from gantt.core.records.members import replaced_guests
from gantt.core.resources import provider
from gantt.core.resources.host import HostKind
from gantt.core.resources.provider import TreeNode, kind_of
from gantt.core.topology.fit import doubled_layouts, over_allocated_parts

#: A sweep and one report after the lease.
GRACE_SECONDS = 80.0


def audit(tables: Tables, now: float) -> dict[str, list[str]]:
    """Return a line for each violation, by its kind."""
    nodes, places = _provider_nodes(tables), list(_provider_places(tables))
    replaced = {uuid: replaced_guests(plan.plan) for uuid, plan in tables.plans.items()}
    leases = {uuid: plan.lease_until for uuid, plan in tables.plans.items()}
    return {
        'over_commit': [*_over_committed_hosts(tables), *_wrong_amounts_inside(tables)],
        'lost': [
            *_lost_claims(tables),
            *_wrong_heirs(tables, nodes),
            *reservations.lost_members(places),
        ],
        'leaked': [*_leaked_claims(tables, now), *reservations.leaked_reservations(places, leases)],
        'doubled': [
            *_double_claims(tables),
            *reservations.doubled_members(places),
            *reservations.guests_running_twice(reservations.guests_of_members(places), replaced),
        ],
        'providers': list(provider.tree_faults(nodes)),
    }


def _provider_nodes(tables: Tables) -> list[TreeNode]:
    """Return the nodes; roots are followed, as no row has them: those of whole trees are right."""
    roots = provider.roots_of({pid: place.parent for pid, place in tables.places.items()})
    return [
        TreeNode(
            id=pid,
            uuid=place.uuid,
            name=tables.hosts[pid].name if pid in tables.hosts else place.name,
            kind=(HostKind.HOST if pid in tables.hosts else kind_of(place.parent)).value,
            parent=place.parent,
            root=roots.get(pid, pid),
            is_host=pid in tables.hosts,
        )
        for pid, place in sorted(tables.places.items())
    ]


def _provider_places(tables: Tables) -> Iterable[AuditedReservation]:
    for claim in tables.all_live():
        if claim.member_name is not None or claim.former_reservation is not None:
            yield AuditedReservation(
                id=claim.id,
                consumer=claim.consumer,
                group=claim.group,
                member_name=claim.member_name,
                state=claim.state,
                lifecycle=claim.lifecycle,
                lease_until=claim.lease_until,
                former_reservation=claim.former_reservation,
                guest=guest_of(claim),
                host=claim.host,
                adopted=claim.adopted,
                created_at=claim.created_at,
                seen_at=_seen_at(tables, claim.provider_id),
            )


def _seen_at(tables: Tables, provider_id: int) -> float:
    row = tables.hosts.get(provider_id)
    return 0.0 if row is None else row.reported_at


def _over_committed_hosts(tables: Tables) -> Iterable[str]:
    claimed: dict[int, Counter[str]] = defaultdict(Counter)
    for claim in tables.all_live():
        for provider_id, amounts in claim.allocations.items():
            claimed[provider_id].update(amounts)
    for provider_id, row in sorted(tables.hosts.items()):
        for name in sorted({*row.used, *row.foreign, *claimed[provider_id]}):
            used, foreign, cap = row.used.get(name, 0), row.foreign.get(name, 0), row.cap(name)
            if used + foreign > cap and not row.over_committed:
                yield (
                    f'{row.name}: {name} used {used} and foreign {foreign} are more than its '
                    f'capacity {cap}'
                )
            if used != claimed[provider_id][name]:
                total = claimed[provider_id][name]
                yield f'{row.name}: {name} used is {used}, its live claims take {total}'
        if row.over_committed and not is_over_committed(row):
            yield f'{row.name}: flagged as over-full, and has room of every class'
    yield from _pool_violations(tables, claimed)


def _pool_violations(tables: Tables, claimed: Mapping[int, Counter[str]]) -> Iterable[str]:
    for provider_id, pool in sorted(tables.pools.items()):
        called = tables.places[provider_id].name
        for name in sorted({*pool.used, *claimed[provider_id]}):
            used, total = pool.used.get(name, 0), claimed[provider_id][name]
            if pool.free(name) < 0 and not pool.over_committed:
                cap = used + pool.free(name)
                yield f'{called}: {name} used {used} and foreign 0 are more than its capacity {cap}'
            if used != total:
                yield f'{called}: {name} used is {used}, its live claims take {total}'


def _wrong_amounts_inside(tables: Tables) -> Iterable[str]:
    for provider_id, row in sorted(tables.hosts.items(), key=lambda item: item[1].name):
        claim_layouts = (
            (claim.id, layout_with_amounts(claim.layout)) for claim in tables.live_on(provider_id)
        )
        layouts = [(item, layout) for item, layout in claim_layouts if layout]
        yield from doubled_layouts(row.name, layouts)
        if not row.over_committed:
            yield from over_allocated_parts(row.name, row.facts, [layout for _, layout in layouts])


def _lost_claims(tables: Tables) -> Iterable[str]:
    for claim in tables.all_live():
        if tables.row(claim.provider_id) is None:
            yield f'claim {claim.id} of {claim.consumer}: its host {claim.host} is not there'
        for pid in claim.allocations:
            if pid != claim.provider_id and tables.row(pid) is None:
                yield (
                    f'claim {claim.id} of {claim.consumer}: takes from provider {pid}, which is '
                    'not there'
                )
        if not claim.allocations and not claim.adopted:
            yield f'claim {claim.id} of {claim.consumer}: nothing is allocated to it'
    counted = {claim.id for claim in tables.all_live()}
    for claim in tables.claims.values():
        if claim.is_live and claim.id not in counted:
            yield f'claim {claim.id} of {claim.consumer}: {claim.state}, and not counted as live'
    for row in tables.requests.values():
        count = sum(claim.attempt == row.attempt for claim in tables.of_request(row.id))
        if row.state == 'placed' and count < row.claims:
            yield f'request {row.id}: placed with {row.claims} claims, of which {count} are there'


def _wrong_heirs(tables: Tables, nodes: Iterable[TreeNode]) -> Iterable[str]:
    of_guests: dict[str, list[Claim]] = defaultdict(list)
    for claim in tables.all_live():
        of_guests[guest_of(claim)].append(claim)
    names = {node.id: node.shown for node in nodes}
    for claims_of_guest in of_guests.values():
        ended = {
            pid: f'provider {pid}, which is not there'
            for claim in claims_of_guest
            for pid in claim.inherits
            if pid not in names
        }
        yield from uncovered_inheritances(claims_of_guest, {**names, **ended} if ended else names)


def _leaked_claims(tables: Tables, now: float) -> Iterable[str]:
    for claim in tables.overdue(now, GRACE_SECONDS):
        age = now - claim.lease_until
        yield f'claim {claim.id} of {claim.consumer}: reserved, {age:.0f} s past its lease'
    for claim in tables.all_live():
        state = tables.claims[claim.id].state
        if state not in LIVE_STATES:
            yield f'claim {claim.id} of {claim.consumer}: {state}, and counted as live'
        why = why_never_ended(claim.state, claim.lifecycle, math.isfinite(claim.lease_until))
        if why:
            yield f'claim {claim.id} of {claim.consumer}: nothing ends it: {why}'


def _double_claims(tables: Tables) -> Iterable[str]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for claim in tables.all_live():
        counts.update(_roles(claim))
    for (owner, name, kind), count in counts.items():
        if count > 1:
            yield f'{owner} {name}: {count} {kind}'


def _roles(claim: Claim) -> Iterable[tuple[str, str, str]]:
    """Yield the roles of a claim that no other claim may share."""
    if claim.request_id is not None:
        yield 'request', claim.request_id, f'live claims for member {claim.member}'
    if claim.adopted or claim.lifecycle is Lifecycle.API:
        return  # the world's doing, or its writer's, not ours
    if not claim.purpose.is_move:
        yield 'consumer', claim.consumer, f'live claims for {claim.purpose.value}'
    elif claim.state is State.RESERVED:
        yield 'consumer', claim.consumer, 'open destinations of a move'
