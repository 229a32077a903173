# SPDX-License-Identifier: Apache-2.0
"""Requests that stay in the zone that receives them, regardless of room in child zones.

A refusal does not cover child zones, so it names the zones that the caller may query.
"""

from collections.abc import Iterable

from gantt.core.messages.request import Lifecycle, Purpose, RequestKind, SelectDestinations
from gantt.zones.model.messages import ZoneRecord


def zones_not_queried(children: Iterable[ZoneRecord], request: SelectDestinations) -> list[str]:
    """Return the child zones that might have room for a request, but are not queried for it.

    Empty for requests limited to hosts of this zone; a guest moves within its zone.

    :param request: with the rule of its group
    """
    spec = request.spec
    is_delegated = (
        spec.kind is RequestKind.HOST
        and request.lifecycle is Lifecycle.HOST
        and (spec.group is None or spec.group.policies is None)
    )
    is_bound = spec.purpose.is_move or spec.purpose is Purpose.REBUILD
    if is_delegated or is_bound or not request.hops or request.parent:
        return []
    return [zone.name for zone in children if zone.enabled]
