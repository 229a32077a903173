# SPDX-License-Identifier: Apache-2.0
"""What is not the database: time, replies, and where decisions and counts go."""

from collections.abc import Sequence
from typing import Protocol

from gantt.core.claims.commit import DecisionRecord
from gantt.core.records.decision import Answer


class Clock(Protocol):
    """Time for liveness only; safety never depends on it."""

    def monotonic(self) -> float:
        """Seconds, never going back."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Recorder(Protocol):
    """Where decisions go that no commit stores, and what is counted."""

    def record(self, record: DecisionRecord) -> None:
        """Keep a decision; bounded, never blocks, drops the oldest and counts it."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Replies(Protocol):
    """How answers go back; the RPC adapter writes a batch in one go."""

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        """Send each answer to the caller that its handle stands for; never raises."""
