# SPDX-License-Identifier: Apache-2.0
"""Access to policies of a group: one that chooses hosts reveals their properties."""

from collections.abc import Iterator, Sequence

from gantt import exceptions
from gantt.core.filters.rules import RulesFilter
from gantt.core.group_policies import levels
from gantt.core.messages.level_policy import HOST, LevelPolicy
from gantt.core.messages.policy_set import PolicySet
from gantt.core.table.facts import LOCATION_PARTS
from gantt.http.context import Caller, HandlerContext
from gantt.http.policy import Forbidden
from gantt.http.requested_fields import RULES

#: Levels that every caller of the route may know, beside the parts of locations.
_KNOWN = frozenset({HOST, 'zone'})


def check(world: HandlerContext, caller: Caller, policies: PolicySet, inside: str) -> None:
    """Refuse policies that the caller may not name.

    :param inside: the field that has them, for the refusal
    :raises InvalidMessage: one names a level that there is not
    :raises Forbidden: one is about properties of hosts for operators only; names the field
    :raises NotFound: one is about a group that does not exist in the caller's project
    """
    full = policies.full_policies
    check_levels(world, caller, full, inside)
    for number, policy in enumerate(full):
        for at in _targets(policy):
            world.policy.check(RULES, caller, f'{inside}.policies[{number}].{at}', 'nothing')
        other = None if policy.target is None else policy.target.group
        if other is not None and not caller.everywhere:
            group = world.stores.groups.load_group(other)
            if group is None or not caller.sees(group.project_id):
                raise exceptions.NotFound(kind='server group', name=other)


def check_levels(
    world: HandlerContext, caller: Caller, full: Sequence[LevelPolicy], inside: str
) -> None:
    """Refuse policies at levels that the caller may not know of.

    A caller that may choose among hosts by rules may name any level; one that does so for one
    project, the levels of facts that rules of users may be about.

    :param full: the policies, Nova's written out
    :raises InvalidMessage: one names a level that there is not
    :raises Forbidden: one is of properties of hosts for operators only; names the field
    """
    pipeline = world.insights.pipeline
    parts = pipeline.settings.location_parts or LOCATION_PARTS
    levels.check(full, parts, inside)
    known_levels = _KNOWN.union(parts)
    usable = [
        rules_filter.user_facts
        for rules_filter in pipeline.filters
        if isinstance(rules_filter, RulesFilter)
    ]
    facts = frozenset(usable[0] if usable else ())
    for number, policy in enumerate(full):
        for at, level in _levels(policy):
            if level in known_levels:
                continue
            field = f'{inside}.policies[{number}].{at}'
            expected = f'one of {", ".join(sorted(known_levels))}'
            world.policy.check(RULES, caller, field, expected)
            fact, _ = levels.find(level, parts, field)
            if facts and not caller.everywhere and fact.name not in facts:
                raise Forbidden(
                    f'{field}: policies of users may not be about {fact.name}; '
                    f'expected one of {", ".join(sorted(known_levels | facts))}',
                    field=field,
                )


def _levels(policy: LevelPolicy) -> Iterator[tuple[str, str]]:
    """Yield the fields that name levels, and the levels."""
    yield 'level', policy.level
    for number, price in enumerate(policy.prices):
        yield f'prices[{number}].level', price.level


def _targets(policy: LevelPolicy) -> Iterator[str]:
    """Yield the fields that name hosts, or their properties."""
    if policy.target is not None:
        for name in ('host', 'domain', 'pool'):
            if getattr(policy.target, name) is not None:
                yield f'target.{name}'
