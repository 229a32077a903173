# SPDX-License-Identifier: Apache-2.0
"""Access to placement requests, beyond the route's rule: whose places, and with which fields."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import is_foreign
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.http import policy_access, requested_fields
from gantt.http.context import Caller, HandlerContext
from gantt.insights.explain import redacting

#: Callers that meet it read the hosts of places; others the ids of their claims.
HOSTS = 'gantt:requests:hosts'


def checked(world: HandlerContext, caller: Caller, body: SelectDestinations) -> SelectDestinations:
    """Return the request, in the name of the caller where that acts for one project only.

    A parent zone is a caller of its project: the further fields it may send follow from its
    registration, and its groups are its own.

    :raises Forbidden: it claims, or has fields that the caller may not send; names the field
    :raises InvalidMessage: in the name of another project or user
    :raises NotFound: a server group or a consumer that is not of its project, whether or
        not there is one
    """
    check_words(world, caller, body)
    if caller.everywhere:
        return body
    spec = body.spec
    if caller.above is not None:
        spec = _near_to_own(world, caller, spec)
        _check_placed(world, caller, body.consumers)
        return msgspec.structs.replace(body, spec=spec, only_project=caller.only)
    if spec.group is not None:
        group = world.stores.groups.load_group(spec.group.uuid)
        if group is None or not caller.sees(group.project_id):
            raise exceptions.NotFound(kind='server group', name=spec.group.uuid)
        if spec.group.policies is not None:
            full, inside = spec.group.policies.full_policies, 'body.spec.group.policies'
            policy_access.check_levels(world, caller, full, inside)
    _check_consumers(world, caller, body)
    own = msgspec.structs.replace(spec, project_id=caller.project, user_id=caller.user)
    # A consumer may come between this check and the claim: the commit checks as well.
    return msgspec.structs.replace(body, spec=own, only_project=caller.only)


def check_words(world: HandlerContext, caller: Caller, body: SelectDestinations) -> None:
    """Check whether the caller may send a request's fields, as far as no store is needed.

    :raises Forbidden, NotTrusted: it may not; names the field
    :raises InvalidMessage: in the name of another project or user
    """
    for need in requested_fields.needs(body):
        _check_need(world, caller, need)
    if not caller.everywhere and caller.above is None:
        _check_names(caller, body.spec)


def check_rate(world: HandlerContext, caller: Caller, project: str | None) -> None:
    """Count a request of a project.  :raises TooManyRequests: it has used up its rate"""
    quotas = world.insights.quotas
    excess = quotas.take(project, not caller.everywhere, quotas.current())
    if excess is not None:
        raise excess.error()


def refusal(
    world: HandlerContext, caller: Caller, body: SelectDestinations, error: exceptions.GanttError
) -> exceptions.GanttError:
    """Return a refusal by the schedulers, as far as the caller may read it.

    :raises NotFound: a consumer of another project has come meanwhile
    """
    if not caller.everywhere and type(error) is exceptions.Refused:
        _check_consumers(world, caller, body)
    return error if world.policy.allows(HOSTS, caller) else redacting.placeless(error)


def _check_need(world: HandlerContext, caller: Caller, need: requested_fields.Need) -> None:
    """Check a rule for a field.

    :raises Forbidden, NotTrusted: the caller may not send it
    """
    above = caller.above
    if above is None:
        world.policy.check(need.rule, caller, need.field, need.expected)
    elif not (
        above.trusted
        or need.field in requested_fields.OF_ZONES
        or need.rule == requested_fields.MIGRATE  # of its own guests, as their operator may
    ):
        field = need.field.replace('body.', 'body.request.', 1)
        raise exceptions.NotTrusted(field=field, expected=need.expected)


def _check_consumers(world: HandlerContext, caller: Caller, body: SelectDestinations) -> None:
    """Refuse consumers that are placed for others, and to be near to any but own ones.

    A consumer to be near to gets the same answer whether it is of another project or does not
    exist: otherwise the caller could probe whether and where it is.  So does a consumer to be
    placed, in the dry run of a caller that may not claim; a caller that may is refused the claim.
    """
    if world.policy.allows(requested_fields.CLAIM, caller):
        _check_placed(world, caller, body.consumers)
    check_near(world, caller, near_to(body.spec))


def check_near(world: HandlerContext, caller: Caller, named: Mapping[str, str]) -> None:
    """Check that consumers to be near to, or not, are the caller's, with one read.

    :param named: consumer -> the field that names it
    :raises NotFound: one is not
    """
    own = _own_of(world, caller, named) if named else set()
    for consumer, field in named.items():
        if consumer not in own:
            raise _not_known(consumer, field)


def _check_placed(world: HandlerContext, caller: Caller, consumers: Sequence[str]) -> None:
    """Check that consumers are not placed for other projects.

    :raises NotFound: one is
    """
    owners = world.stores.quotas.owners_of(consumers)
    for consumer in consumers:
        if consumer in owners and is_foreign(owners[consumer], caller.only):
            raise exceptions.NotFound(kind='consumer', name=consumer)


def _near_to_own(world: HandlerContext, caller: Caller, spec: RequestSpec) -> RequestSpec:
    """Return the spec with the consumers to be near to, or not, that live here and are its own.

    Its others may live in other zones: there is no host of those here to avoid.

    :raises NotFound: to be near to, there is none of them
    """
    named = [*spec.same_host, *spec.different_host]
    if not named:
        return spec
    own = _own_of(world, caller, named)
    same, different = (
        [consumer for consumer in consumers if consumer in own]
        for consumers in (spec.same_host, spec.different_host)
    )
    if spec.same_host and not same:
        raise _not_known(spec.same_host[0], 'body.request.spec.same_host')
    return msgspec.structs.replace(spec, same_host=same, different_host=different)


def _own_of(world: HandlerContext, caller: Caller, consumers: Collection[str]) -> set[str]:
    """Return the consumers that live here and are of the caller's project."""
    live = world.stores.claims.live_claims_of(consumers)
    return {claim.consumer for claim in live if not is_foreign(claim.project_id, caller.only)}


def _not_known(consumer: str, field: str) -> exceptions.NotFound:
    return exceptions.NotFound(
        f'{field}: consumer {consumer!r} is not known here; expected one that has a '
        'place and is of your project',
        kind='consumer',
        name=consumer,
        field=field,
    )


def near_to(spec: RequestSpec) -> dict[str, str]:
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
