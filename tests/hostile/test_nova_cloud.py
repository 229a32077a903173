# SPDX-License-Identifier: Apache-2.0
"""Findings on a cloud of an unmodified Nova: what a list of it may do, and who meets it."""

import contextlib
import io
import logging
import pathlib
import socket

import httpx2 as httpx
import msgspec
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from gantt import conf as options
from gantt import exceptions, plugin_loader
from gantt.cli.main import main
from gantt.cmd import manage_config, manage_shadow
from gantt.cmd.http_app import make_app
from gantt.cmd.manage_config import diagnose
from gantt.conf import listeners
from gantt.core.records.decision import Answer, Answered, Outcome
from gantt.core.records.shadow import ShadowVerdict
from gantt.db.schema import models
from gantt.groups.insights import HOOKS
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.nova.model.events import GuestDeleted, GuestsListed, GuestsUpdated, NovaCast, NovaGuest
from gantt.nova.wire import spec as nova_spec
from gantt.scheduler.recorder import StoreRecorder
from gantt.telemetry import answer_log
from gantt.telemetry.listener import listen
from gantt.telemetry.metrics import MetricRegistry
from tests import warm
from tests.builders import CLEAN, a_draft, a_host, claimed, live, new_uuid
from tests.conftest import READERS, STORES
from tests.http.site import DirectClient
from tests.http.site import Site as HttpSite
from tests.nova_source.openstack import OpenStack
from tests.nova_source.region import Region
from tests.rpc.bus import load
from tests.shadow.side import Side, ours_of
from tests.world import World, a_request

TIME = 2_000_000_000.0


# -- C1: a list adopts nobody of whom more was learned while it was read ----------------------
@pytest.fixture(params=STORES)
def store(request, make_store):
    return make_store(request.param)


class Nova:
    """Two hosts of Nova, what they say, and lists that a source began to read earlier."""

    def __init__(self, store):
        self.store = store
        self.hosts = [a_host(f'cmp-{n}').on(store, reporter='nova') for n in (1, 2)]
        self._asked = TIME

    def receive(self, *words, **said):
        self._asked += 120
        fields = {'requested_at': self._asked} | said
        return self.store.nova.apply_guest_events(
            [NovaCast(id=new_uuid(), event=word, **fields) for word in words]
        )

    def update(self, host, *guests, **said):
        listed = [NovaGuest(consumer=guest, resources={'VCPU': 1}) for guest in guests]
        return self.receive(GuestsUpdated(host=host.name, guests=listed), **said)

    def delete(self, host, guest):
        return self.receive(GuestDeleted(host=host.name, consumer=guest))

    def runs(self, host, guest):
        """A guest with a confirmed claim."""
        (claim,) = claimed(self.store, a_draft().taking(host, guest))
        self.update(host, guest)
        return claim

    def now(self):
        """The database's clock."""
        (claim,) = claimed(self.store, a_draft().taking(self.hosts[1]))
        return claim.created_at

    def source_list(self, host, begun, *guests):
        """A report source tells a list that it began to read then."""
        nova_guests = [NovaGuest(consumer=guest, resources={'VCPU': 1}) for guest in guests]
        word = GuestsListed(host=host.name, consumers=list(guests), described=nova_guests)
        self._asked += 120
        cast = NovaCast(requested_at=self._asked, database_time=begun, event=word)
        return self.store.nova.apply_guest_events([cast])


@pytest.mark.finding('C1', 'a list adopts no guest that was deleted or moved after it was begun')
def test_a_list_from_before_the_delete_adopts_nobody(store):
    nova = Nova(store)
    host, guests = nova.hosts[0], [new_uuid() for _ in range(3)]
    for guest in guests:
        nova.runs(host, guest)
    begun = nova.now()
    for guest in guests[:2]:
        nova.delete(host, guest)
    assert nova.source_list(host, begun, *guests).adopted == []
    assert [claim.consumer for claim in live(store) if claim.host == host.name] == guests[2:]
    assert host.row.used == {'VCPU': 1}
    # One that was begun later says that it is there: it was restored.
    assert len(nova.source_list(host, nova.now(), guests[0], guests[2]).adopted) == 1
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('C1', 'a list adopts no guest that was deleted or moved after it was begun')
def test_a_list_from_before_the_move_adopts_nobody_where_the_guest_was(store):
    nova = Nova(store)
    old, new = nova.hosts
    guest = new_uuid()
    nova.runs(old, guest)
    begun = nova.now()
    draft = a_draft().leased(900)
    claimed(store, draft.taking(new, guest, purpose='resize', move_id=new_uuid()))
    nova.update(new, guest)
    nova.delete(old, guest)
    # In one batch with what its new host says, as schedulers hear broadcasts.
    requested_at, word = begun, GuestsListed(host=old.name, consumers=[guest])
    for _ in range(2):
        requested_at += 0.0001
        casts = [
            NovaCast(
                id=new_uuid(),
                requested_at=TIME,
                event=GuestsUpdated(host=new.name, guests=[NovaGuest(consumer=guest)]),
            ),
            NovaCast(id=new_uuid(), requested_at=requested_at, skew=1.0, event=word),
        ]
        assert store.nova.apply_guest_events(casts).adopted == []
    assert nova.source_list(old, begun, guest).adopted == []
    assert [claim.host for claim in live(store, consumer=guest)] == [new.name]
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('C1', 'a list adopts no guest that was deleted or moved after it was begun')
def test_an_update_that_is_handled_after_the_delete_adopts_nobody(store):
    nova = Nova(store)
    host, guest = nova.hosts[0], new_uuid()
    nova.runs(host, guest)
    requested_at = nova.now()
    nova.delete(host, guest)
    assert nova.update(host, guest, requested_at=requested_at, skew=1.0).adopted == []
    assert live(store, consumer=guest) == []
    # What was asked for later is about a later stay.
    assert len(nova.update(host, guest).adopted) == 1


@pytest.mark.finding('C1', 'a list adopts no guest that was deleted or moved after it was begun')
def test_a_server_that_is_deleted_while_the_source_reads_stays_deleted(caplog):
    openstack = OpenStack()
    try:
        node = openstack.host('cmp-1', VCPU=16)
        region = Region(openstack)
        guests = [openstack.server('cmp-1') for _ in range(3)]
        for guest in guests:
            openstack.allocate(node, guest, VCPU=2)
        # A clock that is ahead by hours does not matter.
        region.passes()
        assert region.row('cmp-1').used == {'VCPU': 6}
        assert 'source=list of host cmp-1' in caplog.text
        region.now += 60.0
        region.world.turn(60.0)
        region.source.step()
        word = GuestDeleted(host='cmp-1', consumer=guests[0])
        region.world.turn(5.0)
        released = region.world.store.nova.apply_guest_events(
            [NovaCast(id='one', event=word)]
        ).released
        assert len(released) == 1
        for member in region.source.host_agents.values():
            member.turn()
        assert region.live(guests[0]) == []
        assert region.row('cmp-1').used == {'VCPU': 4}
        assert ('gantt_nova_source_claims_total', 'adopted') in region.counts
        assert region.counts['gantt_nova_source_claims_total', 'adopted'] == 3
    finally:
        openstack.close()


# -- C2: one configuration, several programs, no port for two of them -------------------------
GUIDE = pathlib.Path(__file__).parents[2] / 'doc/source/install/gantt.conf'


@pytest.fixture
def a_conf(tmp_path):
    def make(text):
        path = tmp_path / 'gantt.conf'
        path.write_text(text)
        path.chmod(0o600)
        conf = cfg.ConfigOpts()
        options.register_opts(conf)
        conf(['--config-file', str(path)], project='gantt')
        return conf

    return make


def free_ports(count):
    taken = [socket.create_server(('127.0.0.1', 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in taken]
    for listener in taken:
        listener.close()
    return ports


@pytest.mark.finding('C2', 'no two programs of one configuration want one port')
def test_all_programs_of_one_file_listen_beside_each_other(a_conf):
    ports = dict(zip(listeners.PROGRAMS, free_ports(len(listeners.PROGRAMS)), strict=True))
    conf = a_conf(''.join(f'[{group}]\nmetrics_port = {n}\n' for group, n in ports.items()))
    assert listeners.port_clashes(conf) == []
    running = [listen(MetricRegistry(), conf, group) for group in listeners.PROGRAMS]
    assert [server.port for server in running] == list(ports.values())
    for server in running:
        server.stop()


@pytest.mark.finding('C2', 'no two programs of one configuration want one port')
def test_by_the_guide_only_the_scheduler_listens(a_conf):
    conf = a_conf(GUIDE.read_text())
    listening = [group for group in listeners.PROGRAMS if listeners.metrics(conf, group).first]
    assert listening == ['DEFAULT']
    assert listeners.port_clashes(conf) == []


@pytest.mark.parametrize(
    ('text', 'named'),
    [
        ('[shadow]\nmetrics_port = 9790', ['[DEFAULT] metrics_port', '[shadow] metrics_port']),
        (
            '[nova_source]\nmetrics_port = 9792\n[scheduler]\nworkers = 3',
            ['[DEFAULT] metrics_port', '[nova_source] metrics_port'],
        ),
        ('[nova_source]\nmetrics_port = 8790', ['[nova_source] metrics_port', '[api] port']),
    ],
    ids=['shadow', 'third-worker', 'api'],
)
@pytest.mark.finding('C2', 'no two programs of one configuration want one port')
def test_two_that_want_one_port_are_named(a_conf, capsys, text, named):
    conf = a_conf(f'{GUIDE.read_text()}\n{text}\n')
    (finding,) = [
        finding for finding in diagnose(conf, probe=False) if 'would listen on' in finding.why
    ]
    assert [finding.option, finding.severity] == [named[0], 'error']
    assert named[1] in finding.why
    assert manage_config.check(conf) == 1
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith('ports')]
    assert 'WRONG' in line
    assert all(word in line for word in named)


@pytest.mark.rabbit
@pytest.mark.postgresql
@pytest.mark.finding('C2', 'no two programs of one configuration want one port')
def test_a_scheduler_whose_port_is_taken_takes_no_call(rabbit_url, store_url, tmp_path):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        options = {'DEFAULT': {'metrics_port': port}}
        url = store_url('postgresql')
        with contextlib.closing(warm.Rig(url, rabbit_url, tmp_path, options)) as rig:
            assert rig.start('scheduler', 'gantt-scheduler').wait(60) == 1
            output = rig.log('scheduler')
            assert f'[DEFAULT] metrics_port: cannot listen on 127.0.0.1:{port}' in output
            assert 'Listening on' not in output


# -- C4: hosts that are as good are no disagreement -------------------------------------------
@pytest.mark.finding('C4', 'shadow mode counts hosts that are as good apart from those that differ')
def test_a_host_that_is_as_good_is_a_tie():
    side = Side()
    request = side.asked()
    theirs = next(name for name in side.world.hosts if name != ours_of(side, request))
    side.seen(theirs, request)
    comparison = side.one()
    assert (comparison.verdict, comparison.nova_host) == ('tie', theirs)
    assert f'{theirs} is as good' in comparison.reason
    assert side.counts['comparisons_total', 'tie'] == 1


@pytest.mark.finding('C4', 'shadow mode counts hosts that are as good apart from those that differ')
def test_of_many_equal_hosts_each_is_a_tie_and_a_worse_one_is_none():
    side = Side(hosts=30)
    side.world.hosts['cmp-30'].facts['foreign'] = {'MEMORY_MB': 20_000}
    side.look()
    requests = [side.asked() for _ in range(29)]
    worse = side.asked()
    for number, request in enumerate(requests, 1):
        side.seen(f'cmp-{number}', request)
    side.seen('cmp-30', worse)
    comparisons = {comparison.request_id: comparison for comparison in side.look()}
    assert {comparisons[request.request_id].verdict for request in requests} == {'same', 'tie'}
    assert comparisons[worse.request_id].verdict == 'other'
    assert 'cmp-30 is number 30 of 30' in comparisons[worse.request_id].reason


@pytest.mark.finding('C4', 'shadow mode counts hosts that are as good apart from those that differ')
def test_the_headline_has_three_numbers(capsys):
    counts = {ShadowVerdict.SAME: 4, ShadowVerdict.TIE: 16}
    assert manage_shadow.agreement_share(counts) == 1.0
    (line, *_) = manage_shadow._summary_lines(counts)
    assert '4 on the same host, 16 on another that is as good, 0 differ; 100.0% agree' in line
    assert manage_shadow.agreement_share(counts | {ShadowVerdict.OTHER: 5}) == 0.8


# -- C3: from a server to the reason ----------------------------------------------------------
class Site:
    """A scheduler that decides, and those who ask why."""

    def __init__(self, store):
        self.world = World(store=store, hosts=2)
        self.recorder = StoreRecorder(store.records, MetricRegistry(), 1000)
        self.world.recorder = self.recorder
        self.scheduler = self.world.another_scheduler()
        self.insights = Insights(store, plugin_loader.load_pipeline(), HOOKS, max_age=0.0)

    def decide(self, count=1, origin=None, **spec):
        request = msgspec.structs.replace(a_request(count, **spec), origin=origin)
        answer = self.world.select(request, by=self.scheduler)
        self.recorder.flush()
        return request, answer

    def found(self, key, **where):
        return self.insights.explain(key, **where).request_id


@pytest.mark.finding('C3', 'a decision is found by its server and by the id of its request to Nova')
@pytest.mark.parametrize('store', READERS, indirect=True)
def test_a_decision_is_found_by_server_and_by_request_of_nova(store):
    site = Site(store)
    placed, _ = site.decide(3, 'req-placed', project_id='blue')
    refused, answer = site.decide(3, 'req-refused', vcpu=1000, project_id='blue')
    assert answer.outcome == 'no_valid_host'
    for request, origin in ((placed, 'req-placed'), (refused, 'req-refused')):
        assert site.found(origin) == request.request_id
        for consumer in request.consumers:
            assert site.found(consumer) == request.request_id
            (listed,) = site.insights.decisions(consumer=consumer)
            assert (listed.request_id, listed.origin) == (request.request_id, origin)
    assert f'asked as {origin}' in site.insights.explain(origin).lines
    # Of several the newest: the server was resized in vain.
    again, _ = site.decide(1, 'req-again', vcpu=1000, consumers=[placed.consumers[0]])
    assert site.found(placed.consumers[0]) == again.request_id
    assert len(site.insights.decisions(consumer=placed.consumers[0])) == 2
    for nothing in (new_uuid(), 'req-nothing'):
        with pytest.raises(exceptions.NotFound, match='no consumer'):
            site.found(nothing)


@pytest.mark.finding('C3', 'a decision is found by its server and by the id of its request to Nova')
@pytest.mark.parametrize('store', READERS, indirect=True)
def test_nobody_hides_the_decision_of_another_project(store):
    site = Site(store)
    mine, _ = site.decide(1, 'req-mine', vcpu=1000, project_id='blue')
    site.decide(1, 'req-mine', dry_run=True, project_id='red', consumers=mine.consumers)
    for key in ('req-mine', mine.consumers[0]):
        for public in (False, True):
            assert site.found(key, project='blue', public=public) == mine.request_id
        with pytest.raises(exceptions.NotFound):
            site.found(key, project='green')


@pytest.mark.finding('C3', 'a decision is found by its server and by the id of its request to Nova')
@pytest.mark.parametrize('store', READERS, indirect=True)
def test_a_request_id_of_another_project_hides_nothing(store):
    site = Site(store)
    mine, _ = site.decide(1, 'req-mine', vcpu=1000, project_id='blue')
    server = mine.consumers[0]
    site.decide(1, vcpu=1000, project_id='red', request_id=server)
    site.decide(1, vcpu=1000, project_id='red', request_id=mine.request_id[:-6] + 'abcdef')
    for key in (server, mine.request_id[:20]):
        for public in (False, True):
            assert site.found(key, project='blue', public=public) == mine.request_id
    with pytest.raises(exceptions.NotFound):
        site.found(mine.request_id, project='red')


@pytest.mark.finding('C3', 'a decision is found by its server and by the id of its request to Nova')
@pytest.mark.parametrize('store', READERS, indirect=True)
def test_what_a_decision_is_found_by_goes_with_it(store):
    site = Site(store)
    refused = [site.decide(1, f'req-gone-{n}', vcpu=1000)[0] for n in range(4)]
    bounds = {'tombstone_seconds': 3600.0, 'request_seconds': 3600.0, 'limit': 100}
    store.retention.purge(decisions=1, **bounds)
    assert site.found(refused[3].consumers[0]) == refused[3].request_id
    for key in (refused[0].consumers[0], 'req-gone-0'):
        with pytest.raises(exceptions.NotFound):
            site.found(key)
    if hasattr(store.database, 'engine'):
        with store.database.engine.connect() as connection:
            rows = connection.execute(sa.select(models.decision_consumers.c.consumer)).all()
        assert [row.consumer for row in rows] == refused[3].consumers


@pytest.mark.finding('C3', 'a decision is found by its server and by the id of its request to Nova')
def test_a_request_of_nova_is_decided_under_its_id(caplog):
    caplog.set_level('INFO', 'gantt.decisions')
    args = load('select_destinations-boot').args
    translated = nova_spec.translate(
        args,
        {'request_id': 'req-5b32382d'},
        budget_ms=1000,
        lease_seconds=900,
        max_attempts=3,
    )
    assert translated.request.origin == 'req-5b32382d'
    refused = Answer(request_id=new_uuid(), decision_id=new_uuid(), outcome=Outcome.NO_VALID_HOST)
    answered = Answered(refused, 0.1, translated.request.origin)
    answer_log.log_answers(logging.getLogger('gantt.decisions'), False, [answered])
    assert 'origin=req-5b32382d' in caplog.text
    for odd in (None, 7, '', 'x' * 65, 'req-1\n', 'ü'):
        translated = nova_spec.translate(
            args, {'request_id': odd}, budget_ms=1000, lease_seconds=900, max_attempts=3
        )
        assert translated.request.origin is None


@pytest.mark.finding('C3', 'a decision is found by its server and by the id of its request to Nova')
def test_the_id_that_a_request_has_elsewhere_makes_it_no_other():
    request = msgspec.structs.replace(a_request(), origin='req-1')
    assert request.fingerprint == msgspec.structs.replace(request, origin=None).fingerprint


# -- C5 to C7: the rest of what operators met --------------------------------------------------
@pytest.mark.finding('C5', '"gantt status" says that no scheduler is alive')
def test_the_status_says_what_is_away(monkeypatch):
    site = HttpSite()
    probe = {'is_away': True}

    def schedulers():
        if probe['is_away']:
            raise exceptions.Unavailable('no scheduler answers')
        return 'a scheduler answers'

    app = make_app(
        site.insights,
        site.world.store,
        DirectClient(site.world),
        MetricRegistry(),
        HttpSettings(),
        {'schedulers': schedulers},
    )
    server = HttpServer(app, '127.0.0.1', 0, threads=2)
    server.start()
    try:
        monkeypatch.setenv('GANTT_ENDPOINT', f'http://127.0.0.1:{server.port}')
        monkeypatch.setenv('COLUMNS', '100')
        out = io.StringIO()
        assert main(('status',), out, io.StringIO()) == 0
        assert 'Not well' in out.getvalue()
        assert 'no scheduler answers' in out.getvalue()
        probe['is_away'] = False
        out = io.StringIO()
        assert main(('status',), out, io.StringIO()) == 0
        assert 'Not well' not in out.getvalue()
    finally:
        assert server.stop(5)


@pytest.mark.finding('C6', 'a page that comes too late is asked for again in smaller ones')
def test_pages_that_come_too_late_are_made_smaller(caplog):
    openstack = OpenStack()
    try:
        for number in range(120):
            openstack.host(f'cmp-{number}')
        openstack.page_in_time = 100
        region = Region(openstack)
        region.passes()
        assert len(region.rows()) == 120
        assert 'page_size=62 ' in caplog.text
        # Below the least one nothing helps, and the pass says so.
        openstack.page_in_time = 10
        with pytest.raises(exceptions.Unavailable, match='took too long'):
            region.passes()
    finally:
        openstack.close()


@pytest.mark.finding('C7', 'the marker of a list of decisions is the id of one')
def test_the_id_of_a_request_is_no_marker():
    site = HttpSite()
    request = a_request(vcpu=1000)
    site.world.select(request)
    with httpx.Client(
        transport=httpx.WSGITransport(site.app), base_url='http://localhost'
    ) as caller:
        (decision,) = caller.get('/v1/decisions').json()['decisions']
        assert decision['request_id'] == request.request_id
        last = caller.get('/v1/decisions', params={'marker': decision['id']})
        assert (last.status_code, last.json()['decisions']) == (200, [])
        refused = caller.get('/v1/decisions', params={'marker': request.request_id})
        assert refused.status_code == 400
        assert request.request_id in refused.json()['errors'][0]['detail']
