# SPDX-License-Identifier: Apache-2.0
"""Hard policies that local hosts cannot keep while members are in zones below.

A zone names no host and no place in its topology.  A member there is only known to be on
no local host.
"""

from collections.abc import Collection, Sequence

from gantt.core.messages.level_policy import HOST, GroupPolicyKind, LevelPolicy

_APART = (GroupPolicyKind.ANTI_AFFINITY, GroupPolicyKind.EXCLUSIVE)


def unkept(
    policies: Sequence[LevelPolicy], has_members_below: bool, others: Collection[str]
) -> list[str]:
    """Return lines of hard policies that would be broken here, or cannot be judged.

    :param has_members_below: members of the group itself are below; their names are unknown, so
        that policies of subgroups and members do not count them
    :param others: uuids of other groups that have members below
    """
    lines = []
    for policy in policies:
        target = None if policy.target is None else policy.target.group
        is_about = target in others if target is not None else has_members_below
        if not policy.is_hard or not is_about or _is_satisfied(policy):
            continue
        if target is not None or policy.of is None:
            lines += [policy.line(subject) for subject in policy.subjects]
    return lines


def _is_satisfied(policy: LevelPolicy) -> bool:
    """Return whether guests on other hosts, whichever these are, cannot break the policy."""
    if policy.level != HOST:
        return False
    if policy.policy is GroupPolicyKind.SPREAD:
        return policy.min_domains is None and policy.max_skew is None
    return policy.policy in _APART
