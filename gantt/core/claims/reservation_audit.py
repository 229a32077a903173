# SPDX-License-Identifier: Apache-2.0
"""Audit of reservations of plans: lines about inconsistent ones."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import PlannedFor, State
from gantt.core.claims.reservations import is_given_up
from gantt.core.messages.request import Lifecycle


class AuditedReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Live claim that is a reservation, goes back to being one, or is of a planned member.

    :ivar guest: guest that it counts for in lists of hosts
    :ivar lease_until: end of its own lease, seconds of the database's clock, as all times
    :ivar seen_at: time of its host's last report; 0: never
    """

    id: str
    consumer: str
    group: str | None
    member_name: str | None
    state: State
    lifecycle: Lifecycle
    lease_until: float
    planned: PlannedFor | None = None
    guest: str = ''
    host: str = ''
    adopted: bool = False
    created_at: float = 0.0
    seen_at: float = 0.0

    @property
    def is_reservation(self) -> bool:
        """True where it is a reservation, taken over or not."""
        return self._is_reserved and self.member_name is not None

    @property
    def _is_reserved(self) -> bool:
        return self.state is State.RESERVED and self.lifecycle is Lifecycle.PLAN

    @property
    def held_until(self) -> float | None:
        """End of its plan's lease on it; None: no plan holds it."""
        if self.planned is not None:
            return self.planned.lease_until
        return self.lease_until if self.is_reservation else None

    @property
    def is_strange(self) -> bool:
        """True where it would go back to a plan, and is no reserved reservation."""
        return self.planned is not None and not self._is_reserved


def lost(reservations: Iterable[AuditedReservation]) -> Iterable[str]:
    """Yield claims of guests that a plan may take."""
    for reservation in reservations:
        if reservation.is_strange:
            named = f'claim {reservation.id} of {reservation.consumer}'
            status = f'{reservation.state.value}, of lifecycle {reservation.lifecycle.value}'
            yield f'{named}: {status}, and goes back to a plan'


def leaked(
    reservations: Iterable[AuditedReservation], leases: Mapping[str, float]
) -> Iterable[str]:
    """Yield reservations that no plan holds, or longer than their plan's lease.

    :param leases: ends of the leases of existing plans, by group
    """
    for reservation in reservations:
        until = reservation.held_until
        if until is None:
            continue
        lease = leases.get(reservation.group or '')
        named = f'claim {reservation.id} of {reservation.consumer}'
        if lease is None:
            yield f'{named}: a place of group {reservation.group}, without a plan'
        elif until > lease + 1.0:
            yield (
                f'{named}: a place that is held {until - lease:.0f} s '
                f'longer than the plan of group {reservation.group}'
            )


def doubled(reservations: Iterable[AuditedReservation]) -> Iterable[str]:
    """Yield members that have more than one reservation.

    A guest on a down host may come back, and has its claim until then.
    """
    counts = Counter(
        (reservation.group, reservation.member_name)
        for reservation in reservations
        if reservation.is_reservation
    )
    for (group, name), count in sorted(counts.items(), key=str):
        if count > 1:
            yield f'group {group}: {count} live claims for member {name!r}'


def guests_of_members(
    reservations: Iterable[AuditedReservation],
) -> dict[tuple[str, str], list[AuditedReservation]]:
    """Return group and member -> the claims of its guests, of each that has more than one guest."""
    claims: dict[tuple[str, str], list[AuditedReservation]] = {}
    for reservation in reservations:
        if (
            reservation.state is State.CONFIRMED
            and reservation.group is not None
            and reservation.member_name is not None
        ):
            claims.setdefault((reservation.group, reservation.member_name), []).append(reservation)
    return {
        key: places_of_member
        for key, places_of_member in claims.items()
        if len({reservation.guest for reservation in places_of_member}) > 1
    }


def run_twice(
    guests: Mapping[tuple[str, str], Sequence[AuditedReservation]],
    given_up: Mapping[str, Collection[str]],
) -> Iterable[str]:
    """Yield members of plans of which more than one guest runs.

    The host of one was down, another was created, and the first came back.  Guests do not count
    whose hosts have not reported since the last one was created: they are not known to run.

    :param guests: see ``guests_of_members``
    :param given_up: of existing plans, by group: see ``reservations.is_given_up``
    """
    for (group, name), claims in sorted(guests.items()):
        abandoned = given_up.get(group)
        if abandoned is None:
            continue
        ordered = sorted(claims, key=lambda claim: (claim.created_at, claim.id))
        last = ordered[-1]
        running = [
            claim
            for claim in ordered
            if (claim is last or claim.seen_at > last.created_at)
            and not is_given_up(claim.id, claim.guest, claim.adopted, abandoned)
        ]
        host_of = {claim.guest: claim.host for claim in running}
        if len(host_of) > 1:
            named = ', '.join(f'{guest} on {host}' for guest, host in host_of.items())
            yield f'group {group}: member {name!r} has {len(host_of)} guests: {named}'
