# SPDX-License-Identifier: Apache-2.0
"""Result for a group: places of its members, the quality of the plan, and conflicts."""

from collections.abc import Mapping

import msgspec

from gantt.core.groups.problem import Goals


class ProviderShare(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts from one provider."""

    provider_id: int
    resources: dict[str, int]


class PlannedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member with its place.

    :ivar member: name of its description; ``name`` is its own
    :ivar alternative: 0: what was asked for, else the number of the alternative
    :ivar allocations: what it takes, of its host first
    :ivar layout: what it gets inside of the host; None: plain amounts say everything
    :ivar claim_id: of its place; '': nothing is claimed
    :ivar consumer: whose claim that is until a create takes it over
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

    :ivar policies: index in the description, and the policy in words
    :ivar members: name of a description -> how many of them
    :ivar is_minimal: time sufficed to leave out all that is in it in vain
    :ivar unknown_levels: levels of these policies that no host says its domain of
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
        unknown = ''.join(f'; no host says its {level}' for level in self.unknown_levels)
        return (
            f'{subjects} cannot be placed{together}'
            + (f' under {conditions}' if conditions else '')
            + unknown
        )


class GroupRelaxation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would let all of the rest be placed.

    :ivar policy: index in the description; None: members would stay without a place
    :ivar line: it in words
    :ivar amount: by how much the policy would be violated, or how many members
    """

    policy: int | None
    line: str
    amount: float


class ProblemSize(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a problem.

    :ivar units: members to be placed, each by itself
    :ivar kinds: of them, alike in all that counts
    :ivar choices: what they may be placed as
    :ivar hosts: in the table
    :ivar eligible: of these, that some choice may be placed on
    :ivar policies: forms of them; one of spread may be several
    :ivar classes: of resources that are counted
    :ivar counts: of the model that is solved: a kind and a host each
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

    :ivar line: of a policy in words, or the step of rules
    :ivar amount: members, or violations
    :ivar cost: weight of it; 0 of what was given up in an order
    """

    line: str
    amount: float
    cost: float = 0.0


class WithoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a plan without one policy to the plan with all of them.

    The costs of a policy are known for sure where both plans are ``optimal``.

    :ivar path: of the policy below the group: ``policies[0]``, or ``policies[0].of[1]`` of one
        that is about several, each by itself
    :ivar line: it in words
    :ivar strength: ``hard``, ``drop`` or ``soft``
    :ivar outcome: ``planned``; ``no_time``: none was left for it; ``not_looked_at``: there are more
        policies than are looked at
    :ivar status: of the plan without it, as that of a plan; '': there is none
    :ivar placed: members that have a place without it
    :ivar missing: members that have to have one, and have none
    :ivar makes_feasible: all that have to be placed are, which with it are not
    :ivar score_change: what the score gains without it; None: it is that of other members
    :ivar weight_change: by how much the weight of violated soft policies changes, its own included
    :ivar moved: name of a description -> how many of its members would be on other hosts
    :ivar keeps_it: with the policy, too, that plan is sound and no worse than that of the group:
        what it gains is no cost of the policy, a longer search would find it as well
    :ivar gap: of the plan without it, see there
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
    """See the module docstring.

    :ivar status: ``optimal``; ``feasible``: there may be a better one; ``partial``: some that have
        to be placed have no place here, and it is not known whether they could; ``infeasible``:
        they could not
    :ivar missing: names of those without a place that have to have one
    :ivar optional: of those that may have one
    :ivar score: of all members on the table with the group on it
    :ivar bound: no plan that is as good before has a higher score; None: not known
    :ivar gap: of bound and score, as a share of the score; None: not known
    :ivar goals: what counts before the score, the first first; ``proven``: how many of them are
        known to be the least there can be
    :ivar sequential: what placing the members one after the other came to
    :ivar size: of the problem that was solved
    :ivar by: ``sequential``, ``search`` or ``solver``: where it is from
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
    by: str
    given_up: list[StepGivenUp] = []
    conflict: GroupConflict | None = None
    relaxations: list[GroupRelaxation] = []
    proofs: str = ''
    seconds: float = 0.0
    size: ProblemSize | None = None
