# SPDX-License-Identifier: Apache-2.0
"""Random small sites to weigh, from hypothesis."""

import msgspec
from hypothesis import strategies as st

from gantt.core.messages import image_properties
from gantt.core.messages.report import DevicePool, Hypervisor, ReportedMetric
from gantt.core.messages.request import Destination, GroupRef, Image, Policy
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate
from gantt.core.weighers.base import NORMALIZATIONS
from tests.core.builders import a_guest, a_host, an_id

GROUP = an_id(1, 8)
CELLS = (None, an_id(1, 9), an_id(2, 9))
#: Weigher -> option of its multiplier.
WEIGHERS = {
    'RAMWeigher': 'ram_weight_multiplier',
    'CPUWeigher': 'cpu_weight_multiplier',
    'DiskWeigher': 'disk_weight_multiplier',
    'ResourceClassWeigher': 'class_weight_multiplier',
    'IoOpsWeigher': 'io_ops_weight_multiplier',
    'NumInstancesWeigher': 'num_instances_weight_multiplier',
    'HypervisorVersionWeigher': 'hypervisor_version_weight_multiplier',
    'PCIWeigher': 'pci_weight_multiplier',
    'BuildFailureWeigher': 'build_failure_weight_multiplier',
    'CrossCellWeigher': 'cross_cell_move_weight_multiplier',
    'ImagePropertiesWeigher': 'image_props_weight_multiplier',
    'ServerGroupSoftAffinityWeigher': 'soft_affinity_weight_multiplier',
    'ServerGroupSoftAntiAffinityWeigher': 'soft_anti_affinity_weight_multiplier',
}
#: Classes of which few hosts have an inventory, and ratios of them.
OWN = ('CUSTOM_LICENCE', 'SRIOV_NET_VF')
OWN_RATIOS = (
    'CUSTOM_LICENCE=2.0, SRIOV_NET_VF=-1.0',
    'SRIOV_NET_VF=-0.3',
    'MEMORY_MB=0.01,CUSTOM_LICENCE=7, CUSTOM_OF_NOBODY=5',
    'CUSTOM_OF_NOBODY=1',
)
MULTIPLIERS = st.sampled_from((0.0, 0.5, 1.0, 2.0, 3.25))
SAID = st.sampled_from(('2.5', '-1', '0', '0.125', ' 4 ', 'many', '', 'inf', '1,2', '-2e12'))


@st.composite
def hosts(draw, most=6):
    """Draw hosts of any size, with any use."""
    changes = []
    for number in range(1, draw(st.integers(1, most)) + 1):
        metrics = {
            name: ReportedMetric(value=draw(st.integers(0, 5)))
            for name in ('stats.io_workload', 'stats.failed_builds')
            if draw(st.booleans())
        }
        free = draw(st.sampled_from((0, 0, 1, 3, 120)))
        own_classes = {
            name: Inventory(total=draw(st.integers(0, 9))) for name in OWN if draw(st.booleans())
        }
        changes.append(
            a_host(
                number,
                inventories={
                    'VCPU': Inventory(total=draw(st.integers(1, 8)), allocation_ratio=2.0),
                    'MEMORY_MB': Inventory(total=draw(st.integers(0, 8)) * 1000),
                    'DISK_GB': Inventory(total=draw(st.sampled_from((0, 50, 51, 500)))),
                    **own_classes,
                },
                used={
                    'VCPU': draw(st.integers(0, 9)),
                    'MEMORY_MB': draw(st.integers(0, 4000)),
                    **{name: draw(st.integers(0, 10)) for name in own_classes},
                },
                metrics=metrics,
                devices=[DevicePool(count=free, free=free)],
                hypervisor=Hypervisor(version=draw(st.sampled_from((0, 8_000_000, 8_001_000)))),
                cell=draw(st.sampled_from(CELLS)),
            )
        )
    return changes


@st.composite
def images(draw):
    """Draw images with few properties, of few values."""
    names, values = st.sampled_from(('os_distro', 'hw_disk_bus', 'x')), st.sampled_from(('a', 'b'))
    return Image(properties=draw(st.dictionaries(names, values, max_size=2)))


@st.composite
def guests(draw, rows):
    """Draw up to three guests on each host, some of the group."""
    placed_by_host, number = {}, 0
    for row in rows:
        placed = []
        for _ in range(draw(st.integers(0, 3))):
            number += 1
            guest = a_guest(number, row.id, draw(st.sampled_from((None, GROUP))))
            image = image_properties.text_of(draw(images()))
            placed.append(msgspec.structs.replace(guest, image=image))
        placed_by_host[row.id] = placed
    return placed_by_host


@st.composite
def aggregates(draw):
    """Draw up to three aggregates that set some multipliers."""
    return [
        Aggregate(
            id=number + 1,
            uuid=an_id(number, 5),
            name=f'agg-{number}',
            hosts=draw(st.lists(st.sampled_from([f'cmp-{n}' for n in range(1, 7)]), unique=True)),
            metadata=draw(st.dictionaries(st.sampled_from(list(WEIGHERS.values())), SAID)),
        )
        for number in range(draw(st.integers(0, 3)))
    ]


@st.composite
def options(draw):
    """Draw multipliers and normalizations, in part."""
    settings = {}
    for option in WEIGHERS.values():
        settings[option] = draw(MULTIPLIERS)
        kind = option.removesuffix('_multiplier') + '_normalization'
        settings[kind] = draw(st.sampled_from(NORMALIZATIONS))
    setting = draw(st.sampled_from(('', 'os_distro=2.5,x=0', 'hw_disk_bus=0.1,x=0.7')))
    ratios = draw(st.sampled_from(('', *OWN_RATIOS)))
    return {**settings, 'image_props_weight_setting': setting, 'class_weight_setting': ratios}


@st.composite
def specs(draw):
    """Draw requests with the fields that weighers evaluate."""
    fields = {'image': draw(images())}
    if draw(st.booleans()):
        fields['group'] = GroupRef(
            uuid=GROUP,
            policy=draw(st.sampled_from((Policy.SOFT_AFFINITY, Policy.SOFT_ANTI_AFFINITY))),
            members=[an_id(n, 3) for n in draw(st.lists(st.integers(1, 6), max_size=3))],
            hosts=draw(st.lists(st.sampled_from(('cmp-1', 'cmp-3')), max_size=2)),
        )
    if draw(st.booleans()):
        fields['destination'] = Destination(preferred_cell=draw(st.sampled_from(CELLS[1:])))
    return fields
