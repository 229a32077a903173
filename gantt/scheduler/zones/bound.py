# SPDX-License-Identifier: Apache-2.0
"""Requests that may go to one zone only: who moves stays in its zone, who belongs together too.

A guest that runs in a zone is moved within it.  The members of a group
with hard affinity are where the first of them is: that is decided once, in the database, before
anything is claimed.
"""

from collections.abc import Callable

import msgspec

from gantt import exceptions
from gantt.core.messages.request import Policy, SelectDestinations
from gantt.core.resources import group_rule
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Store
from gantt.scheduler.ports.zones import HOLDS

#: How long a zone is promised to the request that chose it, beyond its own time, in seconds.
SPARE_SECONDS = 5.0


class BoundPlaces:
    """Looks up what a request is bound to.  Any thread.

    :param cache: that knows the rules of server groups
    :param own_uuid: of this zone
    """

    def __init__(self, store: Store, cache: HostCache, own_uuid: Callable[[], str]) -> None:
        self._store, self._cache, self._own_uuid = store, cache, own_uuid

    def with_rule(self, request: SelectDestinations) -> SelectDestinations:
        """A request with the rule of its group, which the zones below do not have."""
        group = request.spec.group
        known = None if group is None else self._cache.rules.get(group.uuid)
        if group is None or known is None or (group.is_ruled and known.policies is None):
            return request
        spec = msgspec.structs.replace(request.spec, group=group_rule.ruled(group, known))
        return msgspec.structs.replace(request, spec=spec)

    def of(self, request: SelectDestinations) -> frozenset[str] | None:
        """Uuids of the zones that a request may go to; None: any.

        Policies at other levels than hosts are counted on the hosts of one zone: a group that has
        such stays here.

        :raises Refused: its members are in several zones
        """
        found = self._of_guests(request) if request.spec.purpose.is_move else None
        group = request.spec.group
        if found is None and group is not None and group.policies is not None:
            found = frozenset({self._own_uuid()})
        if found is None and group is not None and group.policy is Policy.AFFINITY:
            place = self._store.place_of_group(group.uuid, self._own_uuid())
            found = frozenset({place}) if place else None
        return found

    def decide(self, request: SelectDestinations, place: str, seconds: float) -> str:
        """The zone that a request goes to, where its group has to be in one.

        :param place: uuid of the zone that would be taken
        """
        group = request.spec.group
        if group is None or group.policy is not Policy.AFFINITY:
            return place
        return self._store.decide_group_place(
            group.uuid, self._own_uuid(), place, request.request_id, seconds + SPARE_SECONDS
        )

    def _of_guests(self, request: SelectDestinations) -> frozenset[str]:
        below = self._store.claims_below(consumers=request.consumers)
        zones = {one.consumer: one.child for one in below if one.state in HOLDS}
        found = {zones.get(consumer, self._own_uuid()) for consumer in request.consumers}
        if len(found) > 1:
            raise exceptions.Refused(
                'the consumers run in several zones; expected a request for each of them'
            )
        return frozenset(found)
