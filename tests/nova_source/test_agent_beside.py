# SPDX-License-Identifier: Apache-2.0
"""An agent next to nova-compute, and the source that reports for the host, over a broker."""

import copy
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from devel import captures
from devel.doubles import MemoryRecorder
from gantt import client, exceptions, plugin_loader
from gantt.compute.agent.runner import Runner
from gantt.compute.facts_only import FactsReporter
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.messages.report import HostReport, NumaCell, RegisterHost, ReportedMetric
from gantt.core.messages.request import Flavor, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Outcome
from gantt.core.table.metric_values import metric_values
from gantt.core.table.metrics import DeclaredMetric
from gantt.core.topology.free import free_topology_of
from gantt.nova.client import NovaClient
from gantt.nova.model.source import GuestList
from gantt.nova.service.facade import NovaFacade
from gantt.nova.source.cells import Cells
from gantt.nova.source.source import Source
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.compute.box import Box
from tests.nemesis.site import until
from tests.nova_source.openstack import new_uuid
from tests.nova_source.region import Port
from tests.rpc.bus import Bus
from tests.rpc.facade import CELL
from tests.world import Host, hosts_of, sqlite_store

ROOT = Path(__file__).parents[2]
ROOM = {'VCPU': 4, 'PCPU': 12, 'MEMORY_MB': 16_384, 'DISK_GB': 500}


class Site:
    """A host that Nova runs, the machine that it is, and an agent on that."""

    def __init__(self, region, folder):
        self.region = region
        self.box = Box(folder / 'root')
        self.bus = Bus(facade=region.world.scheduler)
        self.client = client.StatsClient(self.bus.carrier(), timeout=20.0)
        self.wall = 1_900_000_000.0
        self.agent = self.start()

    def start(self, name='cmp-1'):
        """An agent begins anew."""
        return FactsReporter(
            name, self.box.machine().read, self.client, 0.0, random.Random(1), lambda: self.wall
        )

    def tells(self):
        """The agent's turn; what kept it from telling, or ''."""
        self.wall += 60.0
        self.agent.turn()
        return self.agent.problem

    @property
    def row(self):
        return self.region.row('cmp-1')

    @property
    def free(self):
        """Dedicated processors that nobody has."""
        (change,) = [
            c for c in self.region.world.store.feed.load_everything().hosts if c.row.name == 'cmp-1'
        ]
        room = free_topology_of(change.row.facts, [guest.layout for guest in change.placed])
        return sum(cell.free.bit_count() for cell in room.cells)


@pytest.fixture
def site(openstack, region, tmp_path):
    openstack.host('cmp-1', **ROOM)
    new_site = Site(region, tmp_path)
    yield new_site
    new_site.bus.close()


def pinned(cpus, **fields):
    """A boot of a guest with processors of its own."""
    flavor = Flavor(name='pinned', extra_specs={'hw:cpu_policy': 'dedicated'})
    spec = RequestSpec(resources={'PCPU': cpus, 'MEMORY_MB': 1024}, flavor=flavor)
    return SelectDestinations(spec=spec, request_id=new_uuid(), consumers=[new_uuid()], **fields)


# -- two voices of one host ------------------------------------------------------------------
@pytest.mark.parametrize('agent_first', [True, False], ids=['agent-first', 'source-first'])
def test_either_may_begin_and_the_host_is_the_same(site, agent_first):
    guest = new_uuid()
    site.box.guest(guest, {0: 2, 1: 3})
    if agent_first:
        assert 'does not know host cmp-1 yet' in site.tells()
    site.region.passes()
    assert site.tells() == ''
    first, second = site.row.facts.numa
    assert (first.used_pinned_cpus, first.memory_used_mb, second.used_pinned_cpus) == (
        [2, 3],
        1024,
        [],
    )
    assert {'load_1m', 'running_vms'} <= site.row.facts.metrics.keys()
    assert site.free == 10
    site.region.audit()


def test_full_reports_of_the_source_keep_what_the_agent_told(site):
    site.region.passes()
    site.tells()
    facts = site.row.facts
    site.region.passes(12)
    assert any(report.full for report in site.region.port.reports[-10:])
    assert (site.row.facts.numa, site.row.facts.devices) == (facts.numa, facts.devices)
    assert site.row.facts.metrics.keys() == facts.metrics.keys()


def test_neither_fences_the_other(site):
    site.region.passes()
    before = site.row
    for _ in range(3):
        assert site.tells() == ''
        site.region.passes()
    (member,) = site.region.source.host_agents.values()
    assert not member.session.is_fenced
    assert (site.row.epoch, member.failures) == (before.epoch, 0)
    assert site.row.sequence > before.sequence
    assert site.agent.updates_sent == 3


def test_a_host_whose_source_is_silent_is_not_up_because_its_agent_speaks(site):
    site.region.passes()
    before = site.row.reported_at
    site.region.world.turn(600.0)
    assert site.tells() == ''
    assert site.row.reported_at == before


def test_a_measurement_grows_old_while_the_source_goes_on(site):
    world = site.region.world
    world.store.declarations.save_metric(DeclaredMetric(name='load_1m', stale_seconds=300.0))
    site.region.passes()
    site.tells()
    site.region.passes(2)

    def said():
        world.turn(1.0)
        world.scheduler.cache.fetch()
        return float(metric_values(world.scheduler.cache.working, 'load_1m')[0])

    assert said() == 1.5
    site.region.passes(10)
    assert site.row.facts.metrics['load_1m'].age_seconds > 600
    assert said() != said()  # NaN: it has no say
    assert site.row.facts.numa  # what is no measurement stays
    site.tells()
    site.region.passes()
    assert said() == 1.5


# -- restarts, late words, other schedulers ----------------------------------------------------
def test_the_source_begins_anew(site):
    site.region.passes()
    site.tells()
    cells = site.row.facts.numa
    world = site.region.world
    site.region.source = Source(
        site.region.reader,
        Cells('', ''),
        Port(world),
        NovaFacade(world.store, world.scheduler).source,
        Runner(threads=1),
        300.0,
        lambda *_, **__: None,
        lambda *_, **__: None,
    )
    site.region.passes()
    assert (site.row.epoch, site.row.facts.numa) == (2, cells)
    site.box.guest(new_uuid(), {0: 2})
    assert site.tells() == ''
    assert site.free == 11


@pytest.mark.parametrize('back', [0.0, 86_400.0], ids=['at-once', 'clock-went-back'])
def test_the_agent_begins_anew(site, back):
    site.region.passes()
    site.tells()
    site.wall -= back
    site.agent = site.start()
    site.box.guest(new_uuid(), {0: 2})
    if back:
        assert 'a report with a later sequence was stored' in site.tells()
    assert site.tells() == ''
    assert site.free == 11


def test_a_word_that_comes_late_or_twice_changes_nothing(site):
    site.region.passes()
    site.tells()
    late = site.agent.make()
    site.box.guest(new_uuid(), {0: 2})
    site.tells()
    row = site.row
    for facts in (late, late):
        heard = site.client.update_host_facts(facts)
        assert (heard.outcome, heard.sequence) == ('stale', row.facts.agent.sequence)
    assert site.row == row


def test_every_scheduler_knows_what_one_was_told(site):
    world = site.region.world
    other = world.another_scheduler()
    site.region.passes()
    site.box.guest(new_uuid(), {n: 2 + n for n in range(6)})
    site.tells()
    world.turn(1.0, times=3)
    assert hosts_of(world.select(pinned(6), by=other)) == ['cmp-1']
    assert world.select(pinned(1), by=other).outcome is Outcome.NO_VALID_HOST


# -- guests --------------------------------------------------------------------------------------
def test_a_guest_from_before_keeps_the_processors_that_it_was_seen_on(site, openstack):
    (node,) = openstack.providers
    guest = openstack.server('cmp-1')
    openstack.allocate(node, guest, PCPU=4, MEMORY_MB=1024)
    pid = site.box.guest(guest, {n: 10 + n for n in range(4)}, cell=1)
    for _ in range(3):
        site.region.passes()
        site.tells()
        (claim,) = site.region.claims(guest)
        assert (claim.adopted, claim.layout) == (True, None)
        assert site.free == 8
    # It is deleted, and neither its claim nor its processors are there any more.
    openstack.delete(guest)
    openstack.allocate(node, guest)
    site.box.ends(pid)
    site.region.passes(4)
    site.tells()
    assert (site.free, site.row.used) == (12, {})
    site.region.audit()


def test_what_gantt_placed_and_nova_pinned_otherwise_counts_once(site):
    world = site.region.world
    site.region.passes()
    site.tells()
    answer = world.select(pinned(4))
    (chosen,) = answer.selections[0]
    assert site.free == 8
    guest = world.store.claims.load_claim(chosen.claim_id).consumer
    pid = site.box.guest(guest, {n: 12 + n for n in range(4)}, cell=1)
    site.tells()
    assert site.free == 8
    assert site.row.facts.numa[1].used_pinned_cpus == [12, 13, 14, 15]
    # It is shut off: nobody gets what it was promised.
    site.box.ends(pid)
    site.tells()
    assert site.free == 8


# -- who has no say -------------------------------------------------------------------------------
def test_a_host_with_an_agent_of_its_own_is_refused_and_stays_as_it_is(site):
    own = Host(site.region.world, 'cmp-9', numa=[NumaCell(id=0, cpus=[0], memory_mb=1024)])
    own.report()
    site.region.world.turn()
    before = site.region.row('cmp-9')
    site.agent = site.start('cmp-9')
    assert "no report source for Nova reports host 'cmp-9'" in site.tells()
    assert site.region.row('cmp-9') == before


@pytest.mark.parametrize(
    ('said', 'field'),
    [
        ({'numa': [{'id': 0}, {'id': 0}], 'guests': []}, 'update.numa[1].id'),
        ({'numa': [{'id': 0}]}, 'update.guests'),
        ({'guests': ['x']}, 'update.guests[0]'),
        ({'devices': [{'count': 1, 'free': 2}], 'guests': []}, 'update.devices[0].free'),
        ({'metrics': {'m': {'value': 1.0, 'age_seconds': -1.0}}}, 'update.metrics.m.age_seconds'),
        ({'inventories': {}}, 'update.inventories'),
        ({'sequence': 0}, 'update.sequence'),
    ],
)
def test_a_word_that_is_wrong_names_the_field(site, said, field):
    site.region.passes()
    raw = site.bus.raw('gantt-stats', version='1.0')
    with pytest.raises(Exception) as caught:
        raw.call({}, 'update_host_facts', update={'host': 'cmp-1', 'sequence': 1, **said})
    assert field in str(caught.value)
    assert site.row.facts.agent is None


def test_metrics_that_nobody_declared_are_refused_where_the_site_says_so(site):
    site.region.passes()
    site.region.world.scheduler.settings.refuse_undeclared_metrics = True
    facts = UpdateHostFacts(
        host='cmp-1', sequence=1, metrics={'rainfall': ReportedMetric(value=1.0)}
    )
    with pytest.raises(exceptions.InvalidMessage, match=r'update\.metrics\.rainfall'):
        site.client.update_host_facts(facts)


def test_a_scheduler_that_is_away_is_asked_again(site):
    site.region.passes()
    site.agent = FactsReporter('cmp-1', site.box.machine().read, _Away(), 0.0, random.Random(1))
    waits = [site.agent.turn() for _ in range(8)]
    assert waits[0] < 2 and 20 < waits[-1] < 40
    assert site.agent.failures == 8


def test_its_own_period_goes_before_that_of_the_scheduler(site):
    site.region.passes()
    look = site.box.machine().read
    own, beside = (
        FactsReporter('cmp-1', look, site.client, seconds, random.Random(1))
        for seconds in (600.0, 0.0)
    )
    assert 500 < own.turn() < 700
    assert 50 < beside.turn() < 70


class _Away:
    def update_host_facts(self, told):
        raise exceptions.Unavailable('update_host_facts: nobody listens on gantt-stats')


# -- on Nova's wire, and as a process --------------------------------------------------------------
def a_scheduler():
    store = sqlite_store(SystemClock())
    scheduler = Scheduler(
        store, plugin_loader.load_pipeline(), MemoryRecorder(), SchedulerSettings()
    )
    scheduler.start()
    return scheduler


def of_nova(bus, *names):
    """Hosts as a source brings them in: registered, their guests listed, reported."""
    claims, stats = client.ClaimsClient(bus.carrier()), client.StatsClient(bus.carrier())
    nova = NovaClient(bus.carrier())
    for name in names:
        registered = claims.register_host(
            RegisterHost(name=name, boot_nonce='n', cell=CELL, reporter='nova')
        )
        nova.sync_guests(GuestList(host=name, requested_at=1_900_000_000.0, guests=[]))
        report = HostReport(
            name=name,
            epoch=registered.epoch,
            sequence=1,
            full=True,
            running=None,
            pending=None,
            inventories={kind: Inventory(total=total) for kind, total in ROOM.items()},
        )
        assert stats.update_resource_stats(report).outcome == 'applied'
    return stats


@pytest.fixture
def served():
    scheduler = a_scheduler()
    bus = Bus(facade=scheduler)
    yield bus, scheduler
    bus.close()
    scheduler.stop(5.0)


def boot(conductor, cpus):
    """nova-conductor boots a guest with processors of its own; its host."""
    uuids, request = [new_uuid()], f'req-{new_uuid()}'
    _, body = captures.load('boot').fresh(uuids, request)
    spec = copy.deepcopy(body['spec_obj'])
    flavor = spec['nova_object.data']['flavor']['nova_object.data']
    flavor |= {'vcpus': cpus, 'extra_specs': {'hw:cpu_policy': 'dedicated'}}
    chosen = conductor.call('boot', uuids=uuids, request_id=request, spec_obj=spec)
    return chosen[0][0]['nova_object.data']['service_host']


def test_a_boot_with_pinned_processors_lands_only_where_a_cell_has_room(served, tmp_path):
    bus, scheduler = served
    stats = of_nova(bus, 'compute-001', 'compute-002', 'compute-003')
    # The first says nothing of its cells; of the second each cell has 2 left, 4 in all.
    for name, taken in (('compute-002', (2, 3, 4, 5, 10, 11, 12, 13)), ('compute-003', (2,))):
        box = Box(tmp_path / name)
        for cpu in taken:
            box.guest(new_uuid(), {0: cpu}, cell=cpu // 8, memory_mb=64)
        agent = FactsReporter(name, box.machine().read, stats, 0.0, random.Random(1))
        agent.turn()
        assert agent.problem == ''
    until(
        lambda: all(
            row.facts.numa
            for row in scheduler.cache.fold().hosts
            if row is not None and row.name != 'compute-001'
        ),
        'what was told',
    )
    conductor = bus.nova()
    assert [boot(conductor, 4) for _ in range(2)] == ['compute-003', 'compute-003']
    with pytest.raises(Exception) as caught:
        boot(conductor, 4)
    assert '0/3 hosts fit' in str(caught.value)
    assert boot(conductor, 2) == 'compute-002'
    assert not any(scheduler.stores.claims.audit().values())


@pytest.mark.rabbit
def test_the_command_tells_of_this_machine_and_stops_when_told(rabbit_url, tmp_path):
    scheduler = a_scheduler()
    bus = Bus(rabbit_url, facade=scheduler)
    of_nova(bus, 'cmp-1')
    config = tmp_path / 'gantt.conf'
    config.write_text(
        f'[DEFAULT]\ntransport_url = {rabbit_url}\nhost = cmp-1\nstate_path = {tmp_path}\n'
        f'[compute]\ndisk_path = {tmp_path}\nreport_seconds = 1\n'
    )
    words = [sys.executable, '-m', 'gantt.cmd.compute', '--config-file', str(config)]
    log = tmp_path / 'log'
    with log.open('wb') as out:
        process = subprocess.Popen(
            [*words, '--facts-only'],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env=os.environ | {'PYTHONWARNINGS': 'ignore'},
        )

    def cells():
        return [c.row.facts.numa for c in scheduler.stores.feed.load_everything().hosts if c.row]

    try:
        ((cell, *_),) = until(lambda: [c for c in cells() if c], f'cells: {log.read_text()}', 60)
        assert cell.memory_mb > 0
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
        assert not (tmp_path / 'compute').exists()  # it has no journal
    finally:
        process.kill()
        process.wait()
        bus.close()
        scheduler.stop(5.0)
    both = subprocess.run(
        [*words, '--facts-only', '--fake', '2'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {'PYTHONWARNINGS': 'ignore'},
        timeout=60,
        check=False,
    )
    assert both.returncode == 1
    assert '--facts-only: it is about this machine only' in both.stderr
