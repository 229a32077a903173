# SPDX-License-Identifier: Apache-2.0
"""What a caller may ask for, beyond that it may ask: whose places, and in what words."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import is_foreign
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.http import policy_access, requested_fields
from gantt.http.context import Caller, HandlerContext
from gantt.insights.explain import redacting

#: Who meets it reads on which hosts places are; others the ids of their claims.
HOSTS = 'gantt:requests:hosts'


def checked(world: HandlerContext, caller: Caller, body: SelectDestinations) -> SelectDestinations:
    """The request, in the name of the caller where that acts for one project only.

    A zone above is a caller of its project: what it may say beyond that follows from its
    registration, and its groups are its own.

    :raises Forbidden: it claims, or says what the caller may not say; names the field
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
        group = world.store.load_group(spec.group.uuid)
        if group is None or not caller.sees(group.project_id):
            raise exceptions.NotFound(kind='server group', name=spec.group.uuid)
        if spec.group.policies is not None:
            full, inside = spec.group.policies.full_policies, 'body.spec.group.policies'
            policy_access.check_levels(world, caller, full, inside)
    _check_consumers(world, caller, body)
    own = msgspec.structs.replace(spec, project_id=caller.project, user_id=caller.user)
    # A consumer may come between this look and the claim: the commit looks as well.
    return msgspec.structs.replace(body, spec=own, only_project=caller.only)


def check_words(world: HandlerContext, caller: Caller, body: SelectDestinations) -> None:
    """Whether the caller may say what a request says, as far as no store has to be asked.

    :raises Forbidden, NotTrusted: it may not; names the field
    :raises InvalidMessage: in the name of another project or user
    """
    for need in requested_fields.needs(body):
        _check_need(world, caller, need)
    if not caller.everywhere and caller.above is None:
        _check_names(caller, body.spec)


def check_rate(world: HandlerContext, caller: Caller, project: str | None) -> None:
    """Count a request of a project.  :raises TooManyRequests: it has sent as many as it may"""
    quotas = world.insights.quotas
    found = quotas.take(project, not caller.everywhere, quotas.current())
    if found is not None:
        raise found.error()


def refusal(
    world: HandlerContext, caller: Caller, body: SelectDestinations, error: exceptions.GanttError
) -> exceptions.GanttError:
    """A refusal by the schedulers, as far as the caller may read it.

    :raises NotFound: a consumer of another project has come meanwhile
    """
    if not caller.everywhere and type(error) is exceptions.Refused:
        _check_consumers(world, caller, body)
    return error if world.policy.allows(HOSTS, caller) else redacting.placeless(error)


def _check_need(world: HandlerContext, caller: Caller, need: requested_fields.Need) -> None:
    """:raises Forbidden, NotTrusted: the caller may not say it"""
    above = caller.above
    if above is None:
        world.policy.check(need.rule, caller, need.field, need.expected)
    elif not (
        above.trusted
        or need.field in requested_fields.OF_ZONES
        or need.rule == requested_fields.MIGRATE  # of its own guests, as whoever runs them may
    ):
        field = need.field.replace('body.', 'body.request.', 1)
        raise exceptions.NotTrusted(field=field, expected=need.expected)


def _check_consumers(world: HandlerContext, caller: Caller, body: SelectDestinations) -> None:
    """Refuse consumers that are placed for others, and to be near to any but own ones.

    A consumer that is named to be near to is answered alike whether it is of another
    project or of nobody: else who names one asks where it is, and whether it is.  So is a
    consumer to be placed, in the trial of who may not claim; who may is refused the claim.
    """
    if world.policy.allows(requested_fields.CLAIM, caller):
        _check_placed(world, caller, body.consumers)
    check_near(world, caller, near_to(body.spec))


def check_near(world: HandlerContext, caller: Caller, named: Mapping[str, str]) -> None:
    """Consumers to be near to, or not, are the caller's, whoever's requests name them: one read.

    :param named: consumer -> the field that names it
    :raises NotFound: one is not
    """
    own = _own_of(world, caller, named) if named else set()
    for consumer, field in named.items():
        if consumer not in own:
            raise _not_known(consumer, field)


def _check_placed(world: HandlerContext, caller: Caller, consumers: Sequence[str]) -> None:
    """:raises NotFound: one is placed for another project"""
    owners = world.store.owners_of(consumers)
    for consumer in consumers:
        if consumer in owners and is_foreign(owners[consumer], caller.only):
            raise exceptions.NotFound(kind='consumer', name=consumer)


def _near_to_own(world: HandlerContext, caller: Caller, spec: RequestSpec) -> RequestSpec:
    """What a zone above wants to be near to, or not, as far as that lives here and is its own.

    Its others may live in other zones, which is not here: on no host of those to be kept from.

    :raises NotFound: to be near to, there is none of them
    """
    named = [*spec.same_host, *spec.different_host]
    if not named:
        return spec
    own = _own_of(world, caller, named)
    same, different = (
        [one for one in of if one in own] for of in (spec.same_host, spec.different_host)
    )
    if spec.same_host and not same:
        raise _not_known(spec.same_host[0], 'body.request.spec.same_host')
    return msgspec.structs.replace(spec, same_host=same, different_host=different)


def _own_of(world: HandlerContext, caller: Caller, consumers: Collection[str]) -> set[str]:
    """Those that live here and are of the caller's project."""
    live = world.store.live_claims_of(consumers)
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
    """Consumer that a request wants to be near to, or not -> the field that names it."""
    members = spec.group.members if spec.group else []
    lists = {
        'group.members': members,
        'different_host': spec.different_host,
        'same_host': spec.same_host,
    }
    return {one: f'body.spec.{name}' for name, found in lists.items() for one in found}


def _check_names(caller: Caller, spec: RequestSpec) -> None:
    for field, value_given, own in (
        ('project_id', spec.project_id, caller.project),
        ('user_id', spec.user_id, caller.user),
    ):
        if value_given is not None and value_given != own:
            raise exceptions.invalid(
                f'body.spec.{field}', f'expected {own}, whom the token speaks for'
            )
