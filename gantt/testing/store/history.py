# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: what happened lately, see ``db.records.history``."""

import abc

from gantt.core.claims.claim import State
from gantt.core.records.decision import Outcome
from gantt.core.records.history import ClaimCounts, History
from gantt.testing.store.declared import Declarations, atomic


class Histories(Declarations, abc.ABC):
    """Decisions over time and claims by state."""

    @property
    @abc.abstractmethod
    def _now(self) -> float: ...

    @atomic
    def count_claims(self) -> ClaimCounts:
        """Claims by state, tombstones included, and how many live ones were adopted."""
        states = {state.value: 0 for state in State}
        for claim in self._tables.claims.values():
            states[claim.state] += 1
        adopted = sum(claim.adopted and claim.is_live for claim in self._tables.claims.values())
        return ClaimCounts(states=states, adopted=adopted)

    @atomic
    def history(self, *, seconds: float, parts: int, most: int) -> History:
        """The last ``seconds`` in equal parts; of the newest ``most`` decisions at most."""
        now, kept = self._now, list(self._tables.decisions.values())
        start = since = now - seconds
        read = [d for d in kept[-most:] if d.created_at >= start]
        if read and (read[0] is kept[0] or len(read) == most):
            since = max(since, read[0].created_at)
        outcomes: dict[str, list[int]] = {}
        for decision in read:
            counts = outcomes.setdefault(decision.outcome, [0] * parts)
            counts[min(parts - 1, int((decision.created_at - start) / seconds * parts))] += 1
        placed = {d.request_id for d in read if d.outcome == Outcome.PLACED}
        waits = [
            (claim.created_at, claim.updated_at - claim.created_at)
            for claim in self._tables.claims.values()
            if claim.request_id in placed
            and claim.state is State.CONFIRMED
            and claim.created_at >= start
        ]
        return History(now=now, since=since, outcomes=outcomes, waits=waits)
