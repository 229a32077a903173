# SPDX-License-Identifier: Apache-2.0
"""Small clouds to place on."""

import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np

from gantt import plugin_loader
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import place
from gantt.core.records.decision import Decision
from gantt.core.resources.host import Aggregate, HostChange, HostFacts, HostRow, Placed
from gantt.core.table.host_table import HostTable

NOW = 1_000_000.0


def an_id(number: int, kind: int = 0) -> str:
    """Return a uuid by number."""
    return str(uuid.UUID(int=(kind << 64) + number + 1))


def a_host(number: int = 1, **fields: Any) -> HostRow:
    """Return host ``cmp-<number>`` with 16 vCPU, 32 GiB and 500 GiB of disk, up and empty.

    Facts and amounts may be given beside the fields of the row.
    """
    inventories = {
        'VCPU': Inventory(total=fields.pop('vcpu', 16)),
        'MEMORY_MB': Inventory(total=fields.pop('ram', 32768)),
        'DISK_GB': Inventory(total=fields.pop('disk', 500)),
    } | fields.pop('inventories', {})
    names = set(HostFacts.__struct_fields__) & set(fields)
    facts = HostFacts(inventories=inventories, **{name: fields.pop(name) for name in names})
    defaults: dict[str, Any] = {
        'uuid': an_id(number, 1),
        'name': f'cmp-{number}',
        'version': 1,
        'reported_at': NOW - 10,
    }
    return HostRow(id=number, facts=facts, **(defaults | fields))


def a_change(row: HostRow, *placed: Placed) -> HostChange:
    """Return a change of a host with its placed guests."""
    return HostChange(provider_id=row.id, row=row, placed=list(placed))


def a_guest(number: int, host: int, group: str | None = None) -> Placed:
    """Return a consumer with a live claim on a host."""
    return Placed(an_id(number, 2), an_id(number, 3), host, group)


def a_table(
    *hosts: HostRow | HostChange,
    aggregates: Iterable[Aggregate] = (),
    groups: dict[str, int] | None = None,
) -> HostTable:
    """Return a table of hosts, at ``NOW``."""
    changes = [h if isinstance(h, HostChange) else a_change(h) for h in hosts]
    return HostTable.build(changes, list(aggregates), groups or {}, (), NOW)


def a_request(
    count: int = 1, number: int = 0, alternates: int = 2, **spec: Any
) -> SelectDestinations:
    """Build a request for ``count`` members of 2 vCPU, 4 GiB and 20 GiB unless stated otherwise."""
    dry_run = spec.pop('dry_run', False)
    spec.setdefault('resources', {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20})
    return SelectDestinations(
        request_id=an_id(number, 4),
        spec=RequestSpec(**spec),
        consumers=[an_id(number * 1000 + i, 5) for i in range(count)],
        alternates=alternates,
        dry_run=dry_run,
    )


def decide(
    table: HostTable,
    request: SelectDestinations,
    pipeline: Pipeline | None = None,
    **settings: Any,
) -> Decision:
    """Place with the default pipeline."""
    settings.setdefault('seed', 1)
    return place(
        table,
        request,
        pipeline or plugin_loader.load_pipeline(),
        decision_id=an_id(0, 6),
        **settings,
    )


def hosts_of(decision: Decision) -> list[str | None]:
    """Return the chosen hosts, by member."""
    return [m.selection.host if m.selection else None for m in decision.members]


def state_of(table: HostTable) -> dict[str, Any]:
    """Return everything of a table that a pick changes, to compare with."""
    return {
        'used': table.used.copy().tolist(),
        'free': table.free.copy().tolist(),
        'instances': table.instances.tolist(),
        'placed': {
            name: set(table.placed.on_provider(int(i)))
            for name, i in zip(table.names, table.ids, strict=True)
        },
        'pending': {int(i): table.pending_claims_of(int(i)) for i in table.ids},
    }


def passing(table: HostTable, rule: Any, spec: RequestSpec) -> list[str]:
    """Return names of the hosts that a filter lets pass."""
    mask = rule.mask(table, spec)
    return [
        name
        for name, yes in zip(
            table.names, np.ones(len(table), bool) if mask is None else mask, strict=True
        )
        if yes
    ]
