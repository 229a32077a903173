# SPDX-License-Identifier: Apache-2.0
"""Every host in a few numbers: one array for each, so that ten thousand are one answer."""

import numpy as np

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable
from gantt.insights.explain import wording
from gantt.insights.views import HostCondition, View

#: What the codes of ``condition`` stand for.
CONDITIONS = (
    HostCondition.UP,
    HostCondition.STALE,
    HostCondition.NEW,
    HostCondition.DISABLED,
    HostCondition.OVER_COMMITTED,
)
_CODES = {condition: code for code, condition in enumerate(CONDITIONS)}


class HostMap(View, frozen=True, kw_only=True):
    """All hosts, by name, and one resource class of them; the arrays go together.

    :ivar classes: resource classes that some host has
    :ivar conditions: what the numbers of ``condition`` mean; so ``zones`` of ``zone``
    :ivar free: cap less use; negative where over-committed
    :ivar cap: what may be promised; 0: it has nothing of the class
    :ivar claims: live claims on it
    :ivar report_age_seconds: whole seconds; -1: it never reported
    """

    resource_class: str
    unit: str
    classes: list[str]
    table_age_seconds: float
    stale_after_seconds: float
    conditions: list[str]
    zones: list[str]
    hosts: list[str]
    condition: list[int]
    zone: list[int]
    free: list[int]
    cap: list[int]
    claims: list[int]
    report_age_seconds: list[int]


def conditions_of(table: HostTable, stale_after: float) -> IntArray:
    """The condition of every row as its code; as ``HostReader.condition`` says it of one."""
    asked = (
        (~table.enabled, HostCondition.DISABLED),
        (table.over_committed, HostCondition.OVER_COMMITTED),
        (table.reported_at == 0, HostCondition.NEW),
        (table.now - table.reported_at > stale_after, HostCondition.STALE),
    )
    found = [holds for holds, _ in asked]
    codes = [_CODES[condition] for _, condition in asked]
    return np.select(found, codes, default=_CODES[HostCondition.UP]).astype(np.int64)


def read(table: HostTable, resource_class: str, stale_after: float, table_age: float) -> HostMap:
    """All hosts of a table.

    :param table_age: seconds since the table was last current
    :raises InvalidMessage: no name of a resource class
    """
    if not resource_classes.is_class_name(resource_class):
        raise exceptions.InvalidMessage(
            field='query.resource_class',
            problem=f'expected a resource class, e.g. VCPU; got {resource_class!r}',
        )
    rows = np.array(sorted(range(len(table)), key=table.names.__getitem__), np.int64)
    ages = np.maximum(0, table.now - table.reported_at).astype(np.int64)
    ages[table.reported_at == 0] = -1
    free = cap = np.zeros(len(table), np.int64)
    code = table.class_code(resource_class)
    if code is not None:
        free, cap = table.free_of(code), table.cap_of(code)
    return HostMap(
        resource_class=resource_class,
        unit=resource_classes.UNITS.get(resource_class, ''),
        classes=wording.in_order({n for c, n in enumerate(table.classes.names) if has(table, c)}),
        table_age_seconds=round(table_age, 3),
        stale_after_seconds=stale_after,
        conditions=[condition.value for condition in CONDITIONS],
        zones=[name or table.default_zone for name in table.zones.names],
        hosts=[table.names[row] for row in rows],
        condition=conditions_of(table, stale_after)[rows].tolist(),
        zone=table.zone[rows].tolist(),
        free=free[rows].tolist(),
        cap=cap[rows].tolist(),
        claims=table.instances[rows].tolist(),
        report_age_seconds=ages[rows].tolist(),
    )


def has(table: HostTable, code: int) -> bool:
    """Whether any host has something of a class."""
    return bool((table.cap_of(code) > 0).any())
