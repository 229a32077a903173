# SPDX-License-Identifier: Apache-2.0
"""Plan of a group: places of its members, its quality, and conflicts."""

from collections.abc import Mapping

import msgspec

from gantt.core.messages.policy_set import unknown_level_line
from gantt.groups.model.problem import Goals


class ProviderShare(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts from one provider."""

    provider_id: int
    resources: dict[str, int]


class PlannedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member with its place.

    :ivar member: name of its description; ``name`` is its own name
    :ivar alternative: 0: the requested spec, else the number of the alternative
    :ivar allocations: amounts by provider, its host first
    :ivar layout: its layout inside of the host; None: plain amounts are complete
    :ivar claim_id: id of its reservation; '': nothing is claimed
    :ivar consumer: consumer of that claim until a create takes it over
    """

    name: str
    member: str
    host: str
    node: str
    provider_id: int
    alternative: int = 0
    allocations: list[ProviderShare] = []
    layout: dict | None = None
    claim_id: str = ''
    consumer: str = ''

    @property
    def amounts(self) -> dict[int, dict[str, int]]:
        """Amounts by provider id and class."""
        return {share.provider_id: dict(share.resources) for share in self.allocations}


def shares_of(amounts: Mapping[int, Mapping[str, int]]) -> list[ProviderShare]:
    """Return amounts by provider as a list."""
    return [
        ProviderShare(provider_id=provider_id, resources=dict(class_amounts))
        for provider_id, class_amounts in amounts.items()
    ]


class GroupConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Policies and members that cannot be met together; without any one of them the rest could.

    :ivar policies: index in the description, and line, of each policy
    :ivar members: name of a description -> number of its members
    :ivar is_minimal: whether time sufficed to leave out everything needless
    :ivar unknown_levels: levels of these policies for which no host reports its domain
    """

    policies: list[tuple[int, str]]
    members: dict[str, int]
    is_minimal: bool = True
    unknown_levels: list[str] = []

    @property
    def line(self) -> str:
        """Message of the conflict."""
        subjects = ', '.join(f'{n} {name}' if n > 1 else name for name, n in self.members.items())
        conditions = '; '.join(text for _, text in self.policies)
        together = ' together' if sum(self.members.values()) > 1 else ''
        unknown = ''.join(f'; {unknown_level_line(level)}' for level in self.unknown_levels)
        return (
            f'{subjects} cannot be placed{together}'
            + (f' under {conditions}' if conditions else '')
            + unknown
        )


class GroupRelaxation(msgspec.Struct, frozen=True, kw_only=True):
    """One change that would let all remaining members be placed.

    :ivar policy: index of the policy in the description; None: members would stay without a place
    :ivar line: the change in words
    :ivar amount: by how much the policy would be violated, or the number of members without a place
    """

    policy: int | None
    line: str
    amount: float


class ProblemSize(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a problem: numbers of its parts.

    :ivar units: members to be placed, each counted by itself
    :ivar kinds: kinds of units; units of one kind are alike in all that counts
    :ivar choices: ways to place a unit: its spec and alternatives
    :ivar hosts: hosts in the table
    :ivar eligible: hosts that some choice may be placed on
    :ivar policies: forms of policies: a spread policy may have several
    :ivar classes: resource classes that are counted
    :ivar counts: variables of the solved model: one for each kind and host
    """

    units: int
    kinds: int
    choices: int
    hosts: int
    eligible: int
    policies: int
    classes: int
    counts: int = 0


class StepGivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """Policy or step of rules that a plan does not keep.

    :ivar line: line of the policy, or the step of rules
    :ivar amount: number of members, or of violations
    :ivar cost: weight of the violation; 0 where the policy is given up in an order
    """

    line: str
    amount: float
    cost: float = 0.0


class WithoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a plan without one policy to the plan with all of them.

    The costs of a policy are known for sure where both plans are ``optimal``.

    :ivar path: path of the policy below the group: ``policies[0]``, or ``policies[0].of[1]`` where
        it is about several subjects, each by itself
    :ivar line: the policy in words
    :ivar strength: ``hard``, ``drop`` or ``soft``
    :ivar outcome: ``planned``; ``no_time``: no time was left for it; ``not_looked_at``: there are
        more policies than are evaluated
    :ivar status: status of the plan without it, as that of a plan; '': there is no plan
    :ivar placed: number of members that have a place without the policy
    :ivar missing: number of required members that have no place without the policy
    :ivar makes_feasible: all required members are placed without the policy, and not with it
    :ivar score_change: gain of the score without it; None: the scores are of different members
    :ivar weight_change: change of the weight of violated soft policies, its own included
    :ivar moved: name of a description -> how many of its members would be on other hosts
    :ivar keeps_it: with the policy, too, that plan is sound and no worse than that of the group:
        what it gains is no cost of the policy, a longer search would find it as well
    :ivar gap: of the plan without it, see ``GroupPlan``
    :ivar is_proven: whether the status is a proof: ``optimal`` or ``infeasible``
    """

    path: str
    line: str
    strength: str
    outcome: str
    status: str = ''
    placed: int = 0
    missing: int = 0
    makes_feasible: bool = False
    score_change: float | None = None
    weight_change: float = 0.0
    moved: dict[str, int] = {}
    keeps_it: bool = False
    gap: float | None = None
    is_proven: bool = False


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a group: a place for each member, and the policies that it does not keep.

    :ivar status: ``optimal``; ``feasible``: there may be a better one; ``partial``: some that have
        to be placed have no place here, and it is not known whether they could; ``infeasible``:
        they could not
    :ivar missing: names of required members without a place
    :ivar optional: names of optional members without a place
    :ivar score: score of all members on the table with the group on it
    :ivar bound: no plan that is as good before has a higher score; None: not known
    :ivar gap: difference of bound and score, as a share of the score; None: not known
    :ivar goals: goals that count before the score, the first one first; ``proven``: number of them
        known to be at their minimum
    :ivar sequential: goals that placing the members one after the other reached
    :ivar size: size of the problem that was solved
    :ivar method: ``sequential``, ``search``, ``solver`` or ``previous``, of the last plan
    :ivar proofs: '' or why nothing is proven
    """

    status: str
    members: list[PlannedMember]
    missing: list[str] = []
    optional: list[str] = []
    score: float
    bound: float | None = None
    gap: float | None = None
    goals: Goals
    proven: int = 0
    sequential: Goals
    method: str
    given_up: list[StepGivenUp] = []
    conflict: GroupConflict | None = None
    relaxations: list[GroupRelaxation] = []
    proofs: str = ''
    seconds: float = 0.0
    size: ProblemSize | None = None
