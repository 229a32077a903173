# SPDX-License-Identifier: Apache-2.0
"""What a caller may ask for, beyond that it may ask: whose places, and in what words."""

import msgspec

from gantt import exceptions
from gantt.core.commit import is_foreign, without_place
from gantt.core.request import Lifecycle, Purpose, RequestSpec, SelectDestinations
from gantt.http.world import Caller, World

MIGRATE = 'gantt:requests:create:migrate'
RULES = 'gantt:requests:create:rules'
TRUSTED = 'gantt:requests:create:trusted'
#: Hints that say what a host has to be.
_OF_HOSTS = ('rules', 'query')
#: Who meets it reads on which hosts places are; others the ids of their claims.
HOSTS = 'gantt:requests:hosts'

_MIGRATIONS = (Purpose.MIGRATE, Purpose.LIVE_MIGRATE)


def checked(world: World, caller: Caller, body: SelectDestinations) -> SelectDestinations:
    """The request, in the name of the caller where that acts for one project only.

    :raises Forbidden: a migration, rules for hosts, or words of operators, by who may not
    :raises InvalidMessage: in the name of another project or user
    :raises NotFound: a server group of another project, or a consumer of one
    """
    spec = body.spec
    if spec.purpose in _MIGRATIONS:
        world.policy.check(MIGRATE, caller)
    if spec.ignore_hosts or any(spec.hints.get(name) for name in _OF_HOSTS):
        world.policy.check(RULES, caller)
    if _is_trusted(body):
        world.policy.check(TRUSTED, caller)
    if caller.everywhere:
        return body
    _check_names(caller, spec)
    if spec.group is not None:
        group = world.store.load_group(spec.group.uuid)
        if group is not None and not caller.sees(group.project_id):
            raise exceptions.NotFound(kind='server group', name=spec.group.uuid)
    _check_consumers(world, caller, body)
    own = msgspec.structs.replace(spec, project_id=caller.project, user_id=caller.user)
    # A consumer may come between this look and the claim: the commit looks as well.
    return msgspec.structs.replace(body, spec=own, only_project=caller.only)


def refusal(
    world: World, caller: Caller, body: SelectDestinations, error: exceptions.GanttError
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


def _check_consumers(world: World, caller: Caller, body: SelectDestinations) -> None:
    """Refuse consumers that are placed for others."""
    for claim in world.store.live_claims_of(body.consumers):
        if is_foreign(claim, caller.only):
            raise exceptions.NotFound(kind='consumer', name=claim.consumer)


def _is_trusted(body: SelectDestinations) -> bool:
    """Whether it says what skips filters, outlives leases, or takes a guest from a host."""
    spec = body.spec
    return (
        bool(spec.force_hosts or spec.force_nodes or spec.destination)
        or spec.purpose is Purpose.EVACUATE
        or body.lifecycle is not Lifecycle.HOST
    )


def _check_names(caller: Caller, spec: RequestSpec) -> None:
    for field, said, own in (
        ('project_id', spec.project_id, caller.project),
        ('user_id', spec.user_id, caller.user),
    ):
        if said is not None and said != own:
            raise exceptions.InvalidMessage(
                field=f'body.spec.{field}', problem=f'expected {own}, whom the token speaks for'
            )
