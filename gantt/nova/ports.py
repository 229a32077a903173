# SPDX-License-Identifier: Apache-2.0
"""Ports of the store for hosts that an unmodified Nova runs."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.resources.host import HostChange
from gantt.nova.model.events import GuestLocation, NovaCast
from gantt.scheduler.ports.stores import Stores


class NovaUpdateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the claims that events of Nova changed, and the touched hosts as they are now."""

    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    hosts: list[HostChange] = []
    not_novas: list[str] = []  # hosts whose updates do not count: agents report for them
    locked: list[str] = []  # hosts whose rows others keep locked: their updates were not folded


class OpenMigration(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a guest between hosts of Nova, open for ``seconds``: it has a claim on both."""

    source: Claim
    target: Claim
    seconds: float


class Nova(Protocol):
    """Broadcasts and answers of Nova, folded into claims and aggregates."""

    def apply_guest_events(self, casts: Sequence[NovaCast]) -> NovaUpdateResult:
        """Fold broadcasts about guests, each once; see ``gantt.nova.model.guest_events``."""

    def apply_aggregates(self, cast: NovaCast) -> bool:
        """Store aggregates as Nova's API returns them; return whether anything changed."""

    def resolve_guest(self, stated: GuestLocation) -> NovaUpdateResult:
        """End the claims of a guest where it is not, according to Nova's API."""

    def open_moves(self, seconds: float, limit: int, reserved: bool = False) -> list[OpenMigration]:
        """Return moves between hosts of Nova that have been open for longer, oldest first.

        At most ``limit`` are read.  ``reserved``: and claims awaited, as from host to itself.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class NovaStores(Stores):
    """The stores of a process that receives reports about Nova's hosts."""

    nova: Nova
