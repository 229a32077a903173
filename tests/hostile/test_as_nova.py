# SPDX-License-Identifier: Apache-2.0
"""What filters do as Nova's do, in cases that random clouds did not have."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.report import DevicePool, Hypervisor, NumaCell, NumaPages
from gantt.core.messages.request import Destination, Flavor, GroupRef, Image, Policy, RequestSpec
from gantt.core.placement.capacity import free_capacity
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline, PipelineSettings
from gantt.core.placement.prefilters import Prefilters
from gantt.core.resources.host import Aggregate, HostRow
from gantt.core.table.host_table import HostTable
from gantt.core.topology.devices import matches_request
from gantt.core.topology.free import Pool
from gantt.core.topology.read import read_option
from gantt.nova.wire import spec as nova_spec
from gantt.rpc.api import stats, stats_foreign
from tests.core.builders import (
    a_change,
    a_guest,
    a_host,
    a_request,
    a_table,
    an_id,
    decide,
    hosts_of,
)
from tests.core.topology.hosts import a_cell, a_room, a_wish, in_the_way, laid, pinned
from tests.rpc.bus import load

GROUP = an_id(1, 9)
#: As a small cloud might have them, with the filters that Nova's default has not.
FILTERS = [
    *plugin_loader.load_pipeline().described()['filters'],
    'AggregateMultiTenancyIsolation',
    'AggregateInstanceExtraSpecsFilter',
    'IsolatedHostsFilter',
    'JsonFilter',
]
NO_PREFILTERS = Prefilters()


def pipeline(*names: str, prefilters: Prefilters = NO_PREFILTERS, **options: Any) -> Pipeline:
    """A pipeline of these filters; the default ones and a few more where none is named."""
    chosen = list(dict.fromkeys(names or FILTERS))
    return Pipeline(
        plugin_loader.load(chosen, options), [], PipelineSettings(prefilters=prefilters)
    )


def passing(table: HostTable, rules: Pipeline, **spec: Any) -> list[str]:
    """Names of the hosts on which one member fits."""
    request = a_request(**spec)
    filter_run = FilterRun(table, request.spec, rules)
    filter_run.evaluate(request.consumers[0])
    return [name for name, alive in zip(table.names, filter_run.alive, strict=True) if alive]


def an_aggregate(number: int, *hosts: str, **metadata: str) -> Aggregate:
    return Aggregate(
        id=number, uuid=an_id(number, 8), name=f'a{number}', metadata=metadata, hosts=list(hosts)
    )


# -- U1 -------------------------------------------------------------------------------
def _kind(text: str) -> Any:
    alias = {'name': 'nic', 'vendor_id': '8086', 'product_id': '158b', 'live_migratable': text}
    aliases = read_option(json.dumps([alias]), 'pci_aliases')
    spec = RequestSpec(
        resources={'VCPU': 1}, flavor=Flavor(extra_specs={'pci_passthrough:alias': 'nic:1'})
    )
    (wish,) = aliases.wishes(spec)
    return wish


def _pool(tag: str) -> Pool:
    tags = {'live_migratable': tag}
    return Pool(DevicePool(vendor_id='8086', product_id='158b', count=1, free=1, tags=tags))


@pytest.mark.finding('U1', 'live_migratable of an alias is yes or no as Nova reads it')
@pytest.mark.parametrize('text', ['yes', 'True ', '1', 'on', 'T', 'y', 'no', '0', 'off', 'FALSE'])
def test_live_migratable_is_read_as_nova_does(text):
    tag = 'false' if text.strip().lower() in ('no', '0', 'off', 'false') else 'true'
    assert matches_request(_pool(tag), _kind(text))
    assert not matches_request(_pool('false' if tag == 'true' else 'true'), _kind(text))


@pytest.mark.finding('U1', 'live_migratable of an alias is yes or no as Nova reads it')
@pytest.mark.parametrize('text', ['', 'perhaps', 'yes please'])
def test_live_migratable_that_is_neither_is_refused_by_name(text):
    with pytest.raises(exceptions.Misconfigured, match='nic: live_migratable .* neither'):
        _kind(text)


# -- U2 -------------------------------------------------------------------------------
def a_node(number: int, service: str = 'ironic-1') -> HostRow:
    """A node of a service that runs several, known by its own name."""
    hypervisor = Hypervisor(type='ironic', hostname=f'node-{number}', service=service)
    return a_host(number, name=f'node-{number}', node=f'node-{number}', hypervisor=hypervisor)


def bare_metal(*aggregates: Aggregate) -> HostTable:
    """Two nodes of one service, one of another, and a plain host."""
    return a_table(
        a_node(1),
        a_node(2),
        a_node(3, 'ironic-2'),
        a_host(4, name='cmp-4'),
        aggregates=aggregates,
    )


BOTH, ALL = ['node-1', 'node-2'], ['node-1', 'node-2', 'node-3', 'cmp-4']
U2 = pytest.mark.finding('U2', 'the nodes of a service are known by its name as well')


@U2
def test_the_aggregates_of_a_service_are_those_of_its_nodes():
    table = bare_metal(
        an_aggregate(1, 'ironic-1', availability_zone='az-bm', filter_tenant_id='red', tier='gold')
    )
    rules = pipeline()
    assert passing(table, rules, availability_zone='az-bm', project_id='red') == BOTH
    assert passing(table, rules, project_id='blue') == ['node-3', 'cmp-4']
    gold = Flavor(extra_specs={'aggregate_instance_extra_specs:tier': 'gold'})
    assert passing(table, rules, project_id='red', flavor=gold) == BOTH
    assert passing(table, rules, project_id='red', member_of=[['a1']]) == BOTH
    assert [a.name for a in table.host_state('node-2').aggregates] == ['a1']


@U2
def test_multipliers_of_an_aggregate_hold_for_the_nodes():
    table = bare_metal(an_aggregate(1, 'ironic-2', ram_weight_multiplier='-5'))
    weigher = plugin_loader.load(['RAMWeigher'], {}, plugin_loader.WEIGHERS)[0]
    assert list(weigher.multipliers(table, np.arange(4))) == [1.0, 1.0, -5.0, 1.0]


@U2
def test_isolated_ignored_forced_and_requested_are_services():
    table = bare_metal()
    isolated = pipeline('IsolatedHostsFilter', isolated_hosts=['ironic-1'], isolated_images=['i'])
    assert passing(table, isolated, image=Image(uuid='i')) == BOTH
    assert passing(table, isolated, image=Image(uuid='other')) == ['node-3', 'cmp-4']
    rules = pipeline()
    assert passing(table, rules, ignore_hosts=['IRONIC-1']) == ['node-3', 'cmp-4']
    assert passing(table, rules, force_hosts=['Ironic-1']) == BOTH
    assert passing(table, rules, force_hosts=['ironic-1'], force_nodes=['node-2']) == ['node-2']
    assert passing(table, rules, destination=Destination(host='ironic-1')) == BOTH
    assert passing(table, rules, destination=Destination(host='ironic-1', node='node-1')) == [
        'node-1'
    ]
    assert passing(table, rules, destination=Destination(host='Ironic-1')) == []  # case matters
    assert passing(table, rules, hints={'query': ['["=", "$host", "ironic-1"]']}) == BOTH
    # By its own name a node is known as before.
    assert passing(table, rules, force_hosts=['node-3']) == ['node-3']


@U2
def test_to_a_server_group_the_nodes_of_a_service_are_one_host():
    table = bare_metal()
    rules = pipeline()

    def group(policy, **more):
        return GroupRef(uuid=GROUP, policy=policy, **more)

    together = group(Policy.AFFINITY, hosts=['ironic-1'])
    assert passing(table, rules, group=together) == BOTH
    apart = group(Policy.ANTI_AFFINITY, hosts=['ironic-1'])
    assert passing(table, rules, group=apart) == ['node-3', 'cmp-4']
    # Its compute would refuse the second member: a member on one node counts for the others.
    held = a_table(a_change(a_node(1), a_guest(1, 1, GROUP)), a_node(2), a_node(3, 'ironic-2'))
    assert passing(held, rules, group=group(Policy.ANTI_AFFINITY)) == ['node-3']
    assert passing(held, rules, group=group(Policy.AFFINITY)) == BOTH
    assert passing(held, rules, different_host=[a_guest(1, 1).consumer]) == ['node-3']
    # One after the other in one request as well, and as many as are counted.
    request = a_request(count=3, group=group(Policy.ANTI_AFFINITY))
    hosts = hosts_of(decide(table, request))
    assert sorted(str(name) for name in hosts) != sorted(BOTH)
    services = [table.service_name(table.row_of(name)) for name in hosts]
    assert sorted(services) == ['cmp-4', 'ironic-1', 'ironic-2']
    assert hosts_of(
        decide(bare_metal(), a_request(count=4, group=group(Policy.ANTI_AFFINITY)))
    ) in ([], [None] * 4)
    counted = free_capacity(bare_metal(), request.spec, table.ids.argsort())
    assert counted.total == 3


@U2
def test_soft_rules_weigh_services_and_pick_after_pick_agrees():
    """Each pick is looked at anew: what one node takes counts for its neighbours."""
    soft = GroupRef(uuid=GROUP, policy=Policy.SOFT_ANTI_AFFINITY)
    hosts = hosts_of(decide(bare_metal(), a_request(count=3, group=soft)))
    services = {'node-1': 'ironic-1', 'node-2': 'ironic-1', 'node-3': 'ironic-2', 'cmp-4': 'cmp-4'}
    assert sorted(services[str(name)] for name in hosts) == ['cmp-4', 'ironic-1', 'ironic-2']


@U2
def test_a_node_that_goes_to_another_service_is_known_by_that():
    table = bare_metal(an_aggregate(1, 'ironic-2', availability_zone='az-bm'))
    rules = pipeline()
    assert passing(table, rules, availability_zone='az-bm') == ['node-3']
    assert passing(table, rules, destination=Destination(host='ironic-2')) == ['node-3']
    moved = a_node(2, 'ironic-2')
    table.apply(
        a_change(
            HostRow(
                **{f: getattr(moved, f) for f in moved.__struct_fields__ if f != 'version'},
                version=2,
            )
        )
    )
    assert passing(table, rules, availability_zone='az-bm') == ['node-2', 'node-3']
    assert passing(table, rules, destination=Destination(host='ironic-2')) == ['node-2', 'node-3']
    assert passing(table, rules, ignore_hosts=['ironic-1']) == ['node-2', 'node-3', 'cmp-4']
    copied = table.snapshot()
    assert copied.rows_of_host('ironic-2') == table.rows_of_host('ironic-2')
    assert copied.services == table.services


# -- U3 -------------------------------------------------------------------------------
U3 = pytest.mark.finding('U3', 'forced hosts keep what Placement keeps')


def _kept_for_another() -> HostTable:
    return a_table(
        a_host(1, traits=['HW_CPU_X86_AVX'], cell=an_id(1)),
        a_host(2, cell=an_id(2)),
        aggregates=[
            an_aggregate(1, 'cmp-1', availability_zone='az1', filter_tenant_id='red'),
            an_aggregate(
                2, 'cmp-2', availability_zone='az2', **{'trait:CUSTOM_LICENSED': 'required'}
            ),
        ],
    )


FORCED: dict[str, dict[str, Any]] = {
    'a required trait': {'required_traits': ['HW_CPU_X86_AVX']},
    'a zone': {'availability_zone': 'az1'},
    'a zone that nobody knows': {'availability_zone': 'nowhere'},
    'aggregates': {'member_of': [['a1']]},
    'forbidden aggregates': {'forbidden_aggregates': ['a2']},
    'a host': {'destination': Destination(host='cmp-1')},
    'a cell': {'destination': Destination(cell=an_id(1))},
    'forbidden aggregates of a destination': {
        'destination': Destination(forbidden_aggregates=['a2'])
    },
}


@U3
@pytest.mark.parametrize('what', FORCED)
@pytest.mark.parametrize('by', ['force_hosts', 'force_nodes'])
def test_a_forced_host_has_to_have(what, by):
    table, rules = _kept_for_another(), pipeline()
    assert passing(table, rules, **FORCED[what], **{by: ['cmp-2']}) == []
    if what != 'a zone that nobody knows':
        assert passing(table, rules, **FORCED[what], **{by: ['cmp-1']}) == ['cmp-1']


@U3
def test_a_forced_host_is_within_what_operators_keep_for_others():
    table = _kept_for_another()
    tenants = pipeline(
        prefilters=Prefilters(
            limit_tenants_to_placement_aggregate=True,
            placement_aggregate_required_for_tenants=True,
        )
    )
    assert passing(table, tenants, project_id='red', force_hosts=['cmp-1']) == ['cmp-1']
    assert passing(table, tenants, project_id='red', force_hosts=['cmp-2']) == []
    assert passing(table, tenants, project_id='blue', force_hosts=['cmp-1']) == []
    isolated = pipeline(prefilters=Prefilters(enable_isolated_aggregate_filtering=True))
    assert passing(table, isolated, force_hosts=['cmp-2']) == []
    licensed = {'required_traits': ['CUSTOM_LICENSED']}
    assert passing(table, isolated, **licensed, force_hosts=['cmp-2']) == []  # and has no such


@U3
def test_the_default_zone_with_a_forced_host_asks_for_no_zone():
    """``nova:HOST`` is written where nobody knows the zone of the host."""
    table, rules = _kept_for_another(), pipeline()
    assert passing(table, rules, availability_zone='nova', force_hosts=['cmp-2']) == ['cmp-2']
    assert passing(table, rules, availability_zone='nova') == []
    assert passing(table, rules, availability_zone='nova', force_nodes=['cmp-1']) == ['cmp-1']


@U3
def test_the_default_zone_that_hosts_report_is_none_of_an_operators():
    table = a_table(
        a_host(1, zone='nova'),
        a_host(2),
        aggregates=[an_aggregate(2, 'cmp-2', availability_zone='az2')],
    )
    zone_fields, rules = {'availability_zone': 'nova'}, pipeline()
    assert passing(table, rules, **zone_fields) == ['cmp-1']
    assert passing(table, rules, **zone_fields, force_hosts=['cmp-2']) == ['cmp-2']
    # Where an aggregate has it, Placement holds forced hosts to it.
    table.set_aggregates(
        [*table.known_aggregates.values(), an_aggregate(3, 'cmp-1', availability_zone='nova')]
    )
    assert passing(table, rules, **zone_fields, force_hosts=['cmp-2']) == []
    assert passing(table, rules, **zone_fields, force_hosts=['cmp-1']) == ['cmp-1']


@U3
def test_a_forced_host_without_a_trait_says_so():
    decision = decide(
        _kept_for_another(),
        a_request(
            force_hosts=['cmp-2'],
            required_traits=['HW_CPU_X86_AVX'],
            group=GroupRef(uuid=GROUP, policy=Policy.ANTI_AFFINITY),
        ),
    )
    assert hosts_of(decision) in ([], [None])
    removed = {c.name: c.removed for c in decision.members[0].filters if c.removed}
    assert removed == {'ForcedHostsFilter': 1, 'TraitsFilter': 1}
    assert 'no trait HW_CPU_X86_AVX' in decision.reason
    (line,) = [line for line in decision.added if line.startswith('hosts are forced')]
    assert 'ImagePropertiesFilter' in line and 'TraitsFilter' not in line


@pytest.mark.finding('U3b', 'listed: a hard rule of a group holds for forced hosts')
def test_a_group_rule_holds_for_forced_hosts():
    held = a_table(a_change(a_host(1), a_guest(1, 1, GROUP)), a_host(2))
    apart = GroupRef(uuid=GROUP, policy=Policy.ANTI_AFFINITY)
    assert passing(held, pipeline(), group=apart, force_hosts=['cmp-1']) == []
    assert passing(held, pipeline(), group=apart, force_hosts=['cmp-2']) == ['cmp-2']


# -- U4, U5 ---------------------------------------------------------------------------
@pytest.mark.finding('U5', 'no size of pages can be had where a host lists none')
@pytest.mark.parametrize('page', ['small', 'any', '4', '64', 'large', '2048'])
def test_a_page_size_is_refused_where_no_pages_are_listed(page):
    wish = a_wish({'hw:mem_page_size': page}, VCPU=2)
    silent = a_room(a_cell(0, pages=[]))
    assert in_the_way(wish, silent) == ['it lists no pages, so none can be asked for']
    # Who asks for no size is as well off as before.
    laid(a_wish({'hw:numa_nodes': '1'}, VCPU=2), silent)


@pytest.mark.finding('U5', 'no size of pages can be had where a host lists none')
def test_small_pages_are_had_where_a_host_lists_them():
    cell = a_cell(0, pages=[NumaPages(size_kb=4, total=4 << 20)])
    layout = laid(a_wish({'hw:mem_page_size': 'small'}, VCPU=2), a_room(cell))
    assert layout.cells[0].page_kb == 4


@pytest.mark.finding('U4', 'listed: memory beside large pages is ordinary, listed or not')
def test_what_no_page_is_listed_of_is_ordinary_memory():
    """libvirt always lists ordinary pages; who does not has them all the same."""
    cell = NumaCell(
        id=0, cpus=[0, 1, 2, 3], memory_mb=16384, pages=[NumaPages(size_kb=1 << 20, total=8)]
    )
    assert laid(a_wish({'hw:mem_page_size': 'small'}, VCPU=2), a_room(cell)).cells[0].page_kb == 4
    assert in_the_way(a_wish({'hw:mem_page_size': 'small'}, VCPU=2, MEMORY_MB=9000), a_room(cell))


# -- U8 -------------------------------------------------------------------------------
NODE = {
    'vcpus': 8,
    'memory_mb': 8192,
    'local_gb': 100,
    'vcpus_used': 0,
    'memory_mb_used': 512,
    'local_gb_used': 0,
    'free_ram_mb': 7680,
    'free_disk_gb': 100,
    'hypervisor_hostname': 'cmp-1',
}


def _reported(form: str, left_out: tuple[str, ...]) -> Any:
    body: dict[str, Any] = {key: value for key, value in NODE.items() if key not in left_out}
    if form == 'node':
        body |= dict.fromkeys(left_out)
        body = {
            'nova_object.name': 'ComputeNode',
            'nova_object.version': '1.19',
            'nova_object.namespace': 'nova',
            'nova_object.data': body,
        }
    return stats_foreign.reported_facts('cmp-1', body, stats.Ratios()).report(1, 1)


@pytest.mark.finding('U8', 'a host whose use is not known gets nothing')
@pytest.mark.parametrize(
    ('form', 'left_out', 'named'),
    [
        ('node', ('free_disk_gb',), 'free_disk_gb'),
        ('node', ('free_ram_mb', 'memory_mb_used'), 'memory_mb_used'),
        ('dictionary', ('free_disk_gb', 'local_gb_used'), 'local_gb_used'),
        ('dictionary', ('vcpus_used',), 'vcpus_used'),
        ('dictionary', ('free_disk_gb',), ''),
        ('dictionary', ('local_gb_used', 'memory_mb_used'), ''),
        ('node', (), ''),
    ],
)
def test_what_is_not_in_a_report_is_not_nothing(form, left_out, named):
    report = _reported(form, left_out)
    closed, why = report.disabled, f'its last report does not have {named}: room is not known'
    assert closed == (why if named else None)
    table = a_table(a_host(1, service_disabled=closed))
    assert passing(table, pipeline()) == ([] if named else ['cmp-1'])
    assert passing(table, pipeline(), force_hosts=['cmp-1']) == ([] if named else ['cmp-1'])


# -- U6, U7, U9 to U12 ----------------------------------------------------------------
def capable(**specs: str) -> dict[str, Any]:
    return {'flavor': Flavor(extra_specs={f'capabilities:{k}': v for k, v in specs.items()})}


@pytest.mark.finding('U6', 'listed: capabilities:service:disabled is compared')
def test_a_fact_of_the_service_can_be_asked_for():
    table = a_table(a_host(1), a_host(2, disabled='repair'))
    rules = pipeline('ComputeCapabilitiesFilter')
    assert passing(table, rules, **capable(**{'service:disabled': 'False'})) == ['cmp-1']


@pytest.mark.finding('U7', 'listed: what old messages lack fails no request')
def test_a_message_may_lack_policies_and_extra_specs():
    captured = load('select_destinations-boot-anti-affinity-third')
    args = copy.deepcopy(captured.args)
    spec = args['spec_obj']['nova_object.data']
    del spec['instance_group']['nova_object.data']['policies']
    del spec['flavor']['nova_object.data']['extra_specs']
    spec = nova_spec.translate(
        args, captured.context, budget_ms=1000, lease_seconds=60, max_attempts=3
    ).request.spec
    assert spec.group.policy is Policy.ANTI_AFFINITY
    assert spec.flavor.extra_specs == {}


@pytest.mark.finding('U7', 'listed: what old messages lack fails no request')
def test_without_siblings_each_processor_is_a_core():
    layout = laid(pinned(4), a_room(a_cell(0, siblings=[])))
    assert len(layout.cells[0].pins) == 4


@pytest.mark.finding('U9', 'an empty hint cidr is the address alone')
def test_an_empty_cidr_is_the_address_alone():
    table = a_table(*(a_host(n, hypervisor=Hypervisor(host_ip=f'192.0.2.{n}')) for n in (1, 2)))
    rules = pipeline('SimpleCIDRAffinityFilter')
    near = {'build_near_host_ip': ['192.0.2.1']}
    assert passing(table, rules, hints={**near, 'cidr': ['']}) == ['cmp-1']
    assert passing(table, rules, hints=near) == ['cmp-1', 'cmp-2']


@pytest.mark.finding('U10', 'listed: capabilities are asked again for every member')
def test_capabilities_count_what_the_members_before_have_taken():
    table = a_table(a_host(1), a_host(2))
    rules = Pipeline(plugin_loader.load(['ComputeCapabilitiesFilter']), [])
    alone = a_request(2, **capable(num_instances='<in> 0'))
    assert sorted(hosts_of(decide(table, alone, rules))) == ['cmp-1', 'cmp-2']
    assert set(
        hosts_of(decide(table, a_request(3, 1, **capable(num_instances='<in> 0')), rules))
    ) <= {None}


@pytest.mark.finding('U11', 'listed: settings and reports that cannot be read are refused by name')
@pytest.mark.parametrize('setting', ['bad', 'os_distro=x'])
def test_a_setting_that_cannot_be_read_is_refused_at_the_start(setting):
    with pytest.raises(exceptions.Misconfigured, match='image_props_weight_setting'):
        plugin_loader.load(
            ['ImagePropertiesWeigher'],
            {'image_props_weight_setting': setting, 'image_props_weight_multiplier': 1.0},
            plugin_loader.WEIGHERS,
        )


@pytest.mark.finding('U11', 'listed: settings and reports that cannot be read are refused by name')
@pytest.mark.parametrize('said', ['Xeon', '[1, 2]', '7'])
def test_a_report_whose_cpu_info_is_no_object_is_refused_by_name(said):
    with pytest.raises(exceptions.InvalidMessage) as refused:
        stats_foreign.reported_facts('cmp-1', {**NODE, 'cpu_info': said}, stats.Ratios())
    assert refused.value.kwargs['field'] == 'stats.cpu_info'


@pytest.mark.finding('U12', 'listed: where the fit is wiser, an unmodified nova-compute refuses')
def test_where_the_fit_is_wiser_the_page_says_what_nova_compute_does():
    """Shared and dedicated processors differ, with threads: Nova isolates on no such host."""
    layout = laid(pinned(2, cpu_thread_policy='isolate'), a_room())
    assert len(layout.cells[0].blocked) == 2
    page = Path(__file__).parents[2] / 'doc/source/reference/differences-from-nova.rst'
    text = ' '.join(page.read_text().split())
    assert "an unmodified nova-compute makes the claim with Nova's own fit" in text
    for name in ('Cores to themselves', 'Pages that are free', 'Devices that others could leave'):
        assert text.count(name) == 2, (
            f'{name}: expected as a difference, and among those it refuses'
        )
