# SPDX-License-Identifier: Apache-2.0
"""Layouts in decisions: the best host that has one, and the report of those that have none."""

import pytest
from msgspec.structs import replace

from gantt import exceptions, plugin_loader
from gantt.core.messages import layout as layouts
from gantt.core.messages.request import Flavor, Purpose
from gantt.core.messages.resource_classes import Inventory
from gantt.core.pause import Pause
from gantt.core.placement import layout_choice
from gantt.core.placement.place import undo_decision
from gantt.core.records.decision import CHOSEN_VERDICT
from tests.core.builders import a_host, a_request, a_table, decide, hosts_of
from tests.core.topology.hosts import ALIASES, a_cell, a_pool

PINNED = {'hw:cpu_policy': 'dedicated'}
NUMA = plugin_loader.DEFAULT_FILTERS.index('NUMATopologyFilter')


@pytest.fixture(scope='module')
def pipeline():
    return plugin_loader.load_pipeline(options={'pci_aliases': ALIASES})


def a_numa_host(number=1, cells=2, **fields):
    """Return a host that is better the higher its number is."""
    numa = fields.pop('numa', None) or [a_cell(n) for n in range(cells)]
    pinned = sum(len(cell.pinned_cpus) for cell in numa)
    fields.setdefault('ram', 32768 + 8192 * number)
    return a_host(number, numa=numa, inventories={'PCPU': Inventory(total=pinned)}, **fields)


def asking(specs=None, count=1, pcpu=4, **fields):
    resources = {'PCPU': pcpu, 'MEMORY_MB': 4096, 'DISK_GB': 20}
    flavor = Flavor(extra_specs=PINNED if specs is None else specs)
    return a_request(count, resources=resources, flavor=flavor, **fields)


def torn(number):
    """Return a host with enough of everything, and nothing of it together."""
    return a_numa_host(number, numa=[a_cell(0, pages=[]), a_cell(1, pinned_cpus=[201, 202])])


def cores(decision):
    return [
        sorted(cpu for cell in m.selection.layout['cells'] for _, cpu in cell['pins'])
        for m in decision.members
    ]


def test_a_selection_carries_its_layout(pipeline):
    table = a_table(a_numa_host())
    decision = decide(table, asking(), pipeline)
    selection = decision.members[0].selection
    layout = layouts.read(selection.layout)
    assert layout.cells[0].cell == 0 and cores(decision) == [[4, 5, 6, 7]]
    assert next(iter(table.placed.on_provider(1).values())).layout == layout


def test_processors_dedicated_by_amount_alone_are_laid_out_as_well(pipeline):
    table = a_table(a_numa_host(1), a_host(2, inventories={'PCPU': Inventory(total=64)}))
    decision = decide(table, asking(specs={}, count=2), pipeline)
    assert hosts_of(decision) == ['cmp-1', 'cmp-1']
    assert len({cpu for mine in cores(decision) for cpu in mine}) == 8


def test_members_get_cores_of_their_own_and_an_undo_gives_them_back(pipeline):
    table = a_table(a_numa_host())
    request = asking(count=4)
    decision = decide(table, request, pipeline)
    assert len({cpu for mine in cores(decision) for cpu in mine}) == 16
    assert decide(table, asking(number=2), pipeline).reason.startswith('0/1 hosts fit: 1 too')
    undo_decision(table, decision, request)
    assert cores(decide(table, request, pipeline)) == cores(decision)


def test_what_fits_nowhere_together_passes_to_the_next_best(pipeline):
    specs = {**PINNED, 'hw:mem_page_size': 'large'}
    table = a_table(a_numa_host(1), torn(2), torn(3))
    decision = decide(table, asking(specs), pipeline)
    assert hosts_of(decision) == ['cmp-1']


def near(specs=None):
    return {**PINNED, 'pci_passthrough:alias': 'near', **(specs or {})}


def far(number):
    """Return a host whose device is where there are no processors left."""
    full = a_cell(1, used_pinned_cpus=a_cell(1).pinned_cpus)
    return a_numa_host(number, numa=[a_cell(0), full], devices=[a_pool(4, node=1)])


def test_a_better_host_without_a_layout_is_removed_by_its_filter(pipeline):
    hosts = [a_numa_host(1, devices=[a_pool(4, node=1)]), *(far(n) for n in range(2, 9))]
    decision = decide(a_table(*hosts), asking(near()), pipeline)
    member = decision.members[0]
    assert hosts_of(decision) == ['cmp-1']
    assert member.verdicts == bytes([CHOSEN_VERDICT, *[NUMA] * 7])
    assert member.survivors + sum(count.removed for count in member.filters) == 8
    assert member.filters[NUMA].removed == 7
    assert [score.host for score in member.scores] == ['cmp-1']
    assert member.alternates == []


@pytest.mark.parametrize(
    ('able', 'unable', 'expected'),
    [
        ([99], range(1, 99), {'searched': 1, 'outranked': 98}),
        ([1], range(2, 100), {'searched': 5, 'ruled_out': 94}),
        ([1, 2], range(3, 100), {'searched': 5, 'ruled_out': 93, 'outranked': 1}),
        ([], range(1, 100), {'searched': 4, 'ruled_out': 95}),
    ],
    ids=['the best fits', 'the worst fits', 'the last but one fits', 'nobody'],
)
def test_who_cannot_win_is_not_laid_out(pipeline, able, unable, expected):
    hosts = [*(far(n) for n in unable)]
    hosts += [a_numa_host(n, devices=[a_pool(4, node=1)]) for n in able]
    pipeline.layout_hosts.clear()
    decide(a_table(*hosts), asking(near(), alternates=0), pipeline)
    assert {k: n for k, n in pipeline.layout_hosts.items() if n} == expected


def test_where_no_host_has_a_layout_all_are_told(pipeline):
    decision = decide(a_table(*(far(n) for n in range(1, 8))), asking(near()), pipeline)
    assert decision.outcome == 'no_valid_host'
    assert decision.reason == ('0/7 hosts fit: 7 its cells and its devices do not come together')
    assert decision.members[0].verdicts == bytes([NUMA] * 7)


def in_many_cells(number):
    """Return a host of more cells than are judged at once; devices are apart from processors."""
    pinned = {200: [], 201: [201, 202, 203, 204]}
    cells = [a_cell(n, pinned_cpus=pinned.get(n, [])) for n in range(180, 220)]
    return a_numa_host(number, numa=cells, devices=[a_pool(4, node=200)])


def test_who_was_not_laid_out_when_the_steps_were_used_up_is_given_up(pipeline, monkeypatch):
    able = in_many_cells(1)
    able = replace(able, facts=replace(able.facts, devices=[a_pool(4, node=201)]))
    table = a_table(able, *(in_many_cells(n) for n in range(2, 12)))
    assert hosts_of(decide(table.copy(), asking(near()), pipeline)) == ['cmp-1']
    monkeypatch.setattr(layout_choice, 'LAYOUT_STEPS_MAX', 200)
    decisions = [decide(table.copy(), asking(near()), pipeline) for _ in range(2)]
    for decision in decisions:
        assert decision.outcome == 'no_valid_host'
        assert decision.relaxed == [layout_choice._STEPS_EXCEEDED_LINE]
        assert decision.members[0].verdicts == bytes([NUMA] * 11)


def test_a_rule_is_given_up_where_only_then_a_host_has_a_layout(pipeline):
    places = [*((far(n), 's1') for n in range(2, 9)), *((far(n), 's2') for n in range(9, 16))]
    places.append((a_numa_host(1, devices=[a_pool(4, node=1)]), 's2'))
    table = a_table(
        *(replace(host, facts=replace(host.facts, location=place)) for host, place in places)
    )
    request = asking(near(), hints={'rules': ['drop 1: location in "s1"']})
    decision = decide(table, request, pipeline)
    assert hosts_of(decision) == ['cmp-1']
    assert decision.members[0].filters[NUMA].removed == 14


def test_later_members_do_not_look_at_the_unfit_again(pipeline):
    hosts = [a_numa_host(1, devices=[a_pool(4, node=1)]), *(far(n) for n in range(2, 9))]
    decision = decide(a_table(*hosts), asking(near(), count=2), pipeline)
    assert hosts_of(decision) == ['cmp-1', 'cmp-1']
    for member in decision.members:
        assert member.survivors + sum(count.removed for count in member.filters) == 8
        assert member.filters[NUMA].removed == 7


def test_alternates_have_room_inside_as_well(pipeline):
    hosts = [a_numa_host(1, devices=[a_pool()]), far(2), a_numa_host(3, devices=[a_pool()])]
    decision = decide(a_table(*hosts), asking(near()), pipeline)
    assert hosts_of(decision) == ['cmp-3']
    assert [alternate.host for alternate in decision.members[0].alternates] == ['cmp-1']


def test_a_forced_host_is_not_pinned_twice(pipeline):
    table = a_table(a_numa_host(1, numa=[a_cell(0, used_pinned_cpus=[4, 5, 6, 7, 8])]))
    decision = decide(table, asking(force_hosts=['cmp-1']), pipeline)
    assert decision.outcome == 'no_valid_host'
    assert 'too few free dedicated processors' in decision.reason


def test_a_wish_that_makes_no_sense_is_refused(pipeline):
    with pytest.raises(exceptions.InvalidMessage, match='hw:cpu_policy: expected one of'):
        decide(a_table(a_numa_host()), asking({'hw:cpu_policy': 'mine'}), pipeline)


def test_a_rebuild_lays_nothing_out(pipeline):
    request = asking(purpose=Purpose.REBUILD, force_hosts=['cmp-1'])
    decision = decide(a_table(a_numa_host()), request, pipeline)
    assert decision.members[0].selection.layout is None


def test_plain_requests_have_no_layout(pipeline):
    decision = decide(a_table(a_numa_host()), a_request(), pipeline)
    assert decision.members[0].selection.layout is None


def test_packing_is_an_option():
    used = a_cell(0, used_pinned_cpus=[4, 5])
    for pack, cell in ((False, 1), (True, 0)):
        options = {'packing_host_numa_cells_allocation_strategy': pack}
        decision = decide(
            a_table(a_numa_host(numa=[used, a_cell(1)])),
            asking(),
            plugin_loader.load_pipeline(options=options),
        )
        assert decision.members[0].selection.layout['cells'][0]['cell'] == cell


def test_without_the_filters_nothing_is_laid_out():
    inside = {'NUMATopologyFilter', 'PciPassthroughFilter'}
    names = [name for name in plugin_loader.DEFAULT_FILTERS if name not in inside]
    decision = decide(
        a_table(a_numa_host()), asking(near()), plugin_loader.load_pipeline(filters=names)
    )
    assert decision.members[0].selection.layout is None


@pytest.mark.parametrize('unable', [range(2, 4), range(2, 12)])
def test_the_unfit_stay_removed_where_hosts_are_evaluated_anew(pipeline, unable):
    able = a_numa_host(1, devices=[a_pool(4, node=1)])
    table = a_table(able, *(far(n) for n in unable))
    four = near({'pci_passthrough:alias': 'near:4'})
    decision = decide(table, asking(four, count=2), pipeline, pause=lambda _: Pause.REEVALUATE)
    assert decision.outcome == 'no_valid_host'
    failed = decision.members[1]
    assert failed.filters[NUMA].removed == len(unable)
    assert failed.survivors + sum(count.removed for count in failed.filters) == len(table)
