# SPDX-License-Identifier: Apache-2.0
"""Requests that may go to one zone only: who moves stays in its zone, who belongs together too.

A guest that runs in a zone is moved, and rebuilt, within it.  The members of a group
with hard affinity are where the first of them is: that is decided once, in the database, before
anything is claimed.  It holds for whoever asks, a caller that knows of no zones as well.
"""

from collections.abc import Collection

from gantt import exceptions
from gantt.core.claims.claim import State, guest_of
from gantt.core.messages.request import Policy, Purpose, SelectDestinations
from gantt.core.resources import group_rule
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.placing.group_swaps import rule_of
from gantt.scheduler.ports import Store, StoredBelow
from gantt.scheduler.zones.directory import ZoneDirectory

#: How long a zone is promised to the request that chose it, beyond its own time, in seconds.
SPARE_SECONDS = 5.0


def live_below(store: Store, consumers: Collection[str]) -> list[StoredBelow]:
    """Claims below that hold guests, but for those that run here.

    These are confirmed here, as they were found running, and nowhere below.
    """
    rows = [one for one in store.claims_below(consumers=consumers) if one.holds]
    settled = {one.consumer for one in rows if one.state != State.RESERVED.value}
    doubted = {one.consumer for one in rows} - settled
    here = {
        guest_of(claim)
        for claim in (store.live_claims_of(doubted) if doubted else ())
        if claim.child is None and claim.state is State.CONFIRMED
    }
    return [one for one in rows if one.consumer not in here]


class BoundPlaces:
    """Looks up what a request is bound to.  Any thread.

    :param cache: that knows the rules of server groups
    """

    def __init__(self, store: Store, cache: HostCache, directory: ZoneDirectory) -> None:
        self._store, self._cache, self._directory = store, cache, directory

    def with_rule(self, request: SelectDestinations) -> SelectDestinations:
        """A request with the rule of its group as it is known here, which zones below do not have.

        :raises NotFound: nobody says which
        :raises Refused: it names another one
        """
        group = request.spec.group
        if group is None:
            return request
        rule = self._cache.rules.get(group.uuid)
        if rule is None and not group.is_ruled:
            known = self._store.load_group(group.uuid)
            rule = None if known is None else known.rule
        return group_rule.with_rule(request, rule_of(self._store, request, group, rule))

    def of(self, request: SelectDestinations) -> frozenset[str] | None:
        """Uuids of the zones that a request may go to; None: any.

        Policies at other levels than hosts are counted on the hosts of one zone: a group that has
        such stays here.

        :param request: under the rule of its group
        :raises Refused: its guests are in several zones
        """
        own = self._directory.own_uuid()
        if _is_of_guests(request):
            return self._of_guests(request, own)
        return self._of_group(request, own)

    def of_members(self, request: SelectDestinations) -> frozenset[str] | None:
        """Uuids of the zones that more members of the group of a request may go to; None: any.

        :raises NotFound, Refused: as for ``with_rule``
        """
        if request.spec.group is None or not self._directory.children():
            return None
        return self._of_group(self.with_rule(request), self._directory.own_uuid())

    def _of_group(self, request: SelectDestinations, own: str) -> frozenset[str] | None:
        group = request.spec.group
        if group is not None and group.policies is not None:
            return frozenset({own})
        if group is not None and group.policy is Policy.AFFINITY:
            place = self._store.place_of_group(group.uuid, own)
            return frozenset({place}) if place else None
        return None

    def check_here(self, request: SelectDestinations) -> None:
        """Refuse a request for hosts of this zone alone that is bound to another one.

        :param request: under the rule of its group
        :raises Refused: it says to which
        """
        own = self._directory.own_uuid()
        only = self.of(request)
        if only is not None and own not in only:
            raise self._elsewhere(request, min(only))

    def decide_here(self, request: SelectDestinations, seconds: float) -> None:
        """The same before it claims something: members of its group are here from then on.

        :raises Refused: it is bound to another zone
        """
        own = self._directory.own_uuid()
        if _is_of_guests(request):
            self.check_here(request)
        place = self.decide(request, own, seconds)
        if place != own:
            raise self._elsewhere(request, place)

    def decide(self, request: SelectDestinations, place: str, seconds: float) -> str:
        """The zone that a request goes to, where its group has to be in one.

        :param place: uuid of the zone that would be taken
        """
        group = request.spec.group
        if group is None or group.policy is not Policy.AFFINITY:
            return place
        own = self._directory.own_uuid()
        return self._store.decide_group_place(
            group.uuid, own, place, request.request_id, seconds + SPARE_SECONDS
        )

    def _of_guests(self, request: SelectDestinations, own: str) -> frozenset[str]:
        below = live_below(self._store, request.consumers)
        zones = {one.consumer: one.child for one in below}
        found = {zones.get(consumer, own) for consumer in request.consumers}
        if len(found) > 1:
            raise exceptions.Refused(
                'the consumers run in several zones; expected a request for each of them'
            )
        return frozenset(found)

    def _elsewhere(self, request: SelectDestinations, place: str) -> exceptions.Refused:
        zone = self._directory.child(place)
        where = place if zone is None else zone.name
        group = request.spec.group
        if group is None or _is_of_guests(request):
            why = f'consumer {request.consumers[0]} runs in another zone, and is moved within it'
        else:
            why = f'server group {group.uuid} is to be together, and is in another zone'
        return exceptions.refused(
            f'{why}; expected a request that may go to zones below, or one to that zone',
            [f'zone {where}'],
        )


def may_be_bound(request: SelectDestinations) -> bool:
    """Whether a request may be bound to a zone, as far as it says so itself."""
    return request.spec.group is not None or _is_of_guests(request)


def _is_of_guests(request: SelectDestinations) -> bool:
    """Whether a request is about guests that run somewhere."""
    return request.spec.purpose.is_move or request.spec.purpose is Purpose.REBUILD
