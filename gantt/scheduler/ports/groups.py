# SPDX-License-Identifier: Apache-2.0
"""Server groups: the rule and the members."""

from typing import Protocol

from gantt.core.resources.host import Group


class Groups(Protocol):
    """Server groups."""

    def save_group(self, group: Group) -> Group:
        """Create a server group, or return it unchanged where it is the same.

        :raises Refused: it exists with another rule
        """

    def remove_group(self, uuid: str) -> None:
        """Remove a server group.  :raises NotFound, Refused: it has live claims"""

    def load_group(self, uuid: str) -> Group | None:
        """Return the group with the consumers of its live claims."""

    def list_groups(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[Group]:
        """Return groups by uuid, after ``marker``; of one project, or of all."""

    def count_groups(self, project: str) -> int:
        """Return the number of a project's server groups."""
