# SPDX-License-Identifier: Apache-2.0
"""What several threads want of the database, done by one of them in one transaction.

Who comes while nobody works does at once what there is; who comes meanwhile waits, and what waits
is done together by the first of them.  So nobody waits for company, and many share what a
transaction costs.  Where whoever works is held up, by a lock or by the disk, another one begins
beside it.  What cannot be done together each does alone.
"""

import enum
import threading
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
        self.leads = False
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
        self._leaders = 0

    def do(self, wanted: T, keys: frozenset[Hashable]) -> None:
        """One request.

        :param keys: what it is about: nothing is done together that has one of them in common
        :raises DatabaseUnavailable: it was not its turn in time; nothing was done
        :raises Exception: whatever several that were done together met
        """
        ticket = _Ticket(wanted, keys)
        with self._lock:
            self._waiting.append(ticket)
            if not self._leaders:
                self._begin(ticket)
        if ticket.turn is _Turn.WAITS and not ticket.called.wait(HELD_UP_SECONDS):
            with self._lock:
                if self._leaders < LEADERS_MAX and ticket in self._waiting and not ticket.leads:
                    self._begin(ticket)
        if ticket.turn is _Turn.WAITS and not ticket.called.wait(WAIT_SECONDS):
            self._give_up(ticket)
        if ticket.turn is _Turn.LEADS:
            self._lead(ticket)
        if ticket.problem is not None:
            raise ticket.problem
        if ticket.turn is _Turn.ALONE:
            self._alone(wanted)

    def _begin(self, ticket: _Ticket[T]) -> None:
        self._leaders += 1
        ticket.leads, ticket.turn = True, _Turn.LEADS

    def _give_up(self, ticket: _Ticket[T]) -> None:
        with self._lock:
            if ticket in self._waiting and not ticket.leads:
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
                following = next((one for one in self._waiting if not one.leads), None)
                if following is None:
                    self._leaders -= 1
                else:
                    following.leads = True
            if following is not None:
                following.call(_Turn.LEADS)
            for one in taken:
                one.call(turn, problem)

    def _take(self, own: _Ticket[T]) -> list[_Ticket[T]]:
        taken, keys = [own], set(own.keys)
        with self._lock:
            self._waiting.remove(own)
            for one in list(self._waiting):
                if len(taken) < TOGETHER_MAX and not one.leads and keys.isdisjoint(one.keys):
                    taken.append(one)
                    keys |= one.keys
                    self._waiting.remove(one)
        return taken
