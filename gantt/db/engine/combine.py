# SPDX-License-Identifier: Apache-2.0
"""Combination of database requests of several threads into one transaction of one thread.

A request that comes while no thread works is done at once; requests that come meanwhile wait, and
the first of them does all that wait together.  So no request waits for others, and many share the
cost of a transaction.  If the working thread is held up, by a lock or the disk, another one begins
in parallel; once neither is held up any more the next to end leaves waiting requests to the other,
so that few large transactions do the work of many small ones.  A request that cannot be done with
others is done by its own thread.
"""

import enum
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from gantt import exceptions

T = TypeVar('T')

#: Requests in one transaction.
COMBINED_REQUESTS_MAX = 32
#: Threads that work at a time.
LEADERS_MAX = 2
#: Seconds that a thread may work until another one begins in parallel.  More threads from the
#: start would take turns at the interpreter, with fewer requests in each transaction.
HELD_UP_SECONDS = 0.03
#: Longer than a working thread may take: transactions are bounded.
WAIT_SECONDS = 120.0


class _Turn(enum.Enum):
    WAITS = 'waits'
    LEADS = 'leads'
    DONE = 'done'
    SINGLE = 'single'


class _Ticket(Generic[T]):
    def __init__(self, request: T, keys: frozenset[Hashable]) -> None:
        self.request = request
        self.keys = keys
        self.turn = _Turn.WAITS
        self.problem: BaseException | None = None
        self.is_called = threading.Event()

    def hand_turn(self, turn: _Turn, problem: BaseException | None = None) -> None:
        self.turn = turn
        self.problem = problem
        self.is_called.set()


class RequestCombiner(Generic[T]):
    """A queue of requests of any threads.

    :param run_one: does one request
    :param run_together: does several and returns True, or none of them and returns False
    """

    def __init__(
        self, run_one: Callable[[T], None], run_together: Callable[[Sequence[T]], bool]
    ) -> None:
        self._run_one = run_one
        self._run_together = run_together
        self._lock = threading.Lock()
        self._waiting: list[_Ticket[T]] = []
        #: Working thread's ticket -> the monotonic time when it began.
        self._batches_began_at: dict[_Ticket[T], float] = {}

    def run(self, request: T, keys: frozenset[Hashable]) -> None:
        """Run a request, alone or together with others that wait.

        :param keys: keys of the request: requests with a common key are not done together
        :raises DatabaseUnavailable: the request's turn did not come in time; nothing was done
        :raises Exception: the error of several requests that were done together
        """
        ticket = _Ticket(request, keys)
        with self._lock:
            self._waiting.append(ticket)
            if not self._batches_began_at:
                self._begin(ticket)
        if ticket.turn is _Turn.WAITS:
            self._wait(ticket)
        if ticket.turn is _Turn.LEADS:
            self._run_batches(ticket)
        if ticket.problem is not None:
            raise ticket.problem
        if ticket.turn is _Turn.SINGLE:
            self._run_one(request)

    def _wait(self, ticket: _Ticket[T]) -> None:
        """Wait until its turn, until it was done, or until the working threads are held up."""
        end = time.monotonic() + WAIT_SECONDS
        while not ticket.is_called.wait(HELD_UP_SECONDS):
            with self._lock:
                is_waiting = ticket in self._waiting and ticket.turn is _Turn.WAITS
                if is_waiting and len(self._batches_began_at) < LEADERS_MAX and self._are_held_up():
                    self._begin(ticket)
                    return
            if time.monotonic() > end:
                self._give_up(ticket)
                return

    def _begin(self, ticket: _Ticket[T]) -> None:
        self._batches_began_at[ticket] = time.monotonic()
        ticket.turn = _Turn.LEADS

    def _are_held_up(self) -> bool:
        """Return whether all working threads, if any, have worked for long."""
        last = max(self._batches_began_at.values(), default=float('-inf'))
        return time.monotonic() - last >= HELD_UP_SECONDS

    def _give_up(self, ticket: _Ticket[T]) -> None:
        with self._lock:
            if ticket in self._waiting and ticket.turn is _Turn.WAITS:
                self._waiting.remove(ticket)
                raise exceptions.DatabaseUnavailable(
                    problem='earlier requests of this process did not end in time'
                )
        # It is being done, by transactions, which are bounded.
        if not ticket.is_called.wait(WAIT_SECONDS):
            raise exceptions.DatabaseUnavailable(
                problem='the thread with this request did not end in time'
            )

    def _run_batches(self, own: _Ticket[T]) -> None:
        tickets = self._take_combinable(own)
        turn, problem = _Turn.SINGLE, None
        try:
            if len(tickets) == 1:
                self._run_one(own.request)
                turn = _Turn.DONE
            elif self._run_together([ticket.request for ticket in tickets]):
                turn = _Turn.DONE
        except BaseException as e:
            turn, problem = _Turn.DONE, e
        finally:
            with self._lock:
                del self._batches_began_at[own]
                successor = self._next()
            if successor is not None:
                successor.is_called.set()
            for ticket in tickets:
                ticket.hand_turn(turn, problem)

    def _next(self) -> _Ticket[T] | None:
        """Return the ticket that goes on with waiting requests; None: none waits, or one will."""
        successor = next((ticket for ticket in self._waiting if ticket.turn is _Turn.WAITS), None)
        if successor is None or not self._are_held_up():
            return None
        self._begin(successor)
        return successor

    def _take_combinable(self, own: _Ticket[T]) -> list[_Ticket[T]]:
        tickets, keys = [own], set(own.keys)
        with self._lock:
            self._waiting.remove(own)
            for ticket in list(self._waiting):
                if (
                    len(tickets) < COMBINED_REQUESTS_MAX
                    and ticket.turn is _Turn.WAITS
                    and keys.isdisjoint(ticket.keys)
                ):
                    tickets.append(ticket)
                    keys |= ticket.keys
                    self._waiting.remove(ticket)
        return tickets
