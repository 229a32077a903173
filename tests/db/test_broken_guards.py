# SPDX-License-Identifier: Apache-2.0
"""Break a rule of the claims in the SQL that keeps it: a test that stands elsewhere must fail.

The simulator's stores are in memory, and so are the rules that it breaks; these
are the same rules as the databases have them.  Each is broken in the real code,
and the test that it has is run as it stands.
"""

import pytest

from gantt.core.claims import acceptance, claim, reconcile
from gantt.core.claims.claim import Event, State
from gantt.core.messages.resource_classes import Inventory
from gantt.db.claims import batch, commit_postgresql, one_trip, transitions, unit_of_work
from gantt.db.claims import commit as portable
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.hosts import reports as db_reports
from tests.builders import CLEAN, a_draft, a_host, claimed, commit, live, state_of
from tests.contract import test_acceptance as accepted
from tests.contract import test_claims as words
from tests.contract import test_one_claim as rivals
from tests.contract import test_reports as reports
from tests.db import test_concurrency as races
from tests.db import test_one_trip as at_once
from tests.db.conftest import KINDS, SERVERS
from tests.services import PATIENT

#: A race is lost sooner or later; where nothing is broken it never is.
TRIES = 10


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


def fails(test, *arguments, tries=1):
    """Whether a test fails in one of so many tries."""
    for _ in range(tries):
        try:
            test(*arguments)
        except AssertionError:
            return True
    return False


# -- the capacity of a host: a lock, and a guard in the write ------------------------------
def no_locks(patch):
    """Rows of hosts are read as they are, by whoever comes."""
    patch.setattr(
        providers,
        'LOCK_BY_ID',
        providers._SELECT_FOR_LOCK.where(providers._providers.c.id.in_(providers._ids)).order_by(
            providers._providers.c.id
        ),
    )
    patch.setattr(
        providers,
        'LOCK_BY_ID_ARRAY',
        providers._SELECT_FOR_LOCK.where(
            providers.is_in_array(providers._providers.c.id, 'ids', portable.sa.BigInteger)
        ).order_by(providers._providers.c.id),
    )
    for module in (commit_postgresql, one_trip):
        plain = module.LOCK_PROVIDERS.replace(b' FOR NO KEY UPDATE', b'')
        assert plain != module.LOCK_PROVIDERS
        patch.setattr(module, 'LOCK_PROVIDERS', plain)


def no_guards(patch):
    """What was accepted is written, whatever the row has become."""
    patch.setattr(
        unit_of_work,
        'ADD_USAGE',
        unit_of_work._providers.update()
        .where(unit_of_work._providers.c.id == unit_of_work.sa.bindparam('b_id'))
        .values(unit_of_work.ADD_USAGE._values),
    )
    fits = f' AND {commit_postgresql.FITS_SQL}'.encode()
    write = commit_postgresql.WRITE_BATCH
    assert fits in write
    patch.setattr(commit_postgresql, 'WRITE_BATCH', write.replace(fits, b''))
    # Whose guards are not beside what judges, but in its place: see below.
    patch.setattr(
        one_trip.OneTripCommitter, 'commit', commit_postgresql.PessimisticCommitter.commit
    )


def race_for_a_host(stores):
    """Four who have each seen room for all that they want."""
    number = len(stores[0].feed.load_everything().hosts)
    host = a_host(f'cmp-{number}').with_room(vcpu=40).on(stores[0])

    def fill(store):
        for _ in range(15):
            commit(store, a_draft().taking(host))

    races.together(*(lambda s=s: fill(s) for s in stores))
    assert stores[0].claims.audit() == CLEAN
    assert len(live(stores[0], host=host.name)) == 40


@pytest.mark.parametrize('kind', SERVERS)
def test_look_then_write_is_found(stores, monkeypatch):
    no_locks(monkeypatch)
    no_guards(monkeypatch)
    assert fails(race_for_a_host, stores, tries=TRIES)


@pytest.mark.parametrize('kind', SERVERS)
@pytest.mark.parametrize('without', [no_locks, no_guards])
def test_either_the_lock_or_the_guard_is_enough(stores, without, monkeypatch):
    """Guards serve clusters whose locks are local to a node."""
    without(monkeypatch)
    race_for_a_host(stores)


# -- one trip: nothing but its guards judges ----------------------------------------------
GUARDS = {
    'room': (f' AND {commit_postgresql.FITS_SQL}', '', at_once.a_full_host),
    'over-committed': ('p.over_committed = 0', 'TRUE', at_once.an_over_committed_host),
    'units': ('mod(a.amount, i.step_size) <> 0', 'FALSE', at_once.units_that_have_changed),
    'disabled': ('disabled IS NULL AND', '', at_once.a_disabled_host),
    'its service': ('AND service_disabled IS NULL', '', at_once.a_host_that_takes_nothing),
    'repeated': ('token = %s', '(TRUE OR token = %s)', at_once.a_cancelled_request),
    'rival': ('live <> 0', 'live > 1', at_once.a_running_rival),
    'owner': ('OR NOT EXISTS', 'OR FALSE AND NOT EXISTS', at_once.another_project),
    'hosts': (
        'digest = ANY(%s::text[])) = %b',
        'digest = ANY(%s::text[])) >= 0 * %b',
        at_once.a_list_of_hosts_that_is_gone,
    ),
}


@pytest.mark.postgresql
@pytest.mark.parametrize('guard', list(GUARDS))
def test_a_guard_that_is_left_out_is_found(guard, open_store, monkeypatch):
    text, instead, scenario = GUARDS[guard]
    whole = one_trip.WRITE_BATCH.decode()
    assert text in whole
    monkeypatch.setattr(one_trip, 'WRITE_BATCH', whole.replace(text, instead).encode())
    store = open_store('postgresql')
    test = at_once.test_what_is_in_the_way_sends_it_the_pessimistic_path
    assert fails(test, scenario, store, a_host().on(store))


# -- a lease that runs out while its claim is confirmed -------------------------------------
def sweep_beside_a_confirm(stores, monkeypatch):
    """The host's word comes when the sweeper has found the claim, before it holds the row."""
    host = a_host().on(stores[0])
    leased = claimed(stores[0], a_draft().leased(-1).taking(host))[0]
    lock, confirmed = UnitOfWork.lock, []

    def late(self, provider_ids):
        if not confirmed:
            confirmed.append(True)
            assert host.confirm(leased)[0].outcome == 'ok'
        lock(self, provider_ids)

    monkeypatch.setattr(UnitOfWork, 'lock', late)
    stores[1].claims.sweep(10)
    assert confirmed
    assert state_of(stores[0], leased) == 'confirmed'
    assert host.row.used == {'VCPU': 1}


@pytest.mark.parametrize('kind', SERVERS)
def test_a_claim_confirmed_beside_the_sweeper_is_kept(stores, monkeypatch):
    sweep_beside_a_confirm(stores, monkeypatch)


@pytest.mark.parametrize('kind', SERVERS)
def test_a_sweeper_that_trusts_its_first_look_is_found(stores, monkeypatch):
    load, seen = transitions.load_claims, {}

    def once(tx, **where):
        key = str(where)
        if key not in seen:
            seen[key] = load(tx, **where)
        return seen[key]

    blind = unit_of_work.BulkUpdate(
        unit_of_work._claims,
        {'b_id': 'id'},
        unit_of_work.TRANSITION_COLUMNS,
        stays={'unique_key': 'has_unique_key'},
    )
    monkeypatch.setattr(unit_of_work, 'UPDATE_CLAIMS', blind)
    monkeypatch.setattr(transitions, 'load_claims', once)
    assert fails(sweep_beside_a_confirm, stores, monkeypatch)


# -- what is judged under the lock --------------------------------------------------------
@pytest.mark.parametrize('kind', KINDS)
def test_a_request_id_that_says_nothing_is_found(stores, monkeypatch):
    monkeypatch.setattr(batch, 'check_request_row', lambda row, draft, now: None)
    test = races.test_one_request_asked_of_everybody_at_once_is_placed_once
    assert fails(test, stores)


@pytest.mark.parametrize('kind', KINDS)
def test_units_that_nobody_judges_are_found(stores, monkeypatch):
    monkeypatch.setattr(Inventory, 'unit_problem', lambda inventory, amount: None)
    assert fails(accepted.test_units_of_every_provider_that_a_claim_takes_from_count, *on(stores))


@pytest.mark.parametrize('kind', KINDS)
def test_who_does_not_ask_who_claims_is_found(stores, monkeypatch):
    monkeypatch.setattr(acceptance.Claimant, 'claimant_of', lambda claim: acceptance.Claimant.API)
    test = accepted.test_a_scheduler_needs_an_open_host_in_every_class
    assert fails(test, *on(stores))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('end', [accepted.forced, accepted.given_back, accepted.replaced])
def test_a_flag_that_does_not_follow_is_found(stores, end, monkeypatch):
    test = accepted.test_whoever_ends_a_claim_takes_the_flag_away
    store, host = on(stores)
    monkeypatch.setattr(rows, 'clear_over_full_flag', lambda row: None)
    assert fails(test, store, host, end)


def on(stores):
    return stores[0], a_host().on(stores[0])


@pytest.mark.parametrize('kind', KINDS)
def test_a_group_whose_generation_says_nothing_is_found(stores, monkeypatch):
    def as_planned(self, groups):
        for entry in self.open_entries():
            if entry.draft.group is not None:
                self.groups[entry.draft.group.uuid] = groups[entry.draft.group.uuid].generation

    monkeypatch.setattr(batch.CommitBatch, 'check_groups', as_planned)
    assert fails(races.test_members_of_a_group_never_meet_on_a_host, stores)


def any_epoch(patch):
    def speaker(changes, words):
        return next(iter(changes.locked.counters.values()), None)

    patch.setattr(transitions, '_reporting_host', speaker)


def any_order(patch):
    def report_outcome(row, report):
        return reconcile.APPLIED if report.epoch == row.epoch else reconcile.GONE

    patch.setattr(db_reports, 'report_outcome', report_outcome)


def leases_of_the_confirmed(patch):
    """The sweeper ends whatever has a lease behind it."""
    patch.setattr(claim_rows, 'expires_at', lambda row: row.lease_until)
    patch.setitem(claim.TRANSITIONS, (State.CONFIRMED, Event.EXPIRE), State.EXPIRED)


def counted_twice(patch):
    """What has ended gives its room back once more where it ends again."""
    change = UnitOfWork.change_claim

    def again(self, before, now, **how):
        change(self, before, now, **how)
        if not before.is_live:
            self.add_usage(before, -1)

    patch.setattr(UnitOfWork, 'change_claim', again)
    patch.setitem(claim.TRANSITIONS, (State.RELEASED, Event.RELEASE), State.EXPIRED)


def revival(patch):
    patch.setitem(claim.TRANSITIONS, (State.EXPIRED, Event.CONFIRM), State.CONFIRMED)


def no_rivals(patch):
    patch.setattr(batch, 'resolve_rivals', lambda *_: ({}, {}))


RULES = {
    'epoch': (any_epoch, words.test_an_old_epoch_is_always_gone, 'confirm'),
    'overtaken': (any_order, reports.test_an_overtaken_report_changes_nothing),
    'repeated': (any_order, reports.test_a_repeated_report_is_stale_and_changes_nothing),
    'lease': (leases_of_the_confirmed, words.test_a_confirm_keeps_the_lease_from_mattering),
    'twice': (counted_twice, words.test_a_repeated_release_gives_back_once),
    'revival': (revival, words.test_a_confirm_after_the_sweep_is_told_that_it_is_gone),
    'rivals': (no_rivals, rivals.test_a_guest_that_was_found_running_bars_it_as_well),
}


@pytest.mark.parametrize('rule', list(RULES))
def test_a_rule_that_is_left_out_is_found(store, rule, monkeypatch):
    leave_out, test, *more = RULES[rule]
    test(store, a_host('cmp-whole').on(store), *more)
    leave_out(monkeypatch)
    assert fails(test, store, a_host('cmp-broken').on(store), *more)
