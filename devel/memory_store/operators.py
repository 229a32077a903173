# SPDX-License-Identifier: Apache-2.0
"""The in-memory store as operators and readers use it."""

import functools
import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from devel.memory_store import audit as memory_audit
from devel.memory_store.tables import Tables
from gantt import exceptions
from gantt.core.claims.claim import Claim, Event
from gantt.core.claims.commit import DecisionRecord
from gantt.core.claims.quota import Limit
from gantt.core.claims.registration import with_inventories_by
from gantt.core.messages import resource_classes
from gantt.core.messages.base import derived_id
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, Group, HostChange, HostRow
from gantt.core.resources.host_keys import HostKey
from gantt.scheduler.ports import (
    ClaimOutcome,
    ClaimResult,
    Clock,
    Everything,
    Feed,
    Gap,
)

_replace = msgspec.structs.replace
F = TypeVar('F', bound=Callable[..., Any])


def atomic(method: F) -> F:
    """Run a method as one transaction: no other caller is inside meanwhile."""

    @functools.wraps(method)
    def run(self: 'Operators', *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


class Operators:
    """The methods of operators and readers; those of callers and hosts are in ``MemoryStore``.

    :ivar incarnation: another number makes every reader load everything anew
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.incarnation = 1
        self._tables = Tables()
        self._lock = threading.RLock()

    @property
    def _now(self) -> float:
        return self.clock.wall()

    #: There are no connections.
    connections_lost = 0

    def close(self) -> None:
        """Close nothing: nothing is held outside this object."""

    def ping(self) -> float:
        return self._now

    def silent_for(self) -> float:
        """Return 0: no caller waits for what is in this process."""
        return 0.0

    # -- writing ----------------------------------------------------------------
    @atomic
    def force_release(self, claim_id: str, reason: str) -> ClaimResult:
        claim = self._tables.claims.get(claim_id)
        if claim is None:
            return ClaimResult(outcomes=[ClaimOutcome(claim_id=claim_id, outcome='gone')])
        outcomes = self._tables.happen([claim], Event.FORCE, reason, self._now)
        return ClaimResult(outcomes=outcomes, hosts=self._tables.write())

    @atomic
    def save_aggregate(
        self,
        name: str,
        metadata: dict[str, str | None],
        hosts: list[str] | None,
        uuid: str | None = None,
    ) -> Aggregate:
        tables = self._tables
        same_uuid = next((a for a in tables.aggregates.values() if a.uuid == uuid), None)
        if same_uuid is not None and same_uuid.name != name:
            raise exceptions.Refused(
                f'aggregate {same_uuid.name!r} has the uuid {uuid} already', uuid=uuid
            )
        before = tables.aggregate(name)
        if before is None:
            number = tables.next_id()
            new_uuid = uuid or derived_id('aggregate', name, number)
            before = Aggregate(id=number, uuid=new_uuid, name=name)
        merged: dict[str, str | None] = {**before.metadata, **metadata}
        now = _replace(
            before,
            uuid=uuid or before.uuid,
            metadata={key: value for key, value in merged.items() if value is not None},
            hosts=before.hosts if hosts is None else sorted(set(hosts)),
        )
        tables.put_aggregate(now)
        tables.refresh_membership({*before.hosts, *now.hosts})
        tables.write()
        return tables.aggregates[now.id]

    @atomic
    def remove_aggregate(self, name: str) -> None:
        aggregate = self._tables.aggregate(name)
        if aggregate is None:
            raise exceptions.NotFound(kind='aggregate', name=name)
        del self._tables.aggregates[aggregate.id]
        self._tables.append_change('aggregate', aggregate.id)
        self._tables.refresh_membership(aggregate.hosts)
        self._tables.write()

    @atomic
    def save_group(self, group: Group) -> Group:
        tables = self._tables
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
        tables = self._tables
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
    def declare_class(self, name: str) -> None:
        """Declare a CUSTOM_ resource class.

        :raises UnknownResourceClass: neither a standard class nor of that form
        """
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        self._tables.classes.add(name)

    @atomic
    def disable_host(self, name: str, reason: str, by: str) -> HostChange:
        return self._put(_replace(self._host(name), disabled=reason, disabled_by=by))

    @atomic
    def enable_host(self, name: str, by: str = '') -> HostChange:
        return self._put(_replace(self._host(name), disabled=None, disabled_by=None))

    @atomic
    def set_inventories_by(self, name: str, by: str | None, who: str = '') -> HostChange:
        return self._put(with_inventories_by(self._host(name), by))

    @atomic
    def load_host_key(self, name: str) -> HostKey | None:
        row = self._tables.named(name)
        return None if row is None else row.key

    @atomic
    def remove_host(self, name: str) -> HostChange:
        row, tables = self._host(name), self._tables
        count = tables.claims_on(row.id)
        if count:
            raise exceptions.Refused(
                f'host {name!r} has {count} live claims; move or release what runs there first',
                name=name,
                claims=count,
            )
        below = len(tables.children(row.id))
        if below:
            raise exceptions.Refused(
                f'host {name!r} has {below} providers below it; delete or move them first',
                name=name,
                providers=below,
            )
        del tables.hosts[row.id], tables.ids[name], tables.places[row.id]
        tables.epochs[name] = row.epoch
        tables.append_change('host', row.id)
        return HostChange(provider_id=row.id, row=None)

    def _host(self, name: str) -> HostRow:
        row = self._tables.named(name)
        if row is None:
            raise exceptions.NotFound(kind='host', name=name)
        return row

    def _put(self, row: HostRow) -> HostChange:
        self._tables.hosts[row.id] = row
        self._tables.touch(row.id)
        return self._tables.write()[0]

    # -- reading ------------------------------------------------------------
    @atomic
    def declared_classes(self) -> frozenset[str]:
        return frozenset(self._tables.classes)

    @atomic
    def load_everything(self) -> Everything:
        tables = self._tables
        return Everything(
            position=tables.position,
            hosts=[tables.change_of(provider_id) for provider_id in sorted(tables.hosts)],
            aggregates=self._aggregates(),
            groups={uuid: group.generation for uuid, group in tables.groups.items()},
            rules={uuid: group.rule for uuid, group in tables.groups.items()},
            resource_classes=frozenset(tables.classes),
            pools=tables.shared_pools(),
            alone=tables.pools_alone(),
            now=self._now,
            incarnation=self.incarnation,
        )

    @atomic
    def poll(self, position: int, known: dict[int, int], gaps: Sequence[Gap] = ()) -> Feed:
        """Return what changed since ``position``.

        :param known: provider id -> version, of hosts whose news we have
            written ourselves; entries not newer are left out
        :param gaps: there are none: numbers are drawn as they appear
        """
        tables = self._tables
        news = itertools.takewhile(lambda item: item[1] > position, reversed(tables.news.items()))
        refs: dict[str, list[Any]] = {'host': [], 'aggregate': [], 'group': [], 'provider': []}
        for (kind, ref), _ in news:
            refs[kind].append(ref)
        ids = {*refs['host'], *tables.hosts_of_groups(refs['group'])}
        return Feed(
            position=tables.position,
            hosts=[tables.change_of(p) for p in sorted(ids) if self._is_news(p, known)],
            aggregates=self._aggregates() if refs['aggregate'] else None,
            groups={
                uuid: tables.groups[uuid].generation if uuid in tables.groups else 0
                for uuid in refs['group']
            },
            rules={u: tables.groups[u].rule for u in refs['group'] if u in tables.groups},
            providers=sorted(refs['provider']),
            pools=tables.shared_pools(refs['provider']),
            alone=tables.pools_alone(refs['provider']),
            now=self._now,
            incarnation=self.incarnation,
            went_back=tables.position < position or self._is_behind(ids, known),
        )

    @atomic
    def compare(self, known: dict[int, int]) -> Feed:
        """Return everything that differs from what is known, whenever it changed."""
        tables = self._tables
        ids = sorted(set(tables.hosts) | set(known))
        return Feed(
            position=tables.position,
            hosts=[tables.change_of(p) for p in ids if self._is_news(p, known)],
            aggregates=self._aggregates(),
            groups={uuid: group.generation for uuid, group in tables.groups.items()},
            rules={uuid: group.rule for uuid, group in tables.groups.items()},
            providers=sorted(tables.pools),
            pools=tables.shared_pools(),
            alone=tables.pools_alone(),
            whole=True,
            now=self._now,
            incarnation=self.incarnation,
            went_back=self._is_behind(known, known),
        )

    def _is_behind(self, ids: Collection[int], known: dict[int, int]) -> bool:
        hosts = self._tables.hosts
        return any(hosts[p].version < known.get(p, -1) for p in ids if p in hosts)

    def _is_news(self, provider_id: int, known: dict[int, int]) -> bool:
        row = self._tables.hosts.get(provider_id)
        if row is None:
            return provider_id in known
        return row.version > known.get(provider_id, -1)

    def _aggregates(self) -> list[Aggregate]:
        return [self._tables.aggregates[number] for number in sorted(self._tables.aggregates)]

    @atomic
    def load_group(self, uuid: str) -> Group | None:
        return self._tables.group(uuid)

    @atomic
    def read_groups(
        self, uuids: Collection[str], also_providers: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        tables = self._tables
        rules = {u: tables.groups[u].rule for u in sorted(uuids) if u in tables.groups}
        ids = tables.hosts_of_groups(uuids) | set(also_providers)
        return rules, [tables.change_of(p) for p in sorted(ids)]

    @atomic
    def claims(
        self,
        *,
        limit: int = 100,
        marker: str | None = None,
        project: str | None = None,
        **equal: str | None,
    ) -> list[Claim]:
        fields = {name: value for name, value in equal.items() if value is not None}
        if project is not None:
            fields['project_id'] = project
        matching = [
            claim
            for claim in self._tables.claims.values()
            if all(getattr(claim, name) == value for name, value in fields.items())
            and (marker is None or claim.id > marker)
        ]
        return sorted(matching, key=lambda claim: claim.id)[:limit]

    @atomic
    def live_claims_of(self, consumers: Collection[str]) -> list[Claim]:
        guests = set(consumers)
        claims = [
            claim
            for claim in self._tables.claims.values()
            if claim.is_live and (claim.consumer in guests or claim.guest in guests)
        ]
        return sorted(claims, key=lambda claim: claim.id)

    @atomic
    def owners_of(self, consumers: Collection[str]) -> dict[str, str | None]:
        return self._tables.owners_of(consumers)

    @atomic
    def load_claim(self, claim_id: str) -> Claim | None:
        return self._tables.claims.get(claim_id)

    @atomic
    def audit(self) -> dict[str, list[str]]:
        """Return violations of P1 to P4; see ``devel.memory_store.audit``."""
        return memory_audit.audit(self._tables, self._now)

    # -- what is read in SQL alone ----------------------------------------------
    def save_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Save nothing: no caller reads decisions here."""

    def save_table_log(
        self, worker: str, first: int, last: int, checkpoint: bool, chunks: list[bytes]
    ) -> None:
        """Save nothing: no caller replays from here."""

    def purge_table_log(self, keep_seconds: float) -> int:
        """Delete nothing: nothing was stored."""
        return 0

    def purge(self, **bounds: object) -> int:
        """Delete nothing: rows stay as long as the store, which lives for a test."""
        return 0

    def quotas(self) -> list[Limit]:
        """Return no limits: no project has one here."""
        return []
