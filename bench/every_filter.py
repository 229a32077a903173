# SPDX-License-Identifier: Apache-2.0
"""``bench decide --filters default|all``: hosts and requests on which each filter has work.

``default`` are the filters that Nova enables by itself, and ``ResourcesFilter`` for
what Nova queries from Placement; ``all`` are all that are installed.  Both with all weighers.
"""

from typing import Any

import msgspec
import numpy as np

from gantt import plugin_loader
from gantt.core.messages.report import DevicePool, Hypervisor, NumaCell, ReportedMetric
from gantt.core.messages.request import Flavor, Image, RequestSpec, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.resources.host import Aggregate, HostChange

NOVAS = (
    'ComputeFilter',
    'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
    'ResourcesFilter',
)
#: Those that never remove a host, and one that removes the very hosts of another.
IDLE = {'AllHostsFilter', 'RetryFilter', 'GroupPolicyFilter'}
#: With all filters every guest is of one size, as the Exact*Filters want it.
AMOUNTS = {'VCPU': 4, 'MEMORY_MB': 8192, 'DISK_GB': 20}
METADATA: dict[int, dict[str, str]] = {
    0: {'ssd': 'true, nvme'},
    5: {
        'cpu_allocation_ratio': '0.9',
        'ram_allocation_ratio': '0.9',
        'disk_allocation_ratio': '0.9',
    },
    6: {'max_io_ops_per_host': '3', 'max_instances_per_host': '5'},
    7: {'os_distro': 'linux, bsd'},
    8: {'filter_tenant_id': 'lab, field'},
    9: {'instance_type': 'm1.large, m1.huge'},
}
OPTIONS: dict[str, Any] = {
    'isolated_images': ['00000000-0000-0000-0000-00000000abcd'],
    'metrics_weight_setting': 'cpu.percent=-1.0',
    'operator_rules': 'not known hypervisor.version or hypervisor.version >= v6.2',
    'operator_preferences': 'soft 2: "CUSTOM_T3" in traits; soft 1: free.VCPU > 32',
    'pci_aliases': '[{"name": "gpu", "vendor_id": "10de", "product_id": "1eb8"}]',
    'type_affinity_ignores_unknown': True,
    'image_props_weight_setting': 'os_distro=1.0',
    'class_weight_setting': 'DISK_GB=0.5',
    'load_weight_setting': 'cpu.percent=1.0',
    'num_instances_weight_multiplier': 1.0,
    'image_props_weight_multiplier': 1.0,
}


def platforms() -> list[Hypervisor]:
    """Return four platforms; most hosts are of the first."""
    features = ['aes', 'avx', 'avx2', 'vmx']
    old = {'arch': 'x86_64', 'features': features[:2], 'topology': {'cores': 16}}
    kvm = [['x86_64', 'kvm', 'hvm'], ['i686', 'kvm', 'hvm']]
    return [
        Hypervisor(
            type='QEMU',
            version=8_002_000,
            supported=kvm,
            stats={'rank': '5'},
            cpu_info={'arch': 'x86_64', 'features': features, 'topology': {'cores': 32}},
        ),
        Hypervisor(
            type='QEMU', version=6_000_000, supported=kvm, stats={'rank': '3'}, cpu_info=old
        ),
        Hypervisor(
            type='QEMU',
            version=8_002_000,
            supported=[['aarch64', 'kvm', 'hvm']],
            cpu_info={'arch': 'aarch64', 'features': [], 'topology': {'cores': 64}},
        ),
        Hypervisor(type='ironic', version=1),
    ]


class Every:
    """Hosts, requests and a pipeline.

    :param what: ``default`` or ``all``
    """

    def __init__(self, what: str) -> None:
        self.all = what == 'all'
        installed = plugin_loader.installed(plugin_loader.FILTERS)
        # Those of aggregates remove what the plain ones do, and more; exact ones remove most.
        installed.sort(key=lambda name: (name.startswith('Exact'), name.startswith('Aggregate')))
        self.filters = installed if self.all else list(NOVAS)
        self.idle = IDLE

    def hosts(self, changes: list[HostChange], rng: np.random.Generator) -> list[HostChange]:
        """Return the same hosts with the facts that the filters evaluate."""
        kinds = platforms()
        which = rng.choice(len(kinds), len(changes), p=(0.8, 0.1, 0.05, 0.05))
        return [self._host(i, change, kinds[which[i]], rng) for i, change in enumerate(changes)]

    def _host(
        self, i: int, change: HostChange, kind: Hypervisor, rng: np.random.Generator
    ) -> HostChange:
        row, odd = change.row, rng.random(6)
        assert row is not None
        address = f'10.{i >> 16}.{i >> 8 & 255}.{i & 255}'
        metrics = {
            'stats.io_workload': ReportedMetric(value=float(10 if odd[0] < 0.03 else i % 5)),
            'stats.num_instances': ReportedMetric(value=float(60 if odd[1] < 0.02 else i % 8)),
        }
        if odd[2] > 0.02:
            metrics['cpu.percent'] = ReportedMetric(value=float(odd[2]))
        cells = [
            NumaCell(id=n, cpus=list(range(64 * n, 64 * n + 64)), memory_mb=524_288, socket=n)
            for n in range(2)
        ]
        gpus = DevicePool(
            vendor_id='10de',
            product_id='1eb8',
            count=4,
            free=4,
            numa_node=0,
            tags={'dev_type': 'type-PCI'},
        )
        facts = msgspec.structs.replace(
            row.facts,
            hypervisor=msgspec.structs.replace(kind, host_ip=address),
            metrics=metrics,
            location=f'site{i % 3}.room{i % 7}.rack{i % 61}.{row.name}',
            numa=cells if odd[3] < 0.8 else [],
            devices=[gpus] if odd[4] < 0.4 else [],
        )
        flavor = 'm1.large' if odd[5] < 0.1 else 'm1.small'
        placed = change.placed
        if self.all:
            placed = [msgspec.structs.replace(guest, flavor=flavor) for guest in placed]
        row = msgspec.structs.replace(row, facts=facts, used=self.used(row.used, rng))
        return msgspec.structs.replace(change, row=row, placed=placed)

    def used(self, used: dict[str, int], rng: np.random.Generator) -> dict[str, int]:
        """Leave exactly one guest's amounts on nearly all hosts, where Exact*Filters evaluate."""
        if not self.all:
            return used
        odd = rng.random(3)
        caps = {'VCPU': 128, 'MEMORY_MB': 1024 * 1024, 'DISK_GB': 8000}
        exact = {
            name: cap - AMOUNTS[name]
            for (name, cap), share in zip(caps.items(), odd, strict=True)
            if share < 0.9
        }
        return used | exact

    def aggregates(self, plain: list[Aggregate]) -> list[Aggregate]:
        """Return the same aggregates with metadata."""
        return [
            msgspec.structs.replace(aggregate, metadata=METADATA.get(i, {}))
            for i, aggregate in enumerate(plain)
        ]

    def requests(self, plain: list[SelectDestinations]) -> list[SelectDestinations]:
        """Return the same requests, which also have the fields that the filters evaluate."""
        return [
            msgspec.structs.replace(request, spec=self._spec(number, request.spec))
            for number, request in enumerate(plain)
        ]

    def _spec(self, number: int, spec: RequestSpec) -> RequestSpec:
        extra = {'capabilities:cpu_info:topology:cores': '>= 16'}
        if number % 2:
            extra |= {'capabilities:cpu_info:features': '<in> avx2', 'capabilities:rank': '>= 4'}
        properties = {'hw_architecture': 'x86_64', 'os_distro': ('linux', 'windows')[number % 2]}
        image = Image(
            uuid=f'00000000-0000-0000-0000-00000000{number % 8:04x}', properties=properties
        )
        if not self.all:
            flavor = Flavor(name='m1.small', extra_specs=extra)
            return msgspec.structs.replace(spec, flavor=flavor, image=image)
        if number % 8 == 3:
            extra['aggregate_instance_extra_specs:ssd'] = 's== true'
        if number % 16 == 5:
            extra['hw:numa_nodes'] = '1'
        if number % 16 == 11:
            extra['pci_passthrough:alias'] = 'gpu:1'
        return msgspec.structs.replace(
            spec,
            resources=AMOUNTS,
            project_id=('lab', 'office')[number % 4 == 1],
            flavor=Flavor(name='m1.small', extra_specs=extra),
            image=image,
            hints=self._hints(number),
        )

    @staticmethod
    def _hints(number: int) -> dict[str, list[str]]:
        hints: dict[str, list[str]] = {}
        if number % 4 == 2:
            hints['query'] = [
                '["and", [">=", "$free_ram_mb", 4096], ["<", "$num_io_ops", 4],'
                ' ["not", ["=", "$hypervisor_type", "ironic"]]]'
            ]
        if number % 8 == 6:
            hints['location'] = ['site0', 'site1']
        if number % 8 == 7:
            hints['rules'] = ['"CUSTOM_T5" in traits or free.VCPU >= 4', 'soft 1: age < 40']
        if number % 32 == 15:
            hints['build_near_host_ip'], hints['cidr'] = ['10.0.0.1'], ['/22']
        return hints

    def pipeline(self, hosts: list[str]) -> Pipeline:
        """Return the filters, and every weigher that is installed."""
        options = OPTIONS | {'isolated_hosts': hosts[:: max(1, len(hosts) // 50)]}
        return plugin_loader.load_pipeline(
            self.filters, plugin_loader.installed(plugin_loader.WEIGHERS), options
        )
