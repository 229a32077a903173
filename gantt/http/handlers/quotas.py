# SPDX-License-Identifier: Apache-2.0
"""Handlers of quotas: limits of each project, and the usage of its live claims."""

from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.quota import ProjectUsage
from gantt.core.messages import base
from gantt.core.messages.base import Message, Name
from gantt.http.context import Caller, HandlerContext
from gantt.http.links import Paged
from gantt.http.queries import DryRun, Page, page_of
from gantt.insights.views import Change
from gantt.scheduler.quotas import QuotaView

#: Limits in one change.
_LIMITS_MAX = 100


class ProjectLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that are set for a project, by name; -1: none."""

    project_id: str
    limits: dict[str, int]


class QuotasResponse(Paged, frozen=True, kw_only=True):
    """A page of projects with limits of their own, by id; ``default`` is all others."""

    quotas: list[ProjectLimits]


class SetQuota(Message, frozen=True, kw_only=True):
    """Limits by name; null takes one away, -1 is no limit, others stay as they are."""

    limits: Annotated[dict[Name, int | None], msgspec.Meta(min_length=1, max_length=_LIMITS_MAX)]


class Usages(Paged, frozen=True, kw_only=True):
    """A page of projects, by id."""

    usages: list[ProjectUsage]


def list_quotas(context: HandlerContext, caller: Caller, query: Page) -> QuotasResponse:
    """List the limits that are set: of projects, and for all others of the project ``default``."""
    limits_by_project: dict[str, dict[str, int]] = {}
    for row in context.stores.quotas.limits():
        if query.marker is None or row.project_id > query.marker:
            limits_by_project.setdefault(row.project_id, {})[row.name] = row.limit
    limits = [
        ProjectLimits(project_id=project, limits=limits_by_project[project])
        for project in sorted(limits_by_project)
    ]
    page, marker = page_of(limits, query.limit, 'project_id')
    return QuotasResponse(quotas=page, next_marker=marker)


def show_quota(context: HandlerContext, caller: Caller, project_id: str) -> QuotaView:
    """Show the limits of a project in force, where each is from, and what is used."""
    if not caller.may_see(project_id):
        raise exceptions.NotFound(kind='quota', name=project_id)
    return context.insights.quotas.quota_view(project_id)


def show_limits(context: HandlerContext, caller: Caller) -> QuotaView:
    """Show the limits of the own project and what is used; without a project the defaults."""
    return context.insights.quotas.quota_view(caller.project or quota.DEFAULT_PROJECT)


def set_quota(
    context: HandlerContext, caller: Caller, project_id: str, query: DryRun, body: SetQuota
) -> Change[QuotaView]:
    """Set limits of a project by their names; those of ``default`` are of all others.

    Schedulers and API processes know of it within five seconds.
    """
    base.decode(project_id, Name, inside='project_id')
    for name in body.limits:
        quota.check_name(name, 'body.limits')
    quota.check(
        quota.Limit(project_id=project_id, name=name, limit=limit)
        for name, limit in body.limits.items()
        if limit is not None
    )
    words = ', '.join(f'{name} {_limit_text(body.limits[name])}' for name in sorted(body.limits))
    if query.dry_run:
        now = context.insights.quotas.quota_view(project_id)
        return Change(dry_run=True, message=f'quota of {project_id} would be: {words}', now=now)
    context.stores.quotas.set_quotas(project_id, body.limits)
    context.insights.quotas.read()
    now = context.insights.quotas.quota_view(project_id)
    return Change(dry_run=False, message=f'quota of {project_id} is set: {words}', now=now)


def unset_quota(
    context: HandlerContext, caller: Caller, project_id: str, query: DryRun
) -> Change[QuotaView]:
    """Take all limits of a project away: the defaults hold again."""
    names = [row.name for row in context.stores.quotas.limits() if row.project_id == project_id]
    if not names:
        raise exceptions.NotFound(kind='quota', name=project_id)
    words = ', '.join(names)
    if query.dry_run:
        now = context.insights.quotas.quota_view(project_id)
        summary = f'quota of {project_id} would be unset: {words}'
        return Change(dry_run=True, message=summary, now=now)
    context.stores.quotas.set_quotas(project_id, dict.fromkeys(names))
    context.insights.quotas.read()
    now = context.insights.quotas.quota_view(project_id)
    return Change(dry_run=False, message=f'quota of {project_id} is unset: {words}', now=now)


def list_usages(context: HandlerContext, caller: Caller, query: Page) -> Usages:
    """List what the live claims of each project take; a project without one is not listed.

    A member is shown its own project only.
    """
    usages = context.stores.quotas.usages(query.limit + 1, query.marker, caller.project_filter)
    page, marker = page_of(usages, query.limit, 'project_id')
    return Usages(usages=page, next_marker=marker)


def show_usage(context: HandlerContext, caller: Caller, project_id: str) -> ProjectUsage:
    """Show what the live claims of one project take; all is 0 where there is none."""
    if not caller.may_see(project_id):
        raise exceptions.NotFound(kind='usage of project', name=project_id)
    usages = context.stores.quotas.usages(1, project=project_id)
    return usages[0] if usages else ProjectUsage(project_id=project_id)


def _limit_text(limit: int | None) -> str:
    if limit is None:
        return 'unset'
    return 'unlimited' if limit == quota.UNLIMITED else str(limit)
