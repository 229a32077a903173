# SPDX-License-Identifier: Apache-2.0
"""Policies as constraints: hard ones hold, the violation of others is a sum."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from gantt.core.group_policies.levels import UNKNOWN
from gantt.core.group_policies.policies import JointPolicy, PolicyForm
from gantt.core.groups.problem import WEIGHT_UNIT
from gantt.solver.sums import Sum, Sums

#: Sums by domain.
_Domains = dict[int, Sum]


def post(sums: Sums, policy: JointPolicy, of: Mapping[int, Sum], to: Mapping[int, Sum]) -> Sum:
    """Add one policy.

    :param of: by row, its units there
    :param to: by row, its others
    :returns: weight of the violation of a soft policy; violation of one to be dropped
    """
    weight = round(policy.weight * WEIGHT_UNIT) if policy.weight else 1
    units, units_lost = _by_domain(policy.codes, of)
    if policy.form is PolicyForm.NEAR:
        return _near(sums, policy, of, to)
    units_of_others, others_lost = _by_domain(policy.codes, to)
    total = Sum()
    match policy.form:
        case PolicyForm.MOST:
            terms = _most(sums, policy, units)
        case PolicyForm.LEAST:
            terms = _least(sums, policy, units, units_lost)
        case PolicyForm.SKEW:
            terms = _skew(sums, policy, units)
        case PolicyForm.TOGETHER:
            terms = _together(sums, policy, units)
        case _:
            terms = _apart(sums, policy, units, units_of_others)
            if policy.both and not policy.is_hard:
                terms.append((others_lost, 1))
    if not policy.is_hard:
        terms.append((units_lost, 1))
        for violation, times in terms:
            scaled = sums.number(violation.most)
            sums.cp.add(scaled >= violation.expression())
            total.add(scaled, times * weight, violation.most)
    return total


#: Sums that form the violation, each with its factor.
_Found = list[tuple[Sum, int]]


def _by_domain(codes: np.ndarray, sides: Mapping[int, Sum]) -> tuple[_Domains, Sum]:
    by_domain: _Domains = defaultdict(Sum)
    lost = Sum()
    for row, row_sum in sides.items():
        code = int(codes[row])
        (lost if code == UNKNOWN else by_domain[code]).extend(row_sum)
    return by_domain, lost


def _most(sums: Sums, policy: JointPolicy, mine: _Domains) -> _Found:
    violation = Sum()
    for code, total in mine.items():
        standing = int(policy.standing[code])
        room = max(policy.amount, standing) - standing
        if policy.is_hard:
            total.at_most(sums.cp, room)
        elif total.most > room:
            excess = sums.number(total.most - room)
            sums.cp.add(excess >= total.expression() - room)
            violation.add(excess, 1, total.most - room)
    return [(violation, 1)]


def _least(sums: Sums, policy: JointPolicy, mine: _Domains, lost: Sum) -> _Found:
    standing_domains = int(np.count_nonzero(policy.standing > 0))
    used, placed = Sum(), Sum()
    placed.extend(lost)
    for code, total in mine.items():
        placed.extend(total)
        if policy.standing[code] > 0:
            continue
        is_used = sums.flag()
        sums.cp.add(is_used <= total.expression())
        used.add(is_used, 1, 1)
    shortfall = sums.number(policy.amount)
    if policy.is_hard:
        sums.cp.add(shortfall == 0)
    # As many domains as requested, or as there are members.
    is_few = sums.flag()
    have = used.expression() + standing_domains + shortfall
    sums.cp.add(have >= policy.amount).only_enforce_if(~is_few)
    members = placed.expression() + int(policy.standing.sum())
    sums.cp.add(have >= members).only_enforce_if(is_few)
    return [(sums.total([shortfall], most=policy.amount), 1)]


def _skew(sums: Sums, policy: JointPolicy, mine: _Domains) -> _Found:
    standing_counts, eligible = policy.standing, np.flatnonzero(policy.eligible).tolist()
    width = int(standing_counts.max(initial=0)) + sum(total.most for total in mine.values())
    least_used, violation, joined = (
        sums.number(width),
        Sum(),
        [code_ for code_ in eligible if code_ in mine],
    )
    for code in eligible:
        sums.cp.add(least_used <= mine[code].expression() + int(standing_counts[code]))
    for code in joined:
        total, standing = mine[code], int(standing_counts[code])
        bound = least_used + policy.amount
        if standing > policy.amount:
            # More members than that may be there already: then none joins them.
            is_more, bound = sums.flag(), sums.number(width + policy.amount)
            sums.cp.add(bound <= standing).only_enforce_if(is_more)
            sums.cp.add(bound <= least_used + policy.amount).only_enforce_if(~is_more)
        if policy.is_hard:
            sums.cp.add(total.expression() + standing <= bound)
            continue
        beyond = sums.number(total.most)
        sums.cp.add(beyond >= total.expression() + standing - bound)
        violation.add(beyond, 1, total.most)
    return [(violation, 1)]


def _together(sums: Sums, policy: JointPolicy, mine: _Domains) -> _Found:
    chosen, violation = [], Sum()
    for total in mine.values():
        is_chosen = sums.flag()
        chosen.append(is_chosen)
        if policy.is_hard:
            sums.cp.add(total.expression() <= total.most * is_chosen)
            continue
        away = sums.number(total.most)
        sums.cp.add(away >= total.expression() - total.most * is_chosen)
        violation.add(away, 1, total.most)
    sums.cp.add_at_most_one(chosen)
    return [(violation, 1)]


def _apart(sums: Sums, policy: JointPolicy, mine: _Domains, others: _Domains) -> _Found:
    violation = Sum()
    for code, total in mine.items():
        if policy.taken[code]:
            violation.extend(total)  # a hard policy has no such variable
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
        violation.add(away, 1, total.most)
    for code, total in others.items():
        if policy.standing[code] > 0:
            violation.extend(total)
    return [(violation, 1)]


def _near(sums: Sums, policy: JointPolicy, of: Mapping[int, Sum], to: Mapping[int, Sum]) -> Sum:
    """Return the sum of members by domains shared with the target, level by level."""
    present = [_present(sums, level.codes, level.present, to) for level in policy.near]
    groups: dict[tuple[int, ...], Sum] = defaultdict(Sum)
    for row, row_sum in of.items():
        groups[tuple(int(level.codes[row]) for level in policy.near)].extend(row_sum)
    cost, factor = Sum(), policy.weight * WEIGHT_UNIT if policy.weight else 1.0
    values = [round(level.price * factor) for level in policy.near] + [
        round(policy.beyond * factor)
    ]
    for codes, total in groups.items():
        flags = [
            flags_of_level.get(code) for flags_of_level, code in zip(present, codes, strict=True)
        ]
        if policy.is_hard:
            if flags[0] is True:
                continue
            is_near = 0 if flags[0] is None else flags[0]
            sums.cp.add(total.expression() <= total.most * is_near)
            continue
        # Cost of all members as beyond, less the savings of those near at a level.
        for x in _scaled(sums, total, values[-1]):
            cost.add(*x)
        for level_index in range(len(policy.near)):
            saved = values[level_index + 1] - values[level_index]
            nearer = [flag for flag in flags[: level_index + 1] if flag is not None]
            if not saved or not nearer:
                continue
            near_count = sums.number(total.most)
            sums.cp.add(near_count <= total.expression())
            if not any(flag is True for flag in nearer):
                sums.cp.add(near_count <= total.most * sum(nearer))
            cost.add(near_count, -saved, 0)
    return cost


def _scaled(sums: Sums, total: Sum, weight: int) -> list[tuple[Any, int, int]]:
    scaled = sums.number(total.most)
    sums.cp.add(scaled == total.expression())
    return [(scaled, weight, total.most)]


def _present(
    sums: Sums, codes: np.ndarray, stands: np.ndarray, to: Mapping[int, Sum]
) -> dict[int, Any]:
    """Return by domain whether the target is there: True, or a flag that may be 1 if it is."""
    flags: dict[int, Any] = {code: True for code in np.flatnonzero(stands).tolist()}
    by_code, _ = _by_domain(codes, to)
    for code, total in by_code.items():
        if code not in flags:
            flags[code] = sums.flag()
            sums.cp.add(flags[code] <= total.expression())
    return flags
