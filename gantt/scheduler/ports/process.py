# SPDX-License-Identifier: Apache-2.0
"""What is not the database: time, replies, and where decisions and counts go."""

from collections.abc import Iterable, Sequence
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

    def observe_all(self, name: str, values: Iterable[float], **labels: str) -> None:
        """Add values to a histogram, as ``observe`` one after another."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Inbox(Protocol):
    """Where the scheduling thread waits for requests, and reads them where it can."""

    def wait(self, seconds: float) -> bool:
        """Until something came, or ``wake`` was called; whether that was within ``seconds``."""

    def read(self) -> bool:
        """Take what has come already; whether there was anything."""

    def sockets(self) -> list[int]:
        """Numbers of the sockets on which something may come, for who waits for another one."""

    def wake(self) -> None:
        """Let the thread that waits go on; any thread."""

    def close(self) -> None:
        """Nobody waits here any more."""


class Replies(Protocol):
    """How answers go back; the RPC adapter writes a batch in one go."""

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        """Send each answer to the caller that its handle stands for; never raises."""

    def send_soon(self, answers: Sequence[tuple[object, Answer]]) -> None:
        """The same, where nothing may be waited for."""
