# SPDX-License-Identifier: Apache-2.0
"""Requests that take of what is nested below hosts: from the pick to the claim, and back."""

import json
import random

import msgspec
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.request import Purpose, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.tree_request import DeviceAmount, GroupPolicy, ResourceGroup, TreeRequest
from gantt.core.placement import tree_choice
from gantt.core.records import decision_codec
from gantt.core.records.decision import Outcome
from gantt.groups.model import take_reservations
from gantt.insights.replaying import Otherwise, Replayer, decision_differences
from gantt.nova.wire.objects import allocation_request
from tests.builders import CLEAN
from tests.nested import below
from tests.scheduler.stores import KINDS, followed, store_of
from tests.world import Host, World, new_uuid, sqlite_store

OWN = {'VCPU': Inventory(total=8), 'MEMORY_MB': Inventory(total=32_768)}


@pytest.fixture(params=KINDS)
def world(request, make_store):
    """A world with three hosts; two have two GPUs of 1000 units each below them."""
    return a_world(store_of(request.param, make_store))


def a_world(store, **settings):
    new_world = World(store, **settings)
    for number in (1, 2, 3):
        host = Host(new_world, f'cmp-{number}', inventories=OWN)
        new_world.hosts[host.name] = host
        host.report()
    new_world.turn()
    new_world.gpus = {}
    for number in (1, 2):
        root = uuid_of(new_world, f'cmp-{number}')
        for n in (0, 1):
            name = f'cmp-{number}-gpu{n}'
            new_world.gpus[name] = below(
                new_world.store, name, root, [f'CUSTOM_SLOT_{n}'], VGPU=1000
            )
    new_world.turn()
    return new_world


def uuid_of(world, name):
    table = world.scheduler.cache.working
    return table.hosts[table.row_of(name)].uuid


def devices(count, amount=1, whole=False, name='VGPU'):
    return TreeRequest(
        devices=[DeviceAmount(resource_class=name, count=count, amount=amount, whole=whole)]
    )


def groups(policy='none', same_subtree=(), **of):
    return TreeRequest(
        groups={suffix: ResourceGroup(resources=amounts) for suffix, amounts in of.items()},
        group_policy=policy and GroupPolicy(policy),
        same_subtree=list(same_subtree),
    )


def wanting(tree, count=1, alternates=0, **amounts):
    return SelectDestinations(
        request_id=new_uuid(),
        spec=RequestSpec(resources={'VCPU': 1, **amounts}, tree=tree),
        consumers=[new_uuid() for _ in range(count)],
        alternates=alternates,
    )


def used(world, name, of='VGPU'):
    return world.store.providers.load_provider(world.gpus[name].uuid).used.get(of, 0)


def test_a_resize_within_a_host_counts_old_and_new_devices_until_it_is_confirmed(world):
    request = wanting(devices(1, 600))
    source = world.select(request).selections[0][0]
    host = world.hosts[source.host]
    assert host.confirm(source.claim_id) == ['ok']
    gpus = [f'{source.host}-gpu{n}' for n in (0, 1)]
    resize = {'purpose': Purpose.RESIZE, 'force_hosts': [source.host]}

    def resized(amount):
        spec = msgspec.structs.replace(request.spec, tree=devices(1, amount), **resize)
        return world.select(msgspec.structs.replace(request, request_id=new_uuid(), spec=spec))

    assert resized(700).outcome is Outcome.PLACED
    assert sorted(used(world, name) for name in gpus) == [600, 700]
    assert resized(500).outcome is Outcome.NO_VALID_HOST
    world.turn()
    world.scheduler.release(host.words(source.claim_id))
    assert sorted(used(world, name) for name in gpus) == [0, 700]
    followed(world)


def test_devices_come_from_as_many_providers_below_one_host(world):
    answer = world.select(wanting(devices(2, 500), alternates=1))
    assert answer.outcome is Outcome.PLACED
    ((chosen, other),) = answer.selections
    assert {chosen.host, other.host} == {'cmp-1', 'cmp-2'}
    for selection in (chosen, other):
        assert selection.resources == {'VCPU': 1, 'VGPU': 1000}
        host, *gpus = selection.allocations
        assert (host.group, host.uuid, host.resources) == ('', selection.uuid, {'VCPU': 1})
        assert [gpu.group for gpu in gpus] == ['device1-1', 'device1-2']
        assert sorted(gpu.name for gpu in gpus) == [
            f'{selection.host}-gpu0',
            f'{selection.host}-gpu1',
        ]
        assert [gpu.resources for gpu in gpus] == [{'VGPU': 500}] * 2
    claim = world.store.claims.load_claim(chosen.claim_id)
    ids = [world.gpus[f'{chosen.host}-gpu{n}'].id for n in (0, 1)]
    assert claim.allocations == {
        chosen.provider_id: {'VCPU': 1},
        **{pid: {'VGPU': 500} for pid in ids},
    }
    assert [used(world, f'{chosen.host}-gpu{n}') for n in (0, 1)] == [500, 500]
    of_nova = json.loads(allocation_request(chosen))
    assert set(of_nova['mappings']) == {'', 'device1-1', 'device1-2'}
    followed(world)


def test_a_class_of_the_amounts_themselves_may_lie_below_the_root(world):
    answer = world.select(wanting(None, VGPU=600))
    ((chosen,),) = answer.selections
    host, gpu = chosen.allocations
    assert (host.resources, gpu.group, gpu.resources) == ({'VCPU': 1}, '', {'VGPU': 600})
    assert used(world, gpu.name) == 600
    followed(world)


def test_members_of_one_batch_never_take_more_than_a_device_has(world):
    answer = world.select(wanting(devices(1, 500), count=8))
    assert answer.outcome is Outcome.PLACED
    assert [used(world, name) for name in sorted(world.gpus)] == [1000] * 4
    refused = world.select(wanting(devices(1, 1)))
    assert refused.outcome is Outcome.NO_VALID_HOST
    followed(world)


def test_a_request_that_does_not_fit_as_a_whole_takes_nothing(world):
    refused = world.select(wanting(devices(1, 500), count=9))
    assert refused.outcome is Outcome.NO_VALID_HOST
    assert 'no one provider with 500 VGPU left (best has 0 VGPU)' in refused.reason
    assert [used(world, name) for name in sorted(world.gpus)] == [0] * 4
    followed(world)


def test_why_nobody_has_it_is_said_by_device(world):
    assert world.select(wanting(devices(1, 700), count=4)).outcome is Outcome.PLACED
    refused = world.select(wanting(devices(1, 500)))
    assert '3 no one provider with 500 VGPU left (best has 300 VGPU)' in refused.reason
    refused = world.select(wanting(devices(3, 100)))
    assert '3 fewer than 3 providers with 100 VGPU left on each' in refused.reason
    followed(world)


def test_what_each_group_has_by_itself_and_not_together(world):
    refused = world.select(wanting(groups(a={'VGPU': 600}, b={'VGPU': 600}, c={'VGPU': 600})))
    assert refused.outcome is Outcome.NO_VALID_HOST
    assert '2 no choice of providers that all groups go together on' in refused.reason
    assert world.select(wanting(groups(a={'VGPU': 600}, b={'VGPU': 600}))).outcome is Outcome.PLACED
    followed(world)


def test_a_whole_device_is_nobody_elses(world):
    assert world.select(wanting(devices(1, 1), count=1)).outcome is Outcome.PLACED
    answer = world.select(wanting(devices(1, 1000, whole=True), count=3))
    assert answer.outcome is Outcome.PLACED
    taken = [selections[0].allocations[1].name for selections in answer.selections]
    assert len(set(taken)) == 3 and all(used(world, name) == 1000 for name in taken)
    assert world.select(wanting(devices(1, whole=True))).outcome is Outcome.NO_VALID_HOST
    assert world.select(wanting(devices(1, 999))).outcome is Outcome.PLACED
    followed(world)


def test_small_shares_leave_whole_devices_whole(world):
    answer = world.select(wanting(devices(1, 250), count=4))
    names = [selections[0].allocations[1].name for selections in answer.selections]
    per_host = {gpu.rsplit('-', 1)[0]: set() for gpu in names}
    for name in names:
        per_host[name.rsplit('-', 1)[0]].add(name)
    assert all(len(of) == 1 for of in per_host.values())
    followed(world)


def test_traits_of_a_group_are_those_of_its_provider(world):
    group = ResourceGroup(resources={'VGPU': 10}, required_traits=['CUSTOM_SLOT_1'])
    answer = world.select(wanting(TreeRequest(groups={'g': group}), count=4))
    assert {selections[0].allocations[1].name[-4:] for selections in answer.selections} == {'gpu1'}
    both = ResourceGroup(resources={'VGPU': 10}, required_traits=['CUSTOM_SLOT_0', 'CUSTOM_SLOT_1'])
    refused = world.select(wanting(TreeRequest(groups={'g': both})))
    assert refused.outcome is Outcome.NO_VALID_HOST
    followed(world)


def test_traits_of_the_root_may_be_all_that_is_asked_of_a_tree(world):
    world.hosts['cmp-2'].report(traits=['HW_CPU_X86_AVX2'])
    world.turn(times=3)
    has = wanting(TreeRequest(root_required=['HW_CPU_X86_AVX2']), alternates=2)
    ((chosen,),) = world.select(has).selections
    assert (chosen.host, chosen.resources) == ('cmp-2', {'VCPU': 1})
    lacks = wanting(TreeRequest(root_forbidden=['HW_CPU_X86_AVX2']), alternates=2)
    (selections,) = world.select(lacks).selections
    assert {selection.host for selection in selections} == {'cmp-1', 'cmp-3'}
    nobody = world.select(wanting(TreeRequest(root_required=['HW_CPU_X86_SGX'])))
    assert 'no trait HW_CPU_X86_SGX of the root' in nobody.reason
    followed(world)


def test_two_schedulers_race_for_the_last_device(world):
    world.select(wanting(devices(1, 1000), count=3))
    other = world.another_scheduler()
    world.turn()
    handles = [world.ask(wanting(devices(1, 1000)), by) for by in (world.scheduler, other)]
    world.turn(times=20)
    outcomes = sorted(world.replies.answers[handle].outcome.value for handle in handles)
    assert outcomes == ['no_valid_host', 'placed']
    assert [used(world, name) for name in sorted(world.gpus)] == [1000] * 4
    followed(world)


def test_a_repeat_gets_the_answer_with_the_groups(world):
    request = wanting(devices(2, 500), alternates=1)
    first = world.select(request)
    assert world.select(request).selections == first.selections
    other = world.another_scheduler()
    assert world.select(request, by=other).selections == first.selections
    followed(world)


def test_a_dry_run_takes_nothing(world):
    request = msgspec.structs.replace(wanting(devices(2, 500)), dry_run=True)
    answer = world.select(request)
    assert answer.outcome is Outcome.PLACED
    assert [allocation.group for allocation in answer.selections[0][0].allocations][1:] == [
        'device1-1',
        'device1-2',
    ]
    assert [used(world, name) for name in sorted(world.gpus)] == [0] * 4
    followed(world)


def test_a_search_that_is_not_ended_is_not_no_room(world, monkeypatch):
    monkeypatch.setattr(tree_choice, 'SEARCH_STEPS_MAX', 0)
    answer = world.select(wanting(devices(2, 500)))
    assert answer.outcome is Outcome.UNKNOWN
    assert 'whether the groups go together' in answer.reason


def test_what_is_found_before_the_search_ends_does_not_depend_on_stored_answers():
    world = a_world(None)
    for n in (0, 1):
        below(world.store, f'cmp-3-gpu{n}', uuid_of(world, 'cmp-3'), VGPU=900)
    world.turn(times=3)
    table = world.scheduler.cache.working
    spec = wanting(groups(a={'VGPU': 600}, b={'VGPU': 200}, c={'VGPU': 500})).spec

    def look(**most):
        choice = tree_choice.TreeChoice(table, spec, **most)
        solutions = [choice.solve(row) for row in range(len(table))]
        return [solution is not None for solution in solutions], choice.given_up

    for most in ({'trees': 0}, {'trees': 1}, *({'steps': steps} for steps in range(0, 2000, 40))):
        table.pools.tree_search_results.clear()
        cold = look(**most)
        assert look(**most) == cold
        look()
        assert look(**most) == cold
    assert look(trees=1)[1] and not look()[1]


def test_a_device_that_is_moved_below_another_host_serves_that_one(world):
    gpu = world.gpus['cmp-1-gpu0']
    to = uuid_of(world, 'cmp-3')
    world.store.providers.update_provider(gpu.uuid, parent=to)
    world.turn(times=3)
    answer = world.select(wanting(devices(1, 1000), count=4))
    assert answer.outcome is Outcome.PLACED
    assert {
        (selections[0].host, selections[0].allocations[1].name)
        for selections in answer.selections
        if selections[0].allocations[1].name == gpu.name
    } == {('cmp-3', gpu.name)}
    followed(world)


def test_decisions_come_out_the_same_when_they_are_made_again():
    world = a_world(sqlite_store, checkpoint_seconds=1.0, reload_seconds=1.0)
    rng = random.Random(4)
    for number in range(20):
        tree = rng.choice(
            [
                devices(rng.randint(1, 2), rng.choice([100, 250, 400])),
                groups('isolate', a={'VGPU': 50}, b={'VGPU': 120}),
                None,
            ]
        )
        request = wanting(tree, rng.randint(1, 2), alternates=1, MEMORY_MB=100)
        answer = world.select(request)
        if not number % 4 and answer.outcome is Outcome.PLACED:
            world.hosts[answer.selections[0][0].host].confirm(answer.selections[0][0].claim_id)
        world.turn()
    for scheduler in world.schedulers:
        scheduler.cache.log.flush(world.store.table_logs)
    records = [
        world.store.records.load_decision(decision.id)[0]
        for decision in world.store.records.list_decisions(limit=1000)
    ]
    records += [record.packed for record in world.recorder.records]
    replayer = Replayer(
        world.store.table_logs, plugin_loader.load_pipeline(), 'nova', take_reservations
    )
    groups_seen = 0
    for packed in records:
        stored = decision_codec.unpack(packed)
        again = replayer.again(stored, Otherwise())
        assert decision_differences(stored.decision, again) == []
        groups_seen += sum(
            bool(allocation.group)
            for member in again.members
            if member.selection
            for allocation in member.selection.allocations
        )
    assert groups_seen > 10
    assert world.audit() == CLEAN


def test_bad_policies_are_refused_by_name():
    with pytest.raises((exceptions.GanttError, ValueError), match='group_policy'):
        groups(None, a={'VGPU': 1}, b={'VGPU': 1})
