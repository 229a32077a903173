# SPDX-License-Identifier: Apache-2.0
"""Handlers of metrics that hosts report, and of their declarations."""

from typing import Annotated

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import Message, Name, Text
from gantt.core.table import metric_values, metrics
from gantt.core.table.host_table import HostTable
from gantt.core.table.metrics import DeclaredMetric
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import Created
from gantt.http.links import Paged, path_of
from gantt.http.queries import DryRun, Page, page_by_name
from gantt.insights.views import Change

Number = Annotated[float, msgspec.Meta(ge=-metrics.METRIC_BOUND_MAX, le=metrics.METRIC_BOUND_MAX)]


class MetricView(msgspec.Struct, frozen=True):
    """A metric that is declared, or that some host reports.

    :ivar hosts: how many report it
    :ivar silent: of them, whose value is out of the declared bounds or too old, and has no say
    """

    name: str
    declared: bool
    unit: str
    lower: float | None
    upper: float | None
    stale_seconds: float | None
    description: str
    hosts: int
    silent: int


class MetricViews(Paged, frozen=True, kw_only=True):
    """A page of metrics, by name."""

    metrics: list[MetricView]


class SetMetric(Message, frozen=True, kw_only=True):
    """Whole declaration of a metric: what is left out is not declared."""

    unit: Text = ''
    lower: Number | None = None
    upper: Number | None = None
    stale_seconds: Number | None = None
    description: Text = ''


def list_metrics(context: HandlerContext, caller: Caller, query: Page) -> MetricViews:
    """List the declared metrics, and those that hosts report."""
    page, marker = page_by_name(_metric_views(context.insights.table()), query, 'metric')
    return MetricViews(metrics=page, next_marker=marker)


def show_metric(context: HandlerContext, caller: Caller, name: str) -> MetricView:
    """Show one metric that is declared, or that some host reports."""
    for view in _metric_views(context.insights.table()):
        if view.name == name:
            return view
    raise exceptions.NotFound(kind='metric', name=name)


def _metric_views(table: HostTable) -> list[MetricView]:
    views = []
    for name in sorted({*table.declared_metrics, *table.metrics}):
        declaration = table.declared_metrics.get(name)
        reported_values, usable = table.metrics.get(name), metric_values.metric_values(table, name)
        reporting = (
            0 if reported_values is None else int(np.count_nonzero(~np.isnan(reported_values)))
        )
        if declaration is None and not reporting:
            continue
        with_say = 0 if usable is None else int(np.count_nonzero(~np.isnan(usable)))
        body = msgspec.structs.asdict(declaration or DeclaredMetric(name=name))
        views.append(
            MetricView(
                declared=declaration is not None,
                hosts=reporting,
                silent=reporting - with_say,
                **body,
            )
        )
    return views


def set_metric(
    context: HandlerContext, caller: Caller, name: str, query: DryRun, body: SetMetric
) -> Created[Change[DeclaredMetric]] | Change[DeclaredMetric]:
    """Declare a metric, or change what is declared."""
    base.decode(name, Name, inside='name')
    metric = DeclaredMetric(name=name, **msgspec.structs.asdict(body))
    metrics.check(metric)
    if query.dry_run:
        return Change(dry_run=True, message=f'metric {name} would be declared', now=metric)
    is_new = all(
        declared.name != name for declared in context.stores.declarations.declared_metrics()
    )
    saved = context.stores.declarations.save_metric(metric)
    context.insights.reload_soon()
    done = Change(dry_run=False, message=f'metric {saved.name} is declared', now=saved)
    return Created(done, path_of('declared-metrics', saved.name)) if is_new else done


def remove_metric(
    context: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[DeclaredMetric]:
    """Take a declaration back; what hosts report under the name goes on to count."""
    if query.dry_run:
        declared = {
            metric.name: metric for metric in context.stores.declarations.declared_metrics()
        }
        if name not in declared:
            raise exceptions.NotFound(kind='declared metric', name=name)
        summary = f'metric {name} would be no longer declared'
        return Change(dry_run=True, message=summary, now=declared[name])
    context.stores.declarations.remove_metric(name)
    context.insights.reload_soon()
    return Change(dry_run=False, message=f'metric {name} is no longer declared', now=None)
