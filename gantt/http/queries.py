# SPDX-License-Identifier: Apache-2.0
"""Query parameters as types: bounded, and refused by name where unknown."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import State
from gantt.core.messages.base import Message, Name, Text, Uuid
from gantt.core.records.decision import Outcome
from gantt.insights.views import HostCondition

EventKind = Literal[
    'registered',
    'disabled',
    'enabled',
    'service',
    'facts',
    'key',
    'renamed',
    'removed',
    'claimed',
    'confirmed',
    'released',
    'expired',
    'refused',
]
Entry = TypeVar('Entry')
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]


def unknown_marker(marker: str, kind: str) -> exceptions.InvalidMessage:
    """Return the error for a list that is to continue after an entry that does not exist."""
    problem = f'expected a known {kind}; got {marker!r}; begin without a marker'
    return exceptions.invalid('query.marker', problem)


class Page(Message, frozen=True, kw_only=True):
    """Paging: at most ``limit`` entries after the one called ``marker``."""

    limit: Limit = 100
    marker: Name | None = None


def page_of(entries: Sequence[Entry], limit: int, key: str) -> tuple[list[Entry], str | None]:
    """Return the first entries of a list, and the marker of those after them; None: there are none.

    :param entries: one more than ``limit`` where there are more
    :param key: attribute that the entries are ordered by; its value is the marker
    """
    page = list(entries[:limit])
    return page, getattr(page[-1], key) if len(entries) > limit else None


def page_by_name(
    everything: Iterable[Entry], query: Page, kind: str
) -> tuple[list[Entry], str | None]:
    """Return a page of a complete list in the order of names, and the marker of the next page.

    :raises InvalidMessage: no entry has the name of the marker
    """
    by_name = {entry.name: entry for entry in everything}  # type: ignore[attr-defined]
    if query.marker is not None and query.marker not in by_name:
        raise unknown_marker(query.marker, kind)
    after = [by_name[name] for name in sorted(by_name) if name > (query.marker or '')]
    return page_of(after, query.limit, 'name')


class PageOfUuids(Message, frozen=True, kw_only=True):
    """A page of entries in the order of their ids, whether or not the marker is still there."""

    limit: Limit = 100
    marker: Uuid | None = None


class DryRun(Message, frozen=True, kw_only=True):
    """With ``dry_run`` nothing is written; the answer says what would be."""

    dry_run: bool = False


class HostsQuery(Message, frozen=True, kw_only=True):
    """Choice and order of hosts; ``-`` before a sort key reverses it."""

    limit: Limit = 100
    marker: Name | None = None
    condition: HostCondition | None = None
    zone: Name | None = None
    aggregate: Name | None = None
    name: Name | None = None  # part of the name
    sort: Annotated[str, msgspec.Meta(max_length=64)] = 'name'


class HistoryQuery(Message, frozen=True, kw_only=True):
    """Length of a history."""

    limit: Limit = 100


class EventsQuery(Message, frozen=True, kw_only=True):
    """Choice of events after a cursor; ``wait``: seconds to wait until there is one."""

    limit: Limit = 100
    after: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    wait: Annotated[float, msgspec.Meta(ge=0, le=20)] = 0.0
    host: Name | None = None
    kind: EventKind | None = None


class ReleaseQuery(Message, frozen=True, kw_only=True):
    """Reason for which an operator ends a claim; it is stored with the claim."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    dry_run: bool = False


class CancelQuery(Message, frozen=True, kw_only=True):
    """Reason of a cancellation."""

    reason: Text = ''
    dry_run: bool = False


class ClaimsQuery(Message, frozen=True, kw_only=True):
    """Choice of claims, in the order of their ids.

    With ``lost`` only those in child zones that these do not know any more.
    """

    limit: Limit = 100
    marker: Uuid | None = None
    state: State | None = None
    host: Name | None = None
    consumer: Name | None = None
    request_id: Name | None = None
    lost: bool = False


class DecisionsQuery(Message, frozen=True, kw_only=True):
    """Choice of decisions, newest first."""

    limit: Limit = 100
    marker: Uuid | None = None
    outcome: Outcome | None = None
    consumer: Uuid | None = None


class ExplainQuery(Message, frozen=True, kw_only=True):
    """``explain`` asks for the whole explanation, ``format=text`` for its lines only.

    ``host`` asks for the verdict of one host as well.
    """

    explain: bool = False
    host: Name | None = None
    format: Literal['json', 'text'] = 'json'
