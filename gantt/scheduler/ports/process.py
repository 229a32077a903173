# SPDX-License-Identifier: Apache-2.0
"""Ports other than the database: time, replies, and the sink of decisions and counts."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from gantt.core.claims.commit import DecisionRecord


class Clock(Protocol):
    """Time for liveness only; safety never depends on it."""

    def monotonic(self) -> float:
        """Return seconds, never going back."""

    def wall(self) -> float:
        """Return seconds since the epoch, UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Recorder(Protocol):
    """Sink of decisions that no commit stores, and of metrics."""

    def record(self, record: DecisionRecord) -> None:
        """Store a decision; bounded, never blocks, drops the oldest and counts it."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""

    def observe_all(self, name: str, values: Iterable[float], **labels: str) -> None:
        """Add values to a histogram, as ``observe`` one after another."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Inbox(Protocol):
    """Queue of arrivals on which the scheduling thread waits for requests, and reads them."""

    def wait(self, seconds: float) -> bool:
        """Wait for an arrival or ``wake``; return whether there was one within ``seconds``."""

    def read(self) -> bool:
        """Read the arrivals that are there already; return whether there were any."""

    def sockets(self) -> list[int]:
        """Return descriptors of the sockets to watch, for a thread that waits for another one."""

    def wake(self) -> None:
        """Let the waiting thread continue; any thread."""

    def close(self) -> None:
        """Close the inbox: no thread waits here any more."""


class Replies(Protocol):
    """Channel of answers to callers; the RPC adapter writes a batch in one go.

    An answer is that of the kind of request that the handle is of.
    """

    def send(self, answers: Sequence[tuple[Any, Any]]) -> None:
        """Send each answer to the caller of its handle; never raises."""

    def send_soon(self, answers: Sequence[tuple[Any, Any]]) -> None:
        """Send answers as ``send`` does, without blocking."""
