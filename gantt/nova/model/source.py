# SPDX-License-Identifier: Apache-2.0
"""Calls of a report source, which reads Nova's API, to a scheduler, besides reports.

A broadcast reaches every scheduler and may be lost; these calls reach one of them, and their sender
learns whether they were accepted.
"""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Message, Name, Text, Uuid
from gantt.core.messages.request import Policy
from gantt.nova.model.events import GuestLocation, NovaAggregate, NovaGuest

#: Most moves in one result, and most guests located by one call.
MOVES_MOST = 1000
#: Most guests of a host.
GUESTS_MOST = 10_000


class GuestList(Message, frozen=True, kw_only=True):
    """All guests of a host, whole, as Nova's API has them.

    :ivar requested_at: when reading began, seconds since 1970 by the source's clock
    :ivar database_time: when reading began by the database's clock, as a scheduler returned it
        before (:class:`PendingMigrations`); None: no scheduler answered
    :ivar signature: signature with the key of the host, which is its source's: see ``host_keys``
    """

    host: Name
    requested_at: float
    database_time: Annotated[float, msgspec.Meta(ge=0)] | None = None
    guests: Annotated[list[NovaGuest], msgspec.Meta(max_length=GUESTS_MOST)]
    signature: Text | None = None


class GuestListResult(Message, frozen=True, kw_only=True):
    """Numbers of claims that a list of guests has changed.

    :ivar confirmed: number of reserved claims confirmed, as their guests are listed
    :ivar released: number of claims released, as their guests are not listed
    :ivar adopted: number of claims made for listed guests that had none
    """

    confirmed: int = 0
    released: int = 0
    adopted: int = 0


class AggregateUpdate(Message, frozen=True, kw_only=True):
    """Aggregates to store as they are here, and aggregates that were removed in Nova."""

    aggregates: Annotated[list[NovaAggregate], msgspec.Meta(max_length=1000)] = []
    removed: Annotated[list[NovaAggregate], msgspec.Meta(max_length=1000)] = []


class ServerGroup(Message, frozen=True, kw_only=True):
    """A server group of Nova, without its members: guests name their group."""

    uuid: Uuid
    name: Text = ''
    policy: Policy
    max_per_host: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    project_id: Text | None = None


class GroupUpdate(Message, frozen=True, kw_only=True):
    """Server groups that Nova knows."""

    groups: Annotated[list[ServerGroup], msgspec.Meta(max_length=1000)]


class ListPendingMigrations(Message, frozen=True, kw_only=True):
    """Query for moves that are still open.

    :ivar seconds: list only moves that have been open for longer
    :ivar reserved: whether to list claims outside of moves, too, that no one has confirmed for as
        long
    """

    seconds: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOVES_MOST)] = MOVES_MOST
    reserved: bool = False


class PendingMigration(Message, frozen=True, kw_only=True):
    """A guest that moves between two hosts; where both are the same, one that is awaited there."""

    consumer: Uuid
    source: Name
    target: Name
    seconds: float


class PendingMigrations(Message, frozen=True, kw_only=True):
    """The answer to :class:`ListPendingMigrations`, oldest first.

    :ivar cutoff: claims created later are not listed; seconds of the database's clock
    """

    moves: list[PendingMigration]
    cutoff: float


class GuestLocations(Message, frozen=True, kw_only=True):
    """Locations of guests for which Nova has no open migration."""

    guests: Annotated[list[GuestLocation], msgspec.Meta(max_length=MOVES_MOST)]
