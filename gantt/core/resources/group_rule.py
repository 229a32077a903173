# SPDX-License-Identifier: Apache-2.0
"""The rule of a server group, and when two of them are the same.

A rule never changes while its group is there; a group may be removed and made
again with another one.  So what was planned under a rule is compared with the
stored one at the commit, by ``core.claims.commit.is_behind``, in every store.
"""

from typing import Protocol

import msgspec

from gantt import exceptions
from gantt.core.messages import policy_set
from gantt.core.messages.level_policy import Policy
from gantt.core.messages.policy_set import POLICIES
from gantt.core.messages.request import GroupRef, SelectDestinations

#: A group begins at a drawn multiple of it, and counts up from there.
STEP = 1 << 20
_NUMBERS = 1 << 32
#: Those that a request makes begin below, those that somebody made by itself from there on.
APART = _NUMBERS * STEP
#: The one policy that ``max_per_host`` means something to.
_COUNTED = 'anti-affinity'
#: Characters of a set of policies that an error says.
_WORDS_MAX = 400


class Ruled(Protocol):
    """Whatever has the rule of a group: as stored, as asked for, as planned with."""

    @property
    def policy(self) -> str | None: ...

    @property
    def max_per_host(self) -> int: ...

    @property
    def policies(self) -> str | None:
        """Of a rule whose policy is ``policies``: all of them, see ``PolicySet.text``."""


class GroupRule(msgspec.Struct, gc=False, frozen=True):
    """A rule as it is stored, with the generation that guards placements under it.

    :ivar policies: of a rule whose policy is ``policies``: all of them, see ``PolicySet.text``
    :ivar rule_generation: of the rule itself, read where zones are told: a rule that the group has
        later has a higher one, also once it was made anew; None: not known
    """

    policy: str
    max_per_host: int = 1
    generation: int = 0
    policies: str | None = None
    rule_generation: int | None = None

    @property
    def is_untouched(self) -> bool:
        """Whether nobody was ever placed under its guard."""
        return since_first(self.generation) == 0


def first_generation(number: int, *, by_itself: bool = False) -> int:
    """Where a group begins.

    A group goes, removed or as nobody is in it any more, and may come back: what is
    remembered of its first life must match nothing of the second.  It also tells a group
    that a request makes from one that somebody made by itself, which stays, named or not.

    :param number: another one for each
    """
    first = (number % _NUMBERS or 1) * STEP
    return first + APART if by_itself else first


def since_first(generation: int) -> int:
    """How many times a group was placed under since it began."""
    return generation % STEP


def agree(one: Ruled, other: Ruled) -> bool:
    """Whether two rules are the same rule; ``max_per_host`` counts where it has a meaning."""
    if one.policy != other.policy:
        return False
    if one.policy == POLICIES:
        return one.policies == other.policies
    return one.policy != _COUNTED or one.max_per_host == other.max_per_host


def named(group: GroupRef) -> GroupRule | None:
    """The rule that a request names of its group; None: it names none."""
    if group.policies is not None:
        return GroupRule(POLICIES, policies=group.policies.text)
    if group.policy is not None:
        return GroupRule(group.policy.value, group.max_per_host)
    return None


def problem_of(rule: Ruled) -> str:
    """Why a stored rule cannot be read; '' where it can be."""
    try:
        if rule.policies is not None:
            policy_set.read(rule.policies)
        elif rule.policy != POLICIES:
            Policy(str(rule.policy))
    except exceptions.RuleUnreadable as e:
        return e.message
    except ValueError as e:
        return exceptions.RuleUnreadable(problem=str(e)).message
    return ''


def ruled(group: GroupRef, rule: GroupRule) -> GroupRef:
    """The group of a request with the rule that is stored of it.

    :raises RuleUnreadable: by this release
    """
    if rule.policies is not None:
        found = policy_set.read(rule.policies)
        return msgspec.structs.replace(group, policy=None, max_per_host=1, policies=found)
    try:
        policy, most = Policy(rule.policy), rule.max_per_host
    except ValueError as e:
        raise exceptions.RuleUnreadable(problem=str(e)) from e
    return msgspec.structs.replace(group, policy=policy, max_per_host=most, policies=None)


def with_rule(request: SelectDestinations, rule: GroupRule) -> SelectDestinations:
    """A request of a group under the rule that holds for it."""
    group = request.spec.group
    if group is None:
        return request
    spec = msgspec.structs.replace(request.spec, group=ruled(group, rule))
    return msgspec.structs.replace(request, spec=spec, rule_generation=rule.rule_generation)


def of_request(group: GroupRef, stored: GroupRule | None) -> GroupRule:
    """The rule that holds for a request of a group.

    :param stored: None: the group is not there
    :raises NotFound: nobody says which
    :raises Refused: the request names another one than is stored
    """
    asked = named(group)
    if stored is None:
        if asked is None:
            raise unknown_group(group.uuid)
        return asked
    # Policies that somebody gave the group stand for what Nova says of it.
    if asked is not None and (stored.policies is None or group.policies is not None):
        check(group.uuid, asked, stored)
    return stored


def holds(group: GroupRef, stored: GroupRule | None) -> bool:
    """Whether a group is stored with a rule that a request of it may be placed under."""
    try:
        return stored is not None and of_request(group, stored) is stored
    except (exceptions.Refused, exceptions.RuleUnreadable):
        return False


def unknown_group(uuid: str) -> exceptions.NotFound:
    """The error for who names a group that is not there."""
    return exceptions.NotFound(
        f'request.spec.group: server group {uuid!r} is not known here; '
        'name its policy, or create it first',
        kind='server group',
        name=uuid,
    )


def in_words(rule: Ruled) -> str:
    """The rule for people."""
    if rule.policies is not None:
        found = policy_set.read(rule.policies).in_words()
        return f'policies {found if len(found) <= _WORDS_MAX else found[:_WORDS_MAX] + " …"}'
    most = f' and max_per_host {rule.max_per_host}' if rule.policy == _COUNTED else ''
    return f'policy {str(rule.policy)!r}{most}'


def check(uuid: str, wanted: Ruled, stored: Ruled) -> None:
    """Refuse a rule that contradicts the stored one.

    :raises Refused: it names both rules
    """
    if not agree(wanted, stored):
        raise exceptions.Refused(
            f'server group {uuid} exists with {in_words(stored)}, and {in_words(wanted)} was asked '
            'for; a group keeps its rule: ask with that one, choose a new uuid, or remove the '
            'group first',
            uuid=uuid,
        )
