# SPDX-License-Identifier: Apache-2.0
"""The reservations of a group's plan that were offered to a create, as inputs of its decision."""

import msgspec

from gantt.core.messages.request import RequestSpec


class OfferedReservation(msgspec.Struct, frozen=True, array_like=True):
    """A reservation of a plan that is free for a create.

    :ivar name: name of its member, such as ``web-2``
    :ivar claim_id: id of the claim that holds it
    :ivar allocations: provider id -> class -> amount
    :ivar layout: layout of that claim
    """

    name: str
    claim_id: str
    provider_id: int
    allocations: dict[int, dict[str, int]]
    layout: dict | None = None


class OfferedReservations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reservations of a group's plan that were offered to a create.

    :ivar group: uuid of the group; ``revision`` of its plan
    :ivar named: the member that the create names; None: it matches the reservations' description
    :ivar planned: spec that the named member was planned with, if the create differs
    :ivar free: the reservations that it may have, one for each of its members
    :ivar why: '' or the reason why it gets none of them
    :ivar replaces: the reservations that are released for the create's reservations elsewhere
    """

    group: str
    revision: int
    named: str | None = None
    planned: RequestSpec | None = None
    free: list[OfferedReservation] = []
    why: str = ''
    replaces: list[OfferedReservation] = []
