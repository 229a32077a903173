# SPDX-License-Identifier: Apache-2.0
"""Messages in the name of a host that it did not send: they change nothing, and are noticed."""

import json
import logging
import uuid
from functools import partial

import msgspec
import pytest

from devel.doubles import MemoryRecorder
from devel.memory_store.stores import memory_stores
from gantt import exceptions, plugin_loader
from gantt.client.signing import Signer
from gantt.compute.agent import key_file
from gantt.compute.agent.host_agent import HostAgentSettings as MemberSettings
from gantt.compute.farm import Farm, FarmPlan
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.core.messages import base
from gantt.core.messages.report import ClaimUpdate, RegisterHost
from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import Proof, SigningMode, SigningModes, VerifiedRegistration
from gantt.ed25519 import PrivateKey
from gantt.nova.service.facade import NovaFacade
from gantt.nova.wire.service import source_methods
from gantt.rpc.amqp.envelope import Incoming
from gantt.rpc.api import stats
from gantt.rpc.api.endpoints import ClaimsMethods, StatsMethods
from gantt.rpc.api.stats import Ratios
from gantt.rpc.call import RpcCall
from gantt.rpc.server import Pending
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.builders import a_draft, a_host, a_report, claimed, new_uuid, register_host, state_of
from tests.compute.test_farm import until
from tests.conftest import READERS
from tests.rpc.bus import Bus
from tests.world import World

H4 = pytest.mark.finding('H4', 'a forged word of a host changes nothing and raises an alarm')
LEAPS = pytest.mark.finding('H4', 'a leap of numbers, and words about unknown claims, move nothing')
WORDS = ('confirm_claims', 'refuse_claims', 'release_claims')


@pytest.fixture(params=READERS)
def store(request, make_store):
    return make_store(request.param)


class Site:
    """The doors of schedulers without a broker: what comes is what would be on the wire."""

    def __init__(self, store=None, schedulers=1, **settings):
        self.world = World(store, **settings)
        for _ in range(schedulers - 1):
            self.world.another_scheduler()
        self.store = self.world.store
        self.schedulers = self.world.schedulers
        self.doors = [
            (
                ClaimsMethods(s),
                StatsMethods(s, Ratios(), source_methods(NovaFacade(self.store, s))),
            )
            for s in self.schedulers
        ]

    def call(self, method, body, by=0):
        """What is answered, or raised."""
        scheduler, doors = self.schedulers[by], self.doors[by]
        (handler,) = [d.interface.methods[method] for d in doors if method in d.interface.methods]
        argument = next(iter(handler.parameters))
        args = {'name': body['name'], 'stats': body} if argument == 'name' else {argument: body}
        message = {'_msg_id': 'm', '_reply_q': 'q', 'args': json.loads(json.dumps(args))}
        call = RpcCall(Incoming(None, message, 100))
        call.method, call.parameters = method, handler.parameters
        result = handler.run(call)
        while isinstance(result, Pending) and result.run is not None:
            result = result.run(call)
        if isinstance(result, Pending):
            scheduler.registrations.step()
            scheduler.report_queue.step()
            result = result.convert(result.future.result(0))
        return result

    def tell_plainly(self, name):
        """A report of the older form, by somebody who hardly waits."""
        args = {'name': name, 'stats': {'vcpus': 8, 'memory_mb': 1024, 'local_gb': 10}}
        message = {'_msg_id': 'm', '_reply_q': 'q', '_timeout': 0.01, 'args': args}
        call = RpcCall(Incoming(None, message, 100))
        return self.doors[0][1].update_resource_stats(call).run(call)

    def cast(self, body, by=0):
        """A report that nobody waits for, by the short way where that is open."""
        args = {'name': body['name'], 'stats': body}
        message = json.dumps({'method': stats.STATS_METHOD, 'args': args, 'version': '1.0'})
        envelope = json.dumps({'oslo.version': '2.0', 'oslo.message': message})
        scheduler = self.schedulers[by]
        run = self.doors[by][1].undecoded(envelope.encode())
        if run is None:
            return False
        run()
        scheduler.report_queue.step()
        return True

    def turn(self):
        self.world.turn(2.0)

    def rows(self):
        """All that is known of hosts and claims, counters included."""
        return sorted(
            (change.row for change in self.store.feed.load_everything().hosts),
            key=lambda row: row.name,
        ), self.store.claims.list_claims(limit=1000)

    def counted(self, name):
        return self.world.recorder.counts[name]

    @property
    def alarms(self):
        return sum(scheduler.signatures.alarm.total for scheduler in self.schedulers)


class Agent:
    """What an agent sends, signed or not.

    :param signer: None: it is of before
    """

    def __init__(self, site, name='cmp-1', signer=None, by=0):
        self.site, self.name, self.signer, self.by = site, name, signer, by
        self.epoch = self.sequence = 0

    def registration(self, **said):
        body = base.to_builtins(RegisterHost(name=self.name, boot_nonce=new_uuid(), **said))
        return body if self.signer is None else self.signer.registration(body)

    def register(self, **said):
        self.epoch = self.site.call('register_host', self.registration(**said), self.by)['epoch']
        self.sequence = 0
        self.site.turn()
        return self

    def report(self, **fields):
        self.sequence += 1
        built = a_report(self.name).at(self.epoch, self.sequence).having(**fields).build()
        return self.signed(stats.STATS_METHOD, built)

    def words(self, method, *ids):
        self.sequence += 1
        update = ClaimUpdate(
            name=self.name, epoch=self.epoch, sequence=self.sequence, claim_ids=list(ids)
        )
        return self.signed(method, update)

    def signed(self, method, said):
        body = base.to_builtins(said)
        return body if self.signer is None else self.signer.message(method, body)

    def is_heard(self):
        """By each way that its words take."""
        outcome = self.site.call(stats.STATS_METHOD, self.report(), self.by)['outcome']
        is_cast = self.site.cast(self.report(), self.by)
        gone = self.site.call('confirm_claims', self.words('confirm_claims', new_uuid()), self.by)
        return (outcome, is_cast, gone[0]['outcome']) == ('applied', True, 'gone')


def a_signer(**options):
    return Signer(PrivateKey(), **options)


def forgeries(site, host, claim, count):
    """Of each kind of word so many in the name of a host that are not its own."""
    thief, nobody = Agent(site, host.name, a_signer()), Agent(site, host.name)
    neighbour, old = Agent(site, 'cmp-2', host.signer), Agent(site, host.name, host.signer)
    thief.epoch = nobody.epoch = neighbour.epoch = host.epoch
    old.epoch = host.epoch - 1
    for number in range(count):
        beyond = host.sequence + 1 + number % 5000
        for sender in (thief, nobody, neighbour, old):
            sender.sequence = beyond
        registrations = (
            lambda: nobody.registration(),
            lambda: nobody.registration(reporter='nova'),
            lambda: thief.registration(journal=new_uuid()),
            lambda: {**neighbour.registration(), 'name': host.name},
            lambda: {**host.registration(), 'zone': 'mine'},
        )
        yield 'register_host', registrations[number % 5]()
        # The last ones the host itself has signed: of another host, epoch, number or content.
        reports = (
            lambda: thief.report(running=[]),
            lambda: nobody.report(disabled='broken'),
            lambda: {**neighbour.report(), 'name': host.name},
            lambda: {**old.report(), 'epoch': host.epoch},
            partial(dict, host.site.last, sequence=beyond),
            partial(dict, host.site.last, sequence=beyond, zone='az-9'),
            partial(changed, nobody.report, signature='x' * (number % 99)),
        )
        yield stats.STATS_METHOD, reports[number % 7]()
        for method in WORDS:
            other = WORDS[WORDS.index(method) - 1]
            words = (
                partial(thief.words, method, claim),
                partial(nobody.words, method, claim),
                partial(changed, partial(neighbour.words, method, claim), name=host.name),
                partial(changed, partial(old.words, method, claim), epoch=host.epoch),
                partial(as_another, host, other, claim),
            )
            yield method, words[number % 5]()


def changed(say, **fields):
    """What ``print_lines`` makes, with other fields."""
    return {**say(), **fields}


def as_another(host, method, claim):
    """A word that the host has signed as another method; its own count is left alone."""
    agent = Agent(host.site, host.name, host.signer)
    agent.epoch, agent.sequence = host.epoch, host.sequence
    return agent.words(method, claim)


def a_quiet_site(store=None):
    """A host with a key, another one, and a claim that waits to be confirmed."""
    site = Site(store)
    host = Agent(site, signer=a_signer()).register()
    host.register()
    assert host.is_heard()
    Agent(site, 'cmp-2', host.signer).register()
    host.site.last = host.report()
    assert site.call(stats.STATS_METHOD, host.site.last)['outcome'] == 'applied'
    host_id = next(row.id for row in site.rows()[0] if row.name == 'cmp-1')
    (claim,) = claimed(site.store, a_draft().taking(host_id))
    return site, host, claim


@H4
@pytest.mark.parametrize(
    ('kind', 'count'),
    [pytest.param(kind, 1000 if kind == 'memory' else 10) for kind in ('memory', 'sqlite')],
)
def test_forged_words_of_each_kind_change_no_row(kind, count, make_store, caplog):
    site, host, claim = a_quiet_site(make_store(kind))
    before, sent = site.rows(), 0
    with caplog.at_level(logging.INFO):
        for method, body in forgeries(site, host, claim.id, count):
            sent += 1
            with pytest.raises(exceptions.NotProven):
                site.call(method, body)
            if method == stats.STATS_METHOD and sent % 11 == 0:
                assert not site.cast(body)
    assert site.rows() == before
    assert sent == 5 * count
    assert site.alarms == site.counted('gantt_signature_failures_total') == sent
    # The clock stands still: one line for all of them.
    assert sum('failed their signature check' in r.getMessage() for r in caplog.records) == 1
    assert len(caplog.records) < 20
    sentence = site.schedulers[0].signatures.alarm.sentence()
    assert f'changed nothing: {sent} (' in sentence
    assert 'cmp-1' in sentence
    # The host goes on as if nothing had been.
    assert site.call('confirm_claims', host.words('confirm_claims', claim.id))[0]['outcome'] == 'ok'
    assert host.is_heard()


@H4
def test_what_a_host_has_said_once_moves_nothing_when_it_comes_again():
    site, host, claim = a_quiet_site()
    own = [('register_host', host.registration(journal=new_uuid(), journal_count=1))]
    host.epoch, host.sequence = site.call(*own[0])['epoch'], 0
    own += [
        (stats.STATS_METHOD, host.report()),
        ('confirm_claims', host.words('confirm_claims', claim.id)),
    ]
    for method, body in own[1:]:
        site.call(method, body)
    site.turn()
    later = host.registration(journal=new_uuid(), journal_count=1)
    host.epoch, host.sequence = site.call('register_host', later)['epoch'], 0
    site.call(stats.STATS_METHOD, host.report())
    before = site.rows()
    for method, body in own:
        if method == 'register_host':
            with pytest.raises(exceptions.NotProven, match='comes after number'):
                site.call(method, body)
        else:
            assert_nothing(site, method, body)
    assert site.rows() == before


def assert_nothing(site, method, body):
    try:
        entries = site.call(method, body)
    except exceptions.StaleEpoch:
        return
    assert [entry['outcome'] for entry in entries] == ['gone']


# -- the key of a host -----------------------------------------------------------------
def introduced(key, number, mode=SigningMode.KNOWN, older=(), **said):
    proven = None if key is None else Proof(number=number, key=key, older=tuple(older))
    return VerifiedRegistration(
        name='cmp-1', boot_nonce=new_uuid(), mode=mode, proven=proven, **said
    )


def keys(count):
    return [host_keys.key_text(PrivateKey().public) for _ in range(count)]


def refused(store, said):
    (error,) = store.reports.register_hosts([said])
    assert isinstance(error, exceptions.NotProven)
    return error


@H4
def test_a_key_is_kept_rotated_revoked_and_forgotten(store):
    first, second, other, last = keys(4)
    with pytest.raises(exceptions.NotProven, match='is to have one'):
        register_host(store, introduced(None, 0, SigningMode.REQUIRED))
    assert store.feed.load_everything().hosts == []  # not even made
    register_host(store, introduced(None, 0))
    assert store.hosts.load_host_key('cmp-1') is None
    register_host(store, introduced(first, 10))
    refused(store, introduced(None, 0))
    refused(store, introduced(other, 99))
    assert refused(store, introduced(first, 10)).kwargs['current'] == 10
    register_host(store, introduced(first, 11))
    assert store.hosts.load_host_key('cmp-1').number == 11
    register_host(store, introduced(second, 12, older=[first]))
    refused(store, introduced(first, 13))
    assert store.hosts.load_host_key('cmp-1').public == second
    revoked = store.hosts.revoke_host_key('cmp-1').row.key
    assert (revoked.is_revoked, revoked.revoked) == (True, (second,))
    for key in (second, last, None):
        refused(store, introduced(key, 99))
    store.hosts.forget_host_key('cmp-1')
    refused(store, introduced(second, 99))
    register_host(store, introduced(last, 1))
    stored = store.hosts.load_host_key('cmp-1')
    assert (stored.public, stored.is_revoked, stored.revoked) == (last, False, (second,))
    refused(store, introduced(second, 100, older=[last]))
    store.hosts.forget_host_key('cmp-1')
    register_host(store, introduced(None, 0))
    with pytest.raises(exceptions.NotFound):
        store.hosts.forget_host_key('cmp-9')


@H4
def test_a_key_stays_with_a_host_that_reports_and_is_renamed(store):
    host = a_host().on(store)
    (key,) = keys(1)
    registration = introduced(key, 5)
    register_host(store, registration)
    host.epoch += 1
    host.sequence = 0
    assert host.report().outcome == 'applied'
    store.hosts.disable_host('cmp-1', 'a fan', 'ops')
    assert host.row.key.public == key
    again = msgspec.structs.replace(registration, proven=Proof(number=6, key=key))
    assert register_host(store, again)[0].epoch == host.epoch  # a repeat is one
    store.hosts.rename_host('cmp-1', 'cmp-7')
    assert store.hosts.load_host_key('cmp-7').public == key
    assert store.hosts.load_host_key('cmp-1') is None


@H4
def test_a_database_put_back_to_before_a_rotation_follows_to_the_present_key(store, tmp_path):
    path = tmp_path / 'cmp-1.key'
    site = Site(store)
    first = key_file.load_or_create(path)
    old = Agent(site, signer=first).register()
    assert old.is_heard()
    # From here on the database has not seen what happened.
    for _ in range(3):
        key_file.rotate(path)
    present = Agent(site, signer=key_file.load_or_create(path))
    present.epoch, present.sequence = old.epoch, old.sequence
    with pytest.raises(exceptions.NotProven, match='must register'):
        site.call(stats.STATS_METHOD, present.report())
    assert present.register().is_heard()
    with pytest.raises(exceptions.NotProven):
        site.call('register_host', old.registration())
    # Further back than a key file remembers an operator has to say so.
    for _ in range(host_keys.OLDER_KEYS_MAX + 1):
        key_file.rotate(path)
    late = Agent(site, signer=key_file.load_or_create(path))
    with pytest.raises(exceptions.NotProven, match='host key forget cmp-1'):
        late.register()
    store.hosts.forget_host_key('cmp-1')
    assert late.register().is_heard()


@H4
def test_a_clock_that_was_set_back_costs_a_host_nothing():
    site = Site()
    key = PrivateKey()
    Agent(site, signer=Signer(key, wall=lambda: 2e9)).register()
    back = Signer(key, wall=lambda: 1e9)
    agent = Agent(site, signer=back)
    with pytest.raises(exceptions.NotProven) as refusal:
        agent.register()
    assert back.use_numbers_after(refusal.value.kwargs['current'])
    assert agent.register().is_heard()
    assert not back.use_numbers_after(2**53)
    assert not back.use_numbers_after(None)


# -- agents of before and after, schedulers side by side -----------------------------------
@H4
def test_hosts_with_and_without_keys_work_side_by_side():
    site = Site()
    before, after = Agent(site, 'old-1'), Agent(site, 'cmp-1', a_signer())
    assert before.register().is_heard()
    assert after.register().is_heard()
    with pytest.raises(exceptions.Busy):  # no thread of a scheduler runs here
        site.tell_plainly('esx-1')
    site.turn()
    assert [row.name for row in site.rows()[0] if row.reported_at] == ['cmp-1', 'esx-1', 'old-1']
    # An agent gets a key later, with an upgrade.
    before.signer = a_signer()
    assert before.register().is_heard()
    assert site.alarms == 0
    # Who has no room for a signature tells nothing of a host that signs.
    with pytest.raises(exceptions.NotProven):
        site.tell_plainly('cmp-1')
    listed, facts = {'requested_at': 1.0, 'guests': []}, {'sequence': 1}
    for method, body in (('sync_guests', listed), ('update_host_facts', facts)):
        with pytest.raises(exceptions.NotProven):
            site.call(method, {'host': 'cmp-1', **body})


@H4
def test_the_mode_of_a_host_decides():
    rules = SigningModes(
        mode=SigningMode.REQUIRED,
        of_hosts=(('lab-*', SigningMode.OFF), ('esx-*', SigningMode.KNOWN)),
    )
    site = Site(signatures=rules)
    for name in ('cmp-1', 'cmp-2'):
        with pytest.raises(exceptions.NotProven):
            Agent(site, name).register()
    assert Agent(site, 'esx-1').register().is_heard()
    assert Agent(site, 'cmp-1', a_signer()).register().is_heard()
    signed = Agent(site, 'lab-1', a_signer()).register()
    assert signed.is_heard()
    assert site.store.hosts.load_host_key('lab-1') is None
    signed.signer = None
    assert signed.is_heard()
    assert [row.name for row in site.rows()[0]] == ['cmp-1', 'esx-1', 'lab-1']


@H4
def test_a_key_that_another_scheduler_took_counts_here_at_once(store):
    site = Site(store, schedulers=2)
    here = Agent(site, signer=a_signer(), by=0).register()
    assert here.is_heard()
    key = PrivateKey()
    store.hosts.forget_host_key('cmp-1')
    # Registered there; here the news has not come yet.
    body = Agent(site, signer=Signer(key)).registration()
    there = Agent(site, signer=Signer(key), by=0)
    there.epoch = site.call('register_host', body, by=1)['epoch']
    assert site.schedulers[0].cache.keys['cmp-1'].public != host_keys.key_text(key.public)
    assert site.call(stats.STATS_METHOD, there.report(), by=0)['outcome'] == 'applied'
    site.turn()
    assert there.is_heard()


# -- key files -------------------------------------------------------------------------
@H4
def test_a_key_file_is_private_from_its_first_byte_and_the_same_after_a_restart(tmp_path):
    path = tmp_path / 'new' / 'cmp-1.key'
    first = key_file.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert key_file.load_or_create(path).fingerprint == first.fingerprint
    after = key_file.rotate(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert key_file.load_or_create(path).fingerprint == after != first.fingerprint
    assert [file.name for file in path.parent.iterdir()] == ['cmp-1.key']
    path.chmod(0o640)
    with pytest.raises(exceptions.Misconfigured, match='chmod 600'):
        key_file.load_or_create(path)
    path.chmod(0o600)
    for broken in (b'', b'{}', b'{"private": "x"}', b'\xff' * 99):
        path.write_bytes(broken)
        with pytest.raises(exceptions.Misconfigured, match='key_file'):
            key_file.load_or_create(path)
    with pytest.raises(exceptions.Misconfigured):
        key_file.rotate(tmp_path / 'none.key')


# -- without signatures ------------------------------------------------------------------------
@LEAPS
def test_a_leap_of_the_numbers_changes_nothing_and_the_host_registers_again(store):
    host = a_host().on(store)
    (claim,) = claimed(store, a_draft().taking(host.id))
    before = host.row
    far = host.sequence + 10_001
    for word in (host.confirm, host.refuse, host.release):
        with pytest.raises(exceptions.StaleEpoch, match='must register again'):
            word(claim, sequence=far)
    assert host.send(host.facts.at(host.epoch, far))[0].outcome == 'ahead'
    assert host.row == before
    assert state_of(store, claim) == 'reserved'
    assert host.confirm(claim, sequence=far - 1)[0].outcome == 'ok'
    assert host.row.sequence == far - 1


@LEAPS
def test_words_about_claims_that_are_gone_do_not_move_the_numbers(store):
    host, other = a_host().on(store), a_host('cmp-2').on(store)
    (claim,) = claimed(store, a_draft().taking(other.id))
    before = host.row
    for word in (host.confirm, host.refuse, host.release):
        assert word(new_uuid(), claim, sequence=9000)[0].outcome == 'gone'
    assert host.row == before
    assert host.report().outcome == 'applied'


@LEAPS
def test_a_host_registered_from_another_journal_while_it_reports_is_noticed(caplog):
    site = Site()
    name = 'gantt_host_registration_conflicts_total'
    agent, journal = Agent(site), str(uuid.uuid4())
    agent.register(journal=journal, journal_count=1)
    site.call(stats.STATS_METHOD, agent.report())
    agent.register(journal=journal, journal_count=2)
    site.call(stats.STATS_METHOD, agent.report())
    site.turn()
    assert site.counted(name) == 0
    agent.register(journal=str(uuid.uuid4()), journal_count=1)
    assert site.counted(name) == 1
    assert 'registered from another journal' in caplog.text
    site.world.clock.advance(4 * 60 + 1)  # silent for long: another disk
    agent.register(journal=str(uuid.uuid4()), journal_count=1)
    assert site.counted(name) == 1


# -- over a broker ---------------------------------------------------------------------------
@H4
def test_agents_that_sign_work_with_a_scheduler_that_requires_it_and_others_do_not():
    recorder = MemoryRecorder()
    settings = SchedulerSettings(
        worker='worker-1', signatures=SigningModes(mode=SigningMode.REQUIRED)
    )
    scheduler = Scheduler(memory_stores(), plugin_loader.load_pipeline(), recorder, settings)
    scheduler.start()
    bus = Bus(facade=scheduler)
    plan = FarmPlan(count=3, seed=7, threads=2)
    quick = MemberSettings(report_seconds=1, change_seconds=0.05)
    farm = Farm(plan, RpcSchedulerPort(bus.carrier(), 10.0, a_signer()), quick)
    try:
        farm.start()
        until(lambda: farm.status()['reporting'] == 3)
        # Their next reports are cast, by the short way.
        until(lambda: min(row.sequence for row in rows_of(scheduler)) >= 3)
        stranger = RpcSchedulerPort(bus.carrier(), 10.0)
        registration = RegisterHost(name='cmp-9', boot_nonce=new_uuid())
        with pytest.raises(exceptions.NotProven, match='is to have one'):
            stranger.register(registration)
        thief = RpcSchedulerPort(bus.carrier(), 10.0, a_signer())
        row = rows_of(scheduler)[0]
        with pytest.raises(exceptions.NotProven, match='another key'):
            thief.register(RegisterHost(name=row.name, boot_nonce=new_uuid()))
        forged = a_report(row.name).at(row.epoch, row.sequence + 100).build()
        for port in (stranger, thief):
            with pytest.raises(exceptions.NotProven):
                port.report(forged)
        assert rows_of(scheduler)[0].epoch == row.epoch
        assert scheduler.signatures.alarm.total == 4
        # Its sequences go on: no number was used up.
        until(lambda: rows_of(scheduler)[0].sequence > row.sequence)
    finally:
        assert farm.stop(10)
        bus.close()
        scheduler.stop(5)


def rows_of(scheduler):
    hosts = scheduler.stores.feed.load_everything().hosts
    return sorted((change.row for change in hosts), key=lambda row: row.name)
