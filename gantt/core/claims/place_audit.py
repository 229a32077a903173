# SPDX-License-Identifier: Apache-2.0
"""What is wrong with places of plans, in words of the audit."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import PlannedFor, State
from gantt.core.claims.places import is_given_up
from gantt.core.messages.request import Lifecycle


class AuditedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A live claim that is a place, goes back to being one, or is of a planned member.

    :ivar guest: whose it is to lists of hosts
    :ivar lease_until: its own, seconds of the database's clock, as all times
    :ivar seen_at: when its host has reported last; 0: never
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
    def is_place(self) -> bool:
        """Whether it is a place, whoever has it."""
        return self._is_reserved and self.member_name is not None

    @property
    def _is_reserved(self) -> bool:
        return self.state is State.RESERVED and self.lifecycle is Lifecycle.PLAN

    @property
    def held_until(self) -> float | None:
        """Until when a plan is to hold it; None: none is to."""
        if self.planned is not None:
            return self.planned.lease_until
        return self.lease_until if self.is_place else None

    @property
    def is_strange(self) -> bool:
        """Whether it would go back to a plan, and is no reserved place."""
        return self.planned is not None and not self._is_reserved


def lost(places: Iterable[AuditedPlace]) -> Iterable[str]:
    """Claims of guests that a plan may take."""
    for one in places:
        if one.is_strange:
            what = f'{one.state.value}, of lifecycle {one.lifecycle.value}'
            yield f'claim {one.id} of {one.consumer}: {what}, and goes back to a plan'


def leaked(places: Iterable[AuditedPlace], leases: Mapping[str, float]) -> Iterable[str]:
    """Places that no plan holds, or longer than their plan says.

    :param leases: of the plans that there are, by group
    """
    for one in places:
        until = one.held_until
        if until is None:
            continue
        lease = leases.get(one.group or '')
        if lease is None:
            yield f'claim {one.id} of {one.consumer}: a place of group {one.group}, without a plan'
        elif until > lease + 1.0:
            yield (
                f'claim {one.id} of {one.consumer}: a place that is held {until - lease:.0f} s '
                f'longer than the plan of group {one.group}'
            )


def doubled(places: Iterable[AuditedPlace]) -> Iterable[str]:
    """Members that have more than one place.

    Of one whose host is down the guest may come back, and has its claim until then.
    """
    counts = Counter((one.group, one.member_name) for one in places if one.is_place)
    for (group, name), count in sorted(counts.items(), key=str):
        if count > 1:
            yield f'group {group}: {count} live claims for member {name!r}'


def guests_of_members(places: Iterable[AuditedPlace]) -> dict[tuple[str, str], list[AuditedPlace]]:
    """Group and member -> the claims of its guests, of each that has more than one guest."""
    found: dict[tuple[str, str], list[AuditedPlace]] = {}
    for one in places:
        if one.state is State.CONFIRMED and one.group is not None and one.member_name is not None:
            found.setdefault((one.group, one.member_name), []).append(one)
    return {key: of for key, of in found.items() if len({one.guest for one in of}) > 1}


def run_twice(
    guests: Mapping[tuple[str, str], Sequence[AuditedPlace]],
    given_up: Mapping[str, Collection[str]],
) -> Iterable[str]:
    """Members of plans of which more than one guest runs.

    The host of one was down, another was created, and the first came back.  Those do not count
    whose hosts have said nothing since the last one was made: nobody knows that they run.

    :param guests: see ``guests_of_members``
    :param given_up: of the plans that there are, by group: see ``places.is_given_up``
    """
    for (group, name), of in sorted(guests.items()):
        gone = given_up.get(group)
        if gone is None:
            continue
        ordered = sorted(of, key=lambda one: (one.created_at, one.id))
        last = ordered[-1]
        run = [
            one
            for one in ordered
            if (one is last or one.seen_at > last.created_at)
            and not is_given_up(one.id, one.guest, one.adopted, gone)
        ]
        where = {one.guest: one.host for one in run}
        if len(where) > 1:
            named = ', '.join(f'{guest} on {host}' for guest, host in where.items())
            yield f'group {group}: member {name!r} has {len(where)} guests: {named}'
