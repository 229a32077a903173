# SPDX-License-Identifier: Apache-2.0
"""Rule of acceptance: whether a claim may be written, judged under the locks of its providers.

It depends on the claimant:

- a scheduler writes only where its providers are open: not disabled, and over-full in no class;
- a writer of allocations by the API is judged class by class.  Whatever grows needs room, what
  is over-full already it may keep or shrink, and whether a host is open to schedulers does not
  concern it;
- a host that reports its running guests is not judged.  They are counted, and the host
  is flagged as over-full where that is more than its capacity, see :func:`is_over_committed`.

Where a scheduler's claim takes from a pool that serves its host, the two have to share an aggregate
still: a writer that changes that writes one of the two under its lock.

The units of the inventories (``min_unit``, ``max_unit``, ``step_size``) hold for both that are
judged, on every provider that a claim takes from.  Plans keep to them; but the inventory of a
provider may have changed since a plan was computed.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import ClaimDraft, RefusalKind, RequestDraft
from gantt.core.messages.layout import readable
from gantt.core.messages.request import Lifecycle
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.amounts import add_allocations, add_amounts
from gantt.core.resources.host import HostRow
from gantt.core.topology.fit import Problem
from gantt.core.topology.free import FreeTopology


class Claimant(enum.StrEnum):
    """Writer of a claim."""

    SCHEDULER = 'scheduler'
    API = 'api'

    @classmethod
    def claimant_of(cls, claim: Claim) -> 'Claimant':
        """Return the claimant by the lifecycle: API claims are ended by their writer as well."""
        return cls.API if claim.lifecycle is Lifecycle.API else cls.SCHEDULER


class Refusal(msgspec.Struct, frozen=True):
    """Reason why a claim is not written; ``reason`` names the provider."""

    kind: RefusalKind
    reason: str


class SharesRefusal(msgspec.Struct, frozen=True):
    """Reason why allocations may not be written.

    :ivar provider_id: id of the provider that refuses
    :ivar names: classes concerned
    :ivar why: ``missing``: it has no inventory of them; ``units``; ``capacity``
    :ivar reason: names the provider
    """

    provider_id: int
    names: list[str]
    why: str
    reason: str


class ProviderState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a provider under its lock.

    :ivar inventories: by class
    :ivar room: class -> cap - used - foreign; below 0: over-full
    :ivar closed: why schedulers may not claim on it, see :func:`why_closed`; '': they may
    :ivar serves: hosts of the batch that it serves, as a pool that they share
    :ivar inside: free topology of it beside its live claims, where a layout of the batch is on it;
        changed in place
    """

    name: str
    generation: int
    inventories: Mapping[str, Inventory]
    room: Mapping[str, int]
    closed: str = ''
    serves: frozenset[int] = frozenset()
    inside: FreeTopology | None = None


def with_inventories(state: ProviderState, inventories: Mapping[str, Inventory]) -> ProviderState:
    """Return a provider as if it had other inventories; its use stays."""
    room = dict(state.room)
    for name in {*state.inventories, *inventories}:
        before, now = state.inventories.get(name), inventories.get(name)
        grown = (now.cap if now is not None else 0) - (before.cap if before is not None else 0)
        room[name] = room.get(name, 0) + grown
    return msgspec.structs.replace(state, inventories=inventories, room=room)


class Acceptance(msgspec.Struct, frozen=True):
    """Claims of a request that may be written.

    :ivar accepted: indices of its claims
    :ivar refusal: refusal of the first claim that may not be written; None: all may be
    """

    accepted: list[int]
    refusal: Refusal | None = None


#: provider id -> class -> amount
Shares = Mapping[int, Mapping[str, int]]
NO_RIVALS: Mapping[str, Sequence[Claim]] = MappingProxyType({})
_NO_AMOUNTS: Mapping[str, int] = MappingProxyType({})


def accepted_claims(
    providers: Mapping[int, ProviderState],
    requests: Iterable[RequestDraft],
    rivals: Mapping[str, Sequence[Claim]] = NO_RIVALS,
) -> dict[str, Acceptance]:
    """Return which claims of each request may be written, in arrival order.

    The plain rule behind every group commit: a claim is accepted where :func:`why_claim_refused`
    returns None for each of its allocations, with what was accepted before it, and where its layout
    takes nothing that is taken: resources free at one generation of a host need not be at another,
    so that is checked again under the lock.  A refusal concerns only the request that brings
    it; a request that is ``whole`` is accepted whole or not at all.

    :param providers: states by provider id, under the locks; deleted providers are missing
    :param rivals: id of a claim -> live claims that give way to it.  Their amounts count as free
        for the API, whose claim replaces them; a scheduler finds room next to them
    :returns: by the id of the request
    """
    stock = _FreeAmounts(providers)
    acceptances: dict[str, Acceptance] = {}
    for request in requests:
        accepted: list[int] = []
        refused: Refusal | None = None
        for index, draft in enumerate(request.claims):
            leaving = _replaced_claims(draft.claim, rivals)
            refusal = stock.why_claim_refused(draft, leaving)
            if refusal is None:
                stock.subtract(draft.claim, leaving, 1)
                accepted.append(index)
            elif refused is None:
                refused = refusal
        if request.whole and refused is not None:
            for index in accepted:
                claim = request.claims[index].claim
                stock.subtract(claim, _replaced_claims(claim, rivals), -1)
            accepted = []
        acceptances[request.id] = Acceptance(accepted, refused)
    return acceptances


def why_claim_refused(
    claimant: Claimant,
    provider: ProviderState,
    room: Mapping[str, int],
    amounts: Mapping[str, int],
    before: Mapping[str, int] = _NO_AMOUNTS,
) -> Refusal | None:
    """Return why a claim on one provider is refused; None: it is not.

    :param room: remaining room, by class
    :param amounts: amounts of the claim there, by class
    :param before: amounts of claims there that give way to it, by class
    """
    if claimant is Claimant.SCHEDULER and provider.closed:
        return Refusal(RefusalKind.CLOSED, f'{provider.name} {provider.closed}')
    for name, amount in amounts.items():
        problem = _missing_inventory(provider, name, amount) or _over_capacity(
            name, amount - before.get(name, 0), room
        )
        if problem is not None:
            return _refusal(RefusalKind.ROOM, provider, problem)
        problem = _unit_problem(provider, name, amount)
        if problem is not None:
            return _refusal(RefusalKind.UNITS, provider, problem)
    return None


def why_allocations_refused(
    providers: Mapping[int, ProviderState],
    before: Sequence[Shares],
    now: Sequence[Shares],
    taken_over: Sequence[Shares] = (),
) -> SharesRefusal | None:
    """Return why allocations that the API writes together are refused; None: they are not.

    They are judged by their outcome: what one consumer gives up another one may take.

    :param before: amounts of each consumer before: provider id -> class -> amount
    :param now: amounts of each consumer afterwards; all of these providers are among ``providers``
    :param taken_over: amounts that other claims inherit from those given up here
    """
    bare = _without_inventory(providers, now)
    if bare is not None:
        return bare
    grows = _added_amounts(before, [*now, *taken_over])
    for shares in now:
        for pid, amounts in shares.items():
            for name, amount in amounts.items():
                refusal = _refusal_of_growth(providers[pid], pid, name, amount, grows[pid][name])
                if refusal is not None:
                    return refusal
    return None


def _added_amounts(before: Iterable[Shares], now: Iterable[Shares]) -> dict[int, dict[str, int]]:
    """Return the growth of use on each provider, by class."""
    grows: dict[int, dict[str, int]] = {}
    for sign, shares in ((-1, before), (1, now)):
        for allocations in shares:
            add_allocations(grows, allocations.items(), sign)
    return grows


def _refusal_of_growth(
    provider: ProviderState, pid: int, name: str, amount: int, grows: int
) -> SharesRefusal | None:
    for why, problem in (
        ('missing', _missing_inventory(provider, name, amount)),
        ('units', _unit_problem(provider, name, amount)),
        ('capacity', _over_capacity(name, grows, provider.room)),
    ):
        if problem is not None:
            return SharesRefusal(pid, [name], why, f'{provider.name}: {problem}')
    return None


def _without_inventory(
    providers: Mapping[int, ProviderState], now: Sequence[Shares]
) -> SharesRefusal | None:
    """Return a refusal for a provider without inventory of any class requested here."""
    names = sorted({name for shares in now for amounts in shares.values() for name in amounts})
    for shares in now:
        for pid in shares:
            if providers[pid].inventories.keys().isdisjoint(names):
                reason = f'{providers[pid].name}: it has none of {", ".join(names)}'
                return SharesRefusal(pid, names, 'missing', reason)
    return None


def _missing_inventory(provider: ProviderState, name: str, amount: int) -> Problem | None:
    if amount > 0 and name not in provider.inventories:
        return Problem(name, 'missing', amount, 0)
    return None


def _over_capacity(name: str, growth: int, room: Mapping[str, int]) -> Problem | None:
    have = room.get(name, 0)
    return Problem(name, 'capacity', growth, have) if growth > 0 and growth > have else None


def _unit_problem(provider: ProviderState, name: str, amount: int) -> Problem | None:
    # A class that is not taken has no units.
    inventory = provider.inventories.get(name) if amount > 0 else None
    misfit = None if inventory is None else inventory.unit_problem(amount)
    return None if misfit is None else Problem(name, misfit[0], amount, misfit[1])


def why_closed(row: HostRow, *, over_full: bool) -> str:
    """Return why schedulers may not claim on a host; '' where they may."""
    if row.disabled is not None:
        return 'is disabled'
    if row.service_disabled is not None:
        return 'has its service disabled'
    return 'is over-full' if over_full else ''


def is_over_committed(row: HostRow) -> bool:
    """Return whether claims and foreign use exceed the capacity of any class."""
    foreign, inventories = row.foreign, row.facts.inventories
    for name in (*row.used, *foreign):
        taken = row.used.get(name, 0) + foreign.get(name, 0)
        inventory = inventories.get(name)
        if taken > (inventory.cap if inventory is not None else 0):
            return True
    return False


class _FreeAmounts:
    """Remaining room of providers while a batch is judged."""

    def __init__(self, providers: Mapping[int, ProviderState]) -> None:
        self._providers = providers
        self._free_amounts = {pid: dict(provider.room) for pid, provider in providers.items()}

    def why_claim_refused(self, draft: ClaimDraft, leaving: Sequence[Claim]) -> Refusal | None:
        """Return why a claim is refused; None: it may be written."""
        claim, claimant = draft.claim, Claimant.claimant_of(draft.claim)
        for pid, amounts in claim.allocations.items():
            provider = self._providers.get(pid)
            if provider is None:
                return Refusal(RefusalKind.GONE, f'provider {pid} is not there any more')
            before = _amounts_on(leaving, pid) if leaving else _NO_AMOUNTS
            refusal = why_claim_refused(
                claimant, provider, self._free_amounts[pid], amounts, before
            )
            if refusal is not None:
                return refusal
        for pid in draft.served_by:
            if claim.provider_id not in self._providers[pid].serves:
                name = self._providers[pid].name
                return Refusal(RefusalKind.DETACHED, f'{name} does not serve {claim.host} any more')
        host = self._providers.get(claim.provider_id)
        layout = None if claim.layout is None else readable(claim.layout)
        if layout is not None:
            if host is None or host.inside is None or not host.inside.has_free(layout):
                return Refusal(RefusalKind.LAYOUT, f'{claim.host}: its layout is taken')
        # Members of one batch are planned on one working table and know of the members
        # before them; only what others changed since voids what was planned.
        elif draft.generation is not None and (host is None or host.generation != draft.generation):
            return Refusal(RefusalKind.LAYOUT, f'{claim.host} has changed since its layout')
        return None

    def subtract(self, claim: Claim, leaving: Iterable[Claim], sign: int) -> None:
        """Subtract the amounts of a claim from what is left, and add those of claims it replaces.

        :param leaving: the claims that it replaces
        :param sign: -1 undoes both
        """
        self._add_claim(claim, sign)
        for other in leaving:
            self._add_claim(other, -sign)
        layout = None if claim.layout is None else readable(claim.layout)
        inside = self._providers[claim.provider_id].inside if layout is not None else None
        if layout is not None and inside is not None:
            inside.allocate(layout, sign)

    def _add_claim(self, claim: Claim, sign: int) -> None:
        for pid, amounts in claim.allocations.items():
            add_amounts(self._free_amounts.get(pid, {}), amounts, -sign)


def _replaced_claims(claim: Claim, rivals: Mapping[str, Sequence[Claim]]) -> Sequence[Claim]:
    """Return claims that a claim replaces: those of a scheduler stay while it is judged."""
    leaving = rivals.get(claim.id, ()) if rivals else ()
    return leaving if leaving and Claimant.claimant_of(claim) is Claimant.API else ()


def _amounts_on(claims: Iterable[Claim], pid: int) -> dict[str, int]:
    total: dict[str, int] = {}
    for claim in claims:
        add_amounts(total, claim.allocations.get(pid, {}))
    return total


def _refusal(kind: RefusalKind, provider: ProviderState, problem: Problem) -> Refusal:
    return Refusal(kind, f'{provider.name}: {problem}')
