# SPDX-License-Identifier: Apache-2.0
"""Facts of a host of Nova that its report source does not have, sent beside nova-compute.

It registers nothing, has no epoch and ends none: the host stays the source's.  Its messages are
put in order by their own sequence, which begins with the clock, so that those of the next start
come after those of this one.
"""

import logging
import random
import time
from collections.abc import Callable

from gantt import exceptions
from gantt.client import NovaClient
from gantt.compute.agent.reporter import OVERTAKEN_MAX, jittered
from gantt.compute.drivers.beside_nova import SeenGuests
from gantt.compute.farm.host_agent import RETRY_FIRST, RETRY_MOST
from gantt.compute.farm.runner import PeriodicTasks
from gantt.core.claims.host_facts import UpdateHostFacts, UpdateHostFactsResult

LOG = logging.getLogger(__name__)

#: Seconds between messages until a scheduler has set them.
FIRST_SECONDS = 60


class FactsOnly(PeriodicTasks):
    """Sender of facts for one host; ``turn`` is called by one thread at a time.

    :param look: reads the machine
    :param report_seconds: 0: as the scheduler sets it
    :param wall: seconds since 1970
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], SeenGuests],
        port: NovaClient,
        report_seconds: float,
        rng: random.Random,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.updates_sent = 0
        self.failures = 0
        self.problem = ''
        self._look = look
        self._port = port
        self._report_seconds = report_seconds
        self._answered_seconds = FIRST_SECONDS
        self._rng = rng
        self._wall = wall
        self._sequence = 0
        self._overtaken = 0
        self._wait = RETRY_FIRST

    def turn(self) -> float:
        """Read and send; return the seconds until the next turn."""
        update = self.make()
        try:
            answer = self._port.update_host_facts(update)
        except exceptions.NotFound:
            self._note(
                logging.WARNING,
                f'the scheduler does not know host {self.name} yet: does gantt-nova-source run, '
                'and is this its name in Nova?',
            )
            return self._interval()
        except exceptions.Refused as e:
            self._note(logging.ERROR, str(e))
            return self._interval()
        except exceptions.Unavailable as e:
            self.failures += 1
            self._note(logging.WARNING, str(e))
            return self._later()
        self._wait = RETRY_FIRST
        self._answered_seconds = max(1, answer.report_seconds)
        if answer.outcome == 'stale':
            return self._catch_up(answer)
        self._overtaken = 0
        self.updates_sent += 1
        self._note(logging.INFO, '')
        return self._interval()

    def make(self) -> UpdateHostFacts:
        """Return the message to be sent now."""
        # The clock may go back, between two starts too: an answer has our last sequence.
        self._sequence = max(self._sequence + 1, int(self._wall() * 1_000_000))
        sequence, readings = self._sequence, self._look()
        return UpdateHostFacts(
            host=self.name,
            sequence=sequence,
            guests=readings.guests,
            numa=readings.numa,
            devices=readings.devices,
            metrics=readings.metrics,
        )

    def status(self) -> dict[str, object]:
        """Return the state, for the log."""
        return {
            'host': self.name,
            'told': self.updates_sent,
            'failures': self.failures,
            'problem': self.problem,
        }

    def _catch_up(self, answer: UpdateHostFactsResult) -> float:
        self._sequence = max(self._sequence, answer.sequence)
        self._overtaken += 1
        self._note(
            logging.WARNING,
            f'host {self.name}: a later word was there before ours. A clock that went back is '
            'made up for now; if this comes again, another agent has its name',
        )
        return RETRY_FIRST if self._overtaken <= OVERTAKEN_MAX else self._interval()

    def _note(self, level: int, problem: str) -> None:
        """Log a problem once, and its end."""
        if problem != self.problem:
            LOG.log(
                level,
                'Agent of facts has another state: host=%s problem=%s',
                self.name,
                problem or 'none',
            )
        self.problem = problem

    def _interval(self) -> float:
        return jittered(self._report_seconds or self._answered_seconds, self._rng)

    def _later(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, RETRY_MOST)
        return jittered(wait, self._rng)
