# SPDX-License-Identifier: Apache-2.0
"""Pauses of a scheduler whose database is silent: its calls are left to other schedulers.

The placing thread cannot notice: it waits.  So a separate thread measures how long
the longest wait for the database has lasted, and sends the database a query itself,
on another connection, so that a wait for a lock is not taken for silence.
Where that has no answer either, the consumers on the queues that are shared with
other schedulers are cancelled, what was received and not begun is given back, and
the first answer of the database ends the pause.  Where no other process consumes,
calls are taken all the same: otherwise they would stay unanswered.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from gantt import exceptions
from gantt.rpc.amqp.replies import Count
from gantt.rpc.amqp.timers import in_thread
from gantt.rpc.server.server import Topic

LOG = logging.getLogger(__name__)

#: Between two checks.
LOOK_SECONDS = 0.2
#: From such a wait on the database is sent a query, on another connection.
DOUBT_SECONDS = 0.7
#: From such a wait on it is silent, where that query had no answer for so long either.
SILENT_SECONDS, UNANSWERED_SECONDS = 1.4, 0.6
#: Between two checks for other consumers, and between two queries while it is silent.
OTHERS_SECONDS = 1.0


class Pausing:
    """Pauses the topics of a process while its database is silent.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``
    :param topics: returns the topics that listen now
    """

    def __init__(self, scheduler: Any, topics: Callable[[], Iterable[Topic]], count: Count) -> None:
        self._scheduler = scheduler
        self._topics = topics
        self._count = count
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name='rpc-pausing', daemon=True)
        self._question: _Question | None = None
        self._since = 0.0
        self._looked_at_others = 0.0

    def start(self) -> None:
        """Start the thread that checks."""
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop checking; what is paused stays so."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def is_paused(self) -> bool:
        """True where the database is silent, and calls are left to others where there are any."""
        return bool(self._since)

    @property
    def problem(self) -> str:
        """Description of the pause, for a health check."""
        since = self._since
        if not since:
            return ''
        names = ', '.join(topic.name for topic in self._topics() if topic.is_paused)
        effect = (
            f'calls of {names} are left to other schedulers' if names else 'no other takes calls'
        )
        return f'{effect}: the database has not answered for {time.monotonic() - since:.0f} s'

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._look()
            except Exception:
                LOG.exception('Check of the database failed; the next one follows')

    def _look(self) -> None:
        silent = self._scheduler.silent_for()
        question = self._question
        if self._since:
            self._look_again(question)
        elif silent < DOUBT_SECONDS:
            self._question = None
        elif question is None:
            self._probe()
        elif question.is_answered:
            # The one wait is for something else, a lock perhaps.
            if question.age >= OTHERS_SECONDS:
                self._question = None
        elif silent >= SILENT_SECONDS and question.age >= UNANSWERED_SECONDS:
            self._pause(silent)

    def _probe(self) -> None:
        answer = in_thread(self._scheduler.ping, 'rpc-pausing-ask')
        self._question = _Question(time.monotonic(), answer)

    def _look_again(self, question: '_Question | None') -> None:
        """Check, while the database is silent, whether it answers and whether others consume."""
        if question is not None and question.is_answered:
            self._resume()
            return
        if question is None or (question.answer.done() and question.age >= OTHERS_SECONDS):
            self._probe()
        now = time.monotonic()
        if now - self._looked_at_others >= OTHERS_SECONDS:
            self._looked_at_others = now
            self._leave()

    def _pause(self, silent: float) -> None:
        self._since = time.monotonic() - silent
        self._looked_at_others = time.monotonic()
        self._count('gantt_rpc_pauses_total')
        names = self._leave()
        reason = 'the database does not answer this scheduler'
        given_back = self._scheduler.give_back(reason) if names else 0
        LOG.warning(
            'The database does not answer, and calls are left to other schedulers: seconds=%.1f '
            'topics=%s returned_calls=%d',
            silent,
            ','.join(names) or 'none',
            given_back,
        )

    def _leave(self) -> list[str]:
        """Pause only the topics that others consume as well; return the names of the paused."""
        names = []
        for topic in self._topics():
            try:
                other_consumers = topic.consumers() - (not topic.is_paused)
            except exceptions.BrokerUnavailable as e:
                LOG.info('Consumers of a topic cannot be counted: topic=%s error=%s', topic.name, e)
                continue
            if other_consumers > 0:
                topic.pause()
                names.append(topic.name)
            elif topic.is_paused:
                LOG.warning(
                    'Topic has no other consumer, and its calls are accepted again: topic=%s',
                    topic.name,
                )
                topic.resume()
        return names

    def _resume(self) -> None:
        since, self._since = self._since, 0.0
        self._question = None
        for topic in self._topics():
            topic.resume()
        LOG.warning(
            'The database answers again, and calls are accepted again: seconds=%.1f',
            time.monotonic() - since,
        )


class _Question(NamedTuple):
    """A query of the database in a thread of its own; it may hang.

    :ivar asked: when it was sent, in monotonic seconds
    """

    asked: float
    answer: Future[object]

    @property
    def age(self) -> float:
        """Seconds since it was sent."""
        return time.monotonic() - self.asked

    @property
    def is_answered(self) -> bool:
        """True where there is an answer, and no error."""
        return self.answer.done() and self.answer.exception() is None
