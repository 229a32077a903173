# SPDX-License-Identifier: Apache-2.0
"""What several threads want of the database, done by one of them in one transaction.

Who comes while nobody works does at once what there is; who comes meanwhile waits, and what waits
is done together by the first of them.  So nobody waits for company, and many share what a
transaction costs.  Where whoever works is held up, by a lock or by the disk, another one begins
beside it; once neither is held up any more the next to end leaves what waits to the other, so that
few large transactions do what many small ones would.  What cannot be done together each does alone.
"""

import enum
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from gantt import exceptions

T = TypeVar('T')

#: Requests in one go.
TOGETHER_MAX = 32
#: Threads that work at a time.
LEADERS_MAX = 2
#: So long one may work until another one begins beside it.  More at a time from the start would
#: take turns at the interpreter, with fewer requests in each transaction.
HELD_UP_SECONDS = 0.03
#: Longer than whoever works may take: transactions are bounded.
WAIT_SECONDS = 120.0


class _Turn(enum.Enum):
    WAITS = 'waits'
    LEADS = 'leads'
    DONE = 'done'
    ALONE = 'alone'


class _Ticket(Generic[T]):
    def __init__(self, wanted: T, keys: frozenset[Hashable]) -> None:
        self.wanted = wanted
        self.keys = keys
        self.turn = _Turn.WAITS
        self.problem: BaseException | None = None
        self.called = threading.Event()

    def call(self, turn: _Turn, problem: BaseException | None = None) -> None:
        self.turn, self.problem = turn, problem
        self.called.set()


class Combined(Generic[T]):
    """Requests of any threads.

    :param alone: does one
    :param together: does several, or none of them and tells so
    """

    def __init__(self, alone: Callable[[T], None], together: Callable[[Sequence[T]], bool]) -> None:
        self._alone = alone
        self._together = together
        self._lock = threading.Lock()
        self._waiting: list[_Ticket[T]] = []
        #: Whoever works -> the monotonic time when it began.
        self._began: dict[_Ticket[T], float] = {}

    def do(self, wanted: T, keys: frozenset[Hashable]) -> None:
        """One request.

        :param keys: what it is about: nothing is done together that has one of them in common
        :raises DatabaseUnavailable: it was not its turn in time; nothing was done
        :raises Exception: whatever several that were done together met
        """
        ticket = _Ticket(wanted, keys)
        with self._lock:
            self._waiting.append(ticket)
            if not self._began:
                self._begin(ticket)
        if ticket.turn is _Turn.WAITS:
            self._wait(ticket)
        if ticket.turn is _Turn.LEADS:
            self._lead(ticket)
        if ticket.problem is not None:
            raise ticket.problem
        if ticket.turn is _Turn.ALONE:
            self._alone(wanted)

    def _wait(self, ticket: _Ticket[T]) -> None:
        """Until it is its turn, or it was done; or begin beside who is held up."""
        end = time.monotonic() + WAIT_SECONDS
        while not ticket.called.wait(HELD_UP_SECONDS):
            with self._lock:
                waits = ticket in self._waiting and ticket.turn is _Turn.WAITS
                if waits and len(self._began) < LEADERS_MAX and self._are_held_up():
                    self._begin(ticket)
                    return
            if time.monotonic() > end:
                self._give_up(ticket)
                return

    def _begin(self, ticket: _Ticket[T]) -> None:
        self._began[ticket] = time.monotonic()
        ticket.turn = _Turn.LEADS

    def _are_held_up(self) -> bool:
        """Whether all that work, where any do, have done so for long."""
        last = max(self._began.values(), default=float('-inf'))
        return time.monotonic() - last >= HELD_UP_SECONDS

    def _give_up(self, ticket: _Ticket[T]) -> None:
        with self._lock:
            if ticket in self._waiting and ticket.turn is _Turn.WAITS:
                self._waiting.remove(ticket)
                raise exceptions.DatabaseUnavailable(problem='others keep it busy')
        # It is being done: by transactions, which are bounded.
        if not ticket.called.wait(WAIT_SECONDS):
            raise exceptions.DatabaseUnavailable(problem='whoever does it does not end')

    def _lead(self, own: _Ticket[T]) -> None:
        taken = self._take(own)
        turn, problem = _Turn.ALONE, None
        try:
            if len(taken) == 1:
                self._alone(own.wanted)
                turn = _Turn.DONE
            elif self._together([one.wanted for one in taken]):
                turn = _Turn.DONE
        except BaseException as e:
            turn, problem = _Turn.DONE, e
        finally:
            with self._lock:
                del self._began[own]
                following = self._next()
            if following is not None:
                following.called.set()
            for one in taken:
                one.call(turn, problem)

    def _next(self) -> _Ticket[T] | None:
        """Who goes on with what waits; None: nothing does, or another one works who will."""
        following = next((one for one in self._waiting if one.turn is _Turn.WAITS), None)
        if following is None or not self._are_held_up():
            return None
        self._begin(following)
        return following

    def _take(self, own: _Ticket[T]) -> list[_Ticket[T]]:
        taken, keys = [own], set(own.keys)
        with self._lock:
            self._waiting.remove(own)
            for one in list(self._waiting):
                if (
                    len(taken) < TOGETHER_MAX
                    and one.turn is _Turn.WAITS
                    and keys.isdisjoint(one.keys)
                ):
                    taken.append(one)
                    keys |= one.keys
                    self._waiting.remove(one)
        return taken
