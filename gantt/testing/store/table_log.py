# SPDX-License-Identifier: Apache-2.0
"""The change logs of host tables, kept in memory."""

from typing import NamedTuple


class Part(NamedTuple):
    """Some events of a worker's table."""

    first: int
    checkpoint: bool
    created_at: float
    chunks: list[bytes]


class TableLogs:
    """Parts by worker, in order."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}

    def save(self, worker: str, part: Part) -> None:
        """Keep a part."""
        self._parts.setdefault(worker, []).append(part)

    def load(self, worker: str, position: int) -> list[list[bytes]]:
        """From the last checkpoint before ``position`` on; [] where it is gone."""
        parts = [p for p in self._parts.get(worker, ()) if p.first < position]
        starts = [i for i, part in enumerate(parts) if part.checkpoint]
        return [part.chunks for part in parts[starts[-1] :]] if starts else []

    def purge(self, before: float) -> int:
        """Forget what lies before the last checkpoint that is older than ``before``."""
        cut = 0
        for worker, parts in list(self._parts.items()):
            old = [i for i, p in enumerate(parts) if p.checkpoint and p.created_at < before]
            if parts[-1].created_at < before:
                del self._parts[worker]
                cut += 1
            elif old:
                self._parts[worker] = parts[old[-1] :]
                cut += 1
        return cut
