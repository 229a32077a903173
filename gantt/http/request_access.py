# SPDX-License-Identifier: Apache-2.0
"""What a caller may ask for, beyond that it may ask: whose places, and in what words."""

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import is_foreign, without_place
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.http import policy_access, requested_fields
from gantt.http.context import Caller, HandlerContext

#: Who meets it reads on which hosts places are; others the ids of their claims.
HOSTS = 'gantt:requests:hosts'


def checked(world: HandlerContext, caller: Caller, body: SelectDestinations) -> SelectDestinations:
    """The request, in the name of the caller where that acts for one project only.

    :raises Forbidden: it claims, or says what the caller may not say; names the field
    :raises InvalidMessage: in the name of another project or user
    :raises NotFound: a server group or a consumer that is not of its project, whether or
        not there is one
    """
    for need in requested_fields.needs(body):
        world.policy.check(need.rule, caller, need.field, need.expected)
    if caller.everywhere:
        return body
    spec = body.spec
    _check_names(caller, spec)
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


def refusal(
    world: HandlerContext, caller: Caller, body: SelectDestinations, error: exceptions.GanttError
) -> exceptions.GanttError:
    """A refusal by the schedulers, as far as the caller may read it.

    :raises NotFound: a consumer of another project has come meanwhile
    """
    if type(error) is not exceptions.Refused:
        return error
    if not caller.everywhere:
        _check_consumers(world, caller, body)
    if world.policy.allows(HOSTS, caller):
        return error
    return exceptions.Refused(without_place(error.message), **error.kwargs)


def _check_consumers(world: HandlerContext, caller: Caller, body: SelectDestinations) -> None:
    """Refuse consumers that are placed for others, and to be near to any but own ones.

    A consumer that is named to be near to is answered alike whether it is of another
    project or of nobody: else who names one asks where it is, and whether it is.  So is a
    consumer to be placed, in the trial of who may not claim; who may is refused the claim.
    """
    named = _named(body.spec)
    placed = body.consumers if world.policy.allows(requested_fields.CLAIM, caller) else []
    owners = world.store.owners_of(placed)
    for consumer in placed:
        if consumer in owners and is_foreign(owners[consumer], caller.only):
            raise exceptions.NotFound(kind='consumer', name=consumer)
    live = world.store.live_claims_of(named)
    own = {claim.consumer for claim in live if not is_foreign(claim.project_id, caller.only)}
    for consumer, field in named.items():
        if consumer not in own:
            raise exceptions.NotFound(
                f'{field}: consumer {consumer!r} is not known here; expected one that has a '
                'place and is of your project',
                kind='consumer',
                name=consumer,
                field=field,
            )


def _named(spec: RequestSpec) -> dict[str, str]:
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
