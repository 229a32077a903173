# SPDX-License-Identifier: Apache-2.0
"""Health of one scheduler process: whether it can place now, and why not.

Queried over HTTP by supervisors and load balancers (``/health`` of the metrics
listener), so it ends within ``DATABASE_PROBE_SECONDS`` whatever is away.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from gantt import exceptions

#: How long one question waits for the database.
DATABASE_PROBE_SECONDS = 2.0
#: Nothing that goes well keeps a request inside for so long after its deadline: not even a
#: commit that is tried until the database is given up.
OVERDUE_SECONDS = 60.0
#: For so long the database's last answer is good.
PROBE_CACHE_SECONDS = 1.0


class Health:
    """The checks of a scheduler process.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``
    :param rpc: ``gantt.rpc.service.RpcService``
    :ivar refused: why the options were refused when they were read again last; '': they are in
        force.
        It places as before, so that this is no reason to call it ill
    """

    def __init__(self, scheduler: Any, rpc: Any) -> None:
        self._scheduler = scheduler
        self._rpc = rpc
        self._database = BackgroundProbe(scheduler.stores.database.ping)
        self._stopping = False
        self.refused = ''

    def note_stopping(self) -> None:
        """Report from now on that the process is stopping."""
        self._stopping = True

    def __call__(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the process is healthy, and the body of the answer for JSON."""
        facts = self._scheduler.health() | self._rpc.health()
        facts['configuration_refused'] = self.refused
        facts['configuration'] = self._scheduler.placing.pipeline.digest
        problems = {
            'process': 'stopping: it takes nothing new' if self._stopping else '',
            'host_table': self._table_problem(facts),
            'database': self._database.problem(),
            'broker': problem_of_broker(self._rpc),
            'calls': self._rpc.paused,
            'queue': self._queue_problem(facts),
        }
        return report(problems, facts)

    def _table_problem(self, facts: dict[str, Any]) -> str:
        age_max = self._scheduler.settings.unknown_after_seconds
        if not facts['loaded']:
            return 'the hosts were not read from the database yet'
        if facts['table_age_seconds'] >= age_max:
            return (
                f'{facts["table_age_seconds"]:.0f} s old, and {age_max:g} s is too old to refuse by'
            )
        return ''

    def _queue_problem(self, facts: dict[str, Any]) -> str:
        limit = self._scheduler.settings.queue_limit
        if facts['requests_waiting'] >= limit:
            return f'{facts["requests_waiting"]} requests wait, {limit} may'
        overdue = facts['requests_overdue_seconds']
        if overdue >= OVERDUE_SECONDS:
            return f'a request got no answer until {overdue:.0f} s after its time: placing is stuck'
        return ''


def report(problems: dict[str, str], facts: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether a process is healthy, and the body of the answer for JSON.

    :param problems: name of a check -> what is wrong, or an empty text; the threads that fail, of
        which the facts tell, are one more
    """
    failing = ', '.join(facts['failing'])
    threads = f'several rounds in a row failed of {failing}: the log says why' if failing else ''
    problems = problems | {'threads': threads}
    is_healthy = not any(problems.values())
    return is_healthy, {
        'healthy': is_healthy,
        'reasons': [f'{name}: {problem}' for name, problem in problems.items() if problem],
        'checks': {name: not problem for name, problem in problems.items()},
        'facts': facts,
    }


def problem_of_broker(rpc: Any) -> str:
    """Return what is wrong with the consumers of a process, or an empty text."""
    attached = rpc.attached()
    if not attached:
        return 'not listening yet'
    detached = [topic for topic, is_attached in attached.items() if not is_attached]
    if detached:
        return f'no consumer is attached for {", ".join(detached)}'
    return str(rpc.problem)


class BackgroundProbe:
    """Runs a check that may hang in a thread of its own, one run at a time.

    :param probe: raises GanttError where the answer is no
    """

    def __init__(
        self,
        probe: Callable[[], object],
        seconds: float = DATABASE_PROBE_SECONDS,
        stored_seconds: float = PROBE_CACHE_SECONDS,
    ) -> None:
        self._probe = probe
        self._seconds = seconds
        self._stored_seconds = stored_seconds
        self._lock = threading.Lock()
        self._probe_done: threading.Event | None = None
        self._last_error = ''
        self._probed_at = float('-inf')

    def problem(self) -> str:
        """Return the problem of the database, or an empty text."""
        with self._lock:
            if time.monotonic() - self._probed_at < self._stored_seconds:
                return self._last_error
            if self._probe_done is None:
                self._probe_done = threading.Event()
                threading.Thread(target=self._run, name='health', daemon=True).start()
            answered = self._probe_done
        if not answered.wait(self._seconds):
            return f'no answer within {self._seconds:g} s'
        return self._last_error

    def _run(self) -> None:
        try:
            self._probe()
            met = ''
        except exceptions.GanttError as e:
            met = e.message
        except Exception as e:  # a check must not end the process that it is about
            met = f'{type(e).__name__}: {e}'
        with self._lock:
            self._last_error = met
            self._probed_at = time.monotonic()
            assert self._probe_done is not None
            self._probe_done.set()
            self._probe_done = None
