# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: quotas of projects, and what each project has."""

from collections.abc import Collection, Mapping

import msgspec

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.quota import Limit, Usage
from gantt.testing.store.declared import Declarations, atomic


class Quotas(Declarations):
    """See the same methods of ``scheduler.ports.Store``."""

    @atomic
    def quotas(self) -> list[Limit]:
        return [
            Limit(project_id=project, name=name, limit=limit)
            for (project, name), limit in sorted(self._tables.quotas.items())
        ]

    @atomic
    def set_quotas(self, project: str, limits: Mapping[str, int | None]) -> None:
        kept = {name: limit for name, limit in limits.items() if limit is not None}
        quota.check(Limit(project_id=project, name=name, limit=kept[name]) for name in kept)
        known = {
            key: limit
            for key, limit in self._tables.quotas.items()
            if not (key[0] == project and key[1] in limits)
        }
        if kept and len(known) + len(kept) > quota.LIMITS_MAX:
            raise exceptions.Refused(quota.too_many())
        self._tables.quotas = known | {(project, name): kept[name] for name in kept}

    @atomic
    def quota_usage(
        self, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        found = {}
        for project in projects:
            mine = [c for c in self._tables.all_live() if c.project_id == project]
            used = quota.usage_of(mine)
            amounts = {n: amount for n, amount in used.amounts.items() if n in classes}
            found[project] = msgspec.structs.replace(used, amounts=amounts)
        return found

    @atomic
    def count_groups(self, project: str) -> int:
        return sum(group.project_id == project for group in self._tables.groups.values())
