# SPDX-License-Identifier: Apache-2.0
"""Reservations of a plan for a create: those that it may have, and why it gets none.

A reservation is a claim that is held for one member.  A create that names a member, or a
description, is to have one of those; one that names none, the next free one of those that are
described as it is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gantt.core.claims.claim import Claim, State
from gantt.core.messages.near import nearest_names
from gantt.core.messages.request import Lifecycle, RequestSpec, SelectDestinations
from gantt.core.records.decision import OfferedReservation, OfferedReservations
from gantt.groups.model import differences
from gantt.groups.model.group_answer import claims_in_order, is_current_guest, member_of
from gantt.groups.model.group_description import GroupDescription, OnDifference, OtherConsumers

#: Largest number of members that a refusal names.
_NAMED_MAX = 4
#: Largest number of free reservations among which one is drawn.
_SPREAD_MAX = 16
_REPLAN_HINT = 'plan the group again'
_HEAL_HINT = 'have the group healed for another one'
_encode = msgspec.msgpack.Encoder(order='deterministic').encode


class PlannedUnit(NamedTuple):
    """Planned member by itself.

    :ivar position: in the order in which reservations are given away
    :ivar name: its own, as ``web-2``; ``member``: of its description
    :ivar spec: number of the spec that it was planned with
    """

    position: int
    name: str
    member: str
    spec: int


class PlannedMembers:
    """Specs that the members of one revision of a plan were planned with.

    :ivar specs: distinct specs
    :ivar numbers: name of a description -> the numbers of its specs, the alternatives last
    :ivar alternatives: name of a member -> its planned alternative, as far as it is known
    """

    def __init__(self, description: GroupDescription, alternatives: Mapping[str, int]) -> None:
        self.description = description
        self.alternatives = alternatives
        self.specs: list[RequestSpec] = []
        self.names = [member.name for member in description.members]
        self.numbers: dict[str, list[int]] = {}
        number_by_spec: dict[bytes, int] = {}
        for member in description.members:
            for spec in member.specs:
                number = number_by_spec.setdefault(_encode(spec), len(self.specs))
                if number == len(self.specs):
                    self.specs.append(spec)
                self.numbers.setdefault(member.name, []).append(number)
        self._numbers_by_key: dict[bytes, list[int]] = {}
        for number, spec in enumerate(self.specs):
            self._numbers_by_key.setdefault(differences.fixed_fields_key(spec), []).append(number)

    def spec_numbers(self, spec: RequestSpec) -> list[int]:
        """Return the numbers of the specs that do not differ from this spec."""
        return [
            number
            for number in self._numbers_by_key.get(differences.fixed_fields_key(spec), ())
            if not differences.differences_left_open(self.specs[number], spec)
        ]

    def number_of(self, member: str, name: str, claim: Claim | None) -> int:
        """Return the spec that a member was planned with: by the plan, else by its reservation."""
        numbers = self.numbers[member]
        chosen = self.alternatives.get(name)
        if chosen is not None and chosen < len(numbers):
            return numbers[chosen]
        if claim is None or len(numbers) == 1:
            return numbers[0]
        claimed = Counter[str]()
        for amounts in claim.allocations.values():
            claimed.update(amounts)
        fitting = [number for number in numbers if self.specs[number].resources == dict(claimed)]
        return fitting[0] if fitting else numbers[0]


class MemberReservations:
    """Plan and claims of its members, as they were read.

    :ivar members: members of the revision
    :ivar claims: name of a member -> its claim: the live one, else the last ended one
    :ivar free: free ones of these, that no create has
    :ivar guests: name of a member -> claims of guests of it, in order, by their ids
    :ivar replaced: see ``group_answer.is_current_guest``
    """

    def __init__(
        self,
        group: str,
        revision: int,
        members: PlannedMembers,
        claims: Iterable[Claim],
        replaced: Collection[str] = (),
    ) -> None:
        self.group = group
        self.revision = revision
        self.members = members
        self.claims: dict[str, Claim] = {}
        self.free: dict[str, Claim] = {}
        self.guests: dict[str, dict[str, Claim]] = {}
        self.replaced = frozenset(replaced)
        self._name_by_consumer: dict[str, str] = {}
        for claim in claims_in_order(claims):
            self.note(claim)
        self._units_by_name: dict[str, list[PlannedUnit]] = {}
        self._units_by_spec: dict[int, list[PlannedUnit]] = {}
        self._find_units()

    def _find_units(self) -> None:
        """Collect described members, and those that have a reservation under an earlier name."""
        more: dict[str, list[str]] = {}
        described = {
            name for member in self.members.description.members for name in member.unit_names
        }
        for name, claim in self.claims.items():
            member = '' if name in described else member_of(self.members.description, name)
            if member and claim.is_live:
                more.setdefault(member, []).append(name)
        position = 0
        for description in self.members.description.members:
            of_member = self._units_by_name.setdefault(description.name, [])
            others = sorted(more.get(description.name, ()), key=lambda name: (len(name), name))
            for name in [*description.unit_names, *others]:
                number = self.members.number_of(description.name, name, self.claims.get(name))
                unit = PlannedUnit(position, name, description.name, number)
                position += 1
                of_member.append(unit)
                if name != description.name:
                    self._units_by_name[name] = [unit]
                self._units_by_spec.setdefault(number, []).append(unit)

    def units_of_member(self, name: str) -> Sequence[PlannedUnit]:
        """Return the units of a member, or the unit of that name; empty: the name is unknown."""
        return self._units_by_name.get(name, ())

    def planned_with(self, numbers: Sequence[int]) -> Sequence[PlannedUnit]:
        """Return the units that were planned with a spec of these numbers, in order."""
        if len(numbers) == 1:
            return self._units_by_spec.get(numbers[0], ())
        return sorted(unit for number in numbers for unit in self._units_by_spec.get(number, ()))

    def nearest(self, spec: RequestSpec) -> PlannedUnit:
        """Return the first of the units with the fewest differences."""
        least = min(
            sorted(self._units_by_spec),
            key=lambda n: len(differences.plan_differences(self.members.specs[n], spec)),
        )
        return self._units_by_spec[least][0]

    def note(self, claim: Claim) -> None:
        """Record a change of a reservation."""
        name = claim.member_name
        if name is None:
            return
        guests = self.guests.setdefault(name, {})
        guests.pop(claim.id, None)
        if is_current_guest(claim, self.replaced):
            guests[claim.id] = claim
        before = self.claims.get(name)
        if before is not None:
            self._name_by_consumer.pop(before.consumer, None)
        self.claims[name] = claim
        self.free.pop(name, None)
        if claim.is_free_reservation:
            self.free[name] = claim
        elif claim.is_taken:
            self._name_by_consumer[claim.consumer] = name

    def guest_back(self, name: str, is_up: Callable[[Claim], bool]) -> Claim | None:
        """Return the guest that a free reservation was to replace, if its host responds again."""
        guests = [*self.guests.get(name, {}).values()] if name in self.free else []
        return next((guest for guest in reversed(guests) if is_up(guest)), None)

    def member_taken_by(self, consumer: str) -> str | None:
        """Return the member whose reservation a consumer has taken over, still unconfirmed."""
        return self._name_by_consumer.get(consumer)


class CreateView(NamedTuple):
    """State outside of the plan: hosts and claims.

    :ivar now: time by the clock of leases
    :ivar assumed: ids of claims that other creates are about to take over
    :ivar unusable: returns why the host of a reservation may not have another guest; '': it may
    :ivar spread: number of free reservations to draw from
    :ivar seed: seed of the draw
    :ivar is_up: returns whether the host of a guest responds
    :ivar problem_with_others: returns why a reservation may not be had together with those already
        chosen for the create; '': it may
    """

    now: float
    assumed: Container[str]
    unusable: Callable[[Claim], str]
    is_up: Callable[[Claim], bool]
    spread: int = 1
    seed: int = 0
    problem_with_others: Callable[[Claim, Sequence[Claim]], str] = lambda claim, chosen: ''


def offered_reservations(
    reservations: MemberReservations, request: SelectDestinations, count: int, view: CreateView
) -> OfferedReservations | None:
    """Return the reservations offered to a create; None: it is no member, which is allowed.

    :param count: consumers that need a reservation
    """
    spec, group = request.spec, request.spec.group
    named = None if group is None else group.member
    members = reservations.members
    base = OfferedReservations(
        group=reservations.group, revision=reservations.revision, named=named
    )
    equal = members.spec_numbers(spec)
    units = (
        reservations.planned_with(equal) if named is None else reservations.units_of_member(named)
    )
    if named is None and not units:
        return (
            None
            if _others_allowed(members.description)
            else _offer_of_unknown_spec(reservations, spec, base)
        )
    if named is not None and count > len(units):
        why = (
            _too_many_text(named, units, count)
            if units
            else _unknown_member_text(reservations, named)
        )
        return _replace(base, why=why)
    needed = count + min(view.spread, _SPREAD_MAX) - 1
    free = _first_free(reservations, units, equal, request.consumers, view, needed)
    if len(free) >= count:
        # A create that loses races for the next reservation is to draw from more.
        first = view.seed % (len(free) - count + 1)
        return _replace(base, free=[_offered(claim) for claim in free[first : first + count]])
    return _offer_with_too_few(reservations, units, equal, request, count, view, base)


_replace = msgspec.structs.replace


def _first_free(
    reservations: MemberReservations,
    units: Sequence[PlannedUnit],
    equal: Sequence[int],
    consumers: Sequence[str],
    view: CreateView,
    most: int,
) -> list[Claim]:
    """Return the first reservations that a create may have, first those that it took over before.

    :param equal: numbers of the specs that it is as
    """
    own_members = [
        name
        for consumer in consumers
        if (name := reservations.member_taken_by(consumer)) is not None
    ]
    usable: list[Claim] = []
    if own_members:
        names = {unit.name for unit in units if unit.spec in equal}
        usable = [
            claim
            for name in own_members
            if name in names and _is_usable(claim := reservations.claims[name], view)
        ]
    for unit in units:
        if len(usable) >= most:
            break
        reservation = reservations.free.get(unit.name)
        if reservation is None or unit.spec not in equal or not _is_usable(reservation, view):
            continue
        if view.problem_with_others(reservation, usable):
            continue
        if reservations.guest_back(unit.name, view.is_up) is None:
            usable.append(reservation)
    return usable


def _is_usable(claim: Claim, view: CreateView) -> bool:
    return (
        claim.id not in view.assumed
        and _plan_lease_end(claim) > view.now
        and not view.unusable(claim)
    )


def _plan_lease_end(claim: Claim) -> float:
    """Return the end of the plan's lease on a reservation."""
    return (
        claim.lease_until
        if claim.former_reservation is None
        else claim.former_reservation.lease_until
    )


def _offer_with_too_few(
    reservations: MemberReservations,
    units: Sequence[PlannedUnit],
    equal: Sequence[int],
    request: SelectDestinations,
    count: int,
    view: CreateView,
    base: OfferedReservations,
) -> OfferedReservations | None:
    """Return the offer for a create that there are too few free reservations for."""
    description, named = reservations.members.description, base.named
    state = _MemberReservationsFound(reservations, units, equal, request, view)
    if named is None:
        if _others_allowed(description):
            return None
    elif description.on_difference is OnDifference.REPLAN:
        instead = [*state.free, *state.different, *state.unusable]
        if len(instead) >= count:
            let_go = [_offered(reservations.claims[unit.name]) for unit in instead[:count]]
            return _replace(base, planned=state.planned, replaces=let_go)
    elif len(state.free) + len(state.different) >= count:
        return _replace(base, planned=state.planned)
    return _replace(base, why=_too_few_text(named, units, len(state.free), count, state.reasons))


def _offered(claim: Claim) -> OfferedReservation:
    return OfferedReservation(
        claim.member_name or '', claim.id, claim.provider_id, claim.allocations, claim.layout
    )


def _others_allowed(description: GroupDescription) -> bool:
    return description.others is OtherConsumers.ALLOWED


class _MemberReservationsFound:
    """Reservations of some members as a create finds them.

    :ivar free: reservations that it may have; ``different``: free ones of another spec than its
        own; ``unusable``: free ones on a host that may not be used
    :ivar planned: spec of the first of ``different``
    :ivar reasons: reasons of those that are none of these, and of the unusable, the first few
    """

    def __init__(
        self,
        reservations: MemberReservations,
        units: Sequence[PlannedUnit],
        equal: Sequence[int],
        request: SelectDestinations,
        view: CreateView,
    ) -> None:
        self.free: list[PlannedUnit] = []
        self.different: list[PlannedUnit] = []
        self.unusable: list[PlannedUnit] = []
        self.reasons: list[str] = []
        chosen: list[Claim] = []
        for unit in units:
            claim = reservations.claims.get(unit.name)
            why = unavailable_reason(unit.name, claim, view, request.consumers)
            guest = reservations.guest_back(unit.name, view.is_up)
            if guest is not None:
                why = f'{unit.name} was created before, as consumer {guest.consumer}, and runs'
            if not why and claim is not None:
                problem = view.unusable(claim) or view.problem_with_others(claim, chosen)
                if not problem:
                    (self.free if unit.spec in equal else self.different).append(unit)
                    chosen.append(claim)
                    continue
                self.unusable.append(unit)
                why = f'the place of {unit.name} cannot be had: {problem}'
            if len(self.reasons) < _NAMED_MAX:
                self.reasons.append(why)
        specs = reservations.members.specs
        self.planned = specs[self.different[0].spec] if self.different else None


def unavailable_reason(
    name: str, claim: Claim | None, view: CreateView, consumers: Container[str] = ()
) -> str:
    """Return why a create does not get the reservation of a member; '': it may.

    :param claim: claim of the member; None: it has none
    :param consumers: consumers of the create: unconfirmed reservations that they took over before
        are theirs
    """
    if claim is None:
        return f'{name} has no place in the plan: {_HEAL_HINT}'
    if not claim.is_live:
        because = f', {claim.reason}' if claim.reason else ''
        return f'the place of {name} is no more ({claim.state.value}{because}): {_HEAL_HINT}'
    if claim.state is State.CONFIRMED or claim.lifecycle is not Lifecycle.PLAN:
        return f'{name} was created before, as consumer {claim.consumer}'
    if claim.former_reservation is not None and claim.consumer not in consumers:
        return f'the place of {name} is taken by consumer {claim.consumer}'
    if claim.id in view.assumed:
        return f'the place of {name} is being taken by another create'
    return (
        ''
        if _plan_lease_end(claim) > view.now
        else f'the place of {name} has expired: {_REPLAN_HINT}'
    )


def _offer_of_unknown_spec(
    reservations: MemberReservations, spec: RequestSpec, base: OfferedReservations
) -> OfferedReservations:
    unit = reservations.nearest(spec)
    why = f'the plan of the group has no member like it; the nearest is {unit.member}'
    return _replace(base, planned=reservations.members.specs[unit.spec], why=why)


def _unknown_member_text(reservations: MemberReservations, name: str) -> str:
    names = reservations.members.names
    meant = nearest_names(name, names, 1)
    more = len(names) - _NAMED_MAX
    listed = ', '.join(names[:_NAMED_MAX]) + (f' and {more} more' if more > 0 else '')
    hint = f'did you mean {meant[0]!r}?' if meant else f'there are {listed}'
    return f'the plan of the group has no member {name!r}; {hint}'


def _too_many_text(named: str, units: Sequence[PlannedUnit], count: int) -> str:
    places = 'one place' if len(units) == 1 else f'{len(units)} places'
    return f'{named} has {places} in the plan, and the request has {count} consumers'


def _too_few_text(
    named: str | None, units: Sequence[PlannedUnit], free: int, count: int, reasons: list[str]
) -> str:
    more = len(units) - free - len(reasons)
    lines = '; '.join(reasons) + (f'; and {more} more like that' if more > 0 else '')
    if len(units) == 1:
        return lines
    owners = named if named is not None else ', '.join(dict.fromkeys(unit.member for unit in units))
    free_count = (
        f'none of the {len(units)} places' if not free else f'{free} of the {len(units)} places'
    )
    request_size = f', and the request has {count} consumers' if count > 1 else ''
    verb = 'is' if free < 2 else 'are'
    return f'{free_count} of {owners} {verb} free{request_size}: {lines}'
