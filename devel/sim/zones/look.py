# SPDX-License-Identifier: Apache-2.0
"""An evaluation of all hosts of a tree at one moment: the quality of a choice, and the room.

The quality of a place is the share of the hosts which fit that are not better: 1.0 is the best of
the whole tree.  That of a request is the mean of its members, each compared with the hosts that fit
one of them; members that have to be on one host, with those that fit all.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
import numpy as np

from devel.sim.zones.zone import PARENT_NAME, ClaimInTree, SimZone
from gantt.core.messages.request import Policy, RequestSpec, SelectDestinations
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.members import placed_of
from gantt.core.table.columns import FloatArray, IntArray
from gantt.groups.service.group_members import GroupMembers
from gantt.scheduler.request.planner import plan_dry_run
from gantt.zones.model import choice
from gantt.zones.model.choice import ZoneShare
from gantt.zones.service.zone_planner import OFFERS_WANTED

#: Totals that differ by less are equal.
SCORE_TOLERANCE = 1e-9


class BruteForceScores:
    """The hosts that fit one member, with their scores.

    :param zones: with hosts
    :param pipeline: with comparable scores
    """

    def __init__(
        self, zones: Iterable[SimZone], request: SelectDestinations, pipeline: Pipeline
    ) -> None:
        spec, consumer = _of_one(request), request.consumers[0]
        self._scores: dict[str, tuple[IntArray, FloatArray]] = {}
        for zone in zones:
            run = FilterRun(zone.table, spec, pipeline)
            run.evaluate(consumer)
            if run.left:
                ranking = run.rank()
                self._scores[zone.uuid] = ranking.rows, ranking.total
        totals = [total for _, total in self._scores.values()]
        self._all: FloatArray = np.concatenate(totals) if totals else np.zeros(0)

    def __len__(self) -> int:
        return len(self._all)

    def quality(self, zone: SimZone, host: str) -> float:
        """Return the quality of a host that fits."""
        rows, totals = self._scores[zone.uuid]
        row = zone.table.host_state(host).row
        at = int(np.searchsorted(rows, row))
        better = int(np.count_nonzero(self._all > totals[at] + SCORE_TOLERANCE))
        return 1.0 - better / len(self._all)


def _of_one(request: SelectDestinations) -> RequestSpec:
    """Return the spec of one place: for a member, or all where they have to be on one host."""
    spec, group = request.spec, request.spec.group
    many = 1
    if group is not None and group.policy is Policy.AFFINITY:
        many = len(request.consumers)
    resources = {name: amount * many for name, amount in spec.resources.items()}
    return msgspec.structs.replace(spec, resources=resources, group=None, destination=None)


def shares_of(zones: Iterable[SimZone], request: SelectDestinations) -> list[ZoneShare]:
    """Return where a request goes if all zones are queried now; empty: there is no room."""
    choices, from_above = [], msgspec.structs.replace(request, parent=PARENT_NAME)
    for zone in zones:
        for offer in zone.own.offers(from_above, OFFERS_WANTED, is_only=True).choices:
            choices.append(msgspec.structs.replace(offer, child=zone.uuid))
    members = range(len(request.consumers))
    return choice.split_over_choices(members, choice.best_first(choices), choice.is_whole(request))


class SampledRequest:
    """A request whose places are compared with all others.

    :ivar qualities: of its members, as they were claimed
    :ivar brute: of the places that all zones had led to at that moment
    """

    def __init__(self, request: SelectDestinations) -> None:
        self.request = request
        self.qualities: list[float] = []
        self.brute: float | None = None


class Sampler:
    """Watches the claims of some requests.

    :param zones: with hosts
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline.comparable()
        self.zones: Sequence[SimZone] = ()
        self._of_consumer: dict[str, SampledRequest] = {}

    def sample(self, request: SelectDestinations) -> SampledRequest:
        """Sample a request: note its places."""
        sampled = SampledRequest(request)
        self._of_consumer |= dict.fromkeys(request.consumers, sampled)
        return sampled

    def before(self, request: SelectDestinations) -> object:
        sampled = self._of_consumer.get(request.consumers[0])
        if sampled is None:
            return None
        looked = BruteForceScores(self.zones, sampled.request, self._pipeline)
        brute = (
            self._brute_force_quality(sampled.request, looked)
            if sampled.brute is None
            else sampled.brute
        )
        return sampled, looked, brute

    def after(self, noted: object, claims: list[ClaimInTree]) -> None:
        if noted is not None:
            sampled, looked, brute = cast(tuple[SampledRequest, BruteForceScores, float], noted)
            sampled.brute = brute
            sampled.qualities += [looked.quality(claim.zone, claim.host) for claim in claims]

    def _brute_force_quality(self, request: SelectDestinations, looked: BruteForceScores) -> float:
        of_uuid = {zone.uuid: zone for zone in self.zones}
        qualities: list[float] = []
        for share in shares_of(self.zones, request):
            zone = of_uuid[share.choice.child or '']
            qualities += [looked.quality(zone, host) for host in _hosts(zone, request, share)]
        return float(np.mean(qualities)) if qualities else 0.0


def _hosts(zone: SimZone, request: SelectDestinations, share: ZoneShare) -> list[str]:
    """Return the hosts that members of a share would be claimed on."""
    consumers = [request.consumers[member] for member in share.members]
    part = msgspec.structs.replace(request, consumers=consumers, dry_run=True, alternates=0)
    hosts = [host for item in share.offers for host in item.place.hosts]
    narrowed = part.on_hosts(list(dict.fromkeys(hosts)))
    planned = plan_dry_run(
        zone.stores,
        zone.table,
        narrowed,
        zone.cache,
        zone.around.pipeline,
        zone.settings,
        GroupMembers,
    )
    return [item.host.host for item in placed_of(planned.decision)]
