# SPDX-License-Identifier: Apache-2.0
"""Messages of a conductor to the agent of a host: build this guest, delete that one.

Sent to the topic that ``Selection.build_topic`` names.  The agent checks again locally, confirms or
refuses the claim, and only then starts the guest.
"""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Amount, Message, Name, Opaque, Text, Uuid


class Build(Message, frozen=True, kw_only=True):
    """Start a guest under a claim that ``select_destinations`` made.

    :ivar host: the service host that the claim is on
    :ivar resources: what the guest takes of the host itself, by class: amounts of nested providers
        and shared pools are not included, as the agent checks those of its host alone
    :ivar lease_seconds: remaining lease of the unconfirmed claim, as far as the sender knows; a
        hint, the database decides
    :ivar layout: its layout inside of the host (cells, cores, devices)
    :ivar guest: passed through to the driver, not looked at by Gantt
    """

    claim_id: Uuid
    consumer: Uuid
    host: Name
    resources: Annotated[dict[Name, Amount], msgspec.Meta(max_length=64)]
    lease_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0
    layout: Annotated[dict[Name, Opaque], msgspec.Meta(max_length=64)] | None = None
    request_id: Uuid | None = None
    group: Uuid | None = None
    guest: Annotated[dict[Name, Opaque], msgspec.Meta(max_length=256)] = {}


class Delete(Message, frozen=True, kw_only=True):
    """Stop a guest and release its claim.

    :ivar claim_id: None where the sender does not know it: the consumer decides
    """

    consumer: Uuid
    host: Name
    claim_id: Uuid | None = None
    reason: Text = ''
