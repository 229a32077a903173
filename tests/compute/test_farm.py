# SPDX-License-Identifier: Apache-2.0
"""A farm of fake hosts: the same from the same seed, disturbed on demand, and quick."""

import time

import msgspec
import pytest

from gantt import exceptions
from gantt.compute.agent.agent import Halted
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.farm import Farm, FarmPlan, Fault, HostSelector, load_events
from gantt.compute.shapes import Shape, load_shapes
from gantt.core.messages.build import Delete
from tests.compute.hosts_in_memory import HostsInMemory, a_delete

QUICK = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}


def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, 'it did not happen in time'
        time.sleep(0.01)


@pytest.fixture
def farm(memory_hosts):
    """Twenty living hosts; ``change_seconds`` is short so that tests are."""
    new_farm = a_farm(memory_hosts, 20)
    yield new_farm
    assert new_farm.stop(20)


def a_farm(memory_hosts: HostsInMemory, count: int, events=(), **plan) -> Farm:
    new_farm = Farm(
        FarmPlan(count=count, seed=7, **plan),
        memory_hosts.port,
        HostAgentSettings(report_seconds=60, change_seconds=0.05),
        events,
    )
    new_farm.start()
    until(lambda: new_farm.status()['reporting'] == count)
    return new_farm


def reported(memory_hosts: HostsInMemory, farm: Farm) -> None:
    """Every host has said what it has to say."""
    members = [h.host_agent for h in farm.hosts.values() if h.host_agent is not None]
    # Counted before any is hurried: the first report while the last ones are still asked.
    before = [member.reports for member in members]
    for member in members:
        member.changed(True)
    until(lambda: all(m.reports > b for m, b in zip(members, before, strict=True)), 60)


def test_the_same_seed_plays_the_same_hosts(memory_hosts):
    def described(seed):
        farm = Farm(FarmPlan(count=50, seed=seed), memory_hosts.port)
        return [(h.name, h.uuid, h.zone, h.shape, h.driver.facts([])) for h in farm.hosts.values()]

    assert described(7) == described(7)
    assert described(7) != described(8)
    assert len({shape for _, _, _, shape, _ in described(7)}) == 3


def test_so_many_hosts_have_a_shape_as_it_counts(memory_hosts):
    shapes = [Shape(name='few', count=3), Shape(name='any'), Shape(name='two', count=2)]
    plan = FarmPlan(count=9, seed=7, shapes=shapes)
    dealt = [host.shape for host in Farm(plan, memory_hosts.port).hosts.values()]
    assert dealt == ['few'] * 3 + ['two'] * 2 + ['any'] * 4
    plan = FarmPlan(
        count=4, seed=7, shapes=[Shape(name='one', count=1), Shape(name='few', count=2)]
    )
    dealt = [host.shape for host in Farm(plan, memory_hosts.port).hosts.values()]
    assert dealt[:3] == ['one', 'few', 'few'] and dealt[3] in ('one', 'few')


def test_a_farm_grows_without_changing_the_hosts_it_had(memory_hosts):
    small = Farm(FarmPlan(count=10, seed=7), memory_hosts.port)
    large = Farm(FarmPlan(count=20, seed=7), memory_hosts.port)
    for name, host in small.hosts.items():
        assert (host.shape, host.zone) == (large.hosts[name].shape, large.hosts[name].zone)


def test_what_fails_to_start_follows_from_the_claim(memory_hosts):
    farm = a_farm(memory_hosts, 2, start_failures=0.5)
    builds = [memory_hosts.claim('fake-00000', **QUICK) for _ in range(20)]
    first = [farm.build(b).outcome for b in builds]
    assert {'running', 'failed'} == set(first)
    again = Farm(FarmPlan(count=2, seed=7, start_failures=0.5), memory_hosts.port)
    for build, outcome in zip(builds, first, strict=True):
        try:
            again.hosts['fake-00000'].driver.start(build)
            assert outcome == 'running'
        except exceptions.Unavailable:
            assert outcome == 'failed'
    farm.stop()


def test_builds_and_deletes_go_to_the_host_they_name(memory_hosts, farm):
    build = memory_hosts.claim('fake-00003', **QUICK)
    assert farm.build(build).outcome == 'running'
    assert memory_hosts.state(build) == 'confirmed'
    assert farm.delete(a_delete(build)).outcome == 'deleted'
    with pytest.raises(
        exceptions.InvalidMessage, match="host: expected a host of this farm; got 'elsewhere'"
    ):
        farm.delete(Delete(consumer=build.consumer, host='elsewhere'))


def test_a_host_that_disagrees_refuses_until_it_agrees(memory_hosts, farm):
    names = HostSelector(names=['fake-00003'])
    assert farm.command(Fault(do='disagree', hosts=names))['hosts'] == ['fake-00003']
    build = memory_hosts.claim('fake-00003', **QUICK)
    assert farm.build(build).outcome == 'refused'
    assert memory_hosts.state(build) == 'refused'
    farm.command(Fault(do='agree', hosts=names))
    assert farm.build(memory_hosts.claim('fake-00003', **QUICK)).outcome == 'running'


def test_a_dead_host_answers_nothing_and_comes_back_with_a_new_epoch(memory_hosts, farm):
    build = memory_hosts.claim('fake-00003', **QUICK)
    farm.build(build)
    names = HostSelector(names=['fake-00003'])
    farm.command(Fault(do='die', hosts=names))
    with pytest.raises(Halted):
        farm.build(memory_hosts.claim('fake-00003', **QUICK))
    assert farm.status()['alive'] == 19
    farm.command(Fault(do='revive', hosts=names))
    until(lambda: farm.status()['reporting'] == 20)
    assert farm.hosts['fake-00003'].host_agent.session.epoch == 2
    assert memory_hosts.state(build) == 'confirmed'
    assert farm.build(build).outcome == 'running'
    assert farm.hosts['fake-00003'].driver.started == 1


def test_a_host_whose_power_went_gives_its_claims_back(memory_hosts, farm):
    build = memory_hosts.claim('fake-00003', **QUICK)
    farm.build(build)
    farm.command(Fault(do='restart', hosts=HostSelector(names=['fake-00003']), guests='gone'))
    until(lambda: memory_hosts.state(build) == 'released')
    assert farm.build(build).outcome == 'finished'
    memory_hosts.audit()


@pytest.mark.parametrize(('guests', 'state'), [('alive', 'confirmed'), ('gone', 'released')])
def test_a_lost_disk_leaves_what_runs(memory_hosts, farm, guests, state):
    build = memory_hosts.claim('fake-00003', **QUICK)
    farm.build(build)
    farm.command(Fault(do='lose_disk', hosts=HostSelector(names=['fake-00003']), guests=guests))
    until(lambda: farm.status()['reporting'] == 20)
    reported(memory_hosts, farm)
    assert memory_hosts.state(build) == state
    farm.build(build)
    assert farm.hosts['fake-00003'].driver.started == 1
    assert memory_hosts.adopted() == []
    memory_hosts.audit()


def test_a_build_that_is_cut_off_by_death_starts_nothing(memory_hosts, farm):
    build = memory_hosts.claim('fake-00003', **QUICK)
    names = HostSelector(names=['fake-00003'])

    def before(word, message):
        if word == 'confirm':
            farm.command(Fault(do='die', hosts=names))

    memory_hosts.port.before = before
    with pytest.raises(Halted):
        farm.build(build)
    memory_hosts.port.before = lambda word, message: None
    assert farm.hosts['fake-00003'].driver.started == 0
    farm.command(Fault(do='revive', hosts=names))
    # The journal survived: the build goes on where it was cut off.
    until(lambda: farm.hosts['fake-00003'].driver.started == 1)
    until(lambda: memory_hosts.state(build) == 'confirmed')
    memory_hosts.audit()


def test_orders_draw_the_same_hosts_from_the_same_seed(memory_hosts):
    def drawn():
        farm = Farm(FarmPlan(count=100, seed=3), memory_hosts.port)
        return farm.command(Fault(do='disagree', hosts=HostSelector(fraction=0.1)))['hosts']

    assert drawn() == drawn()
    assert len(drawn()) == 10


def test_orders_choose_by_zone_shape_and_count(memory_hosts):
    farm = Farm(FarmPlan(count=100, seed=3), memory_hosts.port)
    zone = farm.command(Fault(do='disagree', hosts=HostSelector(zone='az-1', shape='general')))[
        'hosts'
    ]
    assert zone
    assert all(farm.hosts[n].zone == 'az-1' and farm.hosts[n].shape == 'general' for n in zone)
    assert farm.command(Fault(do='agree', hosts=HostSelector(count=3)))['count'] == 3


def test_events_happen_in_time(memory_hosts, tmp_path):
    path = tmp_path / 'events.yaml'
    path.write_text(
        'events:\n'
        '  - {at: 0.6, do: revive, guests: gone}\n'
        '  - {at: 0.2, do: die, hosts: {count: 5}}\n'
    )
    farm = a_farm(memory_hosts, 20, load_events(str(path)))
    until(lambda: farm.status()['alive'] == 15)
    until(lambda: farm.status()['alive'] == 20)
    farm.stop()


@pytest.mark.parametrize(
    ('text', 'problem'),
    [
        ('events: [{do: die}, {do: dy}]', r'events\[1\].do: Invalid enum value'),
        ('events: [{do: die, host: {}}]', r"events\[0\].host: unknown field; did you mean 'hosts'"),
        ('happenings: []', 'expected one key, events'),
        ('events: [', 'is not YAML'),
        ('events: 2026-13-45', 'is not YAML'),
        ('events: &a [*a]', 'an alias stands for what contains it'),
    ],
)
def test_a_wrong_event_is_refused_naming_file_event_and_field(tmp_path, text, problem):
    path = tmp_path / 'events.yaml'
    path.write_text(text)
    with pytest.raises(exceptions.GanttError, match=problem) as caught:
        load_events(str(path))
    assert str(path) in str(caught.value)


def test_shapes_of_a_file_are_played(memory_hosts, tmp_path):
    path = tmp_path / 'shapes.yaml'
    path.write_text(
        'shapes:\n'
        '- {name: odd, vcpus: 7, pcpus: 5, memory_mb: 9999, disk_gb: 11, numa_cells: 2,\n'
        '   zones: [z], aggregates: [rack-1], traits: [CUSTOM_X], pages: {"2048": 10},\n'
        '   foreign: {VCPU: 1}, inventories: {CUSTOM_LICENSE: {total: 3}}}\n'
    )
    farm = Farm(FarmPlan(count=3, shapes=load_shapes(str(path))), memory_hosts.port)
    facts = farm.hosts['fake-00000'].driver.facts([])
    totals = {name: i.total for name, i in facts.inventories.items()}
    assert totals == {
        'VCPU': 7,
        'PCPU': 5,
        'MEMORY_MB': 9999,
        'DISK_GB': 11,
        'CUSTOM_LICENSE': 3,
    }
    assert [cell.cpus for cell in facts.numa] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [cell.pinned_cpus for cell in facts.numa] == [[7, 8, 9], [10, 11]]
    assert (facts.zone, facts.aggregates, facts.traits) == ('z', ['rack-1'], ['CUSTOM_X'])


@pytest.mark.parametrize(
    ('text', 'problem'),
    [
        ('shapes: [{vcpu: 3}]', r"shapes\[0\].vcpu: unknown field; did you mean 'vcpus'"),
        ('shapes: [{}, {vcpus: 0}]', r'shapes\[1\].vcpus: expected a whole number >= 1'),
        ('shapes: [{inventories: {VGPU: {total: -1}}}]', r'inventories.VGPU.total: expected 0'),
        ('shapes: []', 'expected a list of length >= 1'),
    ],
)
def test_a_wrong_shape_is_refused_naming_file_entry_and_field(tmp_path, text, problem):
    path = tmp_path / 'shapes.yaml'
    path.write_text(text)
    with pytest.raises(exceptions.InvalidMessage, match=problem) as caught:
        load_shapes(str(path))
    assert str(path) in str(caught.value)


def test_a_thousand_hosts_report_and_build_without_falling_behind(memory_hosts):
    """A smoke test; the bench of reports has the real figures."""
    farm = a_farm(memory_hosts, 1000, threads=4)
    began = time.process_time()
    reported(memory_hosts, farm)
    builds = [memory_hosts.claim(name, **QUICK) for name in list(farm.hosts)[:200]]
    assert {farm.build(build).outcome for build in builds} == {'running'}
    assert time.process_time() - began < 20
    assert farm.status()['failures'] == 0
    assert farm.stop(20)
    memory_hosts.audit()


def test_the_status_says_how_the_farm_is(memory_hosts, farm):
    status = farm.command(Fault(do='status'))['status']
    assert msgspec.structs.asdict(Fault(do='status'))['do'] == 'status'
    assert (status['hosts'], status['alive'], status['fenced']) == (20, 20, 0)
