# SPDX-License-Identifier: Apache-2.0
"""Our own topics, from our own clients, over the in-process broker."""

import threading
import uuid

import msgspec
import pytest

from gantt import client, exceptions
from gantt.core.messages import base
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost, Running
from gantt.core.messages.request import ExtendClaims, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Outcome
from gantt.rpc.amqp.replies import ReplyWriter
from gantt.rpc.server import Interface, Method, Topic, WorkerPool
from tests.rpc.facade import until


def new_uuid():
    return str(uuid.uuid4())


def a_request(count=1, vcpu=1, **fields):
    return SelectDestinations(
        request_id=new_uuid(),
        spec=RequestSpec(resources={'VCPU': vcpu}),
        consumers=[new_uuid() for _ in range(count)],
        **fields,
    )


# -- select_destinations ----------------------------------------------------------
def test_a_request_is_answered_with_claimed_hosts_and_alternates(bus):
    answer = bus.scheduler().select_destinations(a_request(count=2))
    assert answer.outcome is Outcome.PLACED
    assert [len(s) for s in answer.selections] == [3, 3]
    for chosen, *others in answer.selections:
        assert bus.facade.claims[chosen.claim_id] == (chosen.host, 'reserved')
        assert chosen.build_topic == f'gantt-compute.{chosen.host}'
        assert all(other.claim_id is None for other in others)


def test_a_request_may_be_given_in_parts(bus):
    consumer = new_uuid()
    answer = bus.scheduler().select_destinations(
        spec=RequestSpec(resources={'VCPU': 1}), consumers=[consumer], alternates=0
    )
    assert answer.selections[0][0].consumer == consumer


def test_a_repeat_gets_the_same_answer_and_claims_nothing_more(bus):
    request, scheduler = a_request(), bus.scheduler()
    first = scheduler.select_destinations(request)
    assert scheduler.select_destinations(request) == first
    assert scheduler.get_request(request.request_id) == first
    assert len(bus.facade.claims) == 1


def test_a_reused_id_with_another_body_is_refused(bus):
    request, scheduler = a_request(), bus.scheduler()
    scheduler.select_destinations(request)
    other = msgspec.structs.replace(request, spec=RequestSpec(resources={'VCPU': 2}))
    with pytest.raises(exceptions.RequestIdReused, match=request.request_id):
        scheduler.select_destinations(other)


def test_no_valid_host_says_the_verdict_and_nothing_else(bus):
    with pytest.raises(exceptions.NoValidHost) as caught:
        bus.scheduler().select_destinations(a_request(vcpu=1000))
    assert type(caught.value) is exceptions.NoValidHost
    assert str(caught.value) == 'No valid host was found. 0/5 hosts fit: too little room'
    assert caught.value.kwargs['reason'] == '0/5 hosts fit: too little room'


def test_a_cancelled_request_is_told_so(bus):
    request, scheduler = a_request(), bus.scheduler()
    assert scheduler.cancel_claims(request.request_id)['state'] == 'cancelled'
    with pytest.raises(exceptions.RequestCancelled, match=request.request_id):
        scheduler.select_destinations(request)


def test_busy_is_tried_again_within_the_budget(bus):
    bus.facade.moods += [Outcome.BUSY, Outcome.BUSY]
    assert bus.scheduler().select_destinations(a_request()).outcome is Outcome.PLACED
    assert len({r.request_id for r in bus.facade.seen}) == 1
    assert len(bus.facade.seen) == 3


def test_busy_is_said_when_the_budget_is_over(bus):
    bus.facade.moods += [Outcome.BUSY] * 1000
    with pytest.raises(exceptions.Busy, match='not just now'):
        bus.scheduler().select_destinations(a_request(budget_ms=400))
    assert bus.facade.moods, 'it would have been placed in the end'


def test_do_not_know_is_another_answer_than_no_room(bus):
    bus.facade.moods += [Outcome.UNKNOWN]
    with pytest.raises(exceptions.HostsUnknown, match='not just now'):
        bus.scheduler().select_destinations(a_request())


def test_an_answer_that_does_not_come_is_asked_for_again(bus):
    """The first copy is held back inside; the repeat joins it, and both are answered once."""
    bus.facade.hold.clear()
    threading.Timer(3.5, bus.facade.hold.set).start()
    answer = bus.scheduler(attempt_seconds=0.5).select_destinations(a_request(budget_ms=20_000))
    assert answer.outcome is Outcome.PLACED
    until(lambda: len(bus.facade.seen) >= 2)
    assert len(bus.facade.claims) == 1


def test_what_waited_longer_than_its_budget_is_not_placed(bus):
    bus.facade.hold.clear()
    threading.Timer(1.0, bus.facade.hold.set).start()
    with pytest.raises(exceptions.Expired):
        bus.scheduler().select_destinations(a_request(budget_ms=300))
    assert not bus.facade.claims


def test_a_monitored_caller_shortens_the_budget(bus):
    raw = bus.raw('gantt-scheduler').prepare(call_monitor_timeout=4, timeout=10)
    raw.call({}, 'select_destinations', request=base.to_builtins(a_request()))
    assert bus.facade.seen[0].budget_ms == 3000


# -- what hosts say -------------------------------------------------------------------
def test_a_host_registers_reports_and_speaks_about_claims(bus):
    claims, stats = client.ClaimsClient(bus.carrier()), client.StatsClient(bus.carrier())
    selection = bus.scheduler().select_destinations(a_request()).selections[0][0]
    registered = claims.register_host(RegisterHost(name=selection.host, boot_nonce='n1'))
    report = HostReport(
        name=selection.host,
        epoch=registered.epoch,
        sequence=1,
        full=True,
        inventories={'VCPU': Inventory(total=8)},
        running=[Running(consumer=selection.consumer, claim_id=selection.claim_id)],
        pending=[],
    )
    assert stats.update_resource_stats(report).outcome == 'applied'
    assert stats.update_resource_stats(report).outcome == 'stale'
    words = ClaimUpdate(
        name=selection.host, epoch=registered.epoch, sequence=2, claim_ids=[selection.claim_id]
    )
    assert [f.outcome for f in claims.confirm_claims(words)] == ['ok']
    assert bus.facade.claims[selection.claim_id][1] == 'confirmed'
    assert [f.state for f in claims.refuse_claims(words)] == ['refused']
    assert [f.state for f in claims.release_claims(words)] == ['released']
    unknown = msgspec.structs.replace(words, claim_ids=[new_uuid()])
    assert [f.outcome for f in claims.confirm_claims(unknown)] == ['gone']
    extended = claims.extend_claims(ExtendClaims(request_id=new_uuid(), seconds=60))
    assert extended['seconds'] == 60


def test_a_delta_is_cast_and_arrives(bus):
    stats = client.StatsClient(bus.carrier())
    delta = HostReport(
        name='cmp-1', epoch=1, sequence=5, full=False, base=3, running=[], pending=[]
    )
    assert stats.update_resource_stats(delta) is None
    assert until(lambda: bus.facade.reports)[0] == delta


def test_an_old_epoch_is_told_gone(bus):
    claims = client.ClaimsClient(bus.carrier())
    claims.register_host(RegisterHost(name='cmp-1', boot_nonce='n1'))
    claims.register_host(RegisterHost(name='cmp-1', boot_nonce='n2'))
    words = ClaimUpdate(name='cmp-1', epoch=1, sequence=1, claim_ids=[new_uuid()])
    with pytest.raises(exceptions.StaleEpoch, match='epoch 1 is not the current one'):
        claims.confirm_claims(words)


def test_a_registration_that_comes_too_late_is_told_so(bus):
    late = RegisterHost(name='cmp-1', boot_nonce='late', journal=new_uuid(), journal_count=4)
    with pytest.raises(
        exceptions.StaleRegistration, match='registration 4 of its journal'
    ) as caught:
        client.ClaimsClient(bus.carrier()).register_host(late)
    assert caught.value.kwargs == {'host': 'cmp-1', 'count': 4, 'current': 9}


def test_a_report_of_an_unknown_host_is_told_so(bus):
    report = HostReport(
        name='nobody', epoch=1, sequence=1, full=True, inventories={}, running=[], pending=[]
    )
    with pytest.raises(exceptions.NotFound, match="host 'nobody'"):
        client.StatsClient(bus.carrier()).update_resource_stats(report)


def test_a_plain_dictionary_registers_its_host_and_is_applied(bus):
    stats = client.StatsClient(bus.carrier())
    fate = stats.send_foreign('cmp-7', {'vcpus': 4, 'memory_mb': 1024, 'local_gb': 10})
    assert fate.outcome == 'applied'
    assert bus.facade.nonces['cmp-7'] == 'dictionary'
    assert bus.facade.reports[0].running is None


def test_a_dictionary_host_that_was_registered_anew_is_registered_again(bus):
    stats, claims = client.StatsClient(bus.carrier()), client.ClaimsClient(bus.carrier())
    body = {'vcpus': 4, 'memory_mb': 1024, 'local_gb': 10}
    stats.send_foreign('cmp-7', body)
    claims.register_host(RegisterHost(name='cmp-7', boot_nonce='somebody else'))
    assert stats.send_foreign('cmp-7', body).outcome == 'applied'
    assert bus.facade.epochs['cmp-7'] == 3


# -- towards agents ----------------------------------------------------------------------
def test_a_build_reaches_the_agent_of_its_host(bus):
    got = []

    def keep(call):
        got.append((call.method, call.args))
        return 'taken'

    replies = ReplyWriter(bus.service._delayed_executor, 1.0, bus.counts)
    topic = Topic(
        bus.carrier(),
        _target('gantt-compute.cmp-1'),
        Interface({'build': Method(keep), 'delete': Method(keep)}),
        replies,
        WorkerPool('gantt-compute.cmp-1', threads=1, limit=10),
        payload_bytes_max=1 << 20,
        count=bus.counts,
    )
    replies.start()
    topic.start()
    build = Build(
        claim_id=new_uuid(),
        consumer=new_uuid(),
        host='cmp-1',
        resources={'VCPU': 1},
        lease_seconds=100,
    )
    computes = client.ComputeClient(bus.carrier())
    assert computes.build('gantt-compute.cmp-1', build, wait=True) == 'taken'
    computes.delete('gantt-compute.cmp-1', Delete(consumer=build.consumer, host='cmp-1'))
    until(lambda: len(got) == 2)
    topic.stop_taking()
    topic.finish(5)
    replies.stop()
    assert base.decode(got[0][1]['build'], Build, inside='build') == build
    assert got[1][0] == 'delete'


def _target(topic):
    import oslo_messaging as om

    return om.Target(exchange='gantt', topic=topic, server='agent')


# -- the end ----------------------------------------------------------------------------
def test_stopping_answers_what_was_accepted(make_bus):
    bus = make_bus()
    bus.facade.hold.clear()
    answers = []
    scheduler = bus.scheduler()
    ask = threading.Thread(
        target=lambda: answers.append(scheduler.select_destinations(a_request()))
    )
    ask.start()
    until(lambda: bus.service.health()['calls_pending'] == 1)
    threading.Timer(0.5, bus.facade.hold.set).start()
    assert bus.stop(10)
    ask.join(10)
    assert answers[0].outcome is Outcome.PLACED


def test_stopping_ends_in_time_when_an_answer_never_comes(make_bus):
    bus = make_bus()
    bus.facade.hold.clear()
    raw = bus.raw('gantt-scheduler')
    raw.cast({}, 'select_destinations', request=base.to_builtins(a_request()))
    until(lambda: bus.service.health()['calls_pending'] == 1)
    assert not bus.stop(1.0)
