# SPDX-License-Identifier: Apache-2.0
"""Hands that break rows behind a store's back: what its audit must find."""

import math
from typing import Any

import msgspec
import sqlalchemy as sa

from devel.memory_store.stores import MemoryStores
from gantt.core.claims.claim import Claim, State
from gantt.core.messages.request import Lifecycle
from gantt.core.resources.provider import ResourceProvider, kind_of
from gantt.db.schema import models
from gantt.stores import AllStores
from tests.builders import Host


class MemoryDamage:
    """Breaks rows behind the store's back."""

    def __init__(self, store: MemoryStores) -> None:
        self._tables = store.database.tables

    def set_used(self, host: Host, vcpu: int) -> None:
        row = self._tables.hosts[host.id]
        self._tables.hosts[host.id] = msgspec.structs.replace(row, used={'VCPU': vcpu})

    def flag(self, host: Host) -> None:
        row = self._tables.hosts[host.id]
        self._tables.hosts[host.id] = msgspec.structs.replace(row, over_committed=True)

    def shrink(self, host: Host, vcpu: int) -> None:
        row = self._tables.hosts[host.id]
        inventory = msgspec.structs.replace(row.facts.inventories['VCPU'], total=vcpu)
        facts = msgspec.structs.replace(
            row.facts, inventories={**row.facts.inventories, 'VCPU': inventory}
        )
        self._tables.hosts[host.id] = msgspec.structs.replace(row, facts=facts)

    def lose(self, claim: Claim) -> None:
        self._tables.put_claim(msgspec.structs.replace(claim, state='released'))
        del self._tables.claims[claim.id]
        del self._tables._of_request[claim.request_id][claim.id]

    def age(self, claim: Claim, seconds: float) -> None:
        now = self._tables.claims[claim.id]
        self._tables.put_claim(msgspec.structs.replace(now, lease_until=now.lease_until - seconds))

    def set_lifecycle(self, claim: Claim, lifecycle: str, *, lease: bool = True) -> None:
        now = self._tables.claims[claim.id]
        until = now.lease_until if lease else math.inf
        self._tables.put_claim(
            msgspec.structs.replace(now, lifecycle=Lifecycle(lifecycle), lease_until=until)
        )

    def silent_since(self, host: Host, seconds: float) -> None:
        row = self._tables.hosts[host.id]
        then = row.reported_at - seconds
        self._tables.hosts[host.id] = msgspec.structs.replace(row, reported_at=then)

    def double(self, claim: Claim, claim_id: str, **fields: Any) -> None:
        self._tables.put_claim(msgspec.structs.replace(claim, id=claim_id, **fields))

    def forget_host(self, host: Host) -> None:
        del self._tables.hosts[host.id], self._tables.ids[host.name], self._tables.places[host.id]

    def forget(self, provider: ResourceProvider) -> None:
        del self._tables.pools[provider.id], self._tables.places[provider.id]

    def put_below(self, provider: ResourceProvider, parent: int | None) -> None:
        place = self._tables.places[provider.id]
        self._tables.places[provider.id] = msgspec.structs.replace(place, parent=parent)

    def end_without_counting(self, claim: Claim) -> None:
        now = msgspec.structs.replace(self._tables.claims[claim.id], state=State.RELEASED)
        self._tables.claims[claim.id] = now

    def leave_out(self, claim: Claim) -> None:
        before = self._tables.claims[claim.id]
        self._tables.put_claim(msgspec.structs.replace(before, state=State.RELEASED))
        self._tables.claims[claim.id] = before

    def let_inherit(self, claim: Claim, provider: ResourceProvider, **amounts: int) -> None:
        now = self._tables.claims[claim.id]
        self._tables.put_claim(
            msgspec.structs.replace(
                now,
                allocations={**now.allocations, provider.id: now.allocations.get(provider.id, {})},
                inherits={provider.id: amounts},
            )
        )

    def forget_plan(self, group: str) -> None:
        del self._tables.plans[group]

    def shorten_plan(self, group: str, seconds: float) -> None:
        plan = self._tables.plans[group]
        until = plan.lease_until - seconds
        self._tables.plans[group] = msgspec.structs.replace(plan, lease_until=until)

    def store_former_reservation(self, claim: Claim) -> None:
        self._tables.claims[claim.id] = now = msgspec.structs.replace(
            self._tables.claims[claim.id], former_reservation=claim.former_reservation
        )
        self._tables._live[now.provider_id][now.id] = now


class SqlDamage:
    """The same, by SQL."""

    def __init__(self, store: Any) -> None:
        self._engine = store.database.engine

    def _run(self, *statements: Any) -> None:
        with self._engine.begin() as connection:
            for statement in statements:
                connection.execute(statement)

    def set_used(self, host: Host, vcpu: int) -> None:
        p = models.providers
        self._run(p.update().where(p.c.id == host.id).values(used_vcpu=vcpu))

    def flag(self, host: Host) -> None:
        p = models.providers
        self._run(p.update().where(p.c.id == host.id).values(over_committed=1))

    def shrink(self, host: Host, vcpu: int) -> None:
        p = models.providers
        i, classes = models.inventories, models.resource_classes
        vcpus = sa.select(classes.c.id).where(classes.c.name == 'VCPU').scalar_subquery()
        conditions = i.c.provider_id == host.id, i.c.class_id == vcpus
        self._run(
            p.update().where(p.c.id == host.id).values(cap_vcpu=vcpu),
            i.update().where(*conditions).values(total=vcpu, cap=vcpu),
        )

    def set_lifecycle(self, claim: Claim, lifecycle: str, *, lease: bool = True) -> None:
        c = models.claims
        update = c.update().where(c.c.id == claim.id)
        self._run(update.values(lifecycle=lifecycle))
        if not lease:
            self._run(update.values(expires_at=None))

    def silent_since(self, host: Host, seconds: float) -> None:
        p = models.providers
        then = p.c.reported_at - seconds
        self._run(p.update().where(p.c.id == host.id).values(reported_at=then))

    def lose(self, claim: Claim) -> None:
        c, a, p = models.claims, models.allocations, models.providers
        vcpu = claim.allocations[claim.provider_id]['VCPU']
        self._run(
            a.delete().where(a.c.claim_id == claim.id),
            c.delete().where(c.c.id == claim.id),
            p.update().where(p.c.id == claim.provider_id).values(used_vcpu=p.c.used_vcpu - vcpu),
        )

    def age(self, claim: Claim, seconds: float) -> None:
        c = models.claims
        self._run(
            c.update()
            .where(c.c.id == claim.id)
            .values(lease_until=c.c.lease_until - seconds, expires_at=c.c.expires_at - seconds)
        )

    def double(self, claim: Claim, claim_id: str, **fields: Any) -> None:
        c, a, p = models.claims, models.allocations, models.providers
        values = {'id': claim_id, **fields}
        columns = [sa.literal(values[x.name]) if x.name in values else x for x in c.c]
        # What the table itself would not let be doubled.
        columns = [
            sa.null() if x.name == 'unique_key' else value
            for x, value in zip(c.c, columns, strict=True)
        ]
        amounts = [sa.literal(claim_id), *(x for x in a.c if x.name != 'claim_id')]
        vcpu = claim.allocations[claim.provider_id]['VCPU']
        self._run(
            c.insert().from_select(list(c.c), sa.select(*columns).where(c.c.id == claim.id)),
            a.insert().from_select(list(a.c), sa.select(*amounts).where(a.c.claim_id == claim.id)),
            p.update().where(p.c.id == claim.provider_id).values(used_vcpu=p.c.used_vcpu + vcpu),
        )

    def forget_host(self, host: Host) -> None:
        p, f, i = models.providers, models.provider_facts, models.inventories
        self._run(
            i.delete().where(i.c.provider_id == host.id),
            f.delete().where(f.c.provider_id == host.id),
            p.delete().where(p.c.id == host.id),
        )

    def forget(self, provider: ResourceProvider) -> None:
        p, i = models.providers, models.inventories
        self._run(
            i.delete().where(i.c.provider_id == provider.id),
            p.delete().where(p.c.id == provider.id),
        )

    def put_below(self, provider: ResourceProvider, parent: int | None) -> None:
        values = {'parent_id': parent, 'kind': kind_of(parent).value}
        self.write_provider(provider, **values)

    def write_provider(self, provider: Any, **values: Any) -> None:
        """Columns of the row of a provider, or of a host."""
        p = models.providers
        self._run(p.update().where(p.c.id == provider.id).values(**values))

    def write_inventory(self, provider: Any, resource_class: str, **values: Any) -> None:
        i, classes = models.inventories, models.resource_classes
        named = sa.select(classes.c.id).where(classes.c.name == resource_class).scalar_subquery()
        where = i.c.provider_id == provider.id, i.c.class_id == named
        self._run(i.update().where(*where).values(**values))

    def drop_inventories(self, provider: Any) -> None:
        i = models.inventories
        self._run(i.delete().where(i.c.provider_id == provider.id))

    def drop_record(self, host: Host) -> None:
        f = models.provider_facts
        self._run(f.delete().where(f.c.provider_id == host.id))

    def end_without_counting(self, claim: Claim) -> None:
        c = models.claims
        self._run(c.update().where(c.c.id == claim.id).values(state='released', unique_key=None))

    def leave_out(self, claim: Claim) -> None:
        c, p = models.claims, models.providers
        vcpu = claim.allocations[claim.provider_id]['VCPU']
        used = p.c.used_vcpu - vcpu
        self._run(
            c.update().where(c.c.id == claim.id).values(live=0),
            p.update().where(p.c.id == claim.provider_id).values(used_vcpu=used),
        )

    def let_inherit(self, claim: Claim, provider: ResourceProvider, **amounts: int) -> None:
        a = models.allocations
        where = a.c.claim_id == claim.id, a.c.provider_id == provider.id
        text = msgspec.json.encode(amounts).decode()
        with self._engine.begin() as connection:
            if not connection.execute(a.update().where(*where).values(inherits=text)).rowcount:
                row = {'claim_id': claim.id, 'provider_id': provider.id, 'inherits': text}
                connection.execute(a.insert().values(row))

    def forget_plan(self, group: str) -> None:
        t = models.group_plans
        self._run(t.delete().where(t.c.group_uuid == group))

    def shorten_plan(self, group: str, seconds: float) -> None:
        t = models.group_plans
        update = t.update().where(t.c.group_uuid == group)
        self._run(update.values(lease_until=t.c.lease_until - seconds))

    def store_former_reservation(self, claim: Claim) -> None:
        c = models.claims
        text = msgspec.json.encode(claim.former_reservation).decode()
        self._run(c.update().where(c.c.id == claim.id).values(former_reservation=text))


def damage_for(store: AllStores) -> MemoryDamage | SqlDamage:
    """The hand that fits a store."""
    return MemoryDamage(store) if isinstance(store, MemoryStores) else SqlDamage(store)
