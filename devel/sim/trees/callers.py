# SPDX-License-Identifier: Apache-2.0
"""Callers of a zone that have the hosts in child zones unsealed before anything is built."""

import random

import msgspec

from devel.sim import plan
from devel.sim.conductors import Conductors, Deliver
from devel.sim.loop import Loop
from devel.sim.sites import ZoneSite
from devel.sim.trees.links import ZoneCall
from devel.sim.trees.watch import TreeWatch
from gantt import exceptions
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.zones.model.messages import UnsealedHost, UnsealHost

UNSEAL_TRIES = 6


class TreeCallers(Conductors):
    """All stories of the callers of one zone.

    :param root: the zone that they call
    """

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        root: ZoneSite,
        watch: TreeWatch,
        deliver: Deliver,
    ) -> None:
        super().__init__(loop, root.network, rng, deliver)
        self._root, self._watch = root, watch

    def _send_once(self, request: SelectDestinations, keep: bool = True) -> Answer | None:
        self._watch.note_request(self._root.name, request)
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
        """Return a selection as the zone that has it knows it."""
        below, sealed_host, host = chosen.child, chosen.sealed_host, chosen.host
        site = self._root
        while below:
            site = next(child for child in site.below if child.name == below)
            unsealed = self._unsealed(site, sealed_host)
            if unsealed is None:
                return None
            below, sealed_host, host = unsealed.child, unsealed.sealed_host, unsealed.host
        # As the conductor of the zone that has the host sees it: a claim on a host of its own.
        return msgspec.structs.replace(chosen, host=host, child='', sealed_host='')

    def _unsealed(self, site: ZoneSite, sealed_host: str) -> UnsealedHost | None:
        call = ZoneCall('', (), msgspec.json.encode(UnsealHost(sealed_host=sealed_host)))
        for _ in range(UNSEAL_TRIES):
            try:
                reply = site.network.call('conductor', 'unseal', call, plan.CALL_SECONDS / 4)
            except exceptions.GanttError:
                reply = None
            if reply is not None and reply.status == 200:
                return msgspec.json.decode(reply.body, type=UnsealedHost)
            if reply is not None and reply.status < 500 and reply.status != 429:
                self._loop.write_trace(
                    'conductor', f'{site.name} does not unseal: {reply.body!r:.120}'
                )
                return None
            self._loop.sleep(self._rng.uniform(0.1, 1.0))
        return None
