# SPDX-License-Identifier: Apache-2.0
"""Server groups: the rule and the members."""

from collections.abc import Collection
from typing import Protocol

from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Group, HostChange


class Groups(Protocol):
    """Server groups."""

    def save_group(self, group: Group) -> Group:
        """Create a server group, or return it unchanged where it is the same.

        :raises Refused: it exists with another rule
        """

    def remove_group(self, uuid: str) -> None:
        """:raises NotFound, Refused: it has live claims"""

    def load_group(self, uuid: str) -> Group | None:
        """The group with the consumers of its live claims."""

    def read_groups(
        self, uuids: Collection[str], also: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        """Rules of those that are there, and the hosts that members are on.

        :param also: hosts to be read with them, where members were
        """

    def groups(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[Group]:
        """Groups by uuid, after ``marker``; of one project, or of all."""

    def count_groups(self, project: str) -> int:
        """Server groups of a project."""
