# SPDX-License-Identifier: Apache-2.0
"""Counting of policies: violations of a plan, and the hosts that the next member may have.

Present guests count towards every policy; what they break by themselves is no
violation.  A host whose domain is not known satisfies no policy on that level.
"""

import enum

import msgspec
import numpy as np

from gantt.core.group_policies.levels import UNKNOWN_DOMAIN
from gantt.core.table.columns import BoolArray, FloatArray, IntArray


class PolicyForm(enum.StrEnum):
    """Way of counting a policy; one of spread may have several."""

    TOGETHER = 'together'
    MAX_PER_DOMAIN = 'max_per_domain'
    MIN_DOMAINS = 'min_domains'
    SKEW = 'skew'
    APART = 'apart'
    NEAR = 'near'


class PricedLevel(msgspec.Struct, frozen=True, eq=False):
    """Level of a near policy with its price.

    :ivar codes: domains by row
    :ivar present: mask by domain: whether a present guest makes it near
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
    :ivar subject_units: mask of the units that it is about
    :ivar target_units: mask of the others that count: to be near to, or apart from
    :ivar amount: bound of the forms most, least and skew
    :ivar present: number of present guests that it is about, by domain
    :ivar occupied: of form apart: domains in which guests are present that the policy is to keep
        apart
    :ivar needs_known_targets: of form apart: the target units have to be on known domains as well
    :ivar eligible: of form skew: domains that have a host for the units
    :ivar near_levels: of form near: its levels, the nearest first
    :ivar price_beyond: of form near: the price of a member beyond all levels
    :ivar has_target: of near: whether a guest of its target is present, on known domains or not
    :ivar present_subject_rows: of near: rows of present guests that the policy is about, to which
        members of its target may come near
    :ivar weight: of a soft policy, else 0
    :ivar step: index of the step that it is dropped with; -1: it is not
    """

    index: int
    line: str
    form: PolicyForm
    level: str
    codes: np.ndarray
    subject_units: BoolArray
    target_units: BoolArray
    present: IntArray
    occupied: BoolArray
    eligible: BoolArray
    amount: int = 0
    needs_known_targets: bool = False
    near_levels: tuple[PricedLevel, ...] = ()
    price_beyond: float = 1.0
    has_target: bool = False
    present_subject_rows: IntArray = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    weight: float = 0.0
    step: int = -1

    @property
    def is_hard(self) -> bool:
        """True where a plan may not violate it."""
        return not self.weight and self.step < 0

    @property
    def domains(self) -> int:
        """Number of domains of its level."""
        return len(self.present)


def with_eligible(policy: JointPolicy, could: BoolArray) -> JointPolicy:
    """Return a skew form with the domains that have a host for its members, others as they are.

    :param could: mask by row: whether a member may be on the host
    """
    if policy.form is not PolicyForm.SKEW:
        return policy
    codes = policy.codes[could]
    eligible = np.zeros(policy.domains, np.bool_)
    eligible[codes[codes >= 0]] = True
    return msgspec.structs.replace(policy, eligible=eligible)


def violation(policy: JointPolicy, rows: IntArray) -> float:
    """Return how much a plan violates a policy: the number of offending members, or their cost.

    :param rows: host row by unit, -1 where it has no place
    """
    member_rows = rows[policy.subject_units & (rows >= 0)]
    codes = policy.codes.take(member_rows)
    known_codes = codes[codes != UNKNOWN_DOMAIN]
    lost = len(codes) - len(known_codes)
    counts = np.bincount(known_codes, minlength=policy.domains)
    match policy.form:
        case PolicyForm.TOGETHER:
            return float(_outside_main_domain(policy, counts, len(codes)))
        case PolicyForm.MAX_PER_DOMAIN:
            room = np.maximum(policy.amount, policy.present) - policy.present
            return float(np.maximum(counts - room, 0).sum() + lost)
        case PolicyForm.MIN_DOMAINS:
            used = int(np.count_nonzero((counts > 0) | (policy.present > 0)))
            required = min(policy.amount, len(codes) + int(policy.present.sum()))
            return float(max(required - used, 0) + lost)
        case PolicyForm.SKEW:
            return float(_beyond_skew(policy, counts) + lost) if len(codes) else 0.0
        case PolicyForm.APART:
            return float(_in_shared_domains(policy, rows, counts) + lost)
    return _near_violation(policy, rows, member_rows)


def _outside_main_domain(policy: JointPolicy, counts: IntArray, placed: int) -> int:
    """Return the number of members outside of the domains of present guests, else the fullest."""
    if policy.present.any():
        return placed - int(counts[policy.present > 0].sum())
    return placed - int(counts.max(initial=0))


def _beyond_skew(policy: JointPolicy, counts: IntArray) -> int:
    """Return the members in eligible domains beyond what the emptiest one and the skew allow there.

    Each domain is judged by itself: one that is beyond it already takes no member, and lets none
    go beyond elsewhere.
    """
    ok = policy.eligible
    if not ok.any():
        return 0
    total = counts + policy.present
    largest = np.maximum(policy.present, total[ok].min() + policy.amount)
    return int(np.maximum(total - largest, 0)[ok].sum())


def _in_shared_domains(policy: JointPolicy, rows: IntArray, counts: IntArray) -> int:
    """Return the number of members in domains with members or guests to be kept apart from."""
    others = policy.codes.take(rows[policy.target_units & (rows >= 0)])
    known_codes = others[others != UNKNOWN_DOMAIN]
    other_counts = np.bincount(known_codes, minlength=policy.domains)
    lost = len(others) - len(known_codes) if policy.needs_known_targets else 0
    shared_count = (
        counts[policy.occupied | (other_counts > 0)].sum() + other_counts[policy.present > 0].sum()
    )
    return int(shared_count) + lost


def _near_violation(policy: JointPolicy, rows: IntArray, mine: IntArray) -> float:
    return float(near_prices(policy, mine, rows[policy.target_units & (rows >= 0)]).sum())


def near_prices(policy: JointPolicy, mine: IntArray, target: IntArray) -> FloatArray:
    """Return prices of members on rows ``mine`` by a near policy with its target on ``target``."""
    member_prices = np.full(len(mine), policy.price_beyond)
    for level in reversed(policy.near_levels):
        present = level.present.copy()
        codes = level.codes.take(target)
        present[codes[codes != UNKNOWN_DOMAIN]] = True
        here = level.codes.take(mine)
        member_prices[(here != UNKNOWN_DOMAIN) & present[here]] = level.price
    return member_prices


def added_cost(policy: JointPolicy, unit: int, rows: IntArray, unplaced: int) -> FloatArray:
    """Return what a unit without a place would add, by row of the table; 0: the policy is met.

    :param unplaced: units of the policy that have no place yet, this one included
    """
    codes, is_of = policy.codes, bool(policy.subject_units[unit])
    unknown = codes == UNKNOWN_DOMAIN
    member_codes = codes.take(rows[policy.subject_units & (rows >= 0)])
    counts = np.bincount(member_codes[member_codes != UNKNOWN_DOMAIN], minlength=policy.domains)
    match policy.form:
        case PolicyForm.TOGETHER:
            good = policy.present > 0 if policy.present.any() else counts == counts.max(initial=0)
            cost = (~good).astype(float) if good.any() else np.ones(policy.domains)
        case PolicyForm.MAX_PER_DOMAIN:
            cost = (counts + policy.present >= np.maximum(policy.amount, policy.present)) * 1.0
        case PolicyForm.MIN_DOMAINS:
            used = (counts > 0) | (policy.present > 0)
            short = policy.amount - int(np.count_nonzero(used)) >= unplaced
            cost = (used & short) * 1.0
        case PolicyForm.SKEW:
            cost = _skew_after(policy, counts)
        case PolicyForm.APART:
            others = codes.take(rows[policy.target_units & (rows >= 0)])
            other_counts = np.bincount(others[others != UNKNOWN_DOMAIN], minlength=policy.domains)
            if is_of:
                cost = (policy.occupied | (other_counts > 0)) * 1.0
            else:
                cost = ((policy.present > 0) * 1.0) + counts
                unknown = unknown if policy.needs_known_targets else np.zeros(len(codes), np.bool_)
        case _:
            return _near_cost_added(policy, is_of, rows)
    cost_by_row = cost[codes] if policy.domains else np.zeros(len(codes))
    cost_by_row[unknown] = 1.0
    if not is_of and not policy.needs_known_targets and policy.form is PolicyForm.APART:
        cost_by_row[codes == UNKNOWN_DOMAIN] = 0.0
    return cost_by_row


def _skew_after(policy: JointPolicy, counts: IntArray) -> FloatArray:
    """Return by domain whether one more is beyond the skew, by the emptiest domain after it."""
    total, ok = counts + policy.present, policy.eligible
    if not ok.any():
        return np.zeros(policy.domains)
    least = total[ok].min()
    # Where a single domain has the least, a member there lifts that.
    lifted = (total == least) & ok & (np.count_nonzero(ok & (total == least)) == 1)
    beyond: FloatArray = (total + 1 > least + lifted + policy.amount) * 1.0
    return beyond


def _near_cost_added(policy: JointPolicy, is_of: bool, rows: IntArray) -> FloatArray:
    everywhere = np.arange(len(policy.codes))
    target = rows[policy.target_units & (rows >= 0)]
    if is_of:
        if policy.target_units.any() and not len(target) and not policy.has_target:
            return np.zeros(len(everywhere))  # the target has to come near instead
        return near_prices(policy, everywhere, target)
    member_rows = np.concatenate(
        (rows[policy.subject_units & (rows >= 0)], policy.present_subject_rows)
    )
    if not len(member_rows):
        return np.zeros(len(everywhere))
    now = near_prices(policy, member_rows, target)
    cost_by_row = np.zeros(len(everywhere))
    # Price saved per domain if the target comes near to members that are far.
    level = policy.near_levels[0] if policy.near_levels else None
    if level is not None:
        worth = np.zeros(len(level.present))
        codes = level.codes.take(member_rows)
        np.add.at(
            worth, codes[codes != UNKNOWN_DOMAIN], (now - level.price)[codes != UNKNOWN_DOMAIN]
        )
        here = level.codes
        cost_by_row = np.where(
            here != UNKNOWN_DOMAIN, worth.max(initial=0) - worth[here], worth.max(initial=0)
        )
    return np.maximum(cost_by_row, 0.0)
