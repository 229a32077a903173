# SPDX-License-Identifier: Apache-2.0
"""The change feed in memory."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from devel.memory_store.database import MemoryDatabase, atomic
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, HostChange
from gantt.scheduler.ports.records import Everything, Feed, Gap


class MemoryFeed:
    """News of all hosts, aggregates and groups: ``ports.ChangeFeed`` in memory."""

    #: There are no connections.
    connections_lost = 0

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def load_everything(self) -> Everything:
        tables = self.database.tables
        return Everything(
            position=tables.position,
            hosts=[tables.change_of(provider_id) for provider_id in sorted(tables.hosts)],
            aggregates=self._aggregates(),
            groups={uuid: group.generation for uuid, group in tables.groups.items()},
            rules={uuid: group.rule for uuid, group in tables.groups.items()},
            resource_classes=frozenset(tables.classes),
            pools=tables.shared_pools(),
            standalone=tables.pools_alone(),
            now=self.database.now,
            incarnation=self.database.incarnation,
        )

    @atomic
    def poll(self, position: int, known: dict[int, int], gaps: Sequence[Gap] = ()) -> Feed:
        """Return what changed since ``position``.

        :param known: provider id -> version, of hosts whose news we have
            written ourselves; entries not newer are left out
        :param gaps: there are none: numbers are drawn as they appear
        """
        tables = self.database.tables
        news = itertools.takewhile(lambda item: item[1] > position, reversed(tables.news.items()))
        refs: dict[str, list[Any]] = {'host': [], 'aggregate': [], 'group': [], 'provider': []}
        for (kind, ref), _ in news:
            refs[kind].append(ref)
        ids = {*refs['host'], *tables.hosts_of_groups(refs['group'])}
        return Feed(
            position=tables.position,
            hosts=[tables.change_of(p) for p in sorted(ids) if self._is_changed(p, known)],
            aggregates=self._aggregates() if refs['aggregate'] else None,
            groups={
                uuid: tables.groups[uuid].generation if uuid in tables.groups else 0
                for uuid in refs['group']
            },
            rules={u: tables.groups[u].rule for u in refs['group'] if u in tables.groups},
            providers=sorted(refs['provider']),
            pools=tables.shared_pools(refs['provider']),
            standalone=tables.pools_alone(refs['provider']),
            now=self.database.now,
            incarnation=self.database.incarnation,
            went_back=tables.position < position or self._is_behind(ids, known),
        )

    @atomic
    def compare(self, known: dict[int, int]) -> Feed:
        """Return everything that differs from what is known, whenever it changed."""
        tables = self.database.tables
        ids = sorted(set(tables.hosts) | set(known))
        return Feed(
            position=tables.position,
            hosts=[tables.change_of(p) for p in ids if self._is_changed(p, known)],
            aggregates=self._aggregates(),
            groups={uuid: group.generation for uuid, group in tables.groups.items()},
            rules={uuid: group.rule for uuid, group in tables.groups.items()},
            providers=sorted(tables.pools),
            pools=tables.shared_pools(),
            standalone=tables.pools_alone(),
            whole=True,
            now=self.database.now,
            incarnation=self.database.incarnation,
            went_back=self._is_behind(known, known),
        )

    def _is_behind(self, ids: Collection[int], known: dict[int, int]) -> bool:
        hosts = self.database.tables.hosts
        return any(hosts[p].version < known.get(p, -1) for p in ids if p in hosts)

    def _is_changed(self, provider_id: int, known: dict[int, int]) -> bool:
        row = self.database.tables.hosts.get(provider_id)
        if row is None:
            return provider_id in known
        return row.version > known.get(provider_id, -1)

    def _aggregates(self) -> list[Aggregate]:
        return [
            self.database.tables.aggregates[number]
            for number in sorted(self.database.tables.aggregates)
        ]

    @atomic
    def read_groups(
        self, uuids: Collection[str], also: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        tables = self.database.tables
        rules = {u: tables.groups[u].rule for u in sorted(uuids) if u in tables.groups}
        ids = tables.hosts_of_groups(uuids) | set(also)
        return rules, [tables.change_of(p) for p in sorted(ids)]
