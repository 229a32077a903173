# SPDX-License-Identifier: Apache-2.0
"""What a create was offered of the plan of its group, from which its decision follows."""

import msgspec

from gantt.core.messages.request import RequestSpec


class SeenPlace(msgspec.Struct, frozen=True, array_like=True):
    """A place of a plan that is free to a create.

    :ivar name: of the member that it is for, as ``web-2``
    :ivar claim_id: of the claim that holds it
    :ivar allocations: provider id -> class -> amount
    :ivar layout: of that claim
    """

    name: str
    claim_id: str
    provider_id: int
    allocations: dict[int, dict[str, int]]
    layout: dict | None = None


class PlacesSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """See the module docstring.

    :ivar group: uuid of the group; ``revision`` of its plan
    :ivar named: the member that the create names; None: it is as the places are described
    :ivar planned: what the member was planned with that is named, where the create differs
    :ivar free: the places that it may have, one for each of its members
    :ivar why: '' or why it gets none of them
    :ivar replaces: the places that are let go for what the create gets elsewhere
    """

    group: str
    revision: int
    named: str | None = None
    planned: RequestSpec | None = None
    free: list[SeenPlace] = []
    why: str = ''
    replaces: list[SeenPlace] = []
