# SPDX-License-Identifier: Apache-2.0
"""Counting of policies: violations of a plan, and the hosts that the next member may have.

Present guests count towards every policy; what they break by themselves is no
violation.  A host whose domain is not known satisfies no policy on that level.
"""

import enum

import msgspec
import numpy as np

from gantt.core.group_policies.levels import UNKNOWN
from gantt.core.table.columns import BoolArray, FloatArray, IntArray


class PolicyForm(enum.StrEnum):
    """Way of counting a policy; one of spread may have several."""

    TOGETHER = 'together'
    MOST = 'most'
    LEAST = 'least'
    SKEW = 'skew'
    APART = 'apart'
    NEAR = 'near'


class PricedLevel(msgspec.Struct, frozen=True, eq=False):
    """Level of a near policy with its price.

    :ivar codes: domains by row
    :ivar present: by domain: whether a present guest makes it near
    :ivar price: price of a member that is near by this level, and by none before
    """

    codes: np.ndarray
    present: BoolArray
    price: float


class JointPolicy(msgspec.Struct, frozen=True, eq=False):
    """Form of a policy, about the units of a problem.

    :ivar index: index of the policy in the description
    :ivar line: the policy in words
    :ivar level: its level, by name
    :ivar codes: domain by row, -1: not known
    :ivar of: mask of the units that it is about
    :ivar to: mask of the others that count: to be near to, or apart from
    :ivar amount: of most, least and skew
    :ivar standing: by domain: present guests of those that it is about
    :ivar taken: of apart: domains in which others are present
    :ivar both: of apart: the others have to be on known domains as well
    :ivar eligible: of skew: domains that have a host for them
    :ivar near: of near: its levels, the nearest first
    :ivar beyond: of near: the price beyond all of them
    :ivar stands: of near: whether a guest of its target is present, on known domains or not
    :ivar waiting: of near: rows of present guests, to which others of its target may come near
    :ivar weight: of a soft policy, else 0
    :ivar step: index of the step that it is dropped with; -1: it is not
    """

    index: int
    line: str
    form: PolicyForm
    level: str
    codes: np.ndarray
    of: BoolArray
    to: BoolArray
    standing: IntArray
    taken: BoolArray
    eligible: BoolArray
    amount: int = 0
    both: bool = False
    near: tuple[PricedLevel, ...] = ()
    beyond: float = 1.0
    stands: bool = False
    waiting: IntArray = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    weight: float = 0.0
    step: int = -1

    @property
    def is_hard(self) -> bool:
        """True where a plan may not violate it."""
        return not self.weight and self.step < 0

    @property
    def domains(self) -> int:
        """Number of domains of its level."""
        return len(self.standing)


def violation(policy: JointPolicy, rows: IntArray) -> float:
    """Return how much a plan violates a policy: the number of offending members, or their cost.

    :param rows: by unit, -1 where it has no place
    """
    member_rows = rows[policy.of & (rows >= 0)]
    codes = policy.codes.take(member_rows)
    known_codes = codes[codes != UNKNOWN]
    lost = len(codes) - len(known_codes)
    counts = np.bincount(known_codes, minlength=policy.domains)
    match policy.form:
        case PolicyForm.TOGETHER:
            return float(_apart_from_most(policy, counts, len(codes)))
        case PolicyForm.MOST:
            room = np.maximum(policy.amount, policy.standing) - policy.standing
            return float(np.maximum(counts - room, 0).sum() + lost)
        case PolicyForm.LEAST:
            used = int(np.count_nonzero((counts > 0) | (policy.standing > 0)))
            required = min(policy.amount, len(codes) + int(policy.standing.sum()))
            return float(max(required - used, 0) + lost)
        case PolicyForm.SKEW:
            return float(_skew(policy, counts) + lost) if len(codes) else 0.0
        case PolicyForm.APART:
            return float(_together(policy, rows, counts) + lost)
    return _prices(policy, rows, member_rows)


def _apart_from_most(policy: JointPolicy, counts: IntArray, placed: int) -> int:
    """Return the number of members outside of the domain of most, or that of present guests."""
    if policy.standing.any():
        return placed - int(counts[policy.standing > 0].sum())
    return placed - int(counts.max(initial=0))


def _skew(policy: JointPolicy, counts: IntArray) -> int:
    """Return the members in eligible domains beyond what the emptiest one and the skew allow there.

    Each domain is judged by itself: one that is beyond it already takes no member, and lets none
    go beyond elsewhere.
    """
    ok = policy.eligible
    if not ok.any():
        return 0
    total = counts + policy.standing
    largest = np.maximum(policy.standing, total[ok].min() + policy.amount)
    return int(np.maximum(total - largest, 0)[ok].sum())


def _together(policy: JointPolicy, rows: IntArray, counts: IntArray) -> int:
    """Return the members in one domain with others, and others where members are present."""
    others = policy.codes.take(rows[policy.to & (rows >= 0)])
    known_codes = others[others != UNKNOWN]
    other_counts = np.bincount(known_codes, minlength=policy.domains)
    lost = len(others) - len(known_codes) if policy.both else 0
    shared_count = (
        counts[policy.taken | (other_counts > 0)].sum() + other_counts[policy.standing > 0].sum()
    )
    return int(shared_count) + lost


def _prices(policy: JointPolicy, rows: IntArray, mine: IntArray) -> float:
    return float(prices(policy, mine, rows[policy.to & (rows >= 0)]).sum())


def prices(policy: JointPolicy, mine: IntArray, target: IntArray) -> FloatArray:
    """Return prices of members on rows ``mine`` by a near policy with its target on ``target``."""
    member_prices = np.full(len(mine), policy.beyond)
    for level in reversed(policy.near):
        present = level.present.copy()
        codes = level.codes.take(target)
        present[codes[codes != UNKNOWN]] = True
        here = level.codes.take(mine)
        member_prices[(here != UNKNOWN) & present[here]] = level.price
    return member_prices


def added(policy: JointPolicy, unit: int, rows: IntArray, left: int) -> FloatArray:
    """Return what a unit without a place would add, by row of the table; 0: the policy is met.

    :param left: units of the policy that have no place yet, this one included
    """
    codes, is_of = policy.codes, bool(policy.of[unit])
    unknown = codes == UNKNOWN
    member_codes = codes.take(rows[policy.of & (rows >= 0)])
    counts = np.bincount(member_codes[member_codes != UNKNOWN], minlength=policy.domains)
    match policy.form:
        case PolicyForm.TOGETHER:
            good = policy.standing > 0 if policy.standing.any() else counts == counts.max(initial=0)
            cost = (~good).astype(float) if good.any() else np.ones(policy.domains)
        case PolicyForm.MOST:
            cost = (counts + policy.standing >= np.maximum(policy.amount, policy.standing)) * 1.0
        case PolicyForm.LEAST:
            used = (counts > 0) | (policy.standing > 0)
            short = policy.amount - int(np.count_nonzero(used)) >= left
            cost = (used & short) * 1.0
        case PolicyForm.SKEW:
            cost = _skew_after(policy, counts)
        case PolicyForm.APART:
            others = codes.take(rows[policy.to & (rows >= 0)])
            other_counts = np.bincount(others[others != UNKNOWN], minlength=policy.domains)
            if is_of:
                cost = (policy.taken | (other_counts > 0)) * 1.0
            else:
                cost = ((policy.standing > 0) * 1.0) + counts
                unknown = unknown if policy.both else np.zeros(len(codes), np.bool_)
        case _:
            return _near_added(policy, is_of, rows)
    cost_by_row = cost[codes] if policy.domains else np.zeros(len(codes))
    cost_by_row[unknown] = 1.0
    if not is_of and not policy.both and policy.form is PolicyForm.APART:
        cost_by_row[codes == UNKNOWN] = 0.0
    return cost_by_row


def _skew_after(policy: JointPolicy, counts: IntArray) -> FloatArray:
    """Return by domain whether one more is beyond the skew, by the emptiest domain after it."""
    total, ok = counts + policy.standing, policy.eligible
    if not ok.any():
        return np.zeros(policy.domains)
    least = total[ok].min()
    # Where a single domain has the least, a member there lifts that.
    lifted = (total == least) & ok & (np.count_nonzero(ok & (total == least)) == 1)
    beyond: FloatArray = (total + 1 > least + lifted + policy.amount) * 1.0
    return beyond


def _near_added(policy: JointPolicy, is_of: bool, rows: IntArray) -> FloatArray:
    everywhere = np.arange(len(policy.codes))
    target = rows[policy.to & (rows >= 0)]
    if is_of:
        if policy.to.any() and not len(target) and not policy.stands:
            return np.zeros(len(everywhere))  # the target has to come near instead
        return prices(policy, everywhere, target)
    member_rows = np.concatenate((rows[policy.of & (rows >= 0)], policy.waiting))
    if not len(member_rows):
        return np.zeros(len(everywhere))
    now = prices(policy, member_rows, target)
    cost_by_row = np.zeros(len(everywhere))
    # Price saved per domain if the target comes near to members that are far.
    level = policy.near[0] if policy.near else None
    if level is not None:
        worth = np.zeros(len(level.present))
        codes = level.codes.take(member_rows)
        np.add.at(worth, codes[codes != UNKNOWN], (now - level.price)[codes != UNKNOWN])
        here = level.codes
        cost_by_row = np.where(
            here != UNKNOWN, worth.max(initial=0) - worth[here], worth.max(initial=0)
        )
    return np.maximum(cost_by_row, 0.0)
