# SPDX-License-Identifier: Apache-2.0
"""Plans of groups: kept with their places, extended, released, read."""

from collections.abc import Collection
from typing import Protocol

from gantt.core.claims.claim import Claim
from gantt.core.claims.places import GroupPlanRecord, PlannedUsage
from gantt.scheduler.ports.claims import ClaimResult


class GroupPlans(Protocol):
    """Plans of groups; one is made by the commit of a request, see ``RequestDraft.plan``."""

    def load_group_plan(self, uuid: str) -> GroupPlanRecord | None:
        """The plan of a group, or None."""

    def group_plans(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[GroupPlanRecord]:
        """Plans by the uuid of their group, after ``marker``; of one project, or of all."""

    def load_places(self, uuids: Collection[str], *, ended: bool = False) -> dict[str, list[Claim]]:
        """The claims of members of planned groups by group, each list by (member, id).

        :param ended: with the tombstones that are still stored
        :returns: every group that was named is a key
        """

    def zones_of_groups(self, uuids: Collection[str]) -> dict[str, set[str]]:
        """Uuids of the zones below where members of groups live, or may; only groups with some."""

    def extend_plan(
        self, uuid: str, seconds: float, most: float, spare: Collection[str] = ()
    ) -> ClaimResult:
        """Hold its places until now + ``seconds``, no place longer than ``most`` seconds in all.

        A place that a create has goes on under the create's lease, and back to this one.  A plan
        without a place to hold, of which every outcome is ``kept``, stays as it is.

        :param spare: ids of free places that nobody needs: they end with the lease that they have
        :raises NotFound: there is no such plan
        """

    def release_plan(
        self,
        uuid: str,
        reason: str,
        members: Collection[str] = (),
        planned_by: str | None = None,
    ) -> ClaimResult:
        """End the places that no create has, and the plan.

        A place that a create has is the create's from then on, and ends with it.

        :param members: places of these alone, by name, and the plan stays; empty: all
        :param planned_by: the request that the plan has to be of; None: any
        :raises NotFound: there is no such plan
        :raises Refused: it is of another request
        """

    def planned_usage(self, project: str) -> PlannedUsage:
        """What places of plans hold for a project."""
