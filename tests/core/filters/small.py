# SPDX-License-Identifier: Apache-2.0
"""Small tables and requests for the tests of Nova's filters."""

from typing import Any

from gantt import plugin_loader
from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.request import Flavor, Image, RequestSpec
from gantt.core.resources.host import Aggregate
from gantt.core.table.host_table import HostTable
from tests.core.builders import a_host, a_table, an_id


def a_spec(**fields: Any) -> RequestSpec:
    fields.setdefault('resources', {'VCPU': 1})
    return RequestSpec(**fields)


def asking(extra_specs: dict[str, str], **fields: Any) -> RequestSpec:
    return a_spec(flavor=Flavor(name='small', extra_specs=extra_specs), **fields)


def of_image(uuid: str | None = None, **properties: str) -> RequestSpec:
    return a_spec(image=Image(uuid=uuid, properties=properties))


def a_filter(name: str, **options: Any) -> Any:
    return plugin_loader.load([name], options)[0]


def in_aggregates(*metadata: dict[str, str], hosts: int = 2, **facts: Any) -> HostTable:
    """Return ``hosts`` hosts, the first of them in an aggregate with each of ``metadata``."""
    return a_table(
        *(a_host(n, **facts) for n in range(1, hosts + 1)),
        aggregates=[
            Aggregate(id=n, uuid=an_id(n, 5), name=f'agg-{n}', hosts=['cmp-1'], metadata=each)
            for n, each in enumerate(metadata, 1)
        ],
    )


def running(*hypervisors: Hypervisor) -> HostTable:
    return a_table(*(a_host(n, hypervisor=h) for n, h in enumerate(hypervisors, 1)))


def counting(**counts: list[float]) -> HostTable:
    """Return hosts that report such numbers in ``stats``."""
    many = len(next(iter(counts.values())))
    return a_table(
        *(
            a_host(
                n + 1, metrics={f'stats.{k}': ReportedMetric(value=v[n]) for k, v in counts.items()}
            )
            for n in range(many)
        )
    )
