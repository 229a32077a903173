# SPDX-License-Identifier: Apache-2.0
"""The rule of a server group, and the comparison of two rules.

A rule never changes while its group exists; a group may be removed and created
again with another rule.  So the rule that a request was planned under is compared with the
stored one at the commit, by ``core.claims.commit.is_behind``, in every store.
"""

from typing import Protocol

import msgspec

from gantt import exceptions
from gantt.core.messages import policy_set
from gantt.core.messages.policy_set import POLICIES_POLICY, Policy
from gantt.core.messages.request import GroupRef, SelectDestinations

#: The first generation of a group is a random multiple of it; generations count up from there.
GENERATION_STEP = 1 << 20
_GENERATION_STEPS = 1 << 32
#: Groups created by a placement request begin below, groups created by themselves above.
OWN_GROUPS_GENERATION = _GENERATION_STEPS * GENERATION_STEP
#: The only policy to which ``max_per_host`` applies.
_COUNTED_POLICY = 'anti-affinity'
#: Characters of a set of policies that an error message repeats.
_SHOWN_CHARACTERS_MAX = 400


class HasGroupRule(Protocol):
    """An object with the rule of a group: as stored, as requested, as planned with."""

    @property
    def policy(self) -> str | None: ...

    @property
    def max_per_host(self) -> int: ...

    @property
    def policies(self) -> str | None:
        """Text of all policies of a rule whose policy is ``policies``, see ``PolicySet.text``."""


class GroupRule(msgspec.Struct, gc=False, frozen=True):
    """A rule as it is stored, with the generation that guards placements under it.

    :ivar policies: of a rule whose policy is ``policies``: all of them, see ``PolicySet.text``
    :ivar rule_generation: of the rule itself, for messages to zones: a later rule of the group has
        a higher one, also after the group was created again; None: not known
    """

    policy: str
    max_per_host: int = 1
    generation: int = 0
    policies: str | None = None
    rule_generation: int | None = None

    @property
    def is_untouched(self) -> bool:
        """True where no member was ever placed under this generation."""
        return placements_since_first(self.generation) == 0


def first_generation(number: int, *, by_itself: bool = False) -> int:
    """Return the first generation of a group.

    A group is deleted, on request or without members, and may be created again: remembered
    generations of the first one must not match any of the second.  The range also separates
    groups created by a placement request from groups created by themselves, which stay.

    :param number: unique for each group
    """
    first = (number % _GENERATION_STEPS or 1) * GENERATION_STEP
    return first + OWN_GROUPS_GENERATION if by_itself else first


def placements_since_first(generation: int) -> int:
    """Return the number of placements under a group since its first generation."""
    return generation % GENERATION_STEP


def rules_equal(one: HasGroupRule, other: HasGroupRule) -> bool:
    """Return whether two rules are equal; ``max_per_host`` counts only if it applies."""
    if one.policy != other.policy:
        return False
    if one.policy == POLICIES_POLICY:
        return one.policies == other.policies
    return one.policy != _COUNTED_POLICY or one.max_per_host == other.max_per_host


def requested_rule(group: GroupRef) -> GroupRule | None:
    """Return the rule that a request names for its group; None if it names none."""
    if group.policies is not None:
        return GroupRule(POLICIES_POLICY, policies=group.policies.text)
    if group.policy is not None:
        return GroupRule(group.policy.value, group.max_per_host)
    return None


def problem_of(rule: HasGroupRule) -> str:
    """Return the reason why a stored rule cannot be read; '' if it can be read."""
    try:
        if rule.policies is not None:
            policy_set.read(rule.policies)
        elif rule.policy != POLICIES_POLICY:
            Policy(str(rule.policy))
    except exceptions.RuleUnreadable as e:
        return e.message
    except ValueError as e:
        return exceptions.RuleUnreadable(problem=str(e)).message
    return ''


def group_with_rule(group: GroupRef, rule: GroupRule) -> GroupRef:
    """Return the group of a request with the stored rule.

    :raises RuleUnreadable: this release cannot read the rule
    """
    if rule.policies is not None:
        policies = policy_set.read(rule.policies)
        return msgspec.structs.replace(group, policy=None, max_per_host=1, policies=policies)
    try:
        policy, max_per_host = Policy(rule.policy), rule.max_per_host
    except ValueError as e:
        raise exceptions.RuleUnreadable(problem=str(e)) from e
    return msgspec.structs.replace(group, policy=policy, max_per_host=max_per_host, policies=None)


def request_with_rule(request: SelectDestinations, rule: GroupRule) -> SelectDestinations:
    """Return a request with the rule that applies to its group."""
    group = request.spec.group
    if group is None:
        return request
    spec = msgspec.structs.replace(request.spec, group=group_with_rule(group, rule))
    return msgspec.structs.replace(request, spec=spec, rule_generation=rule.rule_generation)


def rule_in_force(group: GroupRef, stored: GroupRule | None) -> GroupRule:
    """Return the rule that applies to a request of a group.

    :param stored: None: the group does not exist
    :raises NotFound: neither the request nor the store has a rule
    :raises Refused: the request names another rule than the stored one
    """
    named_rule = requested_rule(group)
    if stored is None:
        if named_rule is None:
            raise unknown_group(group.uuid)
        return named_rule
    # Policies that were set on the group take precedence over those that Nova sends.
    if named_rule is not None and (stored.policies is None or group.policies is not None):
        check(group.uuid, named_rule, stored)
    return stored


def is_stored_rule(group: GroupRef, stored: GroupRule | None) -> bool:
    """Return whether a group is stored with a rule that a request may be placed under."""
    try:
        return stored is not None and rule_in_force(group, stored) is stored
    except (exceptions.Refused, exceptions.RuleUnreadable):
        return False


def unknown_group(uuid: str) -> exceptions.NotFound:
    """Return the error for a request that names an unknown group."""
    return exceptions.NotFound(
        f'request.spec.group: server group {uuid!r} was not found; '
        'name its policy, or create it first',
        kind='server group',
        name=uuid,
    )


def rule_text(rule: HasGroupRule) -> str:
    """Return the rule as text."""
    if rule.policies is not None:
        policies = policy_set.read(rule.policies).in_words()
        if len(policies) > _SHOWN_CHARACTERS_MAX:
            policies = policies[:_SHOWN_CHARACTERS_MAX] + ' …'
        return f'policies {policies}'
    limit = f' and max_per_host {rule.max_per_host}' if rule.policy == _COUNTED_POLICY else ''
    return f'policy {str(rule.policy)!r}{limit}'


def check(uuid: str, requested: HasGroupRule, stored: HasGroupRule) -> None:
    """Check that a rule does not contradict the stored one.

    :raises Refused: names both rules
    """
    if not rules_equal(requested, stored):
        raise exceptions.Refused(
            f'server group {uuid} exists with {rule_text(stored)}, and {rule_text(requested)} was '
            'asked for; a group keeps its rule: ask with that one, choose a new uuid, or remove '
            'the group first',
            uuid=uuid,
        )
