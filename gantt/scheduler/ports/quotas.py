# SPDX-License-Identifier: Apache-2.0
"""Quotas of projects, and what each project has."""

from collections.abc import Collection, Mapping
from typing import Protocol

from gantt.core.claims.quota import Limit, ProjectUsage, Usage


class Quotas(Protocol):
    """Limits and usage of projects."""

    def quotas(self) -> list[Limit]:
        """All limits that are stored, by project and name."""

    def set_quotas(self, project: str, limits: Mapping[str, int | None]) -> None:
        """Set limits of a project by their names; None takes one away, others stay.

        :raises InvalidMessage: there is no such limit, or it is out of bounds
        :raises Refused: there are too many already
        """

    def quota_usage(
        self, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        """What each of these projects has, of all that is committed; see ``core.claims.quota``.

        :param classes: resource classes whose amounts are wanted
        """

    def owners_of(self, consumers: Collection[str]) -> dict[str, str | None]:
        """The project of each of these consumers of whom a claim is stored, live or ended."""

    def usages(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[ProjectUsage]:
        """Projects with live claims by id, after ``marker``; one of them, or all."""
