# SPDX-License-Identifier: Apache-2.0
"""A project against its quota: what it can have, by whatever door and however many ask."""

import collections
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from devel.doubles import MemoryRecorder
from gantt import conf as options
from gantt import exceptions, plugin_loader
from gantt.conf import quotas
from gantt.core.claims import quota
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, error_of
from gantt.core.records.decision_codec import unpack
from gantt.nova.wire.topic import NoValidHost
from gantt.scheduler.quotas import REFRESH_SECONDS, QuotaChecks
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import stores_for_url
from tests.builders import a_host, a_request, new_uuid
from tests.services import UNHURRIED
from tests.world import World, sqlite_store

pytestmark = pytest.mark.finding('H2', 'a quota bounds what one project takes')

LIMIT = 10
CALLERS, ASKS, OF_ONE_COMMIT = 16, 3, 2


def of_red(count: int = 1, own: bool = False, **fields: Any) -> SelectDestinations:
    """A request for the project red; ``own``: by its own member."""
    more = {'only_project': 'red'} if own else {}
    consumers = fields.pop('consumers', [new_uuid() for _ in range(count)])
    return a_request(project_id='red', consumers=consumers, **more, **fields).build()


@pytest.fixture
def world() -> Iterator[World]:
    yield World(sqlite_store, hosts=3)


def limited(world: World, project: str = 'red', **limits: int | None) -> None:
    """Set limits, and let every scheduler learn of them."""
    names = {name.replace('class_', 'class:'): limit for name, limit in limits.items()}
    world.store.quotas.set_quotas(project, names)
    world.turn(REFRESH_SECONDS + 1)


def live(world: World, project: str = 'red') -> int:
    return world.store.quotas.quota_usage([project])[project].live_claims


# -- the bound, on a real database ------------------------------------------------------------
@pytest.mark.postgresql
def test_three_schedulers_pass_a_quota_by_what_the_others_have_in_flight(store_url) -> None:
    """48 requests of 16 callers at once: at most one batch of each other scheduler too many."""
    url = store_url('postgresql')
    stores = [stores_for_url(url, timeouts=UNHURRIED) for _ in range(3)]
    for number in range(1, 5):
        a_host(f'cmp-{number}').with_room(vcpu=100, ram=1 << 20).on(stores[0])
    stores[0].quotas.set_quotas('red', {'live_claims': LIMIT})
    schedulers = [
        Scheduler(
            store,
            plugin_loader.load_pipeline(),
            MemoryRecorder(),
            SchedulerSettings(worker=f'worker-{n}', claims_per_commit=OF_ONE_COMMIT),
        )
        for n, store in enumerate(stores)
    ]
    answers: list[Answer] = []
    begin = threading.Barrier(CALLERS)

    def ask(number: int) -> None:
        begin.wait(30)
        for turn in range(ASKS):
            scheduler = schedulers[(number + turn) % len(schedulers)]
            answers.append(scheduler.select(of_red(budget_ms=60_000)))

    try:
        for scheduler in schedulers:
            scheduler.start()
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        used = stores[0].quotas.quota_usage(['red'])['red'].live_claims
        assert stores[0].claims.audit() == {key: [] for key in stores[0].claims.audit()}
    finally:
        for scheduler in schedulers:
            scheduler.stop()
        for store in stores:
            store.database.close()
    outcomes = collections.Counter(answer.outcome for answer in answers)
    assert outcomes == {Outcome.PLACED: used, Outcome.REFUSED: CALLERS * ASKS - used}
    assert all(a.excess is not None for a in answers if a.outcome is Outcome.REFUSED)
    assert LIMIT <= used <= LIMIT + (len(schedulers) - 1) * OF_ONE_COMMIT


def test_one_scheduler_holds_a_quota_exactly(world: World) -> None:
    limited(world, live_claims=LIMIT)
    handles = [world.ask(of_red(3)) for _ in range(6)]
    world.turn(times=5)
    answers = [world.replies.answers[handle] for handle in handles]
    assert [answer.outcome for answer in answers].count(Outcome.PLACED) == 3
    assert live(world) == 9
    assert world.select(of_red(1)).outcome is Outcome.PLACED
    assert world.select(of_red(1)).outcome is Outcome.REFUSED


@pytest.mark.postgresql
def test_no_project_waits_for_a_row_of_its_quota(store_url) -> None:
    """While one transaction reads and writes for a project another of it commits."""
    url = store_url('postgresql')
    stores = [stores_for_url(url, timeouts=UNHURRIED) for _ in range(2)]
    try:
        hosts = [a_host(f'cmp-{n}').on(stores[0]) for n in (1, 2)]
        assert hosts[0].id != hosts[1].id
        stores[0].quotas.set_quotas('red', {'live_claims': LIMIT})
        with stores[1].database.engine.connect() as other:
            other.execute(sa.text('SET LOCAL idle_in_transaction_session_timeout = 0'))
            other.execute(sa.text("SELECT * FROM quotas WHERE project_id = 'red' FOR UPDATE"))
            scheduler = Scheduler(
                stores[0],
                plugin_loader.load_pipeline(),
                MemoryRecorder(),
                SchedulerSettings(worker='one'),
            )
            scheduler.start()
            try:
                assert scheduler.select(of_red(budget_ms=20_000)).outcome is Outcome.PLACED
            finally:
                scheduler.stop()
    finally:
        for store in stores:
            store.database.close()


def test_who_is_not_bound_costs_no_statement_more(make_store) -> None:
    """The commit of an unbounded project, beside others that are bound, reads nothing more."""
    store = make_store('sqlite')
    world = World(store, hosts=2)
    statements: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    def cost(project: str) -> list[str]:
        statements.clear()
        request = a_request(project_id=project).build()
        world.ask(request)
        world.scheduler.placing.step()
        return [
            statement.split()[0] + ' ' + statement.split('FROM')[-1][:30]
            for statement in statements
        ]

    sa.event.listen(store.database.engine, 'before_cursor_execute', note)
    cost('blue')
    before = cost('blue')
    store.quotas.set_quotas('red', {'live_claims': LIMIT, 'class:VCPU': 100})
    world.scheduler.quotas.read()
    assert cost('blue') == before
    assert len(cost('red')) > len(before)


# -- whom it binds, and what counts ------------------------------------------------------------
def test_defaults_bind_a_projects_own_callers_and_not_services() -> None:
    world = World(sqlite_store, hosts=2, quotas={'live_claims': 1})
    assert [world.select(of_red()).outcome for _ in range(3)] == [Outcome.PLACED] * 3
    refused = world.select(of_red(own=True))
    assert refused.reason == 'quota live_claims: 3 of 1 used, 1 requested'
    limited(world, live_claims=5)
    assert world.select(of_red(2, own=True)).outcome is Outcome.PLACED
    assert world.select(of_red()).reason == 'quota live_claims: 5 of 5 used, 1 requested'
    limited(world, live_claims=-1)
    assert world.select(of_red(2, own=True)).outcome is Outcome.PLACED
    limited(world, live_claims=None)
    limited(world, 'default', live_claims=8)
    assert world.select(of_red(own=True)).outcome is Outcome.PLACED
    assert world.select(of_red(own=True)).reason == 'quota live_claims: 8 of 8 used, 1 requested'


def test_a_refusal_is_an_error_with_its_facts_and_a_decision_with_its_cause(world: World) -> None:
    limited(world, class_VCPU=3)
    assert world.select(of_red(2)).outcome is Outcome.PLACED
    answer = world.select(of_red(2))
    error = error_of(answer)
    assert (error.code, error.http_status) == ('gantt.quota_exceeded', 403)
    assert error.message == 'quota class:VCPU: 2 of 3 used, 2 requested'
    assert error.kwargs == {'name': 'class:VCPU', 'limit': 3, 'used': 2, 'requested': 2}
    record = world.recorder.records[-1]
    assert (record.id, record.outcome, record.project_id) == (answer.decision_id, 'refused', 'red')
    decision = unpack(record.packed).decision
    assert (decision.reason, decision.cause) == (error.message, 'quota class:VCPU')
    assert world.recorder.counts['gantt_quota_refusals_total'] == 1


def test_a_quota_is_free_again_with_what_was_released(world: World) -> None:
    limited(world, live_claims=1)
    first = world.select(of_red())
    assert world.select(of_red()).outcome is Outcome.REFUSED
    world.store.claims.force_release(first.selections[0][0].claim_id, 'enough')
    assert world.select(of_red()).outcome is Outcome.PLACED


def test_a_repeat_of_what_was_placed_is_answered_at_the_limit(world: World) -> None:
    limited(world, live_claims=1, claims_in_flight=1)
    request = of_red()
    placed = world.select(request)
    assert world.select(request).selections == placed.selections
    assert live(world) == 1


def test_claims_in_flight_end_with_their_confirmation(world: World) -> None:
    limited(world, claims_in_flight=1)
    chosen = world.select(of_red()).selections[0][0]
    assert world.select(of_red()).reason == 'quota claims_in_flight: 1 of 1 used, 1 requested'
    world.hosts[chosen.host].confirm(chosen.claim_id)
    assert world.select(of_red()).outcome is Outcome.PLACED


def test_a_resize_asks_for_what_the_server_will_have_more(world: World) -> None:
    limited(world, live_claims=1, class_VCPU=4)
    consumer = new_uuid()
    chosen = world.select(of_red(consumers=[consumer], resources={'VCPU': 3})).selections[0][0]
    world.hosts[chosen.host].confirm(chosen.claim_id)
    resize = {'consumers': [consumer], 'purpose': Purpose.RESIZE, 'ignore_hosts': [chosen.host]}
    refused = world.select(of_red(**resize, resources={'VCPU': 5}))
    assert refused.reason == 'quota class:VCPU: 3 of 4 used, 2 requested'
    assert world.select(of_red(**resize, resources={'VCPU': 4})).outcome is Outcome.PLACED
    usage = world.store.quotas.quota_usage(['red'], ['VCPU'])['red']
    assert (usage.live_claims, usage.amounts) == (1, {'VCPU': 4})


def test_a_request_in_several_commits_is_let_in_whole_or_not_at_all() -> None:
    world = World(sqlite_store, hosts=3, claims_per_commit=2)
    limited(world, live_claims=5)
    assert world.select(of_red(6)).outcome is Outcome.REFUSED
    assert live(world) == 0
    assert world.select(of_red(5)).outcome is Outcome.PLACED
    assert live(world) == 5


def test_a_dry_run_is_told_what_the_request_would_be(world: World) -> None:
    limited(world, live_claims=2)
    reasons = {dry: world.select(of_red(3, dry_run=dry)).reason for dry in (True, False)}
    assert set(reasons.values()) == {'quota live_claims: 0 of 2 used, 3 requested'}
    assert world.select(of_red(2, dry_run=True)).outcome is Outcome.PLACED
    assert live(world) == 0


def test_nova_is_told_no_valid_host_with_the_reason(world: World) -> None:
    limited(world, live_claims=0)
    answer = world.select(of_red())
    assert answer.outcome is Outcome.REFUSED
    assert 'quota live_claims: 0 of 0 used, 1 requested' in str(NoValidHost(answer.reason))


def test_a_repeat_of_a_refusal_is_the_same_error(world: World) -> None:
    limited(world, live_claims=1)
    request = of_red(2, repeat=True)
    answers = [world.select(request) for _ in range(2)]
    assert [error_of(answer).code for answer in answers] == ['gantt.quota_exceeded'] * 2
    assert answers[0].excess == answers[1].excess


def test_a_refusal_is_one_attempt_however_long_it_waited_for_another_copy() -> None:
    """Another worker has the request open: who is over its quota waits for that one."""
    world = World(sqlite_store, hosts=3, claims_per_commit=1)
    limited(world, live_claims=2)
    request = of_red(2)
    first = world.ask(request)
    world.scheduler.placing.step()
    assert first not in world.replies.answers
    assert live(world) == 1
    other = world.another_scheduler()
    world.ask(request, other)
    seen = []
    for _ in range(3):
        world.clock.advance(0.2)
        other.placing.step()
        seen += [call.attempt.tries for call in other.placing.admission._calls.values()]
    assert seen == [1] * 3
    refused = world.select(of_red(3), other)
    record = next(r for r in world.recorder.records if r.id == refused.decision_id)
    assert unpack(record.packed).decision.attempts == 1


# -- the database ---------------------------------------------------------------------------
def test_one_caller_waits_for_limits_that_are_read_and_others_have_those_of_before(
    make_store,
) -> None:
    """While the database is silent the threads of the API are not all at it."""
    store = make_store('sqlite')
    world = World(store)
    quotas_of = world.scheduler.quotas
    limited(world, live_claims=3)
    world.clock.advance(REFRESH_SECONDS + 1)
    silent, is_over = threading.Event(), threading.Event()

    def wait(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if 'FROM quotas' in statement:
            silent.set()
            is_over.wait(30)

    sa.event.listen(store.database.engine, 'before_cursor_execute', wait)
    first = threading.Thread(target=quotas_of.fresh_limits)
    first.start()
    assert silent.wait(30)
    limits_read: list[quota.Limits] = []
    others = [
        threading.Thread(target=lambda: limits_read.append(quotas_of.fresh_limits()))
        for _ in range(5)
    ]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join(10)
    answered = [limits.of('red', True) for limits in limits_read]
    is_over.set()
    for thread in (first, *others):
        thread.join(30)
    assert answered == [{'live_claims': 3}] * 5


def test_limits_that_could_not_be_read_are_not_read_again_at_once(world: World) -> None:
    world.settings['quotas'] = {'live_claims': 2}
    quotas_of = world.another_scheduler().quotas
    tried = []

    def away() -> None:
        tried.append(1)
        raise exceptions.DatabaseUnavailable(problem='a test says so')

    quotas = world.store.quotas
    read, quotas.limits = quotas.limits, away
    assert [quotas_of.fresh_limits().of('red', True) for _ in range(3)] == [{'live_claims': 2}] * 3
    assert len(tried) == 1
    with pytest.raises(exceptions.Unavailable):
        quotas_of.new_round()  # what is to be claimed is held against limits that were read
    quotas.limits = read
    world.store.quotas.set_quotas('red', {'live_claims': 1})
    assert quotas_of.new_round() is not None
    assert quotas_of.last_limits().of('red', True) == {'live_claims': 1}


# -- rates ------------------------------------------------------------------------------------
def test_a_project_that_asks_too_often_is_told_when_to_come_again(world: World) -> None:
    limited(world, requests_per_minute=3)
    dry = [world.select(of_red(dry_run=True)).outcome for _ in range(3)]
    assert dry == [Outcome.PLACED] * 3
    answer = world.select(of_red(), turns=1)
    error = error_of(answer)
    assert (error.code, error.http_status) == ('gantt.too_many_requests', 429)
    assert 0 < error.kwargs['retry_after_ms'] <= 20_000
    other = a_request(project_id='blue').build()
    assert world.select(other).outcome is Outcome.PLACED
    world.turn(error.kwargs['retry_after_ms'] / 1000)
    assert world.select(of_red()).outcome is Outcome.PLACED


def test_rates_of_a_bounded_number_of_projects_are_remembered(world: World, monkeypatch) -> None:
    monkeypatch.setattr('gantt.scheduler.quotas.BUCKETS_MAX', 3)
    world.store.quotas.set_quotas('default', {'requests_per_minute': 1})
    checks = QuotaChecks(
        world.store.quotas,
        world.store.claims,
        world.store.groups,
        world.scheduler.settings,
        world.clock,
        lambda *_, **__: None,
    )
    checks.read()
    limits = checks.last_limits()
    for number in itertools.islice(itertools.count(), 10):
        assert checks.count_request(f'p-{number}', True, limits) is None
    assert checks.count_request('p-9', True, limits) is not None
    assert len(checks._buckets) == 3


# -- options ------------------------------------------------------------------------------------
def test_the_options_bind_who_may_claim_without_any_file() -> None:
    conf = cfg.ConfigOpts()
    options.register_opts(conf, ('quotas',))
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    limits = quotas.limits(conf)
    assert set(limits) == {*quota.COUNT_LIMITS, 'class:VCPU', 'class:MEMORY_MB', 'class:DISK_GB'}
    assert all(limit > 0 for limit in limits.values()), 'no project takes all, nor is shut out'
    conf.set_override('amounts', {'VCPU': '20', 'CUSTOM_A': '-1'}, 'quotas')
    assert quotas.limits(conf) == {
        **{name: limits[name] for name in quota.COUNT_LIMITS},
        'class:VCPU': 20,
        'class:CUSTOM_A': -1,
    }
    for wrong in ({'vcpu': '1'}, {'VCPU': 'many'}, {'VCPU': '-2'}, {'VCPU': '9' * 30}):
        conf.set_override('amounts', wrong, 'quotas')
        with pytest.raises(exceptions.Misconfigured, match=r'\[quotas\] amounts'):
            quotas.limits(conf)
