# SPDX-License-Identifier: Apache-2.0
"""What a policy counts: violations of a plan, and the hosts that the next member may have.

Guests that stand count towards every policy; what they break by themselves is nobody's
violation.  A host whose domain is not known satisfies no policy on that level.
"""

import enum

import msgspec
import numpy as np

from gantt.core.group_policies.levels import UNKNOWN
from gantt.core.table.columns import BoolArray, FloatArray, IntArray


class PolicyForm(enum.StrEnum):
    """What is counted of a policy; one of spread may be several."""

    TOGETHER = 'together'
    MOST = 'most'
    LEAST = 'least'
    SKEW = 'skew'
    APART = 'apart'
    NEAR = 'near'


class PricedLevel(msgspec.Struct, frozen=True, eq=False):
    """One level of a near policy.

    :ivar codes: of the domains by row
    :ivar present: by domain: whether something that stands makes it near
    :ivar price: of a member that is near by this level, and by none before
    """

    codes: np.ndarray
    present: BoolArray
    price: float


class JointPolicy(msgspec.Struct, frozen=True, eq=False):
    """One form of one policy, about the units of a problem.

    :ivar index: of the policy in the description
    :ivar line: it in words
    :ivar level: its level, by name
    :ivar codes: domain by row, -1: not known
    :ivar of: which units it is about
    :ivar to: which others count: who is to be near, or apart
    :ivar amount: of most, least and skew
    :ivar standing: by domain: guests that stand, of those that it is about
    :ivar taken: of apart: domains in which others stand
    :ivar both: of apart: the others have to be on known domains as well
    :ivar eligible: of skew: domains that have a host for them
    :ivar near: of near: its levels, the nearest first
    :ivar beyond: of near: the price beyond all of them
    :ivar stands: of near: whether something of its target stands, on known domains or not
    :ivar waiting: of near: rows of guests that stand, to which others of its target may come near
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
        """Whether a plan may not violate it."""
        return not self.weight and self.step < 0

    @property
    def domains(self) -> int:
        """How many domains its level has."""
        return len(self.standing)


def violation(policy: JointPolicy, rows: IntArray) -> float:
    """How much a plan violates a policy: members that are in its way, or what they cost.

    :param rows: by unit, -1 where it has no place
    """
    mine = rows[policy.of & (rows >= 0)]
    codes = policy.codes.take(mine)
    known = codes[codes != UNKNOWN]
    lost = len(codes) - len(known)
    counts = np.bincount(known, minlength=policy.domains)
    match policy.form:
        case PolicyForm.TOGETHER:
            return float(_apart_from_most(policy, counts, len(codes)))
        case PolicyForm.MOST:
            room = np.maximum(policy.amount, policy.standing) - policy.standing
            return float(np.maximum(counts - room, 0).sum() + lost)
        case PolicyForm.LEAST:
            used = int(np.count_nonzero((counts > 0) | (policy.standing > 0)))
            wanted = min(policy.amount, len(codes) + int(policy.standing.sum()))
            return float(max(wanted - used, 0) + lost)
        case PolicyForm.SKEW:
            return float(_skew(policy, counts) + lost) if len(codes) else 0.0
        case PolicyForm.APART:
            return float(_together(policy, rows, counts) + lost)
    return _prices(policy, rows, mine)


def _apart_from_most(policy: JointPolicy, counts: IntArray, placed: int) -> int:
    """Members that are not where most of them are; guests that stand are where they are."""
    if policy.standing.any():
        return placed - int(counts[policy.standing > 0].sum())
    return placed - int(counts.max(initial=0))


def _skew(policy: JointPolicy, counts: IntArray) -> int:
    """Members in eligible domains beyond what the emptiest one and the skew allow there.

    Each domain is judged by itself: one that is beyond it already takes nobody, and lets nobody
    else go beyond.
    """
    ok = policy.eligible
    if not ok.any():
        return 0
    total = counts + policy.standing
    most = np.maximum(policy.standing, total[ok].min() + policy.amount)
    return int(np.maximum(total - most, 0)[ok].sum())


def _together(policy: JointPolicy, rows: IntArray, counts: IntArray) -> int:
    """Members in one domain with others, and others where members stand."""
    others = policy.codes.take(rows[policy.to & (rows >= 0)])
    known = others[others != UNKNOWN]
    there = np.bincount(known, minlength=policy.domains)
    lost = len(others) - len(known) if policy.both else 0
    found = counts[policy.taken | (there > 0)].sum() + there[policy.standing > 0].sum()
    return int(found) + lost


def _prices(policy: JointPolicy, rows: IntArray, mine: IntArray) -> float:
    return float(prices(policy, mine, rows[policy.to & (rows >= 0)]).sum())


def prices(policy: JointPolicy, mine: IntArray, target: IntArray) -> FloatArray:
    """What members on rows ``mine`` cost by a near policy, its target being on ``target``."""
    found = np.full(len(mine), policy.beyond)
    for level in reversed(policy.near):
        present = level.present.copy()
        codes = level.codes.take(target)
        present[codes[codes != UNKNOWN]] = True
        here = level.codes.take(mine)
        found[(here != UNKNOWN) & present[here]] = level.price
    return found


def added(policy: JointPolicy, unit: int, rows: IntArray, left: int) -> FloatArray:
    """What a unit that has no place would add, by row of the table; 0: the policy is met.

    :param left: units of the policy that have no place yet, this one included
    """
    codes, is_of = policy.codes, bool(policy.of[unit])
    unknown = codes == UNKNOWN
    mine = codes.take(rows[policy.of & (rows >= 0)])
    counts = np.bincount(mine[mine != UNKNOWN], minlength=policy.domains)
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
            there = np.bincount(others[others != UNKNOWN], minlength=policy.domains)
            if is_of:
                cost = (policy.taken | (there > 0)) * 1.0
            else:
                cost = ((policy.standing > 0) * 1.0) + counts
                unknown = unknown if policy.both else np.zeros(len(codes), np.bool_)
        case _:
            return _near_added(policy, is_of, rows)
    found = cost[codes] if policy.domains else np.zeros(len(codes))
    found[unknown] = 1.0
    if not is_of and not policy.both and policy.form is PolicyForm.APART:
        found[codes == UNKNOWN] = 0.0
    return found


def _skew_after(policy: JointPolicy, counts: IntArray) -> FloatArray:
    """By domain, whether one more there is beyond the skew, by the emptiest domain after it."""
    total, ok = counts + policy.standing, policy.eligible
    if not ok.any():
        return np.zeros(policy.domains)
    least = total[ok].min()
    # Where one alone has the least, its own pick lifts that.
    lifted = (total == least) & ok & (np.count_nonzero(ok & (total == least)) == 1)
    beyond: FloatArray = (total + 1 > least + lifted + policy.amount) * 1.0
    return beyond


def _near_added(policy: JointPolicy, is_of: bool, rows: IntArray) -> FloatArray:
    everywhere = np.arange(len(policy.codes))
    target = rows[policy.to & (rows >= 0)]
    if is_of:
        if policy.to.any() and not len(target) and not policy.stands:
            return np.zeros(len(everywhere))  # it is for the target to come near
        return prices(policy, everywhere, target)
    mine = np.concatenate((rows[policy.of & (rows >= 0)], policy.waiting))
    if not len(mine):
        return np.zeros(len(everywhere))
    now = prices(policy, mine, target)
    found = np.zeros(len(everywhere))
    # Where the target comes to be near to those that are far, it is worth so much.
    level = policy.near[0] if policy.near else None
    if level is not None:
        worth = np.zeros(len(level.present))
        codes = level.codes.take(mine)
        np.add.at(worth, codes[codes != UNKNOWN], (now - level.price)[codes != UNKNOWN])
        here = level.codes
        found = np.where(here != UNKNOWN, worth.max(initial=0) - worth[here], worth.max(initial=0))
    return np.maximum(found, 0.0)
