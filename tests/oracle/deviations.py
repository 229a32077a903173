# SPDX-License-Identifier: Apache-2.0
"""Where Gantt means to differ from Nova and why; every other difference is a defect."""

import math
from typing import Any

from gantt.core.table import aggregates
from tests.oracle import layouts, named, ours, wishes
from tests.oracle.seen import Deviation, Seen

#: All filters, and all weighers.
ALL = frozenset(
    name for names in wishes.THEMES.values() for name in names if not name.endswith('Weigher')
)
WEIGHERS = frozenset(wishes.EVERYBODY) - ALL
_EXTRA_SPECS = frozenset({'ComputeCapabilitiesFilter', 'AggregateInstanceExtraSpecsFilter'})
_LIMITS = {
    'AggregateNumInstancesFilter': 'max_instances_per_host',
    'AggregateIoOpsFilter': 'max_io_ops_per_host',
}


def _aggregates(seen: Seen, host: dict[str, Any] | None = None) -> list[dict[str, str]]:
    """Metadata of the aggregates of a host."""
    name = (host or seen.host)['host']
    return [a['metadata'] for a in seen.cloud['aggregates'] if name in a['hosts']]


def _is_whole(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _is_usable(text: str) -> bool:
    try:
        return aggregates.is_usable(float(text))
    except ValueError:
        return False


def _says_nan(seen: Seen) -> bool:
    """An aggregate of the host says nan of something."""
    values = [value for metadata in _aggregates(seen) for value in metadata.values()]
    return any(_is_number(value) and math.isnan(float(value)) for value in values)


def _one_limit_is_no_number(seen: Seen) -> bool:
    key = _LIMITS[seen.plugin]
    limits = [metadata[key] for metadata in _aggregates(seen) if key in metadata]
    return any(map(_is_whole, limits)) and not all(map(_is_whole, limits))


def _is_over_committed(host: dict[str, Any]) -> bool:
    least = host['disk_available_least']
    disk = (
        host['local_gb_used']
        if least is None
        else max(host['local_gb_used'], host['local_gb'] - least)
    )
    amounts = (
        (host['vcpus_used'], host['vcpus'], host['cpu_allocation_ratio']),
        (host['memory_mb_used'], host['memory_mb'], host['ram_allocation_ratio']),
        (disk, host['local_gb'], host['disk_allocation_ratio']),
    )
    return any(used > math.floor(total * ratio) for used, total, ratio in amounts)


def _is_over_full(seen: Seen) -> bool:
    """The verdict of ComputeFilter is ours alone: nothing new lands there."""
    return seen.nova == 'p' and seen.gantt == 'r' and _is_over_committed(seen.host)


def _multiplier_is_infinite(seen: Seen) -> bool:
    """An aggregate of some host sets a multiplier that is not read here."""
    return any(
        _is_number(value) and not _is_usable(value)
        for host in seen.cloud['hosts']
        for metadata in _aggregates(seen, host)
        for key, value in metadata.items()
        if key.endswith('_multiplier')
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _names_several_projects(seen: Seen) -> bool:
    """Some aggregate has its projects in a list, or with spaces around them."""
    on = seen.cloud['options'].get('scheduler', {})
    return on.get('limit_tenants_to_placement_aggregate', False) and any(
        key.startswith('filter_tenant_id') and (',' in value or value != value.strip())
        for aggregate in seen.cloud['aggregates']
        for key, value in aggregate['metadata'].items()
    )


def _hint(seen: Seen, name: str) -> list[str]:
    return (seen.request['hints'] or {}).get(name, [])


def _metric_settings(seen: Seen) -> dict[str, float]:
    settings = seen.cloud['options'].get('metrics', {}).get('weight_setting', ())
    return {
        name: float(ratio) for name, _, ratio in (setting.partition('=') for setting in settings)
    }


def _has_a_percentage_that_is_cut(seen: Seen) -> bool:
    return any(
        metric['name'] in _metric_settings(seen) and metric.get('value') in (0.29, 0.57)
        for host in seen.cloud['hosts']
        for metric in host['metrics'] or ()
        if metric['name'].endswith('.percent')
    )


def _lacks_what_does_not_count(seen: Seen) -> bool:
    """Nova misses a metric, and all that is missing has the ratio 0."""
    missed = {
        name
        for name in _metric_settings(seen)
        for host in seen.cloud['hosts']
        if name not in {metric['name'] for metric in host['metrics'] or ()}
    }
    return seen.nova is None and not any(_metric_settings(seen)[name] for name in missed)


TABLE: list[Deviation] = [
    Deviation(
        name='hints that are null',
        plugins=ALL | {ours.TOGETHER},
        when=lambda seen: seen.nova == 'x' and seen.request['hints'] is None,
        reason='The message allows scheduler_hints to be null; every filter of Nova but those of a '
        'rebuild then raises. Here null is no hint.',
    ),
    Deviation(
        name='numbers that are none',
        plugins=_EXTRA_SPECS,
        when=lambda seen: (
            seen.raised.startswith(('ValueError', 'IndexError'))
            if seen.nova == 'x'
            else seen.gantt == 'r' and _says_nan(seen)
        ),
        reason='A numeric operator on text, or <or> without operands, fails the whole request in '
        'Nova. Here it is not met by that host, or by that value of the aggregate. Nor is it met '
        'by nan, which is a number in Nova.',
    ),
    Deviation(
        name='a limit that is no number',
        plugins=frozenset(_LIMITS),
        when=_one_limit_is_no_number,
        reason='In Nova one limit that cannot be read throws away those of the other aggregates '
        'of the host. Here the readable ones count.',
    ),
    Deviation(
        name='over-committed hosts',
        plugins=frozenset({'ComputeFilter'}),
        when=_is_over_full,
        reason='A host that has more in use than it may promise is closed: nothing could be '
        'claimed there.',
    ),
    Deviation(
        name='clocks that are ahead',
        plugins=frozenset({'ComputeFilter'}),
        when=lambda seen: seen.gantt == 'p' and (seen.host['service']['last_seen_up'] or 0) < 0,
        reason='In Nova a host whose clock is ahead is down. Here the database notes when a '
        'report came; a clock never decides.',
    ),
    Deviation(
        name='hosts that never reported',
        plugins=frozenset({'ComputeFilter'}),
        when=lambda seen: seen.gantt == 'r' and seen.host['service']['last_seen_up'] is None,
        reason='In Nova a service that was never seen is up for a while after it was created. '
        'Here nothing is known of such a host.',
    ),
    Deviation(
        name='multipliers without end',
        plugins=WEIGHERS,
        when=_multiplier_is_infinite,
        reason='In Nova an aggregate may set a multiplier of inf or nan, and weights are no '
        'longer comparable. Here such a value is not read, and the option counts; nor is one '
        'beyond 1e12 read, with which sums of weights could not be told apart.',
    ),
    Deviation(
        name='metrics of NUMA cells',
        plugins=frozenset({'MetricsFilter', 'MetricsWeigher'}),
        when=lambda seen: (
            seen.nova in ('p', None)
            and any(name.startswith('numa.') for name in _metric_settings(seen))
        ),
        reason='numa.membw.* has a value per cell and none of its own: Nova lets such a host pass '
        'and then raises while weighing it. Here the host does not report it.',
    ),
    Deviation(
        name='metrics that do not count',
        plugins=frozenset({'MetricsWeigher'}),
        when=_lacks_what_does_not_count,
        reason='A metric with ratio 0 is not missed. In Nova it is required all the same.',
    ),
    Deviation(
        name='networks without a slash',
        plugins=frozenset({'SimpleCIDRAffinityFilter'}),
        when=lambda seen: any(cidr[:1] != '/' for cidr in _hint(seen, 'cidr')),
        reason='Nova glues hint cidr to the address: 10.0.0.2 and 4 are 10.0.0.24. Here 4 and /4 '
        'are the same.',
    ),
    Deviation(
        name='addresses that are none',
        plugins=frozenset({'SimpleCIDRAffinityFilter'}),
        when=lambda seen: (
            seen.nova == 'x'
            and seen.gantt == 'r'
            and seen.raised.startswith(('AddrFormatError', 'ValueError'))
        ),
        reason='Hints that are no network fail the whole request in Nova. Here no host is in it.',
    ),
    Deviation(
        name='address bits of images',
        plugins=frozenset({'ImagePropertiesFilter'}),
        when=lambda seen: (
            seen.nova == 'x'
            and 'hw_maxphysaddr_bits' in (seen.request['image'] or {}).get('properties', {})
        ),
        reason='Nova cannot read the address bits of a host while it looks at an image, and '
        'raises. Here they are compared.',
    ),
    Deviation(
        name='requests without an image',
        plugins=frozenset({ours.TOGETHER}),
        when=lambda seen: seen.nova == 'x' and seen.request['image'] is None,
        reason='A request without an image makes NUMATopologyFilter raise. Here its flavor alone '
        'determines the request.',
    ),
    Deviation(
        name='attributes of Python',
        plugins=frozenset({'ComputeCapabilitiesFilter'}),
        when=lambda seen: (
            not set(wishes.PYTHON).isdisjoint(
                key.removeprefix('capabilities:') for key in seen.request['flavor']['extra_specs']
            )
        ),
        reason='Nova finds whatever Python finds by a name: methods, documentation, parts of '
        'numbers. Here a name is that of a fact.',
    ),
    Deviation(
        name='weighers without effect',
        plugins=frozenset({'MetricsWeigher'}),
        when=lambda seen: (
            seen.nova is None
            and seen.cloud['options'].get('metrics', {}).get('weight_multiplier') == 0
        ),
        reason='A weigher with multiplier 0 is not run. In Nova it may fail the request.',
    ),
    Deviation(
        name='cores to themselves',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.isolates_on_threads,
        reason='Nova refuses isolate, by policy or by a trait that is forbidden, on every host '
        'with threads whose shared and dedicated processors differ. Here the core has to have none '
        'that is used by others.',
    ),
    Deviation(
        name='pages that are free',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.pages_are_free,
        reason='Pages of a requested size are counted separately, and so are those of a guest with '
        'dedicated processors, as in Nova. Of a guest with shared or mixed ones Nova looks at '
        'the memory of the cell as well, over-commit of other guests included.',
    ),
    Deviation(
        name='queries that fail',
        plugins=frozenset({'JsonFilter'}),
        when=lambda seen: seen.nova == 'x',
        reason='What cannot be compared, text as a structure, an unknown operator or broken JSON '
        'makes Nova raise. Here values that cannot be compared are not equal and neither '
        'smaller nor larger, and a query that cannot be understood is refused before any host '
        'is checked.',
    ),
    Deviation(
        name='stats that are null',
        plugins=frozenset({'ComputeCapabilitiesFilter'}),
        when=lambda seen: (
            (seen.nova, seen.gantt) == ('r', 'p')
            and any(
                seen.host['stats'].get(key, '') is None
                for key in seen.request['flavor']['extra_specs']
            )
        ),
        reason='A value of stats that is null is not there, and a key without scope that a host '
        'does not have is no condition. Nova rejects the host.',
    ),
    Deviation(
        name='image properties by aggregate',
        plugins=frozenset({'ImagePropertiesWeigher'}),
        when=lambda seen: (
            seen.cloud['options']
            .get('filter_scheduler', {})
            .get('image_props_weight_multiplier', 0.0)
            == 0.0
            and any(
                'image_props_weight_multiplier' in metadata
                for host in seen.cloud['hosts']
                for metadata in _aggregates(seen, host)
            )
        ),
        reason='With the option at 0, what an aggregate sets counts for its hosts, as with every '
        'other weigher. Nova leaves early.',
    ),
    Deviation(
        name='percentages that are cut',
        plugins=frozenset({'MetricsWeigher'}),
        when=_has_a_percentage_that_is_cut,
        reason='Nova cuts percentages to whole numbers, and 0.29 and 0.57 to 28 and 56. Here '
        'they are kept.',
    ),
    Deviation(
        name='disk that is not there',
        plugins=frozenset({'JsonFilter', 'ComputeCapabilitiesFilter'}),
        when=lambda seen: (
            'disk_mb_used' in str(seen.request)
            and seen.host['disk_available_least'] is not None
            and seen.host['disk_available_least'] < seen.host['free_disk_gb']
        ),
        reason='Disk that the driver cannot give is in use. In Nova it is neither free nor used.',
    ),
    Deviation(
        name='addresses in queries',
        plugins=frozenset({'JsonFilter'}),
        when=lambda seen: '$host_ip' in _hint(seen, 'query')[0],
        reason='In Nova $host_ip is an object that no text is equal to. Here it is text.',
    ),
    Deviation(
        name='guests with processors of both kinds',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.has_both_kinds,
        reason='Of a guest with dedicated and shared processors Nova requires room among the '
        'shared ones of a cell even where only dedicated ones are to be there, and where only '
        'shared ones are to be, cores for the thread policy; nor does its emulator get a processor '
        'there, nor may the memory of such a cell be over-committed.',
    ),
    Deviation(
        name='emulators with a core',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.emulator_has_a_core,
        reason='With isolate and a processor for the emulator, Nova lets that be on a core which '
        'others use, and then cannot pin it: the whole core is to be taken. Here it has to be '
        'free.',
    ),
    Deviation(
        name='cores that differ',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.cores_differ,
        reason='For require Nova takes equally many threads of every core, and for isolate only '
        'cores with as many threads as the largest has. Here each core counts for what it has.',
    ),
    Deviation(
        name='pages that are chosen once',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.pages_are_open,
        reason='The first size of pages that Nova finds for a cell of the guest is the only one '
        'that it then looks for, also on other cells. Here every arrangement is tried.',
    ),
    Deviation(
        name='cells that are mixed up',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.cells_are_mixed_up,
        reason='Nova remembers which cell of a guest fits on which cell of the host by a number '
        'that changes meanwhile, so that after a first arrangement that will not do it passes '
        'others over, and takes cells that the guest does not fit '
        'on. Here every arrangement is tried, and every cell has to fit.',
    ),
    Deviation(
        name='devices that are near and not requested',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.has_near_functions,
        reason='Nova first chooses the pools that are near enough to the cells of a guest, those '
        'of physical functions and vDPA devices among them, and only then leaves out those that '
        'were not requested: a near pool of another kind hides a suitable one. Here only '
        'requested devices count.',
    ),
    Deviation(
        name='devices that others could leave',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.devices_are_named,
        reason='Nova gives out devices name by name, and may give the only ones that a later name '
        'or port can have. Here they are distributed so that all get theirs where that is '
        'possible.',
    ),
    Deviation(
        name='projects in a list',
        plugins=frozenset({'Placement where', ours.FORCED}),
        when=_names_several_projects,
        reason='Where projects are kept to their aggregates, Nova takes the value of a key '
        'filter_tenant_id* as the name of one project. Here it may be a list, as '
        'AggregateMultiTenancyIsolation has it.',
    ),
    Deviation(
        name='threads that the image requires',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.image_requires_threads,
        reason='Where the flavor prefers threads and the image requires them, Nova follows '
        'the flavor, but its filter leaves out hosts without threads. Here the flavor counts.',
    ),
    Deviation(
        name='forced hosts that are closed',
        plugins=frozenset({ours.FORCED}),
        when=lambda seen: (
            (seen.nova, seen.gantt) == ('p', 'r')
            and (seen.host['service']['disabled'] or _is_over_committed(seen.host))
        ),
        reason='A forced host that is disabled or over-committed is closed all the same: the '
        'commit would refuse it. In Nova a forced host is closed where its provider has the trait '
        'COMPUTE_STATUS_DISABLED.',
    ),
    Deviation(
        name='groups of forced hosts',
        plugins=frozenset({ours.FORCED}),
        when=lambda seen: (
            (seen.nova, seen.gantt) == ('p', 'r')
            and (seen.request['group'] or {}).get('policy') in ('affinity', 'anti-affinity')
        ),
        reason='A hard rule of a server group holds for forced hosts as well. Nova skips it in the '
        'scheduler, and its compute refuses the build.',
    ),
    Deviation(
        name='guests of other nodes',
        plugins=frozenset({'ImagePropertiesWeigher'}),
        when=lambda seen: named.has_services(seen.cloud),
        reason='Of a service that runs several nodes Nova counts the images of the guests on all '
        'of them for each. Here each node has its own.',
    ),
    Deviation(
        name='members of one request',
        plugins=frozenset({ours.SEVERAL}),
        when=lambda seen: (
            (
                'ComputeCapabilitiesFilter' in seen.request['ask']
                and bool(seen.request['flavor']['extra_specs'])
            )
            or (
                'ImagePropertiesWeigher' in seen.request['ask']
                and bool((seen.request['image'] or {}).get('properties'))
            )
            or 'NumInstancesWeigher' in seen.request['ask']
        ),
        reason='Of several instances of one request Nova runs ComputeCapabilitiesFilter for the '
        'first alone, and ImagePropertiesWeigher knows no image of those before. Here each '
        'counts what those before it have taken. NumInstancesWeigher counts live claims, '
        'which in Nova is what the node reported last and what was placed since.',
    ),
    Deviation(
        name='pages that are not listed',
        plugins=frozenset({ours.TOGETHER}),
        when=layouts.ordinary_pages_are_not_listed,
        reason='Where a cell lists large pages and no ordinary ones, the memory beside those is '
        'made of ordinary pages. In Nova the smallest pages listed are the small ones.',
    ),
    Deviation(
        name='facts of the service',
        plugins=frozenset({'ComputeCapabilitiesFilter'}),
        when=lambda seen: any(
            key.startswith('capabilities:service:') for key in seen.request['flavor']['extra_specs']
        ),
        reason='capabilities:service:disabled is compared with what is known of the service. In '
        'Nova it never matches.',
    ),
    Deviation(
        name='cells without siblings',
        plugins=frozenset({ours.TOGETHER}),
        when=lambda seen: (
            seen.nova == 'x' and any(not cell['siblings'] for cell in seen.host['numa'] or ())
        ),
        reason='A guest with processors of its own makes Nova raise where a cell does not say '
        'which processors are threads of one core. Here each processor is a core then.',
    ),
    Deviation(
        name='groups without policies',
        plugins=frozenset({'ServerGroupAffinityFilter', 'ServerGroupSoftAffinityWeigher'}),
        when=lambda seen: (
            seen.nova in ('x', None) and (seen.request['group'] or {}).get('policies', ()) is None
        ),
        reason='A group in a message that has policy and lacks the older policies makes Nova '
        'raise. Here policy counts. A flavor in a message that lacks extra_specs has none.',
    ),
    Deviation(
        name='hosts whose use is not known',
        plugins=ALL | WEIGHERS | {ours.TOGETHER, ours.FORCED},
        when=lambda seen: any(host['free_disk_gb'] is None for host in seen.cloud['hosts']),
        reason='A compute node without free_disk_gb was made and not counted yet. Nova knows '
        'nothing of it. Here it is closed until its use is reported.',
    ),
    Deviation(
        name='members that take what they claim',
        plugins=frozenset({ours.SEVERAL}),
        when=lambda seen: any(
            key.startswith('resources:') for key in seen.request['flavor']['extra_specs']
        ),
        reason='With resources:VCPU and the like in its extra specs, an instance claims another '
        'amount than its flavor has. The next of the same request finds that much less here, '
        'and in Nova the amount of the flavor less.',
    ),
]
