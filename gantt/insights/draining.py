# SPDX-License-Identifier: Apache-2.0
"""What is left on a host that is being emptied, and what each of it waits for."""

import collections
from collections.abc import Iterable

from gantt.core.claims.claim import Claim, Lifecycle, State
from gantt.insights.views import ClaimView, Obstacle, ObstacleKind


def obstacles(views: Iterable[ClaimView], elsewhere: Iterable[Claim]) -> list[Obstacle]:
    """One for each live claim of the host, those that end by themselves last.

    :param views: the live claims of the host
    :param elsewhere: live claims of the same consumers, on any host
    """
    places: dict[str, set[str]] = collections.defaultdict(set)
    for claim in elsewhere:
        places[claim.consumer].add(claim.host)
    found = [_obstacle(view, places[view.consumer] - {view.host}) for view in views]
    order = list(ObstacleKind)
    return sorted(found, key=lambda one: (order.index(one.kind), one.claim.id))


def _obstacle(view: ClaimView, others: set[str]) -> Obstacle:
    if view.lifecycle == Lifecycle.API:
        kind, remedy = ObstacleKind.ALLOCATED, 'ends when whoever wrote it by the API deletes it'
    elif view.state == State.RESERVED:
        kind, remedy = ObstacleKind.IN_FLIGHT, _lease(view)
    elif others:
        there = ', '.join(sorted(others))
        kind, remedy = ObstacleKind.MOVING, f'also on {there}: ends when its move does'
    else:
        kind, remedy = ObstacleKind.RUNNING, 'runs here: move it away or delete it'
    return Obstacle(kind=kind, claim=view, remedy=remedy)


def _lease(view: ClaimView) -> str:
    request = f'of request {view.request_id}, ' if view.request_id else ''
    left = max(0.0, view.lease_seconds or 0.0)
    return f'{request}not confirmed yet: it ends, or runs here, within {left:.0f} s'
