# SPDX-License-Identifier: Apache-2.0
"""A scheduler that stands still costs callers of the others little; and what the log says."""

import io
import logging
import threading
import time
import uuid

import pytest
from oslo_config import cfg
from oslo_log import formatters

from gantt import client, exceptions
from gantt.core.messages.request import CancelClaims, RequestSpec, SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.rpc.amqp import reader, transport
from gantt.telemetry import log
from tests.conftest import STORES
from tests.nemesis import amqp
from tests.nemesis.proxy import Proxy
from tests.rabbit.wire import Wire, envelope
from tests.rpc.bus import Bus, a_conf
from tests.rpc.facade import Facade, until
from tests.world import World
from tests.world import a_request as a_request_of_the_world

# py-amqp leaves the sockets of failed connections to the garbage collector, in any later test.
pytestmark = pytest.mark.leaves_sockets
rabbit = pytest.mark.rabbit
MANY = 40


def a_request(**fields):
    return SelectDestinations(
        request_id=str(uuid.uuid4()),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[str(uuid.uuid4())],
        **fields,
    )


@pytest.fixture
def buses(rabbit_url):
    """``buses(url)``: another scheduler's RPC side, on hosts of its own."""
    opened, ways = [], []

    def make(url=rabbit_url, **options):
        opened.append(Bus(url, facade=Facade(hosts=100, queue_limit=2000), **options))
        return opened[-1]

    def behind():
        ways.append(Proxy.of(rabbit_url))
        return ways[-1], make(ways[-1].url(rabbit_url))

    make.behind = behind
    yield make
    for way in ways:
        way.mend()
    for bus in opened:
        bus.facade.silent_since = 0.0
        bus.close()
        bus.facade.stop()
    for way in ways:
        way.close()


@pytest.fixture
def conductor(rabbit_url):
    carrier = client.get_transport(a_conf(rabbit_url))
    yield client.SchedulerClient(carrier)
    carrier.cleanup()


def all_at_once(ask, count=MANY):
    """Answers and errors of so many callers."""
    outcomes = []

    def ask_once():
        try:
            outcomes.append(ask())
        except exceptions.GanttError as e:
            outcomes.append(e)

    threads = [threading.Thread(target=ask_once) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


# -- A2: who is stopped ----------------------------------------------------------------------
@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_who_takes_nothing_more_is_sent_no_more_than_the_prefetch(buses, rabbit_url):
    way, _ = buses.behind()
    well = buses()
    way.hold()
    wire, sent = Wire(rabbit_url), 10 * transport.PREFETCH_COUNT
    for _ in range(sent):
        body = {
            'request_id': str(uuid.uuid4()),
            'spec': {'resources': {'VCPU': 1}},
            'consumers': [str(uuid.uuid4())],
            'budget_ms': 600_000,
        }
        wire.send(
            envelope(
                {
                    'method': 'select_destinations',
                    'version': '1.0',
                    'args': {'request': body},
                    '_unique_id': uuid.uuid4().hex,
                }
            ),
            topic='gantt-scheduler',
        )
    until(lambda: len(well.facade.seen) >= sent - transport.PREFETCH_COUNT, 60)
    wire.close()


@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_callers_ask_again_well_within_their_budget(buses, conductor):
    way, _ = buses.behind()
    buses()
    buses()
    way.hold()
    answers = all_at_once(lambda: conductor.select_destinations(a_request(budget_ms=8_000)), 12)
    assert {getattr(answer, 'outcome', answer) for answer in answers} == {Outcome.PLACED}


@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_a_call_of_nova_is_redelivered_and_ends_before_its_caller_gives_up(buses):
    way, stopped = buses.behind()
    conductor, replies = buses(nova_enabled=False).nova(), []
    conductor.call('boot')  # it takes calls by now
    way.hold()
    ask = threading.Thread(target=lambda: replies.append(conductor.call('boot')))
    ask.start()
    until(lambda: way.held_bytes > 1_000)  # the call, which is longer than any heartbeat
    well = buses()
    way.cut()
    ask.join(60)
    assert replies
    assert len(stopped.facade.seen) == 1
    # The first one too, where its end had not been acknowledged.
    bound = 1000 * (60 - 1.5 * transport.HEARTBEAT_SECONDS)
    budgets = [seen.budget_ms for seen in well.facade.seen]
    assert budgets and max(budgets) <= bound


# -- A2: whose database is silent --------------------------------------------------------------
@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_who_has_no_database_leaves_calls_to_others_until_it_answers(buses, conductor):
    silent, other = buses(), buses()
    silent.facade.silent_since = time.monotonic()
    until(lambda: silent.service.health()['topics_paused'] == 4, 30)
    assert 'gantt-scheduler' in silent.service.paused
    assert 'left to other schedulers' in silent.service.paused
    assert silent.facade.given_back
    assert all(silent.service.attached().values())
    before = len(silent.facade.seen)
    answers = all_at_once(lambda: conductor.select_destinations(a_request()))
    assert {answer.outcome for answer in answers} == {Outcome.PLACED}
    assert len(silent.facade.seen) == before
    assert len(other.facade.seen) >= MANY
    silent.facade.silent_since = 0.0
    until(lambda: silent.service.health()['topics_paused'] == 0, 30)
    assert silent.service.paused == ''

    def heard():
        conductor.select_destinations(a_request())
        return len(silent.facade.seen) > before

    until(heard, 30)


@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_a_pause_that_ends_at_once_costs_no_connection(buses, conductor):
    bus, _ = buses(), buses()
    before = [topic.consumer.reader.channel for topic in bus.service._running]
    for number in range(10):
        for topic in bus.service._running:
            topic.pause()
        if number % 2:
            conductor.select_destinations(a_request())
        for topic in bus.service._running:
            topic.resume()
        conductor.select_destinations(a_request())
    time.sleep(2 * reader.UNSHARED_READ_SECONDS)
    after = [topic.consumer.reader.channel for topic in bus.service._running]
    assert after == before
    assert [topic.consumers() for topic in bus.service._running] == [2, 2, 2, 2]


@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_a_wait_for_a_lock_is_not_taken_for_silence(buses):
    """The database answers another question at once."""
    bus, _ = buses(), buses()
    bus.facade.answers_pings = True
    bus.facade.silent_since = time.monotonic() - 60
    time.sleep(4)
    assert bus.service.health()['topics_paused'] == 0
    assert bus.service.paused == ''


@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_calls_are_taken_where_no_other_would(buses, conductor):
    silent, other = buses(), buses()
    silent.facade.silent_since = time.monotonic()
    until(lambda: silent.service.health()['topics_paused'] == 4, 30)
    other.stop()
    until(lambda: silent.service.health()['topics_paused'] == 0, 30)
    assert 'no other takes calls' in silent.service.paused
    assert conductor.select_destinations(a_request()).outcome is Outcome.PLACED


@rabbit
@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_calls_of_nova_that_were_not_begun_are_given_back(buses):
    silent, other = buses(), buses()
    silent.facade.hold.clear()
    conductor, replies = other.nova(), []
    asking = [
        threading.Thread(target=lambda: replies.append(conductor.call('boot'))) for _ in range(6)
    ]
    for ask in asking:
        ask.start()
    until(lambda: silent.service.health()['calls_pending'] >= 2)
    silent.facade.silent_since = time.monotonic()
    until(lambda: len(other.facade.seen) >= 5, 15)
    silent.facade.hold.set()
    for ask in asking:
        ask.join(60)
    assert len(replies) == 6, 'what had been begun is answered, too'


@pytest.mark.finding('A2', 'a stopped scheduler takes a bounded number of messages')
def test_what_no_batch_has_had_is_turned_away_and_comes_again_elsewhere():
    world = World(hosts=2)
    requests = [a_request_of_the_world() for _ in range(5)]
    handles = [world.ask(request) for request in requests]
    assert world.scheduler.refuse_unstarted('the database does not answer this scheduler') == 5
    answers = [world.replies.answers[handle] for handle in handles]
    assert [answer.outcome for answer in answers] == [Outcome.BUSY] * 5
    assert all(0 < answer.retry_after_ms <= 100 for answer in answers)
    assert world.scheduler.placing.admission.depth == 0
    other = world.another_scheduler()
    assert {world.select(r, other).outcome for r in requests} == {Outcome.PLACED}


# -- A2: who receives nothing ----------------------------------------------------------------------
@rabbit
@pytest.mark.finding('A2b', 'a client whose connection carries no answers makes it anew')
def test_a_client_that_hears_no_answers_connects_anew(buses, rabbit_url):
    way, deliveries, _ = amqp.proxy(rabbit_url)
    buses()
    carrier = client.get_transport(a_conf(way.url(rabbit_url)))
    scheduler = client.SchedulerClient(carrier)
    scheduler.select_destinations(a_request())
    deliveries.deafen()
    answers = all_at_once(lambda: scheduler.select_destinations(a_request(budget_ms=10_000)), 8)
    assert {getattr(answer, 'outcome', answer) for answer in answers} == {Outcome.PLACED}
    carrier.cleanup()
    way.close()


@rabbit
@pytest.mark.finding('A2b', 'a client whose connection carries no answers makes it anew')
def test_a_scheduler_that_does_not_answer_is_no_reason_to_connect_anew(buses, conductor):
    bus = buses()
    conductor.select_destinations(a_request())
    before = conductor._caller._carrier.caller.reply_queue
    bus.facade.hold.clear()
    with pytest.raises(exceptions.Unavailable):
        conductor.select_destinations(a_request(budget_ms=1500))
    assert conductor._caller._carrier.caller.reply_queue == before
    bus.facade.hold.set()


# -- A6 ----------------------------------------------------------------------------------------
@pytest.mark.finding('A6', 'words about a broker that is away')
def test_a_broker_that_takes_no_replies_is_named():
    carrier = client.get_transport(a_conf('rabbit://gantt:s3cret@127.0.0.1:1/cloud'))
    with (
        pytest.raises(exceptions.BrokerUnavailable, match=r'at rabbit://gantt:.*@127.0.0.1:1/cl'),
        carrier.sender(),
    ):
        pass
    carrier.cleanup()


@rabbit
@pytest.mark.finding('A6', 'words about a broker that is away')
def test_a_broker_that_breaks_off_is_named(rabbit_url):
    way = Proxy.of(rabbit_url)
    carrier = client.get_transport(a_conf(way.url(rabbit_url)))
    with pytest.raises(exceptions.BrokerUnavailable) as caught, carrier.sender() as connection:
        way.refuse()
        connection.send_heartbeat()
        connection.wait(5)
    error = caught.value
    assert f'127.0.0.1:{way.port}' in error.message
    assert 'guest:guest' not in error.message
    carrier.cleanup()
    way.close()


def lines_of(logger, conf):
    """What a logger writes, as our processes have it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.formatter_for(formatters.ContextFormatter(config=conf), conf))
    logger.addHandler(handler)
    return stream, handler


@pytest.mark.finding('A6', 'words about a broker that is away')
def test_an_error_that_is_in_the_message_is_not_added_to_it():
    logger = logging.getLogger('gantt.tests.hostile.words')
    stream, handler = lines_of(logger, _with_log_options())
    error = exceptions.BrokerUnavailable(url='rabbit://a', problem='refused')
    try:
        raise error
    except exceptions.BrokerUnavailable as e:
        logger.warning('The broker takes no replies: %s', e)
        logger.warning('Something else')
    logger.removeHandler(handler)
    line, other = stream.getvalue().splitlines()
    assert line.count('does not answer') == 1
    assert 'BrokerUnavailable' not in line
    assert 'does not answer' in other, 'where the message does not say it, it is added'


@pytest.mark.finding('A6', 'words about a broker that is away')
def test_what_every_connection_says_is_said_once_in_a_while():
    logger = logging.getLogger('gantt.tests.hostile.chorus')
    seldom = log.RateLimitFilter(0.2)
    logger.addFilter(seldom)
    stream, handler = lines_of(logger, _with_log_options())
    for number in range(100):
        logger.error('[%s] the broker is unreachable, again in %d s', uuid.uuid4(), number)
    logger.error('something else')
    time.sleep(0.3)
    logger.error('[%s] the broker is unreachable, again in %d s', 'last', 1)
    logger.removeHandler(handler)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[2].endswith(
        '[last] the broker is unreachable, again in 1 s (99 more like it since the last line)'
    )


@rabbit
@pytest.mark.finding('A6', 'words about a broker that is away')
def test_one_outage_is_some_lines_and_not_some_for_each_connection(buses, caplog):
    way, _ = buses.behind()
    log.limit_libraries()
    try:
        way.refuse()
        time.sleep(8)
        lines = [
            r
            for r in caplog.records
            if r.name in log.REPETITIVE_LOGGERS and r.levelno >= logging.ERROR
        ]
        assert 1 <= len(lines) <= 8
    finally:
        way.mend()
        for name in log.REPETITIVE_LOGGERS:
            logging.getLogger(name).filters.clear()


def _with_log_options():
    conf = cfg.ConfigOpts()
    log.register_opts(conf)
    conf([], project='gantt', default_config_files=[])
    return conf


@pytest.mark.finding('A6', 'words about a broker that is away')
def test_every_process_has_that_bound():
    conf = _with_log_options()
    conf.set_override('use_stderr', True)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        log.setup(conf)
        log.setup(conf)
        for name in log.REPETITIVE_LOGGERS:
            filters = logging.getLogger(name).filters
            assert sum(isinstance(log_filter, log.RateLimitFilter) for log_filter in filters) == 1
    finally:
        root.handlers[:], root.level = before, level
        for name in log.REPETITIVE_LOGGERS:
            logging.getLogger(name).filters.clear()


@pytest.mark.finding('A6b', 'a claim that is over is no disagreement when its host refuses it')
@pytest.mark.parametrize('kind', STORES)
def test_only_live_claims_are_disagreed_about(kind, make_store, caplog):
    world = World(make_store(kind), hosts=1)
    gone, live = world.select(a_request_of_the_world()), world.select(a_request_of_the_world())
    world.scheduler.cancel(CancelClaims(request_id=gone.request_id))
    for answer in (gone, live):
        (claim,) = [selections[0].claim_id for selections in answer.selections]
        world.scheduler.refuse(world.hosts['cmp-1'].words(claim, reason='no room'))
    assert world.recorder.counts['gantt_claims_refused_total'] == 1
    assert caplog.text.count('its own check found') == 1
