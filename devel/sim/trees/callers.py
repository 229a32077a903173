# SPDX-License-Identifier: Apache-2.0
"""Callers of a zone that have the places in child zones redeemed before anything is built."""

import random

import msgspec

from devel.sim import plan
from devel.sim.conductors import Conductors
from devel.sim.loop import Loop
from devel.sim.trees.links import ZoneCall
from devel.sim.trees.sites import ZoneSite
from devel.sim.trees.watch import TreeWatch
from gantt import exceptions
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.zones.messages import Redeem, RedeemedPlace

REDEEM_TRIES = 6


class TreeCallers(Conductors):
    """All stories of the callers of one zone.

    :param root: the zone that they call
    """

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        root: ZoneSite,
        sites: list[ZoneSite],
        watch: TreeWatch,
    ) -> None:
        super().__init__(loop, root.network, rng, self._to_host)
        self._root, self._sites, self._watch = root, sites, watch

    def _send_once(self, request: SelectDestinations, keep: bool = True) -> Answer | None:
        self._watch.asked(self._root.name, request)
        answer = super()._send_once(request, keep)
        if answer is not None and answer.outcome is Outcome.PLACED:
            self._watch.answered(self._root.name, answer)
        return answer

    def _cancel(self, request_id: str) -> None:
        self._watch.cancelled.add(request_id)
        super()._cancel(request_id)

    def _send(self, request: SelectDestinations) -> Answer | None:
        """Return the answer with the hosts of its places; None: it has none, or none yet."""
        answer = super()._send(request)
        if answer is None:
            return None
        selections = []
        for chosen, *_ in answer.selections:
            selection = self._on_host(chosen)
            if selection is None:
                return None  # it is forgotten: the lease ends it
            selections.append([selection])
        return msgspec.structs.replace(answer, selections=selections)

    def _on_host(self, chosen: Selection) -> Selection | None:
        """Return a place as the zone that has it knows it."""
        below, place, host = chosen.child, chosen.place, chosen.host
        site = self._root
        while below:
            site = next(child for child in site.below if child.name == below)
            redeemed = self._redeemed(site, place)
            if redeemed is None:
                return None
            below, place, host = redeemed.child, redeemed.place, redeemed.host
        # As the conductor of the zone that has the host sees it: a claim on a host of its own.
        return msgspec.structs.replace(chosen, host=host, child='', place='')

    def _redeemed(self, site: ZoneSite, place: str) -> RedeemedPlace | None:
        call = ZoneCall('', (), msgspec.json.encode(Redeem(place=place)))
        for _ in range(REDEEM_TRIES):
            try:
                reply = site.network.call('conductor', 'redeem', call, plan.CALL_SECONDS / 4)
            except exceptions.GanttError:
                reply = None
            if reply is not None and reply.status == 200:
                return msgspec.json.decode(reply.body, type=RedeemedPlace)
            if reply is not None and reply.status < 500 and reply.status != 429:
                self._loop.say('conductor', f'{site.name} does not redeem: {reply.body!r:.120}')
                return None
            self._loop.sleep(self._rng.uniform(0.1, 1.0))
        return None

    def _to_host(self, name: str, message: Build | Delete) -> bool:
        return any(site.deliver(name, message) for site in self._sites)
