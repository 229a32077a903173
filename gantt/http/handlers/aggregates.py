# SPDX-License-Identifier: Apache-2.0
"""Handlers of aggregates: named sets of hosts with metadata."""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.messages.base import Message, Name, Text, Uuid
from gantt.core.messages.keys import known_keys
from gantt.core.messages.keys.known_keys import KeyKind
from gantt.core.messages.request import Names
from gantt.core.resources.host import Aggregate
from gantt.core.rules import layers
from gantt.core.table import aggregates
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import Created
from gantt.http.links import Paged, path_of
from gantt.http.queries import DryRun, Page, page_by_name
from gantt.insights.views import Change

Metadata = Annotated[dict[Name, Text | None], msgspec.Meta(max_length=256)]


class AggregatesResponse(Paged, frozen=True, kw_only=True):
    """A page of aggregates, by name."""

    aggregates: list[Aggregate]


class SetAggregate(Message, frozen=True, kw_only=True):
    """Changes of an aggregate.

    A metadata value of null removes its key; ``hosts`` replaces the members,
    null leaves them as they are.
    """

    metadata: Metadata = {}
    hosts: Names | None = None
    uuid: Uuid | None = None


def list_aggregates(context: HandlerContext, caller: Caller, query: Page) -> AggregatesResponse:
    """List the aggregates."""
    page, marker = page_by_name(context.insights.aggregates(), query, 'aggregate')
    return AggregatesResponse(aggregates=page, next_marker=marker)


def show_aggregate(context: HandlerContext, caller: Caller, name: str) -> Aggregate:
    """Show one aggregate, by name or uuid."""
    return context.insights.aggregate(name)


def set_aggregate(
    context: HandlerContext, caller: Caller, name: str, query: DryRun, body: SetAggregate
) -> Created[Change[Aggregate]] | Change[Aggregate]:
    """Create an aggregate or change it."""
    if body.hosts is not None and len(set(body.hosts)) != len(body.hosts):
        raise exceptions.invalid(
            'body.hosts', 'expected distinct host names, got one of them twice'
        )
    layers.check_metadata(body.metadata, 'body.metadata')
    for host in body.hosts or ():
        context.insights.host_summary(host)
    notes = ''.join(f'; {note}' for note in _notes(context, body))
    if query.dry_run:
        return Change(
            dry_run=True,
            message=f'aggregate {name} would be saved{notes}',
            now=context.insights.aggregate_after_change(name, body.metadata, body.hosts, body.uuid),
        )
    is_new = all(
        name not in (aggregate.name, aggregate.uuid) for aggregate in context.insights.aggregates()
    )
    saved = context.stores.declarations.save_aggregate(name, body.metadata, body.hosts, body.uuid)
    context.insights.reload_soon()
    problems_text = ''.join(f'; {problem}' for problem in aggregates.metadata_problems([saved]))
    done = Change(
        dry_run=False, message=f'aggregate {saved.name} is saved{problems_text}{notes}', now=saved
    )
    return Created(done, path_of('aggregates', saved.name)) if is_new else done


def _notes(context: HandlerContext, body: SetAggregate) -> Iterator[str]:
    """Yield notes on metadata keys that no enabled filter or weigher reads."""
    pipeline = context.insights.pipeline
    enabled = {plugin.name for plugin in (*pipeline.filters, *pipeline.weighers)}
    for key, value in body.metadata.items():
        if value is not None and (
            note := known_keys.note_without_effect(KeyKind.AGGREGATE, key, enabled)
        ):
            yield note


def remove_aggregate(
    context: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[Aggregate]:
    """Remove an aggregate; its hosts stay."""
    before = context.insights.aggregate(name)
    if query.dry_run:
        return Change(dry_run=True, message=f'aggregate {before.name} would be removed', now=before)
    context.stores.declarations.remove_aggregate(before.name)
    context.insights.reload_soon()
    return Change(dry_run=False, message=f'aggregate {before.name} is removed', now=None)
