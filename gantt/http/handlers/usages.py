# SPDX-License-Identifier: Apache-2.0
"""Usage by project: what live claims take."""

from gantt import exceptions
from gantt.core.claims.quota import ProjectUsage
from gantt.http.links import Paged
from gantt.http.queries import Page
from gantt.http.world import Caller, World


class Usages(Paged, frozen=True, kw_only=True):
    """A page of projects, by id."""

    usages: list[ProjectUsage]


def list_usages(world: World, caller: Caller, query: Page) -> Usages:
    """List what the live claims of each project take; a project without one is not listed.

    A member is shown its own project only.
    """
    found = world.store.usages(query.limit + 1, query.marker, caller.only)
    page = found[: query.limit]
    return Usages(usages=page, next_marker=page[-1].project_id if len(found) > len(page) else None)


def show_usage(world: World, caller: Caller, project_id: str) -> ProjectUsage:
    """Show what the live claims of one project take; all is 0 where there is none."""
    if not caller.sees(project_id):
        raise exceptions.NotFound(kind='usage of project', name=project_id)
    found = world.store.usages(1, project=project_id)
    return found[0] if found else ProjectUsage(project_id=project_id)
