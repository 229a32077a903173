# SPDX-License-Identifier: Apache-2.0
"""Quotas of projects, and the usage of each."""

from collections.abc import Collection, Mapping
from typing import Protocol

from gantt.core.claims.quota import Limit, ProjectUsage, Usage


class Quotas(Protocol):
    """Limits and usage of projects."""

    def limits(self) -> list[Limit]:
        """Return all limits that are stored, by project and name."""

    def set_quotas(self, project: str, limits: Mapping[str, int | None]) -> None:
        """Set limits of a project by their names; None removes one, others stay.

        :raises InvalidMessage: there is no such limit, or it is out of bounds
        :raises Refused: there are too many already
        """

    def quota_usage(
        self, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        """Return the committed usage of each of these projects; see ``core.claims.quota``.

        :param classes: resource classes whose amounts are requested
        """

    def owners_of(self, consumers: Collection[str]) -> dict[str, str | None]:
        """Return the project of each of these consumers that has a stored claim, live or ended."""

    def usages(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[ProjectUsage]:
        """Return projects with live claims by id, after ``marker``; one of them, or all."""
