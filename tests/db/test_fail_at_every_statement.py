# SPDX-License-Identifier: Apache-2.0
"""Every verb, broken at its first statement, its second, and so on to its last; at night each.

A break that is an error leaves every row as it was.  A break of the connection
is tried again and leaves exactly what an undisturbed run leaves.
"""

import pytest
import sqlalchemy as sa

from gantt.core.messages.report import RegisterHost
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.group_rule import placements_since_first
from gantt.core.resources.host import Group
from gantt.db.claims.commit_postgresql import PessimisticCommitter
from tests.builders import (
    CLEAN,
    a_decision,
    a_draft,
    a_host,
    claimed,
    commit,
    generation_of,
    register_host,
    set_inventories,
    uuid_of,
)
from tests.db.conftest import KINDS, contents
from tests.plans import a_create, a_plan, by, created, planned
from tests.thorough import stride


class Broken(Exception):
    """Nothing that a store knows."""


class Breaking:
    """Breaks the statement of a number, once."""

    def __init__(self, store, number, how):
        self.store, self.number, self.how = store, number, how
        self.count = 0

    def __enter__(self):
        sa.event.listen(self.store.database.engine, 'before_cursor_execute', self._before)
        if isinstance(self.store.requests.committer, PessimisticCommitter):
            self.real = self.store.requests.committer.execute
            self.store.requests.committer.execute = self._fast
        return self

    def __exit__(self, *error):
        sa.event.remove(self.store.database.engine, 'before_cursor_execute', self._before)
        if isinstance(self.store.requests.committer, PessimisticCommitter):
            self.store.requests.committer.execute = self.real

    def _before(self, connection, cursor, statement, *rest):
        if statement != 'BEGIN':
            self._step(connection.connection.driver_connection)

    def _fast(self, raw, statement, parameters):
        self._step(raw)
        return self.real(raw, statement, parameters)

    def _step(self, driver):
        self.count += 1
        if self.count == self.number:
            self.how(driver)


def an_error(driver):
    raise Broken('on purpose')


def a_broken_connection(driver):
    """The server is gone for this connection; the next word to it fails."""
    if hasattr(driver, 'pgconn'):
        driver.pgconn.finish()
    else:
        driver._force_close()


def scenario_batch(store):
    """Groups, several providers, a custom class, a refusal, a continued and an overtaken row."""
    store.vocabulary.declare_class('CUSTOM_GOLD')
    host = a_host('cmp-1').with_room(vcpu=8, ram=8192, CUSTOM_GOLD=4).on(store)
    other_host = a_host('cmp-2').on(store)
    begun = a_draft(uuid_of('begun')).unfinished().taking(host)
    late = a_draft(uuid_of('late')).unfinished().within(-1).taking(other_host)
    commit(store, begun, late)
    group = uuid_of('group')
    drafts = [
        begun.having(completes=True).continuing(1).taking(other_host),
        late.by('worker-2').having(claims=[]).taking_over(1).taking(host, vcpu=2),
        a_draft(uuid_of('grouped')).planned_at(0, group).taking(host, vcpu=1, CUSTOM_GOLD=2),
        a_draft(uuid_of('partial')).taking(host, vcpu=2).taking(other_host, vcpu=8),
        a_draft(uuid_of('dropped')).taking(host, vcpu=9),
        a_draft(uuid_of('decided'), decision=a_decision(id=uuid_of('d'))).taking(other_host),
    ]
    return lambda: commit(store, *drafts)


def scenario_plain_batch(store):
    host, other_host = a_host('cmp-1').on(store), a_host('cmp-2').on(store)
    decision = a_decision(id=uuid_of('d'), host_set='other')
    drafts = [
        a_draft(uuid_of('a'), decision=decision).taking(host).taking(other_host),
        a_draft(uuid_of('b')).taking(other_host, vcpu=2),
    ]
    return lambda: commit(store, *drafts)


def scenario_report(store):
    """Confirms one, releases one, adopts one, changes facts, traits and aggregates."""
    host = a_host().on(store)
    listed, confirmed, pending = claimed(
        store, a_draft(uuid_of('r')).taking(host).taking(host).taking(host)
    )
    host.confirm(confirmed)
    report = (
        host.says()
        .listing([listed, uuid_of('stranger')], [pending])
        .with_room(vcpu=16, ram=1024, VGPU=2)
        .having(traits=['HW_CPU_X86_AVX'], aggregates=['fast'], foreign={'VGPU': 1})
    )
    return lambda: host.send(report)


def scenario_words(store):
    host = a_host().on(store)
    confirmed, refused = claimed(store, a_draft(uuid_of('r')).taking(host).taking(host))
    return lambda: (host.confirm(confirmed), host.refuse(refused))


def scenario_release(store):
    host = a_host().on(store)
    claim = claimed(store, a_draft(uuid_of('r')).taking(host))[0]
    host.confirm(claim)
    return lambda: host.release(claim)


def scenario_cancel(store):
    host = a_host().on(store)
    draft = a_draft(uuid_of('r')).taking(host).taking(host)
    claimed(store, draft)
    return lambda: store.requests.cancel_request(draft.id, 'no longer wanted')


def scenario_give_up(store):
    host = a_host().on(store)
    draft = a_draft(uuid_of('r')).unfinished().taking(host)
    commit(store, draft)
    return lambda: store.requests.give_up(draft.id, 'worker-1', 1)


def scenario_sweep(store):
    host = a_host().on(store)
    claimed(store, a_draft(uuid_of('r')).leased(-5).taking(host).taking(host))
    return lambda: store.claims.sweep(10)


def scenario_register(store):
    store.declarations.save_aggregate('fast', {}, ['cmp-1'], uuid_of('fast'))
    return lambda: a_host().on(store)


def scenario_operators(store):
    host = a_host().on(store)
    store.groups.save_group(Group(uuid=uuid_of('group'), policy='affinity'))
    assert host.report().outcome == 'applied'

    def run():
        store.hosts.disable_host('cmp-1', 'repair', 'me')
        store.declarations.save_aggregate(
            'slow', {'availability_zone': 'z'}, ['cmp-1'], uuid_of('slow')
        )
        store.groups.remove_group(uuid_of('group'))
        store.declarations.remove_aggregate('slow')
        store.hosts.remove_host('cmp-1')

    return run


def scenario_attach(store):
    """The provider that is there becomes the host that registers with its uuid."""
    inventories = {'VCPU': Inventory(total=4), 'VGPU': Inventory(total=2)}
    provider = store.providers.create_provider(
        'node', uuid=uuid_of('node'), inventories=inventories
    )
    store.providers.create_provider('below', uuid=uuid_of('below'), parent=provider.uuid)
    registration = RegisterHost(name='cmp-1', node='node', boot_nonce='nonce', uuid=provider.uuid)
    return lambda: register_host(store, registration)


def scenario_trees(store):
    """A provider is made below another, gets less, and takes what is below it to another tree."""
    host = a_host().on(store).row.uuid
    pool = store.providers.create_provider('pool', uuid=uuid_of('pool')).uuid
    middle = store.providers.create_provider('middle', uuid=uuid_of('middle'), parent=pool).uuid
    inventories = {'VCPU': Inventory(total=4), 'VGPU': Inventory(total=2)}
    less = {'VCPU': Inventory(total=1), 'PGPU': Inventory(total=1)}

    def run():
        provider = store.providers.create_provider(
            'new', uuid=uuid_of('new'), parent=middle, inventories=inventories
        )
        set_inventories(store, provider.uuid, less)
        store.providers.update_provider(middle, parent=host)
        store.providers.delete_provider(pool)

    return run


def a_planned_group(store):
    """Places a, b and c on two hosts, of which a create has a, and another one had b."""
    host, other_host = a_host('cmp-1').on(store), a_host('cmp-2').on(store)
    members = {'a': host, 'b': other_host, 'c': host}
    place_of = planned(store, members, group=uuid_of('group'), request_id=uuid_of('plan'))
    created(store, place_of['a'], uuid_of('consumer'), request_id=uuid_of('create'))
    return host, other_host, place_of


def scenario_plan(store):
    """A plan of a second revision, one place of which is another one than before."""
    host, other_host, place_of = a_planned_group(store)
    group = uuid_of('group')
    at = generation_of(store, group)
    members = {'b': host, 'd': other_host}
    draft = a_plan(group, members, revision=2, generation=at, request_id=uuid_of('again'))
    return lambda: commit(store, draft)


def scenario_creates(store):
    """A place is taken, another one goes back, a third one stays with an attempt that is new."""
    host, other_host, place_of = a_planned_group(store)
    open_one = a_create(by(place_of['b'], uuid_of('x')), request_id=uuid_of('open'))
    commit(store, open_one.unfinished().within(-1))
    drafts = [
        a_create(by(place_of['c'], uuid_of('consumer')), request_id=uuid_of('newer')).taking(
            other_host
        ),
        a_create(by(place_of['b'], uuid_of('x')), request_id=uuid_of('open')).taking_over(1),
    ]
    return lambda: commit(store, *drafts)


def scenario_cancel_request(store):
    host, other_host, place_of = a_planned_group(store)
    return lambda: store.requests.cancel_request(uuid_of('create'), 'no longer wanted')


def scenario_extend_plan(store):
    a_planned_group(store)
    return lambda: store.plans.extend_plan(uuid_of('group'), 9000, 9000)


def scenario_release_plan(store):
    a_planned_group(store)
    return lambda: store.plans.release_plan(uuid_of('group'), 'no longer wanted')


SCENARIOS = [
    scenario_batch,
    scenario_plain_batch,
    scenario_report,
    scenario_words,
    scenario_release,
    scenario_cancel,
    scenario_give_up,
    scenario_sweep,
    scenario_register,
    scenario_operators,
    scenario_attach,
    scenario_trees,
    scenario_plan,
    scenario_creates,
    scenario_cancel_request,
    scenario_extend_plan,
    scenario_release_plan,
]
#: Several verbs, each its own transaction.
IN_STEPS = (scenario_words, scenario_register, scenario_operators, scenario_trees)
#: After an error these take their rows one by one.
TAKES_ONE_BY_ONE = (scenario_sweep,)
#: These have the most statements; of the others the short form takes SQLite.
ALWAYS = (scenario_batch, scenario_plain_batch, scenario_report)


def everywhere(kinds):
    """Each scenario on each kind; what is slow and tells little more is marked so."""
    for kind in kinds:
        marks, name = list(getattr(kind, 'marks', ())), getattr(kind, 'values', (kind,))[0]
        for scenario in SCENARIOS:
            rare = [] if name == 'sqlite' or scenario in ALWAYS else [pytest.mark.slow]
            label = f'{name}-{scenario.__name__.removeprefix("scenario_")}'
            yield pytest.param(name, scenario, marks=marks + rare, id=label)


#: Far more than any of them has.
STATEMENTS_MOST = 1000
#: From one statement that is broken to the next.
STRIDE = stride(3)

#: Columns that differ from run to run: stamps are drawn, clocks go on.
VOLATILE = {
    'claims_stamp',
    'facts_stamp',
    'token',
    'deadline',
    'created_at',
    'updated_at',
    'reported_at',
    'lease_until',
    'expires_at',
    'former_reservation',  # with the lease of its plan
    'used_at',
    'boot_nonce',
}
FEED = ('changes', 'meta')


def settled(store):
    """What a run leaves, numbers that no run repeats aside."""
    from gantt.db.schema import models

    by_table = {}
    for table in models.metadata.sorted_tables:
        if table.name in FEED:
            continue
        columns = [
            c
            for c in table.c
            if c.name not in VOLATILE
            and not (c.primary_key and c.name in ('id', 'number'))
            and not c.name.endswith('_id')
        ]
        with store.database.engine.connect() as connection:
            rows = connection.execute(sa.select(*columns)).all() if columns else []
        if table is models.group_rules:
            # Where a group begins is drawn.
            rows = [
                {**row._mapping, 'generation': placements_since_first(row.generation)}
                for row in rows
            ]
        by_table[table.name] = sorted(map(str, rows))
    return by_table


def run_to_the_end(open_store, kind, scenario):
    store = open_store(kind)
    run = scenario(store)
    with Breaking(store, 0, an_error) as counter:
        run()
    assert store.claims.audit() == CLEAN
    return counter.count, settled(store)


@pytest.mark.parametrize(('kind', 'scenario'), list(everywhere(KINDS)))
def test_an_error_at_any_statement_leaves_every_row_as_it_was(kind, scenario, open_store):
    statements, undisturbed = run_to_the_end(open_store, kind, scenario)
    assert statements
    if scenario in TAKES_ONE_BY_ONE:
        for number in range(1, statements + 1, STRIDE):
            store = open_store(kind)
            run = scenario(store)
            with Breaking(store, number, an_error):
                run()
            # Their usage is what the audit compares with the claims; versions count transactions.
            assert store.claims.audit() == CLEAN
            ended = {**settled(store), 'providers': undisturbed['providers']}
            assert ended == undisturbed, f'statement {number} of {statements}'
            store.database.close()
        return
    store = open_store(kind)
    run = scenario(store)
    before = contents(store)
    # A transaction that is run again, for whatever reason, has more of them.
    for number in range(1, STATEMENTS_MOST, STRIDE):
        with Breaking(store, number, an_error) as breaking:
            try:
                run()
            except Exception as e:
                assert 'on purpose' in str(e)
            else:
                assert breaking.count < number, f'what statement {number} raised was lost'
                break
        if scenario in IN_STEPS:
            break  # an earlier step is done; the first statement is the one of the first step
        assert contents(store) == before, f'statement {number} of {statements}'
    else:
        pytest.fail('it has no end')
    assert number > 1 or scenario in IN_STEPS
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize(('kind', 'scenario'), list(everywhere(KINDS[1:])))
def test_a_connection_that_breaks_at_any_statement_changes_nothing_in_the_end(
    kind, scenario, open_store
):
    statements, undisturbed = run_to_the_end(open_store, kind, scenario)
    step = max(1, statements // (6 // STRIDE))
    for number in range(1, statements + 1, step):
        store = open_store(kind)
        run = scenario(store)
        with Breaking(store, number, a_broken_connection):
            run()
        assert store.claims.audit() == CLEAN
        assert settled(store) == undisturbed, f'statement {number} of {statements}'
        store.database.close()
