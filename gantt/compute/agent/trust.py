# SPDX-License-Identifier: Apache-2.0
"""Whether a host still checks what the scheduler sends it.

The scheduler and the host judge by one library, so they disagree only where their views of the
host do.  A site may leave the host's own check out once they have agreed for a stated time; the
first disagreement that is seen turns it on again.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping

from gantt.compute.agent.journal import Journal
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.ports import HostReadings

LOG = logging.getLogger(__name__)
DAY_SECONDS = 86_400.0
#: A machine whose clock says less has not set it yet: nothing can be counted from then.
CLOCK_SET = 1_600_000_000.0


@dataclasses.dataclass(eq=False)
class Trust:
    """What one host knows of disagreements; kept in its journal.

    :ivar seconds: without a disagreement for so long, the check is left out; None: never
    :ivar wall: seconds of a clock that goes on over restarts
    """

    host: str
    journal: Journal
    seconds: float | None
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._was_off = False

    @property
    def agreed_since(self) -> float:
        """Since when there was no disagreement, by ``wall``."""
        return self.journal.agreed_since()

    @property
    def check_is_off(self) -> bool:
        """Whether builds are taken without a check of our own."""
        if self.seconds is None:
            return False
        since, now = self.agreed_since, self.wall()
        if since < CLOCK_SET <= now:
            # Else the first good clock after a start without one would make years of it.
            self.journal.note_disagreement()
            since = now
        off = now - since >= self.seconds
        if off and not self._was_off:
            LOG.warning(
                'Host %s: its own check of builds is off: it has not disagreed since %s',
                self.host,
                time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime(since)),
            )
        self._was_off = off
        return off

    @property
    def unchecked_days(self) -> float:
        """For how many days the check has been off; 0: it is on."""
        if self.seconds is None or not self.check_is_off:
            return 0.0
        off = self.wall() - self.agreed_since - self.seconds
        return round(max(off, 1.0) / DAY_SECONDS, 3)

    def disagreed(self, reason: str) -> None:
        """Begin to count anew, and check again."""
        was_off, self._was_off = self._was_off, False
        self.journal.note_disagreement()
        if was_off:
            LOG.warning('Host %s: its own check of builds is on again: %s', self.host, reason)

    def watch(self, seen: GuestInventory, facts: HostReadings) -> None:
        """Look for what a check would have refused, in what is reported anyway."""
        if not self.check_is_off:
            return
        foreign: Mapping[str, int] = facts.foreign if isinstance(facts.foreign, dict) else {}
        for name, amount in GuestInventory(seen.running, None).used().items():
            inventory = facts.inventories.get(name)
            cap = 0 if inventory is None else inventory.cap
            if amount + foreign.get(name, 0) > cap:
                self.disagreed(
                    f'guests use {amount} {name}, others {foreign.get(name, 0)}, of {cap}'
                )
                return
