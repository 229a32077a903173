# SPDX-License-Identifier: Apache-2.0
"""Pinned guests through the whole scheduler: claimed with their cores, by any number of workers."""

from collections import Counter

import msgspec

from gantt.core.messages import layout as layouts
from gantt.core.messages.report import NumaCell, NumaPages, ReportedMetric
from gantt.core.messages.request import Flavor
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Outcome
from tests.world import Host, World, a_request

PINNED = {'hw:cpu_policy': 'dedicated', 'hw:mem_page_size': 'large'}
CELLS = [
    NumaCell(
        id=n,
        pinned_cpus=[n * 8 + i for i in range(8)],
        memory_mb=8192,
        siblings=[[n * 8 + i, n * 8 + i + 1] for i in range(0, 8, 2)],
        pages=[NumaPages(size_kb=2048, total=2048)],
    )
    for n in range(2)
]
ROOM = {
    'VCPU': Inventory(total=8),
    'PCPU': Inventory(total=16),
    'MEMORY_MB': Inventory(total=16_384),
    'DISK_GB': Inventory(total=500),
}


def a_world(hosts=1):
    world = World()
    for number in range(1, hosts + 1):
        host = Host(world, f'cmp-{number}', inventories=ROOM, numa=CELLS)
        host.report()
        world.hosts[host.name] = host
    world.turn()
    return world


def pinned(count=1, cpus=4, specs=None):
    request = a_request(count, flavor=Flavor(extra_specs=specs or PINNED))
    spec = msgspec.structs.replace(request.spec, resources={'PCPU': cpus, 'MEMORY_MB': 1024})
    return msgspec.structs.replace(request, spec=spec)


def cores(world):
    """(host, processor) -> by how many live claims it is held."""
    return Counter(
        (claim.host, cpu)
        for claim in world.store.claims.list_claims(limit=1000)
        if claim.is_live
        for cell in layouts.read(claim.layout).cells
        for _, cpu in cell.pins
    )


def clean(world):
    return not any(world.audit().values())


def test_the_answer_says_where_inside_of_the_host():
    world = a_world()
    answer = world.select(pinned())
    chosen = answer.selections[0][0]
    assert world.store.claims.load_claim(chosen.claim_id).layout == chosen.layout
    assert [cell['page_kb'] for cell in chosen.layout['cells']] == [2048]


def test_two_workers_that_know_nothing_of_each_other_pin_every_core_once():
    world = a_world()
    other = world.another_scheduler()
    handles = [world.ask(pinned(), by) for by in (world.scheduler, other) for _ in range(2)]
    world.turn(times=20)
    answers = [world.replies.answers[handle] for handle in handles]
    assert [answer.outcome for answer in answers] == [Outcome.PLACED] * 4
    assert set(cores(world).values()) == {1} and len(cores(world)) == 16
    assert world.select(pinned()).outcome is Outcome.NO_VALID_HOST
    assert clean(world)


def test_a_lost_race_for_cores_is_won_with_others_in_the_next_batch():
    world = a_world(2)
    other = world.another_scheduler()
    first, second = world.ask(pinned(4)), world.ask(pinned(4), other)
    world.turn(times=20)
    assert {world.replies.answers[handle].outcome for handle in (first, second)} == {Outcome.PLACED}
    assert set(cores(world).values()) == {1} and len(cores(world)) == 32


def test_what_an_ended_claim_held_is_placed_again():
    world = a_world()
    answer = world.select(pinned(4))
    ids = [selections[0].claim_id for selections in answer.selections]
    host = world.hosts['cmp-1']
    host.confirm(*ids)
    assert world.select(pinned()).outcome is Outcome.NO_VALID_HOST
    world.scheduler.release(host.words(ids[0]))
    world.turn()
    again = world.select(pinned())
    assert again.outcome is Outcome.PLACED
    assert again.selections[0][0].layout == answer.selections[0][0].layout
    assert clean(world)


def test_what_is_refused_names_the_key():
    world = a_world()
    answer = world.select(pinned(specs={'hw:cpu_policy': 'mine'}))
    assert answer.outcome is Outcome.REFUSED and 'hw:cpu_policy' in answer.reason


def test_a_host_whose_figures_contain_its_guests_is_believed():
    world = a_world()
    answer = world.select(pinned())
    claim_id = answer.selections[0][0].claim_id
    host = world.hosts['cmp-1']
    host.confirm(claim_id)
    # It has pinned the guest otherwise than it was laid out.
    reported_cells = [msgspec.structs.replace(CELLS[0], used_pinned_cpus=[4, 5, 6, 7]), CELLS[1]]
    used = {'PCPU': 4, 'MEMORY_MB': 1024}
    host.report(
        running=None,
        pending=None,
        used=used,
        numa=reported_cells,
        metrics={'load': ReportedMetric(value=1)},
    )
    world.turn()
    assert world.store.claims.load_claim(claim_id).layout['reported'] is True
    for _ in range(3):
        assert world.select(pinned()).outcome is Outcome.PLACED
    assert (('cmp-1', 4) in cores(world)) is False
    assert world.select(pinned()).outcome is Outcome.NO_VALID_HOST
    assert clean(world)
