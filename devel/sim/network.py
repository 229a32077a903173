# SPDX-License-Identifier: Apache-2.0
"""The line between the processes: messages and answers, each with a fate of its own.

A call goes to any scheduler that is there.  It, and its answer, may be lost,
come late, come twice and overtake others; the caller waits a bounded time.
"""

import random
from collections.abc import Callable
from typing import Any, Protocol

from devel.sim.loop import Loop, SimSignal
from devel.sim.plan import Rates
from gantt import exceptions

#: How long a message waits where no receiver takes it, and how often that is tried.
WAIT_SECONDS, TRY_SECONDS = 10.0, 0.5

Answer = Callable[[object, Exception | None], None]


class SimServer(Protocol):
    """A server that takes calls."""

    def take(self, method: str, message: Any, answer: Answer) -> None:
        """Begin to handle a call; must not wait."""


class SimReply:
    """The receiver of the answer to one call; the first one counts."""

    def __init__(self, loop: Loop) -> None:
        self.signal = SimSignal(loop)
        self.value: object = None
        self.error: Exception | None = None

    def finish(self, value: object, error: Exception | None) -> None:
        """Take the answer."""
        if not self.signal.is_set():
            self.value, self.error = value, error
            self.signal.set()


class Network:
    """All lines.

    :ivar rates: what happens to messages now
    :ivar cut: names whose lines are cut
    :param servers: returns those that take calls now
    """

    def __init__(
        self, loop: Loop, rng: random.Random, servers: Callable[[], list[SimServer]]
    ) -> None:
        self.rates = Rates()
        self.cut: set[str] = set()
        self._loop = loop
        self._rng = rng
        self._servers = servers

    def call(self, who: str, method: str, message: object, seconds: float) -> Any:
        """Call a scheduler and wait; for a task.

        :raises Unavailable: no answer in time
        :raises GanttError: the error that the scheduler answered
        """
        reply = SimReply(self._loop)
        self._send(who, method, message, self._back(who, method, reply), seconds)
        if not reply.signal.wait(seconds):
            raise exceptions.Unavailable(f'{method}: no answer within {seconds} s')
        if reply.error is not None:
            raise reply.error
        return reply.value

    def cast(self, who: str, method: str, message: object) -> None:
        """Send to a scheduler; the sender gets no result."""
        self._send(who, method, message, lambda value, error: None, WAIT_SECONDS)

    def post(self, who: str, whom: str, what: str, deliver: Callable[[], bool]) -> None:
        """Send to one receiver; again while ``deliver`` returns that it is not there."""
        for delay in self._delays(who, whom, what):
            self._loop.at(delay, self._hand_over, whom, deliver, self._loop.now + WAIT_SECONDS)

    # -- inside ----------------------------------------------------------------------
    def _send(self, who: str, method: str, message: object, answer: Answer, seconds: float) -> None:
        until = self._loop.now + seconds
        for delay in self._delays(who, '', method):
            self._loop.at(delay, self._arrive, method, message, answer, until)

    def _arrive(self, method: str, message: object, answer: Answer, until: float) -> None:
        servers = self._servers()
        if servers:
            self._rng.choice(servers).take(method, message, answer)
        elif self._loop.now < until:
            self._loop.at(TRY_SECONDS, self._arrive, method, message, answer, until)

    def _hand_over(self, whom: str, deliver: Callable[[], bool], until: float) -> None:
        if (whom in self.cut or not deliver()) and self._loop.now < until:
            self._loop.at(TRY_SECONDS, self._hand_over, whom, deliver, until)

    def _back(self, who: str, method: str, reply: SimReply) -> Answer:
        def answer(value: object, error: Exception | None) -> None:
            for delay in self._delays('', who, f'answer to {method}'):
                self._loop.at(delay, reply.finish, value, error)

        return answer

    def _delays(self, who: str, whom: str, what: str) -> list[float]:
        """Return after how many seconds a message arrives, each time that it does."""
        rng, rates = self._rng, self.rates
        if who in self.cut or whom in self.cut or rng.random() < rates.lost:
            self._loop.write_trace(who or whom, f'lost: {what}')
            return []
        delays = [self._delay()]
        if rng.random() < rates.doubled:
            self._loop.write_trace(who or whom, f'twice: {what}')
            delays.append(self._delay())
        return delays

    def _delay(self) -> float:
        rng, rates = self._rng, self.rates
        if rng.random() < rates.late:
            return rng.uniform(0.1, rates.late_most)
        return rng.uniform(0.001, 0.02)
