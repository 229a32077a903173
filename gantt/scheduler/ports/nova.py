# SPDX-License-Identifier: Apache-2.0
"""Hosts that an unmodified Nova runs."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.nova.events import GuestLocation, NovaCast
from gantt.core.resources.host import HostChange


class NovaUpdateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the claims that events of Nova changed, and the touched hosts as they are now."""

    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    hosts: list[HostChange] = []
    not_novas: list[str] = []  # hosts whose updates do not count: agents report for them
    locked: list[str] = []  # hosts whose rows others keep locked: their updates were not folded


class OpenMove(msgspec.Struct, frozen=True, kw_only=True):
    """A guest on hosts of Nova with a claim at both ends of a move, for ``seconds``."""

    source: Claim
    target: Claim
    seconds: float


class Nova(Protocol):
    """Broadcasts and answers of Nova, folded into claims and aggregates."""

    def apply_guest_events(self, casts: Sequence[NovaCast]) -> NovaUpdateResult:
        """Fold broadcasts about guests, each once; see ``core.nova.guest_events``."""

    def apply_aggregates(self, cast: NovaCast) -> bool:
        """Take over aggregates as Nova's API returns them; return whether that was news."""

    def resolve_guest(self, stated: GuestLocation) -> NovaUpdateResult:
        """End the claims of a guest where it is not, according to Nova's API."""

    def open_moves(self, seconds: float, limit: int, reserved: bool = False) -> list[OpenMove]:
        """Return moves between hosts of Nova that have been open for longer, oldest first.

        At most ``limit`` are read.  ``reserved``: and claims awaited, as from host to itself.
        """
