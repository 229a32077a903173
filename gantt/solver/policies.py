# SPDX-License-Identifier: Apache-2.0
"""Policies as constraints: hard ones hold, of others what they are violated by is a sum."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from gantt.core.group_policies.levels import UNKNOWN
from gantt.core.group_policies.policies import JointPolicy, PolicyForm
from gantt.core.groups.problem import WEIGHT_UNIT
from gantt.solver.sums import Sum, Sums

#: By domain.
_Domains = dict[int, Sum]


def post(sums: Sums, policy: JointPolicy, of: Mapping[int, Sum], to: Mapping[int, Sum]) -> Sum:
    """Add one policy.

    :param of: by row, its units there
    :param to: by row, its others
    :returns: of a policy that is soft its weight, of one to be dropped its violation
    """
    weight = round(policy.weight * WEIGHT_UNIT) if policy.weight else 1
    mine, lost = _by_domain(policy.codes, of)
    if policy.form is PolicyForm.NEAR:
        return _near(sums, policy, of, to)
    others, others_lost = _by_domain(policy.codes, to)
    total = Sum()
    match policy.form:
        case PolicyForm.MOST:
            found = _most(sums, policy, mine)
        case PolicyForm.LEAST:
            found = _least(sums, policy, mine, lost)
        case PolicyForm.SKEW:
            found = _skew(sums, policy, mine)
        case PolicyForm.TOGETHER:
            found = _together(sums, policy, mine)
        case _:
            found = _apart(sums, policy, mine, others)
            if policy.both and not policy.is_hard:
                found.append((others_lost, 1))
    if not policy.is_hard:
        found.append((lost, 1))
        for one, times in found:
            scaled = sums.number(one.most)
            sums.cp.add(scaled >= one.expression())
            total.add(scaled, times * weight, one.most)
    return total


#: Sums that the violation is made of, each with how often it counts.
_Found = list[tuple[Sum, int]]


def _by_domain(codes: np.ndarray, sides: Mapping[int, Sum]) -> tuple[_Domains, Sum]:
    found: _Domains = defaultdict(Sum)
    lost = Sum()
    for row, one in sides.items():
        code = int(codes[row])
        (lost if code == UNKNOWN else found[code]).extend(one)
    return found, lost


def _most(sums: Sums, policy: JointPolicy, mine: _Domains) -> _Found:
    over = Sum()
    for code, total in mine.items():
        standing = int(policy.standing[code])
        room = max(policy.amount, standing) - standing
        if policy.is_hard:
            total.at_most(sums.cp, room)
        elif total.most > room:
            more = sums.number(total.most - room)
            sums.cp.add(more >= total.expression() - room)
            over.add(more, 1, total.most - room)
    return [(over, 1)]


def _least(sums: Sums, policy: JointPolicy, mine: _Domains, lost: Sum) -> _Found:
    stands = int(np.count_nonzero(policy.standing > 0))
    used, placed = Sum(), Sum()
    placed.extend(lost)
    for code, total in mine.items():
        placed.extend(total)
        if policy.standing[code] > 0:
            continue
        is_used = sums.flag()
        sums.cp.add(is_used <= total.expression())
        used.add(is_used, 1, 1)
    short = sums.number(policy.amount)
    if policy.is_hard:
        sums.cp.add(short == 0)
    # As many domains as asked for, or as there are members.
    is_few = sums.flag()
    have = used.expression() + stands + short
    sums.cp.add(have >= policy.amount).only_enforce_if(~is_few)
    members = placed.expression() + int(policy.standing.sum())
    sums.cp.add(have >= members).only_enforce_if(is_few)
    return [(sums.total([short], most=policy.amount), 1)]


def _skew(sums: Sums, policy: JointPolicy, mine: _Domains) -> _Found:
    stands, eligible = policy.standing, np.flatnonzero(policy.eligible).tolist()
    width = int(stands.max(initial=0)) + sum(total.most for total in mine.values())
    least, over, joined = sums.number(width), Sum(), [c for c in eligible if c in mine]
    for code in eligible:
        sums.cp.add(least <= mine[code].expression() + int(stands[code]))
    for code in joined:
        total, standing = mine[code], int(stands[code])
        most = least + policy.amount
        if standing > policy.amount:
            # What stands may be more than that: then nobody joins it.
            is_more, most = sums.flag(), sums.number(width + policy.amount)
            sums.cp.add(most <= standing).only_enforce_if(is_more)
            sums.cp.add(most <= least + policy.amount).only_enforce_if(~is_more)
        if policy.is_hard:
            sums.cp.add(total.expression() + standing <= most)
            continue
        beyond = sums.number(total.most)
        sums.cp.add(beyond >= total.expression() + standing - most)
        over.add(beyond, 1, total.most)
    return [(over, 1)]


def _together(sums: Sums, policy: JointPolicy, mine: _Domains) -> _Found:
    chosen, apart = [], Sum()
    for total in mine.values():
        is_chosen = sums.flag()
        chosen.append(is_chosen)
        if policy.is_hard:
            sums.cp.add(total.expression() <= total.most * is_chosen)
            continue
        away = sums.number(total.most)
        sums.cp.add(away >= total.expression() - total.most * is_chosen)
        apart.add(away, 1, total.most)
    sums.cp.add_at_most_one(chosen)
    return [(apart, 1)]


def _apart(sums: Sums, policy: JointPolicy, mine: _Domains, others: _Domains) -> _Found:
    near = Sum()
    for code, total in mine.items():
        if policy.taken[code]:
            near.extend(total)  # of a hard policy there is no such variable
            continue
        if code not in others:
            continue
        is_theirs = sums.flag()
        sums.cp.add(others[code].expression() <= others[code].most * is_theirs)
        if policy.is_hard:
            sums.cp.add(total.expression() <= total.most * (1 - is_theirs))
            continue
        away = sums.number(total.most)
        sums.cp.add(away >= total.expression() - total.most * (1 - is_theirs))
        near.add(away, 1, total.most)
    for code, total in others.items():
        if policy.standing[code] > 0:
            near.extend(total)
    return [(near, 1)]


def _near(sums: Sums, policy: JointPolicy, of: Mapping[int, Sum], to: Mapping[int, Sum]) -> Sum:
    """Members by the domains that they share with the target, level by level."""
    present = [_present(sums, level.codes, level.present, to) for level in policy.near]
    groups: dict[tuple[int, ...], Sum] = defaultdict(Sum)
    for row, one in of.items():
        groups[tuple(int(level.codes[row]) for level in policy.near)].extend(one)
    cost, factor = Sum(), policy.weight * WEIGHT_UNIT if policy.weight else 1.0
    values = [round(level.price * factor) for level in policy.near] + [
        round(policy.beyond * factor)
    ]
    for codes, total in groups.items():
        flags = [known.get(code) for known, code in zip(present, codes, strict=True)]
        if policy.is_hard:
            if flags[0] is True:
                continue
            is_near = 0 if flags[0] is None else flags[0]
            sums.cp.add(total.expression() <= total.most * is_near)
            continue
        # What all cost that are beyond; less what those save that are near at a level.
        for x in _scaled(sums, total, values[-1]):
            cost.add(*x)
        for at in range(len(policy.near)):
            saved = values[at + 1] - values[at]
            nearer = [flag for flag in flags[: at + 1] if flag is not None]
            if not saved or not nearer:
                continue
            near = sums.number(total.most)
            sums.cp.add(near <= total.expression())
            if not any(flag is True for flag in nearer):
                sums.cp.add(near <= total.most * sum(nearer))
            cost.add(near, -saved, 0)
    return cost


def _scaled(sums: Sums, total: Sum, weight: int) -> list[tuple[Any, int, int]]:
    scaled = sums.number(total.most)
    sums.cp.add(scaled == total.expression())
    return [(scaled, weight, total.most)]


def _present(
    sums: Sums, codes: np.ndarray, stands: np.ndarray, to: Mapping[int, Sum]
) -> dict[int, Any]:
    """By domain whether the target is there: True, or a flag that may be 1 where it is."""
    found: dict[int, Any] = {code: True for code in np.flatnonzero(stands).tolist()}
    by_code, _ = _by_domain(codes, to)
    for code, total in by_code.items():
        if code not in found:
            found[code] = sums.flag()
            sums.cp.add(found[code] <= total.expression())
    return found
