# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of an unmodified Nova to every scheduler, as typed events.

These casts are lossy and carry little: no order, no epoch.  The scheduler treats them as hints
about hosts of the kind 'nova' (design of the hosts that never confirm); nothing here decides
safety.
"""

import math
from typing import Annotated

import msgspec

from gantt.core.messages.base import Amount, Message, Name, Text, Uuid


class NovaGuest(Message, frozen=True, kw_only=True):
    """One instance as its compute, or Nova's API, describes it.

    :ivar node: hypervisor host name, '' where the sender did not state it
    :ivar moving: whether a resize or migration of the guest is open
    :ivar flavor: name of its flavor
    :ivar group: uuid of its server group, as far as the sender stated it
    """

    consumer: Uuid
    node: Text = ''
    resources: Annotated[dict[Name, Amount], msgspec.Meta(max_length=64)] = {}
    project_id: Text | None = None
    user_id: Text | None = None
    vm_state: Text = ''
    task_state: Text = ''
    moving: bool = False
    flavor: Text | None = None
    group: Uuid | None = None


class GuestsUpdated(Message, frozen=True, kw_only=True):
    """``update_instance_info``: some guests that are on the host, which may have others."""

    host: Name
    guests: Annotated[list[NovaGuest], msgspec.Meta(max_length=10_000)]


class GuestDeleted(Message, frozen=True, kw_only=True):
    """``delete_instance_info``: the host no longer has this guest."""

    host: Name
    consumer: Uuid


class GuestsListed(Message, frozen=True, kw_only=True):
    """``sync_instance_info``: all guests of the host, whole, every two minutes.

    :ivar described: the same guests, where they were read from Nova's API, with more facts
    """

    host: Name
    consumers: Annotated[list[Uuid], msgspec.Meta(max_length=100_000)]
    described: Annotated[list[NovaGuest], msgspec.Meta(max_length=10_000)] = []


class GuestLocation(Message, frozen=True, kw_only=True):
    """Location of a guest, from an authoritative source: no broadcast, but what a report source was
    told by Nova's API, or what a request for its next move says.

    To be said only where no migration of the guest is open.

    :ivar host: None: it is nowhere
    :ivar cutoff: claims created later are not touched; seconds of the database's clock
    :ivar resources: what it takes there, {} where that was not asked
    """

    consumer: Uuid
    host: Name | None = None
    cutoff: float = math.inf
    resources: Annotated[dict[Name, Amount], msgspec.Meta(max_length=64)] = {}


class NovaAggregate(Message, frozen=True, kw_only=True):
    """An aggregate as Nova's API knows it; ``hosts`` are service hosts."""

    uuid: Uuid
    name: Name
    metadata: Annotated[dict[Name, Text | None], msgspec.Meta(max_length=1024)] = {}
    hosts: Annotated[list[Name], msgspec.Meta(max_length=100_000)] = []


class AggregatesUpdated(Message, frozen=True, kw_only=True):
    """``update_aggregates``: the new state of some aggregates."""

    aggregates: Annotated[list[NovaAggregate], msgspec.Meta(max_length=10_000)]


class AggregateDeleted(Message, frozen=True, kw_only=True):
    """``delete_aggregate``: an aggregate was deleted."""

    aggregate: NovaAggregate


#: Event of a host about its guests.
GuestEvent = GuestsUpdated | GuestDeleted | GuestsListed
AggregateEvent = AggregatesUpdated | AggregateDeleted


class NovaCast(msgspec.Struct, frozen=True, kw_only=True):
    """A broadcast of Nova with the facts of its envelope.

    :ivar id: id of the message, which every scheduler gets and one applies; '': it came to one only
    :ivar requested_at: when the request was made that led to it, or the periodic task began
        that it comes from; seconds since 1970 by the sender's clock, None: not said
    :ivar skew: seconds by which the sender's clock and the database's may differ
    :ivar database_time: for a list of guests: earliest time of reading it, by the database's
        clock; None: not known, so ``requested_at`` and ``skew`` have to tell
    """

    id: str = ''
    requested_at: float | None = None
    skew: float = 0.0
    database_time: float | None = None
    event: GuestEvent | AggregateEvent
