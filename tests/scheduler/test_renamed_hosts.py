# SPDX-License-Identifier: Apache-2.0
"""A host gets another name while schedulers run: they answer by the new one."""

from gantt.core.messages.report import RegisterHost
from tests.builders import CLEAN, new_uuid
from tests.world import World, a_request, hosts_of, sqlite_store


def test_running_schedulers_answer_by_the_new_name():
    world = World(sqlite_store, hosts=1)
    other = world.another_scheduler()
    first = world.select(a_request(1)).selections[0][0]
    host = world.hosts['cmp-1']
    host.confirm(first.claim_id)
    world.store.hosts.rename_host('cmp-1', 'rack1-07')
    world.turn()
    host.name = 'rack1-07'
    host.register()
    host.report(running=None, pending=None)
    world.turn()
    for scheduler in (world.scheduler, other):
        assert hosts_of(world.select(a_request(1), by=scheduler)) == ['rack1-07']
        assert scheduler.cache.working.row_of('cmp-1') is None
    assert world.store.claims.load_claim(first.claim_id).host == 'rack1-07'
    assert world.audit() == CLEAN


def test_a_host_that_was_taken_away_is_no_choice_any_more():
    world = World(sqlite_store, hosts=2)
    world.store.hosts.decommission_host('cmp-1')
    world.turn()
    assert hosts_of(world.select(a_request(1))) == ['cmp-2']
    assert world.scheduler.cache.working.row_of('cmp-1') is None


def test_running_schedulers_name_the_uuid_that_a_host_registered_with_last():
    world = World(sqlite_store, hosts=1)
    other = world.another_scheduler()
    uuid = new_uuid()
    world.scheduler.register_host(RegisterHost(name='cmp-1', boot_nonce=new_uuid(), uuid=uuid))
    world.turn()
    for scheduler in (world.scheduler, other):
        (selection,) = world.select(a_request(1), by=scheduler).selections[0]
        assert selection.uuid == uuid
    assert world.audit() == CLEAN
