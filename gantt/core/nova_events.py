# SPDX-License-Identifier: Apache-2.0
"""What an unmodified Nova tells every scheduler by broadcast, as typed events.

These casts are lossy and say little: no order, no epoch.  The scheduler treats
them as hints about hosts of the kind 'nova' (design of the hosts that never
confirm); nothing here decides safety.
"""

from typing import Annotated

import msgspec

from gantt.core.message import Amount, Message, Name, Text, Uuid


class Guest(Message, frozen=True, kw_only=True):
    """One instance as its compute describes it.

    :ivar node: hypervisor host name, '' where it was not said
    :ivar moving: a resize or migration of it is open
    """

    consumer: Uuid
    node: Text = ''
    resources: Annotated[dict[Name, Amount], msgspec.Meta(max_length=64)] = {}
    project_id: Text | None = None
    user_id: Text | None = None
    vm_state: Text = ''
    task_state: Text = ''
    moving: bool = False


class GuestsUpdated(Message, frozen=True, kw_only=True):
    """``update_instance_info``: these guests are on the host (others may be too)."""

    host: Name
    guests: Annotated[list[Guest], msgspec.Meta(max_length=10_000)]


class GuestDeleted(Message, frozen=True, kw_only=True):
    """``delete_instance_info``: the host no longer has this guest."""

    host: Name
    consumer: Uuid


class GuestsListed(Message, frozen=True, kw_only=True):
    """``sync_instance_info``: all guests of the host, whole, every two minutes."""

    host: Name
    consumers: Annotated[list[Uuid], msgspec.Meta(max_length=100_000)]


class NovaAggregate(Message, frozen=True, kw_only=True):
    """An aggregate as Nova's API knows it; ``hosts`` are service hosts."""

    uuid: Uuid
    name: Name
    metadata: dict[Name, Text | None] = {}
    hosts: list[Name] = []


class AggregatesUpdated(Message, frozen=True, kw_only=True):
    """``update_aggregates``: these aggregates are now so."""

    aggregates: Annotated[list[NovaAggregate], msgspec.Meta(max_length=10_000)]


class AggregateDeleted(Message, frozen=True, kw_only=True):
    """``delete_aggregate``: this aggregate is gone."""

    aggregate: NovaAggregate


NovaEvent = GuestsUpdated | GuestDeleted | GuestsListed | AggregatesUpdated | AggregateDeleted
