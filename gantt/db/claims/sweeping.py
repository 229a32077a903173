# SPDX-License-Identifier: Apache-2.0
"""The sweeper, past rows that cannot be read.

A claim of a newer release, or one that was damaged, must not keep the leases of all others from
running out: where a sweep fails, its claims are taken one by one, and those at fault are left
out of the next ones.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from gantt import exceptions
from gantt.db.claims import claims
from gantt.db.claims.locks import Locks
from gantt.db.engine import session
from gantt.scheduler.ports import ClaimResult

#: Claims left out that are remembered; more than that are found at fault again and again.
UNREADABLE_MAX = 1000
#: Sweeps after which those left out are tried again: somebody may have repaired them.
AGAIN_SWEEPS = 60


def _only(claim_id: str, tx: session.Tx) -> list[str]:
    return [claim_id]


class Sweeper:
    """Which claims one process leaves out.

    :param change: runs work in one transaction that changes claims, and waits once for locked rows
    :param locks: finds out what is left to another sweep
    """

    def __init__(
        self, change: Callable[[Callable[[claims.Changes], Any]], Any], locks: Locks
    ) -> None:
        self._change = change
        self._locks = locks
        self._unreadable: dict[str, str] = {}
        self._sweeps = 0
        self._lock = threading.Lock()

    def sweep(self, limit: int) -> ClaimResult:
        """Expire reserved claims past their lease, at most ``limit``.

        :raises DatabaseUnavailable:
        """
        with self._lock:
            self._sweeps += 1
            if self._sweeps % AGAIN_SWEEPS == 0:
                self._unreadable.clear()
            try:
                return self._end(lambda tx: self._overdue(tx, limit))
            except exceptions.Unavailable:
                raise
            except Exception:
                return self._one_by_one(limit)

    def _end(self, ids: Callable[[session.Tx], list[str]]) -> ClaimResult:
        return self._locks.around(
            lambda aside: self._change(lambda c: claims.sweep(c, ids(c.tx), aside))
        )

    def _overdue(self, tx: session.Tx, limit: int) -> list[str]:
        return claims.overdue(tx, limit, self._unreadable)

    def _one_by_one(self, limit: int) -> ClaimResult:
        result = ClaimResult(fates=[])
        for claim_id in self._change(lambda c: self._overdue(c.tx, limit)):
            try:
                one = self._end(functools.partial(_only, claim_id))
            except exceptions.Unavailable:
                raise
            except Exception as e:
                problem = f'{type(e).__name__}: {e}'
                result.unreadable[claim_id] = problem
                if len(self._unreadable) < UNREADABLE_MAX:
                    self._unreadable[claim_id] = problem
            else:
                result.fates.extend(one.fates)
                result.hosts.extend(one.hosts)
        return result
