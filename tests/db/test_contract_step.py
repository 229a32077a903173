# SPDX-License-Identifier: Apache-2.0
"""The step after which claims are narrow: beside writers, and from wherever it was left."""

import contextlib
import random
import threading

import msgspec
import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.allocations import AllocationWish
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.process import ServiceNote
from gantt.db.claims import one_trip
from gantt.db.claims.batch import CommitBatch
from gantt.db.claims.contract import ClaimsContract
from gantt.db.hosts import claim_rows
from gantt.db.schema import claim_form, models
from gantt.scheduler.clock import ManualClock
from gantt.testing.store.memory import MemoryStore
from tests.builders import CLEAN, a_draft, a_host, claimed, commit, new_uuid, uuid_of
from tests.conftest import WIDE
from tests.db.conftest import KINDS
from tests.db.test_concurrency import together
from tests.db.test_fail_at_every_statement import Breaking, an_error
from tests.db.test_paths_agree import Chance, History, same
from tests.forms import contract_of, forms, move_all
from tests.services import PATIENT

PORTABLE = pytest.param('portable-wide', marks=pytest.mark.postgresql)


@pytest.fixture(params=[*WIDE, PORTABLE])
def store(request, open_store):
    """A store of wide claims."""
    return open_store(request.param)


@pytest.fixture
def host(store):
    return a_host().with_room(vcpu=1000, ram=1 << 20, CUSTOM_X=100).on(store)


def wide_claims(store, host):
    """Some of each kind: with an odd class, confirmed, ended, found running, of two projects."""
    store.declare_class('CUSTOM_X')
    host.report()
    made = []
    for n in range(12):
        draft = a_draft(uuid_of('wide', n), project_id=['red', 'blue', None][n % 3])
        made += claimed(store, draft.taking(host, vcpu=1 + n % 3, CUSTOM_X=n % 2 or 1))
    host.confirm(*made[:4])
    host.refuse(made[5])
    store.force_release(made[6].id, 'ended')
    host.send(host.says().listing([*made[:4], uuid_of('stranger')]))
    return made


def seen(store):
    """What readers see of claims, whatever their form."""
    claims = {claim.id: claim for claim in store.claims(limit=1000)}
    by_project = {
        project: [claim.id for claim in store.claims(project=project, limit=1000)]
        for project in ('red', 'blue')
    }
    classes = ['VCPU', 'MEMORY_MB', 'CUSTOM_X']
    return (
        claims,
        by_project,
        store.quota_usage(['red', 'blue'], classes),
        store.usages(100),
        [store.usages(100, project=one) for one in ('red', 'blue', '')],
        store.owners_of([claim.consumer for claim in claims.values()]),
    )


def test_all_is_seen_as_before_at_each_point_of_the_move(store, host):
    wide_claims(store, host)
    before = seen(store)
    assert forms(store)['narrow'] == 0
    step = contract_of(store)
    step.mark()
    rounds = 0
    while True:
        assert seen(store) == before
        assert store.audit() == CLEAN
        if not step.move(3) and not step.forget_consumers(4):
            break
        rounds += 1
    assert rounds > 6
    assert forms(store) == {'narrow': 13, 'wide': 0, 'allocations': 0, 'consumers': 0}
    assert step.look().form == claim_form.NARROW
    step.mark()  # once more changes nothing
    assert (step.move(), step.forget_consumers()) == (0, 0)
    assert seen(store) == before


@pytest.mark.leaves_sockets
@pytest.mark.parametrize('number', [1, 2, 4, 6, 8])
@pytest.mark.parametrize('store', WIDE, indirect=True)
def test_a_move_that_breaks_goes_on_where_it_was(store, host, number):
    """At any of its statements, in each of its transactions."""
    wide_claims(store, host)
    before = seen(store)
    works = ['mark', 'move', 'move', 'forget_consumers', 'forget_consumers']
    for work in works:
        step = contract_of(store)  # a process of its own each time
        arguments = [] if work == 'mark' else [7]
        try:
            with Breaking(store, number, an_error):
                getattr(step, work)(*arguments)
        except Exception as e:
            assert 'on purpose' in str(e)
            assert seen(store) == before
            assert store.audit() == CLEAN
            getattr(contract_of(store), work)(*arguments)
    move_all(store, 5)
    assert forms(store) == {'narrow': 13, 'wide': 0, 'allocations': 0, 'consumers': 0}
    assert seen(store) == before
    assert store.audit() == CLEAN


def test_who_has_not_heard_of_the_mark_writes_the_narrow_form_all_the_same(store, host, open_store):
    deaf = open_store(like=store, fast=type(store.ledger).__name__ == 'OneTripLedger')
    for one in (store, deaf):
        claimed(one, a_draft().taking(host))
        one.poll(0, {})
    contract_of(store).mark()
    rival, moved = new_uuid(), new_uuid()
    drafts = [
        a_draft().taking(host),
        a_draft().taking(host, rival),
        a_draft().taking(host, rival),  # the one before gives way
        a_draft().taking(host, moved).taking(host, moved, purpose='migrate'),
        a_draft().planned_at(0, new_uuid()).taking(host),
    ]
    for draft in drafts:
        deaf.memory.narrow = False
        assert commit(deaf, draft).outcomes[0].outcome == 'placed'
    assert forms(store)['wide'] == 2
    assert forms(store)['consumers'] == 2
    move_all(store)
    assert forms(store)['wide'] == 0
    assert store.audit() == CLEAN


def test_a_mark_that_is_taken_back_is_seen_by_the_write(store, host):
    """The database was put back to before the step."""
    contract_of(store).mark()
    claimed(store, a_draft().taking(host))
    with store.engine.begin() as connection:
        connection.execute(models.meta.update().values(claims_form=claim_form.WIDE))
    claimed(store, a_draft().taking(host))
    assert forms(store)['wide'] == 1
    assert store.audit() == CLEAN


@pytest.mark.parametrize('kind', WIDE[1:])  # SQLite has one writer
def test_the_mark_waits_for_who_writes(kind, open_store):
    """A wide claim that is not committed yet is not overlooked: it is moved as all are."""
    store = open_store(kind, waits=PATIENT)
    host = a_host().with_room(vcpu=100).on(store)
    (claim,) = claimed(store, a_draft().taking(host))
    store.force_release(claim.id, 'ended')
    twin = msgspec.structs.replace(store.load_claim(claim.id), id=new_uuid(), consumer=new_uuid())
    written, may_commit, marked = threading.Event(), threading.Event(), threading.Event()

    def write(tx):
        claim_rows.insert_claims(tx, [twin], claim_rows.writes_narrow(tx))
        written.set()
        assert may_commit.wait(20)

    def mark():
        contract_of(other).mark()
        marked.set()

    other = open_store(like=store, waits=PATIENT)
    threads = [threading.Thread(target=store.database.write, args=[write])]
    threads[0].start()
    assert written.wait(20)
    threads.append(threading.Thread(target=mark))
    threads[1].start()
    assert not marked.wait(0.5)
    may_commit.set()
    for thread in threads:
        thread.join(30)
    assert marked.is_set()
    assert forms(store)['wide'] == 2
    claimed(store, a_draft().taking(host))
    assert forms(store)['wide'] == 2
    move_all(store)
    assert forms(store)['wide'] == 0
    assert store.load_claim(twin.id).allocations == twin.allocations


@pytest.mark.parametrize('kind', [*WIDE, PORTABLE])
def test_claims_are_made_and_ended_while_others_are_moved(kind, open_store):
    store = open_store(kind, waits=PATIENT)
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=500, ram=1 << 20).on(store) for n in range(4)]
    rivals = [uuid_of('rival', n) for n in range(3)]
    for n in range(60):
        claimed(store, a_draft().taking(hosts[n % 4], vcpu=1))
    others = [store if kind.startswith('sqlite') else open_store(like=store, waits=PATIENT)]
    others += others if kind.startswith('sqlite') else [open_store(like=store, waits=PATIENT)]

    def load(other, seed):
        rnd = random.Random(seed)
        for n in range(15):
            host = rnd.choice(hosts).id
            draft = a_draft(project_id='red').taking(host)
            if n % 5 == 0:
                draft = a_draft().taking(host, rnd.choice(rivals))
            fate = commit(other, draft).outcomes[0]
            assert fate.outcome in ('placed', 'barred'), fate
            ending = rnd.choice(other.claims(state='reserved', limit=500))
            if n % 3:
                other.force_release(ending.id, 'enough')
            else:
                other.cancel_request(ending.request_id, '')

    together(lambda: move_all(store, 7), lambda: load(others[0], 1), lambda: load(others[1], 2))
    found = forms(store)
    assert (found['wide'], found['allocations'], found['consumers']) == (0, 0, 0)
    assert store.audit() == CLEAN
    live = [claim for claim in store.claims(limit=1000) if claim.is_live]
    assert sum(host.row.used.get('VCPU', 0) for host in hosts) == len(live)


@pytest.mark.parametrize('kind', [*WIDE[1:], PORTABLE])  # SQLite has one writer
@pytest.mark.parametrize('wanted', ['the same', 'less', 'a pool more', 'nothing', 'elsewhere'])
def test_what_a_writer_of_allocations_made_narrow_meanwhile_stays_as_it_wrote_it(
    kind, wanted, open_store
):
    """It commits after the move has found the claims and before it locks their hosts."""
    store = open_store(kind, waits=PATIENT)
    other = open_store(like=store, waits=PATIENT, fast=kind != PORTABLE.values[0])
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=8, ram=1024, CUSTOM_X=8).on(store) for n in range(2)]
    here, there = (host.row.uuid for host in hosts)
    consumer, heir = uuid_of('vm'), uuid_of('heir')
    amounts = {'VCPU': 2, 'MEMORY_MB': 64, 'CUSTOM_X': 1}
    draft = a_draft(project_id='red').taking(hosts[0], consumer, vcpu=2, ram=64, CUSTOM_X=1)
    (claim,) = claimed(store, draft)
    stays = claimed(store, a_draft(project_id='red').taking(hosts[0], vcpu=1))[0]
    step = contract_of(store)
    step.mark()
    pool = other.create_provider('pool', inventories={'DISK_GB': Inventory(total=9)}).uuid
    now = {
        'the same': {here: amounts},
        'less': {here: {'VCPU': 1, 'CUSTOM_X': 1}},
        'a pool more': {here: amounts, pool: {'DISK_GB': 3}},
        'nothing': {},
        'elsewhere': {there: amounts},
    }[wanted]

    def put():
        other.write_allocations(
            [AllocationWish(consumer=consumer, allocations=now, project_id='blue', user_id='u')]
        )

    with ahead_of(store, 'UPDATE meta', put):
        assert step.move() == 2
    assert forms(store)['wide'] == 0
    found = store.load_allocations(consumer)
    assert (found.allocations if found else {}) == now
    if found:
        assert (found.project_id, found.user_id) == ('blue', 'u')
    assert store.load_claim(stays.id).project_id == 'red'
    assert store.load_claim(stays.id).allocations == {hosts[0].id: {'VCPU': 1}}
    if here in now:
        assert store.load_claim(claim.id).allocations[hosts[0].id] == now[here]
    assert store.audit() == CLEAN
    move_all(store)
    assert store.audit() == CLEAN
    assert forms(store)['consumers'] == 0
    if now:
        other.write_allocations(
            [
                AllocationWish(consumer=consumer, allocations={}, project_id='p', user_id='u'),
                AllocationWish(consumer=heir, allocations=now, project_id='p', user_id='u'),
            ]
        )
        assert store.load_allocations(heir).allocations == now
        assert store.audit() == CLEAN


@contextlib.contextmanager
def ahead_of(store, word, act):
    """Let ``act`` happen once, as ``store`` is about to send a statement that begins so."""
    acts = [act]

    def look(connection, cursor, statement, *rest):
        if acts and statement.startswith(word):
            acts.pop()()

    sa.event.listen(store.engine, 'before_cursor_execute', look)
    try:
        yield
    finally:
        sa.event.remove(store.engine, 'before_cursor_execute', look)
    assert not acts


# -- processes of the release before ----------------------------------------------------
def older_seen(store, name, seconds):
    store.note_service(
        ServiceNote(name=name, kind='scheduler', host='ctl-1', version='1', configuration='a')
    )
    s = models.services
    with store.engine.begin() as connection:
        connection.execute(
            s.update().where(s.c.name == name).values(revision=None, seen_at=s.c.seen_at - seconds)
        )


def test_it_is_refused_while_a_process_of_the_release_before_was_seen(store, host):
    older_seen(store, 'ctl-1:1:old', 20.0)
    step = contract_of(store)
    assert step.look().older == ['ctl-1:1:old']
    with pytest.raises(exceptions.Refused, match='ctl-1:1:old.*stop what runs of it'):
        step.mark()
    claimed(store, a_draft().taking(host))
    assert forms(store)['wide'] == 1
    older_seen(store, 'ctl-1:1:old', 400.0)
    step.mark()
    older_seen(store, 'ctl-2:1:late', 1.0)  # began as the mark was written
    with pytest.raises(exceptions.Refused, match='ctl-2:1:late'):
        step.move()
    older_seen(store, 'ctl-2:1:late', 400.0)
    move_all(store)
    assert forms(store)['wide'] == 0


def test_processes_of_this_release_are_no_reason(store):
    store.note_service(
        ServiceNote(name='new', kind='api', host='ctl-1', version='1', configuration='a')
    )
    contract_of(store).mark()


# -- whose a consumer is -----------------------------------------------------------------
@pytest.mark.parametrize('kind', [*KINDS, *WIDE])
def test_a_consumer_stays_its_projects_while_a_claim_of_it_is_stored(kind, open_store):
    store = open_store(kind)
    host = a_host().with_room(vcpu=100).on(store)
    consumer = new_uuid()
    (first,) = claimed(store, a_draft(project_id='red').taking(host, consumer))
    store.force_release(first.id, 'ended')
    theirs = a_draft(project_id='blue', only_project='blue').taking(host, consumer)
    assert commit(store, theirs).outcomes[0].outcome == 'barred'
    for fields in ({}, {'only_project': 'red'}):
        (again,) = claimed(store, a_draft(project_id='red', **fields).taking(host, consumer))
        store.force_release(again.id, 'ended')
    # Who may claim for anybody: what is stored says whose it is.
    (other,) = claimed(store, a_draft(project_id='blue').taking(host, consumer))
    assert other.project_id == 'red'
    assert store.owners_of([consumer]) == {consumer: 'red'}
    (mixed, _) = claimed(
        store, a_draft(project_id='blue').taking(host, consumer, purpose='migrate').taking(host)
    )
    assert mixed.project_id == 'red'
    assert store.quota_usage(['red', 'blue'], ['VCPU'])['red'].live_claims == 1
    assert store.audit() == CLEAN


@pytest.mark.parametrize('kind', [*KINDS, *WIDE])
def test_projects_of_any_length_are_counted(kind, open_store):
    store = open_store(kind)
    host = a_host().with_room(vcpu=100).on(store)
    long = '\U0001f300' * 1024
    twin = long[:100] + 'x' + long[101:]  # beyond what the index has
    for project in (long, long, twin):
        claimed(store, a_draft(project_id=project).taking(host))
    usage = store.quota_usage([long, twin], ['VCPU'])
    assert [usage[one].live_claims for one in (long, twin)] == [2, 1]
    assert len(store.claims(project=long)) == 2
    move_all(store)
    assert store.quota_usage([long, twin], ['VCPU']) == usage
    assert len(store.claims(project=long)) == 2


@pytest.mark.parametrize('kind', KINDS[1:])  # SQLite has one writer
@pytest.mark.parametrize('grouped', [False, True], ids=['plain', 'grouped'])
def test_what_was_inserted_and_confirmed_meanwhile_is_looked_at_again(
    kind, grouped, open_store, monkeypatch
):
    """It has given the consumer free for others to insert: it bars them."""
    store = open_store(kind, waits=PATIENT)
    other = open_store(like=store, waits=PATIENT)
    here, there = a_host('here').on(store), a_host('there').on(other)
    consumer, begun, made = new_uuid(), [], []

    def meanwhile():
        if not begun:
            begun.append(True)
            made.extend(claimed(other, a_draft().taking(there, consumer)))
            there.confirm(made[0])

    judge, execute = CommitBatch.judge_consumers, getattr(store.ledger, 'execute', None)

    def judge_then(self, *rest):
        judge(self, *rest)
        meanwhile()

    def execute_after(raw, statement, parameters):
        if statement is one_trip.CLAIMS[True]:
            meanwhile()
        return execute(raw, statement, parameters)

    draft = a_draft().taking(here, consumer)
    if grouped:
        draft = a_draft().planned_at(0, new_uuid()).taking(here, consumer)
    if execute is not None and not grouped:
        monkeypatch.setattr(store.ledger, 'execute', execute_after)
    else:
        monkeypatch.setattr(CommitBatch, 'judge_consumers', judge_then)
    fate = commit(store, draft).outcomes[0]
    assert made
    assert fate.outcome == 'barred'
    assert store.audit() == CLEAN


@pytest.mark.parametrize('kind', KINDS)
def test_what_is_reserved_alone_bars_by_the_table(kind, open_store):
    store = open_store(kind)
    host = a_host().with_room(vcpu=100).on(store)
    sole = sa.select(models.claims.c.sole)

    def soles():
        with store.engine.connect() as connection:
            return set(connection.execute(sole).scalars())

    one, two = new_uuid(), new_uuid()
    first, _ = claimed(store, a_draft().taking(host, one).taking(host, two, purpose='migrate'))
    assert soles() == {one, f'{two} move'}
    store.extend_request(first.request_id, 60.0, 600.0)
    assert soles() == {one, f'{two} move'}
    host.confirm(first)
    assert soles() == {None, f'{two} move'}
    store.cancel_request(first.request_id, '')
    assert soles() == {None}
    with store.engine.begin() as connection:
        connection.execute(models.claims.update().values(sole=models.claims.c.id))
    assert len(store.audit()['leaked']) == 2


# -- random histories -------------------------------------------------------------------
class MovingHistory(History):
    """Two processes on one database, one of which never hears of the mark by itself."""

    def __init__(self, store, other, step: ClaimsContract):
        super().__init__(store)
        self._stores = [store, other]
        self.step = step
        self.turn = 0

    def advance(self):
        """The next words are another process's; a few claims are moved meanwhile."""
        self.turn += 1
        self.store = self._stores[self.turn % 2]
        for host in self.hosts:
            host.store = self.store
        self._stores[1].memory.narrow = False
        if self.turn == 12:
            self.step.mark()
        elif self.turn > 12 and not self.step.move(2):
            self.step.forget_consumers(2)


def allocated(history):
    """All claims, without what a store draws."""
    names = history.ids
    return sorted(
        (
            *(c.consumer, c.request_id or '', c.attempt, c.member, str(c.state)),
            sorted((names[pid], sorted(of.items())) for pid, of in c.allocations.items()),
        )
        for c in history.store.claims(limit=1000)
    )


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('kind', [*WIDE, PORTABLE])
def test_a_random_history_beside_the_step_ends_like_the_plain_store(kind, seed, open_store):
    check(kind, seed, 36, open_store)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(100, 140))
@pytest.mark.parametrize('kind', [*WIDE, PORTABLE])
def test_a_long_random_history_beside_the_step_does(kind, seed, open_store):
    check(kind, seed, 250, open_store)


def check(kind, seed, length, open_store):
    store = open_store(kind)
    other = open_store(like=store, fast=not kind.startswith('portable'))
    plain = History(MemoryStore(clock=ManualClock()))
    real = MovingHistory(store, other, contract_of(store))
    for step, (word, said) in enumerate(Chance(seed).history(length)):
        where = f'seed {seed}, step {step}: {word} {said}'
        real.advance()
        expected, found = plain.play(word, *said), real.play(word, *said)
        assert same(found, expected), where
        assert real.state() == plain.state(), where
        assert allocated(real) == allocated(plain), where
    move_all(store, 5)
    found = forms(store)
    assert (found['wide'], found['consumers']) == (0, 0)
    assert allocated(real) == allocated(plain)
    assert real.store.audit()['over_commit'] == CLEAN['over_commit']
