# SPDX-License-Identifier: Apache-2.0
"""A consumer that moves has of a pool once what it needs, whichever of its claims ends first."""

import math
import random

import msgspec
import pytest

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.resource_classes import Inventory
from gantt.nova.model.events import GuestLocation
from tests.builders import (
    CLEAN,
    a_draft,
    a_guest,
    a_host,
    claimed,
    commit,
    live,
    state_of,
    uuid_of,
)

GUEST = uuid_of('guest')
UNITS = {'DISK_GB': Inventory(total=120), 'CUSTOM_IOPS': Inventory(total=50)}


@pytest.fixture
def pool(store):
    return store.providers.create_provider('ceph', inventories=UNITS)


@pytest.fixture
def hosts(store):
    return [a_host(f'cmp-{n}').on(store) for n in range(4)]


def of_pool(draft, pool, **amounts):
    """The draft, its last claim taking of the pool as well."""
    *before, drafted = draft.fields['claims']
    allocations = {**drafted.claim.allocations, pool.id: amounts}
    claim = msgspec.structs.replace(drafted.claim, allocations=allocations)
    return draft.having(claims=[*before, msgspec.structs.replace(drafted, claim=claim)])


def created(store, host, pool, consumer, **amounts):
    """A guest that runs there."""
    (claim,) = claimed(store, of_pool(a_draft().taking(host, consumer), pool, **amounts))
    assert host.confirm(claim)[0].outcome == 'ok'
    return claim.id


def moved(store, host, pool, consumer, **amounts):
    """An open destination; its claim's id."""
    draft = of_pool(a_draft().taking(host, consumer, purpose='migrate'), pool, **amounts)
    (claim,) = claimed(store, draft)
    return claim.id


def taken(store, claim_id, pool):
    claim = store.claims.load_claim(claim_id)
    return claim.allocations.get(pool.id, {}), claim.inherits.get(pool.id, {})


def used(store, pool):
    assert store.claims.audit() == CLEAN
    return store.providers.load_provider(pool.uuid).used


def test_a_destination_takes_the_excess_and_inherits_the_rest(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100, CUSTOM_IOPS=5)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=120, CUSTOM_IOPS=7)
    assert used(store, pool) == {'DISK_GB': 120, 'CUSTOM_IOPS': 7}
    assert taken(store, target, pool) == (
        {'DISK_GB': 20, 'CUSTOM_IOPS': 2},
        {'DISK_GB': 100, 'CUSTOM_IOPS': 5},
    )
    hosts[1].confirm(target)
    hosts[0].release(source)
    assert taken(store, target, pool) == ({'DISK_GB': 120, 'CUSTOM_IOPS': 7}, {})
    assert used(store, pool) == {'DISK_GB': 120, 'CUSTOM_IOPS': 7}
    hosts[1].release(target)
    assert used(store, pool) == {}


def test_a_move_that_comes_to_nothing_leaves_the_source_as_it_was(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=110)
    hosts[1].refuse(target)
    assert used(store, pool) == {'DISK_GB': 100}
    assert taken(store, source, pool) == ({'DISK_GB': 100}, {})


def test_a_smaller_one_gives_back_what_nobody_needs_when_the_source_ends(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=60)
    assert taken(store, target, pool) == ({}, {'DISK_GB': 60})
    assert used(store, pool) == {'DISK_GB': 100}
    store.claims.force_release(source, 'it is gone')
    assert taken(store, target, pool) == ({'DISK_GB': 60}, {})
    assert used(store, pool) == {'DISK_GB': 60}


def test_a_full_pool_is_no_obstacle_to_who_needs_no_more_of_it(store, hosts, pool):
    created(store, hosts[0], pool, GUEST, DISK_GB=120)
    moved(store, hosts[1], pool, GUEST, DISK_GB=120)
    other = of_pool(a_draft().taking(hosts[1]), pool, DISK_GB=1)
    assert commit(store, other).outcomes[0].outcome == 'dropped'
    assert used(store, pool) == {'DISK_GB': 120}


def test_a_list_that_lacks_the_source_hands_it_over(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=100)
    for _ in range(5):
        hosts[0].report(running=[])
    assert not store.claims.load_claim(source).is_live
    assert taken(store, target, pool) == ({'DISK_GB': 100}, {})
    assert used(store, pool) == {'DISK_GB': 100}


def test_another_destination_takes_the_place_of_an_open_one(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=80)
    first = moved(store, hosts[1], pool, GUEST, DISK_GB=100)
    second = moved(store, hosts[2], pool, GUEST, DISK_GB=90)
    assert state_of(store, first) == 'released'
    assert taken(store, second, pool) == ({'DISK_GB': 10}, {'DISK_GB': 80})
    assert used(store, pool) == {'DISK_GB': 90}
    hosts[0].release(source)
    assert used(store, pool) == {'DISK_GB': 90}
    assert taken(store, second, pool) == ({'DISK_GB': 90}, {})


def test_what_is_moved_to_another_pool_is_there_twice_for_a_while(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=80)
    other = store.providers.create_provider('other', inventories=UNITS)
    moved(store, hosts[1], other, GUEST, DISK_GB=80)
    assert used(store, pool) == used(store, other) == {'DISK_GB': 80}
    hosts[0].release(source)
    assert (used(store, pool), used(store, other)) == ({}, {'DISK_GB': 80})


def test_a_guest_found_on_its_destination_after_the_lease_has_all_of_it(store, hosts, pool):
    created(store, hosts[0], pool, GUEST, DISK_GB=60)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=60)
    hosts[1].refuse(target)
    guest = a_guest(store.claims.load_claim(target), vcpu=1)
    hosts[1].report(running=[guest])
    (adopted,) = [claim for claim in live(store) if claim.adopted]
    assert adopted.allocations[pool.id] == {'DISK_GB': 60}
    assert used(store, pool) == {'DISK_GB': 120}


def test_all_claims_of_a_guest_end_in_one_batch_of_reports(store, hosts, pool):
    """The destination ends with what it has inherited just before, in the same transaction."""
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100, CUSTOM_IOPS=5)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=110, CUSTOM_IOPS=5)
    hosts[1].confirm(target)
    for _ in range(5):
        reports = [host.says().listing([], []).build() for host in hosts[:2]]
        store.reports.apply_reports(reports)
    assert [state_of(store, claim) for claim in (source, target)] == ['released', 'released']
    assert used(store, pool) == {}


def test_all_claims_of_a_guest_on_one_host_are_released_at_once(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[0], pool, GUEST, DISK_GB=110)
    hosts[0].confirm(target)
    outcomes = hosts[0].release(source, target)
    assert [outcome.outcome for outcome in outcomes] == ['ok', 'ok']
    assert used(store, pool) == {}


def test_all_claims_of_a_guest_that_nova_does_not_know_end_at_once(store, pool):
    hosts = [a_host(f'nova-{n}').on(store, reporter='nova') for n in range(2)]
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=110)
    location = GuestLocation(consumer=GUEST, host=None, cutoff=math.inf)
    assert sorted(store.nova.resolve_guest(location).released) == sorted([source, target])
    assert used(store, pool) == {}


def test_what_goes_over_to_the_first_heir_goes_on_to_the_second(store, hosts, pool):
    """Source and first destination end together; what both had is the second destination's."""
    source = created(store, hosts[0], pool, GUEST, DISK_GB=80)
    first = moved(store, hosts[0], pool, GUEST, DISK_GB=100)
    hosts[0].confirm(first)
    second = moved(store, hosts[1], pool, GUEST, DISK_GB=120)
    assert used(store, pool) == {'DISK_GB': 120}
    hosts[0].release(source, first)
    assert taken(store, second, pool) == ({'DISK_GB': 120}, {})
    assert used(store, pool) == {'DISK_GB': 120}


# -- beside writers of allocations -----------------------------------------------------------
def wish(consumer, shares, **fields):
    base = {'project_id': 'p1', 'user_id': 'u1'}
    return WantedAllocations(consumer=consumer, allocations=shares, **{**base, **fields})


def handed_over(store, consumer, to):
    """All that a consumer has becomes another one's, as that of a migration is."""
    has = store.allocations.load_allocations(consumer).allocations
    store.allocations.write_allocations([wish(to, has), wish(consumer, {})])


def had(store, consumer):
    recorded = store.allocations.load_allocations(consumer)
    return {} if recorded is None else recorded.allocations


MIGRATION = uuid_of('migration')


@pytest.fixture
def moving(store, hosts, pool):
    """A guest on its way: its source is a migration's, its destination inherits from it."""
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    handed_over(store, GUEST, MIGRATION)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=110)
    assert taken(store, target, pool) == ({'DISK_GB': 10}, {'DISK_GB': 100})
    return source, target


def less(store, pool, consumer, gigabytes):
    """What a consumer has, with so much of the pool; 0: nothing of it."""
    shares = {uuid: amounts for uuid, amounts in had(store, consumer).items() if uuid != pool.uuid}
    return shares | ({pool.uuid: {'DISK_GB': gigabytes}} if gigabytes else {})


@pytest.mark.parametrize('left', [70, 10, 0])
def test_what_a_source_gives_up_its_destination_takes_over(store, hosts, pool, moving, left):
    source, target = moving
    store.allocations.write_allocations([wish(MIGRATION, less(store, pool, MIGRATION, left))])
    assert taken(store, source, pool)[0].get('DISK_GB', 0) == left
    assert taken(store, target, pool) == (
        {'DISK_GB': 110 - left},
        {'DISK_GB': left} if left else {},
    )
    assert used(store, pool) == {'DISK_GB': 110}
    assert had(store, GUEST)[pool.uuid] == {'DISK_GB': 110 - left}
    store.allocations.delete_allocations(MIGRATION)
    assert taken(store, target, pool) == ({'DISK_GB': 110}, {})
    assert used(store, pool) == {'DISK_GB': 110}


def test_what_its_destination_does_not_need_is_free(store, hosts, pool):
    created(store, hosts[0], pool, GUEST, DISK_GB=100)
    handed_over(store, GUEST, MIGRATION)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=30)
    store.allocations.write_allocations([wish(MIGRATION, less(store, pool, MIGRATION, 50))])
    assert taken(store, target, pool) == ({}, {'DISK_GB': 30})
    assert used(store, pool) == {'DISK_GB': 50}
    store.allocations.write_allocations([wish(MIGRATION, less(store, pool, MIGRATION, 20))])
    assert taken(store, target, pool) == ({'DISK_GB': 10}, {'DISK_GB': 20})
    assert used(store, pool) == {'DISK_GB': 30}


def test_nobody_else_is_given_what_a_destination_takes_over(store, hosts, pool, moving):
    before = used(store, pool)
    wishes = [
        wish(MIGRATION, less(store, pool, MIGRATION, 60)),
        wish(uuid_of('other'), {pool.uuid: {'DISK_GB': 20}}),
    ]
    with pytest.raises(exceptions.AllocationRefused):
        store.allocations.write_allocations(wishes)
    assert used(store, pool) == before
    assert had(store, uuid_of('other')) == {}
    wishes[1] = wish(uuid_of('other'), {pool.uuid: {'DISK_GB': 10}})
    store.allocations.write_allocations(wishes)
    assert used(store, pool) == {'DISK_GB': 120}


@pytest.mark.parametrize('left', [60, 0])
def test_who_says_all_that_a_guest_has_says_what_its_destination_inherits(store, hosts, pool, left):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=100)
    shares = less(store, pool, GUEST, left)
    store.allocations.write_allocations([wish(GUEST, shares)])
    assert had(store, GUEST) == shares
    assert used(store, pool).get('DISK_GB', 0) == left
    assert taken(store, target, pool)[1] == ({'DISK_GB': left} if left else {})
    hosts[0].release(source)
    assert had(store, GUEST).get(pool.uuid, {}).get('DISK_GB', 0) == left
    assert used(store, pool).get('DISK_GB', 0) == left


def test_who_lets_a_source_end_says_what_is_left(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=100)
    on_target = {
        uuid: amounts for uuid, amounts in had(store, GUEST).items() if uuid == hosts[1].row.uuid
    }
    store.allocations.write_allocations([wish(GUEST, on_target)])
    assert not store.claims.load_claim(source).is_live
    assert had(store, GUEST) == on_target
    assert taken(store, target, pool)[1] == {}
    assert used(store, pool) == {}


def test_what_is_written_as_it_was_changes_nothing_of_what_is_inherited(store, hosts, pool):
    source = created(store, hosts[0], pool, GUEST, DISK_GB=100)
    target = moved(store, hosts[1], pool, GUEST, DISK_GB=100)
    store.allocations.write_allocations([wish(GUEST, had(store, GUEST))])
    assert taken(store, target, pool) == ({}, {'DISK_GB': 100})
    store.allocations.write_allocations([wish(GUEST, less(store, pool, GUEST, 120))])
    assert taken(store, target, pool) == ({}, {'DISK_GB': 100})
    hosts[0].release(source)
    assert taken(store, target, pool) == ({'DISK_GB': 100}, {})
    assert used(store, pool) == {'DISK_GB': 100}


@pytest.mark.parametrize('seed', range(5))
def test_any_history_uses_what_the_largest_of_its_claims_needs(store, hosts, pool, seed):
    """Moves that arrive, fail, and follow each other; sources that end early or late."""
    rng = random.Random(seed)
    guests = [uuid_of('guest', n) for n in range(2)]
    claims: dict[str, dict[str, tuple[int, int]]] = {}
    for guest in guests:
        host, need = rng.randrange(4), rng.randint(1, 20)
        claims[guest] = {created(store, hosts[host], pool, guest, DISK_GB=need): (host, need)}
    for _ in range(14):
        guest = rng.choice(guests)
        mine = claims[guest]
        if rng.random() < 0.5:
            host, need = rng.randrange(4), rng.randint(1, 20)
            for open_one in [c for c in mine if state_of(store, c) == 'reserved']:
                del mine[open_one]  # it gives way
            mine[moved(store, hosts[host], pool, guest, DISK_GB=need)] = (host, need)
        elif mine and (len(mine) > 1 or rng.random() < 0.1):
            ended = rng.choice(sorted(mine))
            host, _ = mine.pop(ended)
            hosts[host].release(ended)
        elif mine:
            last = list(mine)[-1]
            hosts[mine[last][0]].confirm(last)
        largest = [
            max((need for _, need in of_consumer.values()), default=0)
            for of_consumer in claims.values()
        ]
        assert used(store, pool).get('DISK_GB', 0) == sum(largest)
        for of_consumer in claims.values():
            if len(of_consumer) == 1:
                ((only, (_, need)),) = of_consumer.items()
                assert taken(store, only, pool) == ({'DISK_GB': need}, {})
