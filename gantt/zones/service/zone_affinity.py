# SPDX-License-Identifier: Apache-2.0
"""Zone affinity: requests that may go to one zone only, as their guest or hard group is there.

A guest that runs in a zone is moved, and rebuilt, within it.  The members of a group with hard
affinity are where the first of them is: that is decided once, in the database, before anything is
claimed.  It holds for every caller, also one that knows of no zones.
"""

from collections.abc import Collection

from gantt import exceptions
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import State, guest_of
from gantt.core.messages.request import Policy, Purpose, SelectDestinations
from gantt.core.resources import group_rule
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.child_claims import ChildClaims
from gantt.scheduler.ports.requests import Claims
from gantt.scheduler.request.server_groups import rule_of
from gantt.zones.ports import ZoneStores
from gantt.zones.service.directory import ZoneDirectory

#: Seconds that a zone stays decided for the request that chose it, beyond its budget.
SPARE_SECONDS = 5.0


def live_child_claims(
    child_claims: ChildClaims, claims: Claims, consumers: Collection[str]
) -> list[ChildClaim]:
    """Return the claims in child zones that hold guests, except those of guests that run here.

    Those are confirmed here, as they were found running, and nowhere below.
    """
    rows = [row for row in child_claims.find(consumers=consumers) if row.holds]
    with_guests = {row.consumer for row in rows if row.state != State.RESERVED.value}
    reserved_only = {row.consumer for row in rows} - with_guests
    here = {
        guest_of(claim)
        for claim in (claims.live_claims_of(reserved_only) if reserved_only else ())
        if claim.child is None and claim.state is State.CONFIRMED
    }
    return [row for row in rows if row.consumer not in here]


class ZoneAffinity:
    """Restriction of requests to the zone of their guest or hard group.  Any thread.

    :param cache: that knows the rules of server groups
    """

    def __init__(self, stores: ZoneStores, cache: HostCache, directory: ZoneDirectory) -> None:
        self._claims = stores.claims
        self._groups = stores.groups
        self._child_claims = stores.child_claims
        self._zone_requests = stores.zone_requests
        self._cache = cache
        self._directory = directory

    def with_rule(self, request: SelectDestinations) -> SelectDestinations:
        """Return a request with the rule of its group as stored here; child zones lack it.

        :raises NotFound: the rule is stored nowhere
        :raises Refused: it names another one
        """
        group = request.spec.group
        if group is None:
            return request
        rule = self._cache.rules.get(group.uuid)
        if rule is None and not group.is_ruled:
            stored = self._groups.load_group(group.uuid)
            rule = None if stored is None else stored.rule
        return group_rule.request_with_rule(request, rule_of(self._groups, request, group, rule))

    def zones_of(self, request: SelectDestinations) -> frozenset[str] | None:
        """Return the uuids of the zones that a request may go to; None: any.

        Policies at other levels than hosts are counted on the hosts of one zone: a group that has
        such stays here.

        :param request: under the rule of its group
        :raises Refused: its guests are in several zones
        """
        own = self._directory.own_uuid()
        if _concerns_guests(request):
            return self._zone_of_guests(request, own)
        return self._zones_of_group(request, own)

    def zones_for_members(self, request: SelectDestinations) -> frozenset[str] | None:
        """Return the uuids of the zones for more members of a request's group; None: any.

        :raises NotFound, Refused: as for ``with_rule``
        """
        if request.spec.group is None or not self._directory.children():
            return None
        return self._zones_of_group(self.with_rule(request), self._directory.own_uuid())

    def _zones_of_group(self, request: SelectDestinations, own: str) -> frozenset[str] | None:
        group = request.spec.group
        if request.spec.plan is not None or (group is not None and group.policies is not None):
            return frozenset({own})
        if group is not None and group.policy is Policy.AFFINITY:
            place = self._zone_requests.zone_of_group(group.uuid, own)
            return frozenset({place}) if place else None
        return None

    def check_own_zone(self, request: SelectDestinations) -> None:
        """Refuse a request for this zone's hosts only that is bound to another zone.

        :param request: under the rule of its group
        :raises Refused: names the zone that it is bound to
        """
        own = self._directory.own_uuid()
        only = self.zones_of(request)
        if only is not None and own not in only:
            raise self._other_zone_error(request, min(only))

    def bind_to_own_zone(self, request: SelectDestinations, seconds: float) -> None:
        """Check a request before it claims something, and bind its group to this zone.

        :raises Refused: it is bound to another zone
        """
        own = self._directory.own_uuid()
        if _concerns_guests(request):
            self.check_own_zone(request)
        place = self.decide_zone(request, own, seconds)
        if place != own:
            raise self._other_zone_error(request, place)

    def decide_zone(self, request: SelectDestinations, place: str, seconds: float) -> str:
        """Return the zone that a request goes to, where its group has to be in one zone.

        :param place: uuid of the zone that would be taken
        """
        group = request.spec.group
        if group is None or group.policy is not Policy.AFFINITY:
            return place
        own = self._directory.own_uuid()
        return self._zone_requests.decide_group_zone(
            group.uuid, own, place, request.request_id, seconds + SPARE_SECONDS
        )

    def _zone_of_guests(self, request: SelectDestinations, own: str) -> frozenset[str]:
        below = live_child_claims(self._child_claims, self._claims, request.consumers)
        zones = {claim.consumer: claim.child for claim in below}
        places = {zones.get(consumer, own) for consumer in request.consumers}
        if len(places) > 1:
            raise exceptions.Refused(
                'the consumers run in several zones; expected a request for each of them'
            )
        return frozenset(places)

    def _other_zone_error(self, request: SelectDestinations, place: str) -> exceptions.Refused:
        zone = self._directory.child(place)
        where = place if zone is None else zone.name
        group = request.spec.group
        if group is None or _concerns_guests(request):
            why = f'consumer {request.consumers[0]} runs in another zone, and is moved within it'
        else:
            why = f'server group {group.uuid} is to be together, and is in another zone'
        return exceptions.refused(
            f'{why}; expected a request that may go to child zones, or one to that zone',
            [f'zone {where}'],
        )


def may_have_affinity(request: SelectDestinations) -> bool:
    """Return whether a request may be bound to a zone, as far as its fields show."""
    return request.spec.group is not None or _concerns_guests(request)


def _concerns_guests(request: SelectDestinations) -> bool:
    """Return whether a request is about guests that run somewhere."""
    return request.spec.purpose.is_move or request.spec.purpose is Purpose.REBUILD
