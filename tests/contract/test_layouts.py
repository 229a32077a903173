# SPDX-License-Identifier: Apache-2.0
"""Cores, pages and devices are given once: by claims, at the commit, whoever planned what."""

from collections import Counter

import pytest

from gantt.core.claims.commit import CommitStatus
from gantt.core.messages import layout as layouts
from gantt.core.messages.report import DevicePool, NumaCell, NumaPages
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.topology_request import (
    CpuPolicy,
    DeviceSpec,
    GuestCell,
    PciRequest,
    TopologyRequest,
)
from gantt.core.topology.free import free_topology_of
from gantt.core.topology.search import find_layout
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    changed,
    claimed,
    commit,
    live,
    report_outcome,
    uuid_of,
)
from tests.contract.test_threads import CALLERS, at_once

CELLS = [
    NumaCell(
        id=n,
        cpus=[],
        pinned_cpus=[n * 8 + i for i in range(8)],
        memory_mb=8192,
        socket=n,
        pages=[NumaPages(size_kb=2048, total=2048)],
    )
    for n in range(2)
]
GPUS = [DevicePool(vendor_id='10de', product_id='1eb8', numa_node=0, count=2, free=2)]
ROOM = {
    'PCPU': Inventory(total=16),
    'MEMORY_MB': Inventory(total=16384),
    'VCPU': Inventory(total=8),
}


@pytest.fixture
def numa_host(store):
    """A host of two cells of 8 dedicated processors, with two devices at the first."""
    return a_host().having(inventories=ROOM, numa=CELLS, devices=GPUS).on(store)


def a_wish(count=4, gpus=0):
    cpus = tuple(range(count))
    device = PciRequest(alias='gpu', count=gpus, specs=(DeviceSpec(vendor_id='10de'),))
    return TopologyRequest(
        cells=(GuestCell(cpus, 1024, cpus),),
        cpu_policy=CpuPolicy.DEDICATED,
        page='2048',
        devices=(device,) if gpus else (),
    )


def laid(host, wish=None, taken=()):
    """A layout on the host with only ``taken`` on it, as somebody plans who knows no more."""
    layout = find_layout(wish or a_wish(), free_topology_of(host.row.facts, taken)).layout
    return layouts.layout_json(layout)


def pinning(host, layout, draft=None, **fields):
    """A draft with a member of that layout, planned at the host's generation now."""
    count = sum(len(cell['pins']) for cell in layout['cells'])
    at = fields.pop('generation', host.row.generation)
    draft = draft or a_draft()
    return draft.taking(host, generation=at, layout=layout, pcpu=count, ram=1024, **fields)


def cores_of(claims):
    return Counter(
        cpu for claim in claims for cell in layouts.read(claim.layout).cells for _, cpu in cell.pins
    )


def placed_layouts(store, host):
    changes = {change.provider_id: change for change in store.feed.load_everything().hosts}
    return {placed.claim_id: placed.layout for placed in changes[host.id].placed}


def test_a_layout_goes_with_its_claim_and_to_every_reader(store, numa_host):
    layout = laid(numa_host)
    claim = claimed(store, pinning(numa_host, layout))[0]
    assert claim.layout == layout
    assert store.claims.load_claim(claim.id).layout == layout
    assert placed_layouts(store, numa_host) == {claim.id: layouts.read(layout)}
    assert store.claims.audit() == CLEAN


def test_two_plans_with_the_same_cores_are_one_too_many(store, numa_host):
    layout = laid(numa_host)
    first, second = pinning(numa_host, layout), pinning(numa_host, layout)
    assert [outcome.outcome for outcome in commit(store, first, second).outcomes] == [
        'placed',
        'dropped',
    ]
    assert report_outcome(store, pinning(numa_host, layout)).outcome is CommitStatus.DROPPED
    assert max(cores_of(live(store)).values()) == 1
    assert store.claims.audit() == CLEAN


def test_a_layout_planned_at_another_generation_holds_where_nothing_of_it_is_taken(
    store, numa_host
):
    at = numa_host.row.generation
    first = laid(numa_host)
    second = laid(numa_host, taken=[layouts.read(first)])
    report_outcome(store, a_draft().taking(numa_host, vcpu=1))
    assert (
        report_outcome(store, pinning(numa_host, first, generation=at)).outcome
        is CommitStatus.PLACED
    )
    assert (
        report_outcome(store, pinning(numa_host, second, generation=at)).outcome
        is CommitStatus.PLACED
    )
    assert (
        report_outcome(store, pinning(numa_host, second, generation=at)).outcome
        is CommitStatus.DROPPED
    )


def test_what_a_claim_held_is_free_when_it_ends(store, numa_host):
    layout = laid(numa_host)
    claim = claimed(store, pinning(numa_host, layout))[0]
    assert numa_host.release(claim)[0].outcome == 'ok'
    assert placed_layouts(store, numa_host) == {}
    assert report_outcome(store, pinning(numa_host, layout)).outcome is CommitStatus.PLACED


def test_a_lease_that_ran_out_gives_cores_back(store, numa_host):
    layout = laid(numa_host)
    claimed(store, pinning(numa_host, layout).leased(-1))
    store.claims.sweep(10)
    assert report_outcome(store, pinning(numa_host, layout)).outcome is CommitStatus.PLACED


def test_devices_and_pages_are_given_once_as_well(store, numa_host):
    wish = a_wish(2, gpus=2)
    first = laid(numa_host, wish)
    assert report_outcome(store, pinning(numa_host, first)).outcome is CommitStatus.PLACED
    other = laid(numa_host, a_wish(2), taken=[layouts.read(first)])
    assert (
        report_outcome(store, pinning(numa_host, {**other, 'devices': first['devices']})).outcome
        == 'dropped'
    )
    greedy = {**other, 'cells': [{**other['cells'][0], 'memory_mb': 8192}]}
    assert report_outcome(store, pinning(numa_host, greedy)).outcome is CommitStatus.DROPPED
    assert report_outcome(store, pinning(numa_host, other)).outcome is CommitStatus.PLACED


def test_a_layout_for_cells_that_are_gone_is_void(store, numa_host):
    layout = laid(numa_host)
    numa_host.send(numa_host.says().having(numa=[]))
    assert report_outcome(store, pinning(numa_host, layout)).outcome is CommitStatus.DROPPED


def test_what_the_host_pins_itself_is_not_given(store, numa_host):
    layout = laid(numa_host)
    used = [changed(cell, used_pinned_cpus=cell.pinned_cpus[:1]) for cell in CELLS]
    numa_host.send(numa_host.says().having(numa=used))
    assert report_outcome(store, pinning(numa_host, layout)).outcome is CommitStatus.DROPPED


def test_a_request_that_must_be_whole_leaves_no_cores_behind(store, numa_host):
    layout = laid(numa_host)
    draft = pinning(numa_host, layout, pinning(numa_host, layout).having(whole=True))
    assert report_outcome(store, draft).outcome is CommitStatus.DROPPED
    assert report_outcome(store, pinning(numa_host, layout)).outcome is CommitStatus.PLACED


def test_an_overtaken_attempt_gives_its_cores_to_the_next(store, numa_host):
    layout = laid(numa_host)
    first = pinning(numa_host, layout).having(completes=False, budget_seconds=-1.0)
    assert report_outcome(store, first).outcome is CommitStatus.PARTIAL
    again = pinning(numa_host, layout, a_draft(first.id, owner='worker-2').taking_over(1))
    assert report_outcome(store, again).outcome is CommitStatus.PLACED
    assert sorted(cores_of(live(store)).values()) == [1] * 4


def test_callers_in_a_race_never_pin_a_core_twice(store, numa_host):
    def work(number):
        outcomes = []
        for _ in range(3):
            pinned = [taken for taken in placed_layouts(store, numa_host).values() if taken]
            layout = find_layout(a_wish(), free_topology_of(numa_host.row.facts, pinned)).layout
            if layout is None:
                break
            layout = layouts.layout_json(layout)
            outcomes.append(
                report_outcome(
                    store, pinning(numa_host, layout, a_draft(owner=f'w{number}'))
                ).outcome
            )
        return outcomes

    outcomes = Counter(outcome for of_caller in at_once(work) for outcome in of_caller)
    assert outcomes[CommitStatus.PLACED] >= 1 and CALLERS > 4
    pinned = cores_of(live(store))
    assert sum(pinned.values()) == 4 * outcomes[CommitStatus.PLACED] <= 16
    assert set(pinned.values()) == {1}
    assert store.claims.audit() == CLEAN


def test_the_audit_finds_a_core_that_two_claims_have(store, numa_host, damage):
    claim = claimed(store, pinning(numa_host, laid(numa_host), vcpu=1))[0]
    damage.double(claim, uuid_of('twin'), request_id=uuid_of('request'), consumer=uuid_of('other'))
    lines = [line for line in store.claims.audit()['over_commit'] if 'processor' in line]
    assert lines and 'cmp-1' in lines[0] and claim.id in lines[0]


def test_the_audit_finds_pages_and_devices_that_are_given_out_twice(store, numa_host, damage):
    first = laid(numa_host, a_wish(2, gpus=2))
    first['cells'][0]['memory_mb'] = 3072
    claim = claimed(store, pinning(numa_host, first, vcpu=1))[0]
    assert store.claims.audit() == CLEAN
    damage.double(claim, uuid_of('twin'), request_id=uuid_of('request'), consumer=uuid_of('other'))
    text = '\n'.join(store.claims.audit()['over_commit'])
    assert 'cmp-1: of pages of 2048 KiB of NUMA cell 0 claims have 3072, there are 2048' in text
    assert 'cmp-1: of devices 10de 1eb8 claims have 4, there are 2' in text


def test_what_the_host_itself_took_since_is_no_violation(store, numa_host):
    claimed(store, pinning(numa_host, laid(numa_host, a_wish(2, gpus=2))))
    taken = [
        changed(cell, pages=[NumaPages(size_kb=2048, total=2048, used=2048)]) for cell in CELLS
    ]
    numa_host.send(numa_host.says().having(numa=taken, devices=[changed(GPUS[0], free=0)]))
    assert store.claims.audit() == CLEAN
    numa_host.send(numa_host.says().having(numa=CELLS[1:], devices=[]))
    assert store.claims.audit() == CLEAN
