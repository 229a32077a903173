# SPDX-License-Identifier: Apache-2.0
"""Access to placement requests, beyond the route's rule: whose places, which fields and policies.

A policy of a group that chooses hosts reveals their properties.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import is_foreign
from gantt.core.filters.rules import RulesFilter
from gantt.core.group_policies import levels
from gantt.core.messages import base
from gantt.core.messages.policy_set import HOST_LEVEL, LevelPolicy, PolicySet
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.table.facts import LOCATION_PARTS
from gantt.http import requested_fields
from gantt.http.context import Caller, HandlerContext
from gantt.http.policy import Forbidden
from gantt.http.requested_fields import RULES_POLICY
from gantt.insights.explain import redacting

#: Levels that every caller of the route may know, besides the parts of locations.
_PUBLIC_LEVELS = frozenset({HOST_LEVEL, 'zone'})


def check_policies(
    context: HandlerContext, caller: Caller, policies: PolicySet, inside: str
) -> None:
    """Refuse policies that the caller may not name.

    :param inside: the field that has them, for the refusal
    :raises InvalidMessage: one names a level that there is not
    :raises Forbidden: one is about properties of hosts for operators only; names the field
    :raises NotFound: one is about a group that does not exist in the caller's project
    """
    full = policies.full_policies
    check_levels(context, caller, full, inside)
    for number, policy in enumerate(full):
        for at in _targets(policy):
            context.policy.check(
                RULES_POLICY, caller, f'{inside}.policies[{number}].{at}', 'nothing'
            )
        other = None if policy.target is None else policy.target.group
        if other is not None and not caller.everywhere:
            group = context.stores.groups.load_group(other)
            if group is None or not caller.may_see(group.project_id):
                raise exceptions.NotFound(kind='server group', name=other)


def check_levels(
    context: HandlerContext, caller: Caller, full: Sequence[LevelPolicy], inside: str
) -> None:
    """Refuse policies at levels that the caller may not know of.

    A caller that may choose among hosts by rules may name any level; one that does so for one
    project, the levels of facts that rules of users may be about.

    :param full: the policies, Nova's written out
    :raises InvalidMessage: one names a level that there is not
    :raises Forbidden: one is of properties of hosts for operators only; names the field
    """
    pipeline = context.insights.pipeline
    parts = pipeline.settings.location_parts or LOCATION_PARTS
    levels.check_levels(full, parts, inside)
    known_levels = _PUBLIC_LEVELS.union(parts)
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
            context.policy.check(RULES_POLICY, caller, field, expected)
            fact, _ = levels.find_level(level, parts, field)
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


#: Callers that meet it read the hosts of places; others the ids of their claims.
HOSTS_POLICY = 'gantt:requests:hosts'


def check_request(
    context: HandlerContext, caller: Caller, body: SelectDestinations
) -> SelectDestinations:
    """Return the request, in the name of the caller where that acts for one project only.

    A parent zone is a caller of its project: the further fields it may send follow from its
    registration, and its groups are its own.

    :raises Forbidden: the request claims, or has fields that the caller may not send; names the
        field
    :raises InvalidMessage: in the name of another project or user
    :raises NotFound: a server group or a consumer that is not of its project, whether or
        not there is one
    """
    check_fields(context, caller, body)
    if caller.everywhere:
        return body
    spec = body.spec
    if caller.is_parent:
        spec = _without_foreign_near(context, caller, spec)
        _check_own_consumers(context, caller, body.consumers)
        return msgspec.structs.replace(body, spec=spec, only_project=caller.project_filter)
    if spec.group is not None and not spec.is_group_of_plan:  # plans are looked up by schedulers
        group = context.stores.groups.load_group(spec.group.uuid)
        if group is None or not caller.may_see(group.project_id):
            raise exceptions.NotFound(kind='server group', name=spec.group.uuid)
        if spec.group.policies is not None:
            full, inside = spec.group.policies.full_policies, 'body.spec.group.policies'
            check_levels(context, caller, full, inside)
    _check_consumers(context, caller, body)
    own = msgspec.structs.replace(spec, project_id=caller.project, user_id=caller.user)
    # A consumer may come between this check and the claim: the commit checks as well.
    return msgspec.structs.replace(body, spec=own, only_project=caller.project_filter)


def check_fields(context: HandlerContext, caller: Caller, body: SelectDestinations) -> None:
    """Check whether the caller may send a request's fields, as far as no store is needed.

    :raises Forbidden, NotTrusted: the caller may not send a field; names the field
    :raises InvalidMessage: in the name of another project or user
    """
    for need in requested_fields.protected_fields(body):
        _check_need(context, caller, need)
    if not caller.everywhere and not caller.is_parent:
        _check_names(caller, body.spec)
        group = body.spec.group
        if group is not None and group.is_ruled and base.is_named_id(group.uuid):
            raise exceptions.invalid(
                'body.spec.group.policy', 'expected none: a group with a name has that of its plan'
            )


def check_rate(context: HandlerContext, caller: Caller, project: str | None) -> None:
    """Count a request of a project.  :raises TooManyRequests: the project has used up its rate"""
    quotas = context.insights.quotas
    excess = quotas.count_request(project, not caller.everywhere, quotas.fresh_limits())
    if excess is not None:
        raise excess.error()


def refusal(
    context: HandlerContext, caller: Caller, body: SelectDestinations, error: exceptions.GanttError
) -> exceptions.GanttError:
    """Return a refusal by the schedulers, as far as the caller may read it.

    :raises NotFound: a consumer of another project has come meanwhile
    """
    if not caller.everywhere and type(error) is exceptions.Refused:
        _check_consumers(context, caller, body)
    return (
        error if context.policy.allows(HOSTS_POLICY, caller) else redacting.redacted_refusal(error)
    )


def _check_need(
    context: HandlerContext, caller: Caller, need: requested_fields.ProtectedField
) -> None:
    """Check a rule for a field.

    :raises Forbidden, NotTrusted: the caller may not send it
    """
    if not caller.is_parent:
        context.policy.check(need.rule, caller, need.field, need.expected)
    elif not (
        caller.everywhere
        or need.field in requested_fields.ZONE_FIELDS
        or need.rule == requested_fields.MIGRATE_POLICY  # of its own guests, as their operator may
    ):
        field = need.field.replace('body.', 'body.request.', 1)
        raise exceptions.NotTrusted(field=field, expected=need.expected)


def _check_consumers(context: HandlerContext, caller: Caller, body: SelectDestinations) -> None:
    """Refuse consumers of other projects, both those to be placed and those to be near to.

    A consumer to be near to gets the same answer whether it is of another project or does not
    exist: otherwise the caller could probe whether and where it is.  So does a consumer to be
    placed, in the dry run of a caller that may not claim; a caller that may is refused the claim.
    """
    if context.policy.allows(requested_fields.CLAIM_POLICY, caller):
        _check_own_consumers(context, caller, body.consumers)
    check_near_consumers(context, caller, fields_of_near_consumers(body.spec))


def check_near_consumers(context: HandlerContext, caller: Caller, named: Mapping[str, str]) -> None:
    """Check by one read that the consumers a request is to be near to, or not, are the caller's.

    :param named: consumer -> the field that names it
    :raises NotFound: one of the consumers is not the caller's
    """
    own = _own_consumers(context, caller, named) if named else set()
    for consumer, field in named.items():
        if consumer not in own:
            raise _unknown_consumer_error(consumer, field)


def _check_own_consumers(context: HandlerContext, caller: Caller, consumers: Sequence[str]) -> None:
    """Check that consumers are not placed for other projects.

    :raises NotFound: one is
    """
    owners = context.stores.quotas.owners_of(consumers)
    for consumer in consumers:
        if consumer in owners and is_foreign(owners[consumer], caller.project_filter):
            raise exceptions.NotFound(kind='consumer', name=consumer)


def _without_foreign_near(
    context: HandlerContext, caller: Caller, spec: RequestSpec
) -> RequestSpec:
    """Return the spec with only those consumers to be near to, or not, that are the caller's here.

    Its others may live in other zones: there is no host of those here to avoid.

    :raises NotFound: none of the consumers to be near to is the caller's here
    """
    named = [*spec.same_host, *spec.different_host]
    if not named:
        return spec
    own = _own_consumers(context, caller, named)
    same, different = (
        [consumer for consumer in consumers if consumer in own]
        for consumers in (spec.same_host, spec.different_host)
    )
    if spec.same_host and not same:
        raise _unknown_consumer_error(spec.same_host[0], 'body.request.spec.same_host')
    return msgspec.structs.replace(spec, same_host=same, different_host=different)


def _own_consumers(context: HandlerContext, caller: Caller, consumers: Collection[str]) -> set[str]:
    """Return the consumers that live here and are of the caller's project."""
    live = context.stores.claims.live_claims_of(consumers)
    return {
        claim.consumer for claim in live if not is_foreign(claim.project_id, caller.project_filter)
    }


def _unknown_consumer_error(consumer: str, field: str) -> exceptions.NotFound:
    return exceptions.NotFound(
        f'{field}: consumer {consumer!r} was not found; expected one that has a '
        'place and is of your project',
        kind='consumer',
        name=consumer,
        field=field,
    )


def fields_of_near_consumers(spec: RequestSpec) -> dict[str, str]:
    """Return consumer to be near to, or not -> the field that names it."""
    members = spec.group.members if spec.group else []
    lists = {
        'group.members': members,
        'different_host': spec.different_host,
        'same_host': spec.same_host,
    }
    return {
        consumer: f'body.spec.{name}' for name, consumers in lists.items() for consumer in consumers
    }


def _check_names(caller: Caller, spec: RequestSpec) -> None:
    for field, value_given, own in (
        ('project_id', spec.project_id, caller.project),
        ('user_id', spec.user_id, caller.user),
    ):
        if value_given is not None and value_given != own:
            raise exceptions.invalid(
                f'body.spec.{field}', f'expected {own}, whom the token speaks for'
            )
