# SPDX-License-Identifier: Apache-2.0
"""Inheritance of pool amounts: a moving consumer's use of a pool counts once, for all its claims.

A disk on shared storage exists once, whether its guest is about to leave a host or has just come
to another.  So the destination's claim of a move takes of a pool only what it needs more than the
live claims of its consumer have there, and *inherits* the rest: when one of these ends, what it
took goes over to the claims that inherit, and only what none of them needs is given back.  When
the destination's claim ends first, nothing has happened to the others.

A writer that ends such a claim has its pools locked, and so has one that ends the heir.

A write of allocations may let a claim end, or take less, beside others that inherit from it.  Then
use is the sum of what all of them have as written: claims whose writer states all that
they take inherit no more than the others still have, and any other takes over what it lacks.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.resources.amounts import add_allocations, add_amounts

#: Provider id -> class -> amount.
Amounts = Mapping[int, Mapping[str, int]]


def has_pool_amounts(claim: Claim) -> bool:
    """Return whether a claim takes of a provider that is not its host."""
    return len(claim.allocations) > 1


def held_outside_host(claims: Iterable[Claim]) -> dict[int, dict[str, int]]:
    """Return what live claims of a consumer take of providers other than their hosts."""
    amounts_held: dict[int, dict[str, int]] = {}
    for claim in claims:
        for pid, amounts in claim.allocations.items() if claim.is_live else ():
            if pid != claim.provider_id:
                add_amounts(amounts_held.setdefault(pid, {}), amounts)
    return amounts_held


def amounts_with_inherited(claim: Claim) -> dict[int, dict[str, int]]:
    """Return all that a claim is to have, with what it inherits."""
    total = {pid: dict(amounts) for pid, amounts in claim.allocations.items()}
    add_allocations(total, claim.inherits.items())
    return total


def with_inherited(claim: Claim, there: Amounts) -> Claim:
    """Return the claim with only the amounts beyond those of its consumer's other claims.

    :param there: amounts of its consumer's other claims, see :func:`held_outside_host`
    """
    allocations, inherits = amounts_with_inherited(claim), dict[int, dict[str, int]]()
    for pid, amounts in allocations.items():
        have = there.get(pid, {}) if pid != claim.provider_id else {}
        for name in sorted(amounts.keys() & have.keys()):
            part = min(amounts[name], have[name])
            if part > 0:
                amounts[name] -= part
                inherits.setdefault(pid, {})[name] = part
                if not amounts[name]:
                    del amounts[name]
    return msgspec.structs.replace(claim, allocations=allocations, inherits=inherits)


def heirs(ended: Claim, others: Sequence[Claim]) -> list[tuple[Claim, Claim]]:
    """Return claims that take over what an ended one took: each before and after.

    The oldest come first; of what is left after them the next ones have their part.
    :param others: live claims of its consumer, without itself
    """
    pairs: list[tuple[Claim, Claim]] = []
    remaining = {
        pid: dict(amounts) for pid, amounts in ended.allocations.items() if pid != ended.provider_id
    }
    for heir in sorted(others, key=lambda claim: (claim.created_at, claim.id)):
        taken = {
            pid: {
                name: part
                for name, amount in amounts.items()
                if (part := min(amount, remaining.get(pid, {}).get(name, 0))) > 0
            }
            for pid, amounts in heir.inherits.items()
        }
        taken = {pid: amounts for pid, amounts in taken.items() if amounts}
        if taken:
            for pid, amounts in taken.items():
                for name, part in amounts.items():
                    remaining[pid][name] -= part
            pairs.append((heir, _add_inherited(heir, taken)))
    return pairs


def inheritance_after_write(
    before: Iterable[Claim], after: Iterable[Claim], stated_claims: Container[str]
) -> list[tuple[Claim, Claim]]:
    """Return claims that inherit, as they change where allocations of one guest were written.

    :param before: its live claims, as they were
    :param after: its live claims as they are written; without ended ones, with new ones
    :param stated_claims: ids of claims whose writer states all that they take
    :returns: each changed claim, as in ``after``, and as it becomes; the oldest first
    """
    now = {
        claim.id: claim for claim in sorted(after, key=lambda claim: (claim.created_at, claim.id))
    }
    remaining = _subtract_amounts(held_outside_host(before), held_outside_host(now.values()))
    pairs: list[tuple[Claim, Claim]] = []
    for claim in list(now.values()):
        others = held_outside_host(other for other in now.values() if other.id != claim.id)
        lacks = _subtract_amounts(claim.inherits, others)
        if not lacks:
            continue
        if claim.id in stated_claims:
            becomes = msgspec.structs.replace(
                claim, inherits=_subtract_amounts(claim.inherits, lacks)
            )
        else:
            taken = _minimum_amounts(lacks, remaining)
            remaining = _subtract_amounts(remaining, taken)
            becomes = _add_inherited(claim, taken) if taken else claim
        if becomes != claim:
            now[claim.id] = becomes
            pairs.append((claim, becomes))
    return pairs


def uncovered_inheritances(theirs: Sequence[Claim], names: Mapping[int, str]) -> Iterator[str]:
    """Yield a line for each amount that a claim inherits and that no other claim has.

    :param theirs: live claims of one guest
    :param names: names of the providers that they inherit of, as lines show them
    """
    for claim in theirs:
        if not claim.inherits:
            continue
        others = held_outside_host(other for other in theirs if other.id != claim.id)
        for pid, amounts in sorted(_subtract_amounts(claim.inherits, others).items()):
            for name in sorted(amounts):
                has = others.get(pid, {}).get(name, 0)
                yield (
                    f'claim {claim.id} of {claim.consumer}: inherits {claim.inherits[pid][name]} '
                    f'{name} of {names[pid]}; other claims of its guest have {has} there'
                )


def _subtract_amounts(amounts: Amounts, others: Amounts) -> dict[int, dict[str, int]]:
    """Return the amounts minus the others, by provider and class; nothing below 0."""
    rest = {
        pid: {
            name: excess_amount
            for name, amount in class_amounts.items()
            if (excess_amount := amount - others.get(pid, {}).get(name, 0)) > 0
        }
        for pid, class_amounts in amounts.items()
    }
    return {pid: class_amounts for pid, class_amounts in rest.items() if class_amounts}


def _minimum_amounts(amounts: Amounts, others: Amounts) -> dict[int, dict[str, int]]:
    """Return the smaller amount of each provider and class that both have."""
    return _subtract_amounts(amounts, _subtract_amounts(amounts, others))


def amounts_gained(before: Claim, now: Claim) -> dict[int, dict[str, int]]:
    """Return what a claim takes more than before: provider id -> class -> amount."""
    return {
        pid: {
            name: amount - before.allocations.get(pid, {}).get(name, 0)
            for name, amount in amounts.items()
        }
        for pid, amounts in now.allocations.items()
        if amounts != before.allocations.get(pid)
    }


def _add_inherited(heir: Claim, taken: Amounts) -> Claim:
    allocations = {pid: dict(amounts) for pid, amounts in heir.allocations.items()}
    inherits = {pid: dict(amounts) for pid, amounts in heir.inherits.items()}
    for pid, amounts in taken.items():
        here = allocations.setdefault(pid, {})
        for name, part in amounts.items():
            here[name] = here.get(name, 0) + part
            inherits[pid][name] -= part
    inherits = {
        pid: {name: amount for name, amount in amounts.items() if amount}
        for pid, amounts in inherits.items()
    }
    return msgspec.structs.replace(
        heir,
        allocations=allocations,
        inherits={pid: amounts for pid, amounts in inherits.items() if amounts},
    )
