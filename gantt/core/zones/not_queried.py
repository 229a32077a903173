# SPDX-License-Identifier: Apache-2.0
"""Requests that stay in the zone that is asked, whatever the zones below have.

That nobody here has room for one is no answer about those: who asked is told whom to ask.
"""

from collections.abc import Iterable

from gantt.core.messages.request import Lifecycle, Purpose, RequestKind, SelectDestinations
from gantt.core.zones.messages import ZoneRecord


def zones_not_queried(children: Iterable[ZoneRecord], request: SelectDestinations) -> list[str]:
    """Names of zones below that might have room for a request, and are not asked for it.

    Who wants hosts of this zone alone wants nobody asked, and a guest moves within its zone.

    :param request: with the rule of its group
    """
    spec = request.spec
    goes_down = (
        spec.kind is RequestKind.HOST
        and request.lifecycle is Lifecycle.HOST
        and (spec.group is None or spec.group.policies is None)
    )
    is_bound = spec.purpose.is_move or spec.purpose is Purpose.REBUILD
    if goes_down or is_bound or not request.hops or request.parent:
        return []
    return enabled(children)


def enabled(children: Iterable[ZoneRecord]) -> list[str]:
    """Names of those that are asked at all."""
    return [zone.name for zone in children if zone.enabled]
