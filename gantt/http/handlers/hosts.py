# SPDX-License-Identifier: Apache-2.0
"""Handlers of hosts: their believed state, and whether new claims may land on them."""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Message, Name
from gantt.http.context import Caller, HandlerContext
from gantt.http.links import Paged
from gantt.http.queries import DryRun, HistoryQuery, HostsQuery
from gantt.insights.host_views import HostQuery
from gantt.insights.views import (
    Change,
    HostDetail,
    HostDrain,
    HostHistory,
    HostSummary,
    view_of,
)


class HostsResponse(Paged, frozen=True, kw_only=True):
    """A page of hosts."""

    hosts: list[HostSummary]
    total: int
    table_age_seconds: float


class Disable(Message, frozen=True, kw_only=True):
    """Reason and author of a disabled host; shown in every verdict."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    by: Name | None = None


def list_hosts(context: HandlerContext, caller: Caller, query: HostsQuery) -> HostsResponse:
    """List the hosts with their free room."""
    page = context.insights.hosts(view_of(HostQuery, query, part=query.name))
    return view_of(HostsResponse, page, links=[])


def show_host(context: HandlerContext, caller: Caller, name: str) -> HostDetail:
    """Show one host: believed, reported and claimed side by side."""
    return context.insights.host(name)


def show_drain(context: HandlerContext, caller: Caller, name: str) -> HostDrain:
    """Show how far a host is from being empty: the claims that remain, and what each waits for.

    To drain a host, disable it and ask for this until ``is_empty``.
    """
    return context.insights.drain(name)


def show_history(
    context: HandlerContext, caller: Caller, name: str, query: HistoryQuery
) -> HostHistory:
    """Show what happened to a host lately, newest first, also of one that was forgotten.

    Registrations, what operators did, facts that changed, and claims as long as they are kept.
    """
    return context.insights.host_history(name, query.limit)


def disable_host(
    context: HandlerContext, caller: Caller, name: str, query: DryRun, body: Disable
) -> Change[HostSummary]:
    """Let nothing new land on a host.

    What is there stays.  Disabling again replaces the reason.
    """
    by = body.by or caller.user or 'somebody'
    context.insights.host_summary(name)
    if query.dry_run:
        summary = f'host {name} would be disabled by {by}: {body.reason}'
        return Change(dry_run=True, message=summary, now=context.insights.host_summary(name))
    context.insights.offer([context.stores.hosts.disable_host(name, body.reason, by)])
    summary = f'host {name} is disabled by {by}: {body.reason}'
    return Change(dry_run=False, message=summary, now=context.insights.host_summary(name))


def enable_host(
    context: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[HostSummary]:
    """Let new claims land on a host again."""
    before = context.insights.host_summary(name)
    if query.dry_run:
        return Change(dry_run=True, message=f'host {name} would be enabled', now=before)
    context.insights.offer([context.stores.hosts.enable_host(name, caller.user or 'somebody')])
    now = context.insights.host_summary(name)
    return Change(dry_run=False, message=f'host {name} is enabled', now=now)


def remove_host(
    context: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[HostSummary]:
    """Forget a host without live claims; it comes back when it registers again."""
    before = context.insights.check_removable(name)
    warning = _return_warning(context, before)
    if query.dry_run:
        return Change(dry_run=True, message=f'host {name} would be forgotten{warning}', now=before)
    context.insights.offer([context.stores.hosts.remove_host(name)])
    return Change(dry_run=False, message=f'host {name} is forgotten{warning}', now=None)


def _return_warning(context: HandlerContext, before: HostSummary) -> str:
    """Return a warning about a host whose agent seems to run; empty: it does not."""
    age = before.report_age_seconds
    if age is None or age >= context.insights.settings.stale_after_seconds:
        return ''
    return (
        f'. It reported {age:.0f} s ago: while its agent runs, it comes back with its next full '
        'report, and takes nothing until then; to keep it away stop the agent, or use '
        '"gantt-manage host decommission"'
    )
