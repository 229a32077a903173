# SPDX-License-Identifier: Apache-2.0
"""Server groups in memory."""

import msgspec

from devel.memory_store.database import MemoryDatabase, atomic
from gantt import exceptions
from gantt.core.resources import group_rule
from gantt.core.resources.host import Group

_replace = msgspec.structs.replace


class MemoryGroups:
    """Server groups: ``ports.Groups`` in memory."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def save_group(self, group: Group) -> Group:
        tables = self.database.tables
        stored = tables.groups.get(group.uuid)
        if stored is None:
            first = group_rule.first_generation(tables.next_id(), by_itself=True)
            tables.groups[group.uuid] = _replace(group.ruled(group.rule), generation=first)
            tables.append_change('group', group.uuid)
        else:
            group_rule.check(group.uuid, group.rule, stored.rule)
        saved = tables.group(group.uuid)
        assert saved is not None
        return saved

    @atomic
    def remove_group(self, uuid: str) -> None:
        """Remove a group.  :raises NotFound, InUse: it has live claims"""
        tables = self.database.tables
        if uuid not in tables.groups:
            raise exceptions.NotFound(kind='server group', name=uuid)
        count = sum(claim.group == uuid for claim in tables.all_live())
        if count:
            raise exceptions.InUse(
                f'server group {uuid} has {count} live claims; it can be removed without any',
                uuid=uuid,
                claims=count,
            )
        del tables.groups[uuid]
        tables.plans.pop(uuid, None)
        tables.append_change('group', uuid)

    @atomic
    def load_group(self, uuid: str) -> Group | None:
        return self.database.tables.group(uuid)

    def is_idle_group(self, uuid: str, project: str | None) -> bool:
        return False  # no zone is above
