# SPDX-License-Identifier: Apache-2.0
"""Several schedulers at once on one database: what each promise is worth then."""

import itertools
import random
import threading
import time

import pytest

from gantt.core.resources.group_rule import placements_since_first
from tests.builders import CLEAN, a_draft, a_host, commit, live, uuid_of
from tests.db.conftest import KINDS
from tests.services import PATIENT


def together(*works):
    """Run works at the same time, each in its own thread; their results."""
    ready = threading.Barrier(len(works))
    results, errors = [None] * len(works), []

    def run(number, work):
        try:
            ready.wait(10)
            results[number] = work()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert errors == []
    return results


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def stores(kind, open_store):
    """Four stores on one database; on SQLite one that four threads share."""
    first = open_store(kind, timeouts=PATIENT)
    if kind == 'sqlite':
        return [first] * 4
    return [
        first,
        *(open_store(like=first, timeouts=PATIENT, fast=kind != 'portable') for _ in range(3)),
    ]


def deadlocks(store):
    """How many deadlocks the server has resolved in this database; None: it does not count."""
    if store.database.engine.dialect.name != 'postgresql':
        return None
    time.sleep(1.1)  # statistics are sent once a second
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql('SELECT pg_stat_clear_snapshot()')
        return connection.exec_driver_sql(
            'SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()'
        ).scalar_one()


def test_a_hot_host_is_filled_to_the_last_unit_and_no_further(stores):
    host = a_host().with_room(vcpu=50).on(stores[0])

    def fill(store):
        outcomes = []
        for _ in range(10):
            batch = [a_draft().taking(host) for _ in range(2)]
            outcomes += [outcome.outcome for outcome in commit(store, *batch).outcomes]
        return outcomes

    outcomes = list(itertools.chain(*together(*(lambda s=s: fill(s) for s in stores))))
    assert (outcomes.count('placed'), outcomes.count('dropped')) == (50, 30)
    assert host.row.used == {'VCPU': 50}
    assert len(live(stores[0])) == 50
    assert stores[0].claims.audit() == CLEAN


def test_batches_over_many_hosts_never_wait_in_a_circle(stores):
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=10_000).on(stores[0]) for n in range(30)]
    before = deadlocks(stores[0])

    def work(store, seed):
        rnd = random.Random(seed)
        for _ in range(8):
            drafts = []
            for _ in range(10):
                draft = a_draft()
                for host in rnd.sample(hosts, 3):
                    draft = draft.taking(host)
                drafts.append(draft)
            outcomes = {outcome.outcome for outcome in commit(store, *drafts).outcomes}
            assert outcomes == {'placed'}

    together(*(lambda s=s, n=n: work(s, n) for n, s in enumerate(stores)))
    assert deadlocks(stores[0]) == before
    assert len(live(stores[0])) == 4 * 8 * 10 * 3
    assert stores[0].claims.audit() == CLEAN


def test_one_request_asked_of_everybody_at_once_is_placed_once(stores):
    hosts = [a_host(f'cmp-{n}').on(stores[0]) for n in range(4)]
    for round_ in range(5):
        draft = a_draft(uuid_of('same', round_))

        def ask(number, draft=draft):
            answer = f'answer {number}'.encode()
            mine = draft.having(answer=answer).by(f'worker-{number}').taking(hosts[number])
            return commit(stores[number], mine).outcomes[0]

        outcomes = together(*(lambda n=n: ask(n) for n in range(4)))
        assert sorted(outcome.outcome for outcome in outcomes) == [
            'placed',
            'repeat',
            'repeat',
            'repeat',
        ]
        winner = next(n for n, outcome in enumerate(outcomes) if outcome.outcome == 'placed')
        assert {f.answer for f in outcomes if f.outcome == 'repeat'} == {
            f'answer {winner}'.encode()
        }
        assert [c.provider_id for c in live(stores[0], request_id=draft.id)] == [hosts[winner].id]
    assert stores[0].claims.audit() == CLEAN


def test_only_one_takes_over(stores):
    host = a_host().on(stores[0])
    begun = a_draft().unfinished().within(-1).taking(host)
    commit(stores[0], begun)

    def take(number):
        mine = a_draft(begun.id).by(f'worker-{number + 2}').taking_over(1).taking(host)
        return commit(stores[number], mine).outcomes[0].outcome

    outcomes = together(*(lambda n=n: take(n) for n in range(4)))
    assert sorted(outcomes) == ['placed', 'repeat', 'repeat', 'repeat']
    assert len(live(stores[0])) == 1
    assert stores[0].claims.audit() == CLEAN


def test_members_of_a_group_never_meet_on_a_host(stores):
    """Anti-affinity: the hosts' rows differ, so only the group's row can tell."""
    hosts = [a_host(f'cmp-{n}').on(stores[0]) for n in range(8)]
    group = uuid_of('group')

    def place(number):
        store, rnd = stores[number], random.Random(number)
        placed = 0
        for _ in range(60):
            rule = store.groups.load_group(group)
            taken = {c.provider_id for c in live(store) if c.group == group}
            free = [host for host in hosts if host.id not in taken]
            if not free:
                break
            draft = a_draft().planned_at(rule.generation if rule else 0, group)
            outcome = commit(store, draft.taking(rnd.choice(free))).outcomes[0].outcome
            assert outcome in ('placed', 'group_changed')
            placed += outcome == 'placed'
        return placed

    placed = together(*(lambda n=n: place(n) for n in range(4)))
    members = live(stores[0])
    assert len(members) == sum(placed) == len({c.provider_id for c in members}) == len(hosts)
    assert placements_since_first(stores[0].groups.load_group(group).generation) == len(hosts)


def schedule(store, hosts, seed, end):
    """Claims of a cloud in a hurry: some are cancelled, some never finished."""
    rnd = random.Random(seed)
    while time.monotonic() < end:
        drafts = [a_random_draft(rnd, hosts, f'w{seed}') for _ in range(4)]
        for draft, outcome in zip(drafts, commit(store, *drafts).outcomes, strict=True):
            if outcome.outcome == 'partial':
                store.requests.give_up(draft.id, f'w{seed}', 1)
            elif rnd.random() < 0.2:
                store.requests.cancel_request(draft.id, 'no')


def a_random_draft(rnd, hosts, owner):
    draft = a_draft().by(owner).leased(rnd.choice([-1, 30]))
    for host in rnd.sample(hosts, 2):
        draft = draft.taking(host, **rnd.choice([{'vcpu': 1}, {'VGPU': 1}]))
    return draft.unfinished() if rnd.random() < 0.3 else draft


def compute(store, hosts, end):
    """Hosts that confirm, refuse, release and report, one after another."""
    rnd = random.Random(7)
    while time.monotonic() < end:
        host = rnd.choice(hosts)
        host.store = store
        claims = live(store, host=host.name)
        some = rnd.sample(claims, min(3, len(claims)))
        if some:
            rnd.choice([host.confirm, host.refuse, host.release])(*some)
        still = live(store, host=host.name)
        running = [c for c in still if c.state == 'confirmed' and rnd.random() < 0.7]
        host.report(running, [c for c in still if c.state == 'reserved'])


def sweep(store, end):
    """The sweeper, and somebody who looks over its shoulder."""
    while time.monotonic() < end:
        store.claims.sweep(50)
        assert store.claims.audit()['over_commit'] == []


def test_everything_at_once_on_a_few_hosts(stores):
    """Claims made, confirmed, refused, swept, cancelled, reported and given up, all together."""
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=20, VGPU=8).on(stores[0]) for n in range(3)]
    before = deadlocks(stores[0])
    end = time.monotonic() + 4
    together(
        lambda: schedule(stores[0], hosts, 1, end),
        lambda: schedule(stores[1], hosts, 2, end),
        lambda: compute(stores[2], hosts, end),
        lambda: sweep(stores[3], end),
    )
    assert deadlocks(stores[0]) == before
    stores[0].claims.sweep(10_000)
    assert stores[0].claims.audit() == CLEAN
