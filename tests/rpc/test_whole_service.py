# SPDX-License-Identifier: Apache-2.0
"""Nova's captured calls decided by the real scheduler, over the in-process broker."""

import concurrent.futures
import dataclasses
import threading
import time
import uuid

import oslo_messaging as om
import pytest

from devel.doubles import MemoryRecorder
from devel.memory_store.reports import MemoryReports
from devel.memory_store.stores import memory_stores
from devel.memory_store.vocabulary import MemoryVocabulary
from gantt import client, exceptions, plugin_loader
from gantt.conf import compute
from gantt.core.messages import base
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.request import GroupRef, Policy, RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Group
from gantt.nova import conf as nova_source
from gantt.rpc.amqp import transport
from gantt.rpc.amqp.envelope import Incoming
from gantt.rpc.api.endpoints import StatsMethods
from gantt.rpc.api.stats import Ratios
from gantt.rpc.call import RpcCall
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.rpc.bus import Bus, a_conf, stored
from tests.rpc.facade import CELL, until
from tests.rpc.shape import shape

HOSTS = [f'compute-{n:03}' for n in range(1, 6)]
REPLY = stored('reply-select_destinations')['oslo.message (decoded)']['result']


class HeldReports(MemoryReports):
    """Reports are folded when ``folds`` is set: a database that takes its time."""

    def __init__(self, database):
        super().__init__(database, 60)
        self.folds = threading.Event()
        self.folds.set()

    def apply_reports(self, reports):
        self.folds.wait(20)
        return super().apply_reports(reports)


class HeldVocabulary(MemoryVocabulary):
    """Declared classes are read when ``answers`` is set."""

    def __init__(self, database):
        super().__init__(database)
        self.answers = threading.Event()
        self.answers.set()

    def declared_classes(self):
        self.answers.wait(20)
        return super().declared_classes()


def held_store():
    """Return stores whose reports and classes can be held up."""
    stores = memory_stores()
    return dataclasses.replace(
        stores,
        reports=HeldReports(stores.database),
        vocabulary=HeldVocabulary(stores.database),
    )


def a_report(name, epoch, sequence, **more):
    """A full report of a host of four cores."""
    return HostReport(
        name=name,
        epoch=epoch,
        sequence=sequence,
        full=True,
        running=[],
        pending=[],
        inventories={
            'VCPU': Inventory(total=4),
            'MEMORY_MB': Inventory(total=8192),
            'DISK_GB': Inventory(total=100),
            **more,
        },
    )


@pytest.fixture
def served():
    """A scheduler with five hosts that have reported, served on a bus."""
    store = held_store()
    scheduler = Scheduler(
        store, plugin_loader.load_pipeline(), MemoryRecorder(), SchedulerSettings()
    )
    scheduler.start()
    bus = Bus(facade=scheduler)
    claims, stats = client.ClaimsClient(bus.carrier()), client.StatsClient(bus.carrier())
    for name in HOSTS:
        registered = claims.register_host(
            RegisterHost(name=name, boot_nonce='n', cell=CELL, zone='nova')
        )
        assert stats.update_resource_stats(a_report(name, registered.epoch, 1)).outcome == 'applied'
    until(lambda: len(scheduler.cache.fold()) == len(HOSTS))
    yield bus, store
    store.vocabulary.answers.set()
    store.reports.folds.set()
    bus.close()
    assert scheduler.stop(5)


def chosen_of(result):
    return [hosts[0]['nova_object.data']['service_host'] for hosts in result]


def test_a_boot_a_multi_create_and_a_forced_host(served):
    bus, store = served
    conductor = bus.nova()
    assert shape(conductor.call('boot')) == shape(REPLY)
    assert len(set(chosen_of(conductor.call('boot-multi3', 3)))) >= 1
    assert chosen_of(conductor.call('boot-az-host')) == ['compute-003']
    assert chosen_of(conductor.call('boot-host-2.74')) == ['compute-003']
    assert len(store.claims.list_claims(limit=100)) == 6
    assert not any(store.claims.audit().values())


def test_a_repeat_of_nova_claims_once(served):
    bus, store = served
    conductor, uuids = bus.nova(), [str(uuid.uuid4())]
    first = conductor.call('boot', uuids=uuids, request_id='req-1')
    again = conductor.call('boot', uuids=uuids, request_id='req-1')
    assert chosen_of(first) == chosen_of(again)
    assert len(store.claims.list_claims(limit=100)) == 1


def test_the_members_of_a_group_land_apart_until_there_is_no_host_left(served):
    bus, store = served
    conductor = bus.nova()
    # Two of the five hosts have members that Nova placed before.
    taken = {'compute-004', 'compute-001'}
    for _ in range(3):
        (chosen,) = chosen_of(conductor.call('boot-anti-affinity-third'))
        assert chosen not in taken
        taken.add(chosen)
    with pytest.raises(om.RemoteError) as caught:
        conductor.call('boot-anti-affinity-third')
    assert caught.value.exc_type == 'NoValidHost'
    assert '0/5 hosts fit' in caught.value.value
    assert not any(store.claims.audit().values())


def test_a_group_that_has_another_rule_here_is_refused_at_every_door(served):
    """Nova's rule of a group is Nova's truth: it is told what stands in the way."""
    bus, store = served
    group = 'db150b0c-3aa8-4b8b-85a9-53a7a8ec478f'
    store.groups.save_group(Group(uuid=group, policy='affinity'))
    with pytest.raises(om.RemoteError) as caught:
        bus.nova().call('boot-anti-affinity-third')
    assert caught.value.exc_type == 'NoValidHost'
    both = ["policy 'affinity'", "policy 'anti-affinity' and max_per_host 1"]
    assert all(policy in caught.value.value for policy in both)
    spec = RequestSpec(
        resources={'VCPU': 1}, group=GroupRef(uuid=group, policy=Policy.ANTI_AFFINITY)
    )
    with pytest.raises(exceptions.Refused) as refused:
        bus.scheduler().select_destinations(spec=spec, consumers=[str(uuid.uuid4())])
    assert all(policy in refused.value.message for policy in both)
    store.groups.remove_group(group)
    assert chosen_of(bus.nova().call('boot-anti-affinity-third'))
    assert store.groups.load_group(group).policy == 'anti-affinity'


def test_a_full_cloud_refuses_with_its_verdict(served):
    bus, store = served
    conductor = bus.nova()
    conductor.call('boot-multi3', 20)
    with pytest.raises(om.RemoteError) as caught:
        conductor.call('boot')
    assert caught.value.exc_type == 'NoValidHost'
    assert 'VCPU' in caught.value.value
    assert len(store.claims.list_claims(limit=100)) == 20
    assert not any(store.claims.audit().values())


def test_a_plain_dictionary_makes_a_host_that_is_chosen(served):
    bus, _ = served
    stats = client.StatsClient(bus.carrier())
    body = {'vcpus': 64, 'memory_mb': 500_000, 'local_gb': 9000}
    body |= {'vcpus_used': 0, 'memory_mb_used': 0, 'local_gb_used': 0}
    assert stats.send_foreign('old-timer', body).outcome == 'applied'
    result = until(lambda: _lands(bus.nova(), 'old-timer'), 5)
    assert result


def _lands(conductor, host):
    return chosen_of(conductor.call('boot')) == [host]


def in_a_thread(call, *args, **kwargs):
    """A future of what a call returns."""
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as e:
            future.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return future


def asks_for(name):
    return RequestSpec(resources={'VCPU': 1, name: 1})


def test_who_asks_for_a_class_unknown_here_holds_up_nobody(served):
    """Whoever needs the database waits for it apart from the others."""
    bus, store = served
    conductor, stats = bus.scheduler(), client.StatsClient(bus.carrier())
    store.vocabulary.answers.clear()
    odd = [
        in_a_thread(
            bus.scheduler().select_destinations,
            spec=asks_for('CUSTOM_NEW'),
            consumers=[str(uuid.uuid4())],
        )
        for _ in range(3)
    ]
    newer = a_report(HOSTS[0], 1, 2, CUSTOM_NEW=Inventory(total=2))
    odd.append(in_a_thread(stats.update_resource_stats, newer))
    for _ in range(5):
        assert conductor.select_destinations(
            spec=asks_for('MEMORY_MB'), consumers=[str(uuid.uuid4())]
        )
    assert not any(future.done() for future in odd)
    store.vocabulary.declare_class('CUSTOM_NEW')
    store.vocabulary.answers.set()
    assert odd.pop().result(10).outcome == 'applied'
    for future in odd:
        assert future.exception(10) is None or isinstance(
            future.exception(), exceptions.NoValidHost
        )


def test_a_class_declared_elsewhere_a_moment_ago_is_known_to_the_next_request(served):
    bus, store = served
    conductor = bus.scheduler()
    for name in ('CUSTOM_A', 'CUSTOM_B'):
        with pytest.raises(exceptions.UnknownResourceClass, match=name):
            conductor.select_destinations(spec=asks_for(name), consumers=[str(uuid.uuid4())])
        store.vocabulary.declare_class(name)
        with pytest.raises(exceptions.NoValidHost):
            conductor.select_destinations(spec=asks_for(name), consumers=[str(uuid.uuid4())])


def test_a_cast_report_of_a_class_unknown_here_is_folded(served):
    bus, store = served
    store.vocabulary.declare_class('CUSTOM_CAST')
    stats = client.StatsClient(bus.carrier())
    newer = a_report(HOSTS[1], 1, 2, CUSTOM_CAST=Inventory(total=2))
    stats.update_resource_stats(newer, wait=False)
    conductor = bus.scheduler()

    def lands():
        try:
            return conductor.select_destinations(
                spec=asks_for('CUSTOM_CAST'), consumers=[str(uuid.uuid4())]
            )
        except exceptions.NoValidHost:
            return None

    assert until(lands, 5).selections[0][0].host == HOSTS[1]


DICTIONARY = {'vcpus': 4, 'memory_mb': 1024, 'local_gb': 10}


@pytest.mark.parametrize('form', ['typed', 'dictionary'])
def test_who_calls_with_a_report_is_answered_before_he_gives_up(served, form):
    bus, store = served
    claims = client.ClaimsClient(bus.carrier())
    epoch = claims.register_host(RegisterHost(name='cmp-9', boot_nonce='n')).epoch
    stats = DICTIONARY if form == 'dictionary' else base.to_builtins(a_report('cmp-9', epoch, 1))
    name = 'cmp-8' if form == 'dictionary' else 'cmp-9'
    raw = bus.raw('gantt-stats').prepare(call_monitor_timeout=2, timeout=20)
    store.reports.folds.clear()
    with pytest.raises(exceptions.Busy, match='the report is queued'):
        raw.call({}, 'update_resource_stats', name=name, stats=stats)
    # It is folded all the same, and who has been answered is not answered again.
    store.reports.folds.set()

    def folded():
        rows = [change.row for change in store.feed.load_everything().hosts]
        return [row for row in rows if row.name == name and row.cap('VCPU')]

    assert until(folded)
    assert bus.service.health()['calls_pending'] == 0


def aged(seconds, **fields):
    """A message that has waited for a thread for so long."""
    call = RpcCall(Incoming(None, fields, 100))
    call.arrived -= seconds
    return call


@pytest.mark.parametrize('fields', [{}, {'_msg_id': 'm', '_reply_q': 'q'}], ids=['cast', 'call'])
def test_what_a_dictionary_leads_to_is_found_out_however_long_it_waited(served, fields):
    """Else an agent that comes again would be taken for the one of before as long as many wait."""
    bus, store = served
    methods = StatsMethods(bus.facade, Ratios(cpu=1.0, ram=1.0, disk=1.0))
    call = aged(30.0, args={'name': 'cmp-8', 'stats': DICTIONARY}, **fields)
    store.reports.folds.clear()
    timer = threading.Timer(0.3, store.reports.folds.set)
    timer.start()
    assert methods.update_resource_stats(call).run(call)['outcome'] == 'applied'
    timer.join()


def test_callers_are_answered_as_long_as_any_may_wait():
    ours = {'_msg_id': 'm', '_reply_q': 'q'}
    longest = max(
        opt.type.max for opt in (*compute.OPTS, *nova_source.OPTS) if opt.name == 'call_seconds'
    )
    assert aged(longest - 1.0, **ours).is_awaited()
    assert not aged(longest + 1.0, **ours).is_awaited()
    assert aged(longest + 1.0, **ours).is_awaited(600.0)
    assert not aged(31.0, _timeout=30, **ours).is_awaited(600.0)


def test_how_long_callers_wait_is_read_where_the_library_has_it():
    conf = a_conf()
    assert transport.caller_seconds(conf) == 60.0
    conf.set_override('rpc_response_timeout', 900)
    assert transport.caller_seconds(conf) == 900.0


def test_what_is_answered_in_time_leaves_nothing_behind(served):
    bus, _ = served
    raw = bus.raw('gantt-stats').prepare(call_monitor_timeout=600, timeout=20)
    for sequence in range(2, 7):
        stats = base.to_builtins(a_report(HOSTS[0], 1, sequence))
        fate = raw.call({}, 'update_resource_stats', name=HOSTS[0], stats=stats)
        assert fate['outcome'] == 'applied'
    # Neither are their bodies kept, nor is there less room for replies to be tried again,
    # nor waits who stops.
    assert until(lambda: bus.service.health()['calls_pending'] == 0)
    assert bus.service.health()['replies_waiting'] == 0


def test_nobody_is_answered_who_has_given_up(served):
    bus, store = served
    raw = bus.raw('gantt-stats').prepare(call_monitor_timeout=1, timeout=20)
    store.vocabulary.answers.clear()
    inventories = {'CUSTOM_NEW': {'total': 1}}
    stats = base.to_builtins(a_report(HOSTS[0], 1, 2)) | {'inventories': inventories}
    with pytest.raises(om.MessagingTimeout):
        raw.call({}, 'update_resource_stats', name=HOSTS[0], stats=stats)
    time.sleep(1)  # the server counts from when the message came there, which is later
    store.vocabulary.answers.set()
    key = ('gantt_rpc_replies_lost_total', 'late')
    assert until(lambda: bus.counts.values.get(key)) == 1
