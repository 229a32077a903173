# SPDX-License-Identifier: Apache-2.0
"""Hosts that are there and say no more: registered, with one full report."""

import uuid
from collections.abc import Sequence

from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.resource_classes import Inventory
from gantt.stores import SqlStores
from tests.builders import register_host

#: Options of schedulers that go on to place on them: they are taken for alive for a day.
SILENT = {'filters': {'service_down_time': 86_400}, 'scheduler': {'unknown_after_seconds': 86_400}}


def add(
    store: SqlStores,
    names: Sequence[str],
    aggregates: Sequence[str] = (),
    traits: Sequence[str] = (),
    location: str = '',
    **room: int,
) -> None:
    """Add hosts with so much of each class.

    :param aggregates: names; likewise ``traits``
    """
    inventories = {name: Inventory(total=total) for name, total in room.items()}
    reports = []
    for name in names:
        registered = register_host(store, RegisterHost(name=name, boot_nonce=str(uuid.uuid4())))[0]
        reports.append(
            HostReport(
                name=name,
                epoch=registered.epoch,
                sequence=1,
                full=True,
                inventories=inventories,
                aggregates=list(aggregates),
                traits=list(traits),
                location=location,
                running=[],
                pending=[],
            )
        )
    outcomes = {outcome.outcome for outcome in store.reports.apply_reports(reports).outcomes}
    assert outcomes == {'applied'}, outcomes
