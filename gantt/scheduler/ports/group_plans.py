# SPDX-License-Identifier: Apache-2.0
"""Plans of groups: kept with their reservations, extended, released, read."""

from collections.abc import Collection
from typing import Protocol

from gantt.core.claims.claim import Claim
from gantt.core.claims.reservations import GroupPlanRecord
from gantt.scheduler.ports.requests import ClaimResult


class GroupPlans(Protocol):
    """Plans of groups; the commit of a request creates one, see ``RequestDraft.plan``."""

    def load_group_plan(self, uuid: str) -> GroupPlanRecord | None:
        """Return the plan of a group, or None."""

    def group_plans(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[GroupPlanRecord]:
        """Return plans by the uuid of their group, after ``marker``; of one project, or of all."""

    def load_reservations(
        self, uuids: Collection[str], *, ended: bool = False
    ) -> dict[str, list[Claim]]:
        """Return the claims of members of planned groups by group, each list by (member, id).

        :param ended: with the tombstones that are still stored
        :returns: every group requested is a key
        """

    def zones_of_groups(self, uuids: Collection[str]) -> dict[str, set[str]]:
        """Return uuids of the child zones where members of groups live, or may; only non-empty."""

    def extend_plan(
        self, uuid: str, seconds: float, most: float, spare: Collection[str] = ()
    ) -> ClaimResult:
        """Hold its reservations until now + ``seconds``, each for at most ``most`` seconds in all.

        A reservation that a create has continues under the create's lease, and back to this one.  A
        plan without a reservation to hold, of which every outcome is ``kept``, stays as it is.

        :param spare: ids of free reservations not needed: they end with their present lease
        :raises NotFound: the plan does not exist
        """

    def release_plan(
        self,
        uuid: str,
        reason: str,
        members: Collection[str] = (),
        planned_by: str | None = None,
    ) -> ClaimResult:
        """End the reservations that no create has, and the plan.

        A reservation that a create has is the create's from then on, and ends with it.

        :param members: end reservations of these alone, by name, and keep the plan; empty: all
        :param planned_by: the request that the plan must be of; None: any
        :raises NotFound: the plan does not exist
        :raises Refused: it is of another request
        """
