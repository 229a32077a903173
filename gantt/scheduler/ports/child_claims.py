# SPDX-License-Identifier: Apache-2.0
"""Claims of requests of this zone in child zones, as they are stored here."""

from collections.abc import Collection
from typing import Protocol

from gantt.core.claims.child_claim import ChildClaim


class ChildClaims(Protocol):
    """Claims in child zones."""

    def find(
        self,
        request_id: str | None = None,
        consumers: Collection[str] = (),
        child: str = '',
        *,
        claim_id: str | None = None,
        state: str | None = None,
        project: str | None = None,
        group: str | None = None,
        marker: str | None = None,
        limit: int | None = None,
    ) -> list[ChildClaim]:
        """Return claims in child zones by id, after ``marker``, ended ones included."""

    def count_live_child_claims(self) -> int:
        """Return the number of claims in child zones that are reserved or confirmed."""

    def child_zone_names(self, *, enabled: bool = False) -> dict[str, str]:
        """Return uuid -> name of the child zones, by name.

        :param enabled: only of those that are
        """
