# SPDX-License-Identifier: Apache-2.0
"""Build and delete on one host: what may start, when, and how often."""

import shutil
import threading

import msgspec
import pytest

from gantt import exceptions
from gantt.compute.agent.agent import AgentSettings
from gantt.compute.agent.journal import PENDING, JournalEntry
from gantt.compute.agent.session import Fenced, JournalBehind
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import RegisterHost
from tests.builders import register_host
from tests.compute.hosts_in_memory import a_delete, new_uuid


def test_a_confirmed_build_runs_and_is_reported(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    assert house.agent.build(build).outcome == 'running'
    assert memory_hosts.state(build) == 'confirmed'
    assert house.machine.starts == [build.claim_id]
    house.member.turn()
    assert [r.consumer for r in memory_hosts.port.reports[-1].running] == [build.consumer]
    memory_hosts.audit()


def test_a_repeated_build_starts_nothing_again(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    assert house.agent.build(build).outcome == 'running'
    house.agent.delete(a_delete(build))
    assert house.agent.build(build).outcome == 'finished'
    assert house.machine.starts == [build.claim_id]


def test_a_build_of_another_consumer_for_a_claim_that_is_known_is_refused(memory_hosts, house):
    """The database was put back, and the place of a group has been given away once more."""
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    other = msgspec.structs.replace(build, consumer=new_uuid())
    outcome = house.agent.build(other)
    assert (outcome.outcome, outcome.consumer) == ('refused', other.consumer)
    assert outcome.reason == f'the claim is that of consumer {build.consumer} here'
    house.agent.delete(a_delete(build))
    assert house.agent.build(other).outcome == 'refused'
    assert house.machine.starts == [build.claim_id]


def test_nothing_starts_on_a_claim_that_was_cancelled(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    memory_hosts.cancel(build)
    assert house.agent.build(build).outcome == 'gone'
    assert house.machine.starts == []
    assert house.agent.build(build).outcome == 'finished'


def test_nothing_starts_on_a_claim_that_nobody_made(house):
    build = Build(claim_id=new_uuid(), consumer=new_uuid(), host='cmp-1', resources={'VCPU': 1})
    assert house.agent.build(build).outcome == 'gone'
    assert house.machine.starts == []


def test_a_build_that_does_not_fit_here_is_refused_and_its_claim_freed(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.machine.foreign = {'VCPU': 7}  # somebody started something since the last report
    outcome = house.agent.build(build)
    assert outcome.outcome == 'refused'
    assert outcome.reason == 'too little free VCPU (need 2 vCPU, has 1 vCPU)'
    assert memory_hosts.state(build) == 'refused'
    assert house.agent.disagreements == 1
    assert house.machine.starts == []


def test_what_is_pending_counts_in_the_check(memory_hosts, house):
    first, second = memory_hosts.claim('cmp-1', VCPU=5), memory_hosts.claim('cmp-1', VCPU=3)
    house.machine.foreign = {'VCPU': 2}
    memory_hosts.port.before = lambda word, message: (
        outcomes.append(house.agent.build(second).outcome)
        if word == 'confirm' and first.claim_id in message.claim_ids
        else None
    )
    outcomes: list[str] = []
    assert house.agent.build(first).outcome == 'running'
    assert outcomes == ['refused']


def test_a_build_for_another_host_is_refused_naming_the_field(house):
    build = Build(claim_id=new_uuid(), consumer=new_uuid(), host='cmp-2', resources={})
    with pytest.raises(exceptions.InvalidMessage, match="host: expected 'cmp-1'"):
        house.agent.build(build)


def test_a_lost_answer_is_asked_for_again_with_a_new_sequence(memory_hosts, house):
    lost = iter([True, True])
    memory_hosts.port.lose = lambda word: word == 'confirm' and next(lost, False)
    build = memory_hosts.claim('cmp-1')
    assert house.agent.build(build).outcome == 'running'
    asked = [words for word, words in memory_hosts.port.words if word == 'confirm']
    assert len(asked) == 3
    assert len({words.sequence for words in asked}) == 3
    assert {tuple(words.claim_ids) for words in asked} == {(build.claim_id,)}
    assert house.machine.starts == [build.claim_id]


def test_without_an_answer_within_the_lease_nothing_starts(memory_hosts, house):
    build = memory_hosts.claim('cmp-1', lease=1.0)
    memory_hosts.port.away = True
    assert house.agent.build(build).outcome == 'unconfirmed'
    memory_hosts.port.away = False
    assert house.agent.build(build).outcome == 'finished'
    assert house.machine.starts == []


def test_an_answer_to_an_older_epoch_starts_nothing(memory_hosts, house):
    """The host registers again while the question is under way."""
    build = memory_hosts.claim('cmp-1')
    again = iter([True])

    def before(word, message):
        if word == 'confirm' and next(again, False):
            # The question is answered, but by then it is an older self's question.
            house.member.session.register()

    memory_hosts.port.before = before
    assert house.agent.build(build).outcome == 'running'
    asked = [words for word, words in memory_hosts.port.words if word == 'confirm']
    assert [words.epoch for words in asked] == [1, 2]
    assert house.machine.starts == [build.claim_id]
    assert house.machine.without_permission == []


def test_a_guest_that_does_not_start_gives_its_claim_back(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.machine.broken = 'start'
    assert house.agent.build(build).outcome == 'failed'
    assert memory_hosts.state(build) == 'released'
    house.machine.broken = ''
    assert house.agent.build(build).outcome == 'finished'
    assert house.machine.starts == [build.claim_id]


def test_builds_that_fail_in_a_row_are_counted_until_one_does_not(memory_hosts, house):
    house.machine.broken = 'start'
    for count in (1, 2):
        house.agent.build(memory_hosts.claim('cmp-1'))
        house.member.turn()
        assert memory_hosts.port.reports[-1].metrics['stats.failed_builds'].value == count
    house.machine.broken = ''
    house.agent.build(memory_hosts.claim('cmp-1'))
    house.member.turn()
    assert 'stats.failed_builds' not in memory_hosts.port.reports[-1].metrics


def test_a_delete_stops_the_guest_and_releases_its_claim(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    assert house.agent.delete(a_delete(build)).outcome == 'deleted'
    assert house.machine.running == {}
    assert memory_hosts.state(build) == 'released'
    assert house.agent.delete(a_delete(build)).outcome == 'unknown'


def test_a_delete_by_consumer_alone_finds_the_claim(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    deleted = house.agent.delete(Delete(consumer=build.consumer, host='cmp-1'))
    assert deleted.outcome == 'deleted'
    assert memory_hosts.state(build) == 'released'


def test_a_delete_that_overtakes_its_build_stops_it(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    assert house.agent.delete(a_delete(build)).outcome == 'unknown'
    assert memory_hosts.state(build) == 'released'
    assert house.agent.build(build).outcome == 'finished'
    assert house.machine.starts == []


def test_a_delete_while_the_question_is_under_way_stops_the_build(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    memory_hosts.port.before = lambda word, message: (
        house.agent.delete(a_delete(build)) if word == 'confirm' else None
    )
    assert house.agent.build(build).outcome == 'deleted'
    assert house.machine.starts == []
    assert memory_hosts.state(build) == 'released'


def test_a_guest_that_does_not_stop_stays_claimed_and_listed(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    house.machine.broken = 'stop'
    assert house.agent.delete(a_delete(build)).outcome == 'failed'
    house.member.turn()
    assert memory_hosts.state(build) == 'confirmed'
    house.machine.broken = ''
    assert house.agent.delete(a_delete(build)).outcome == 'deleted'
    assert memory_hosts.state(build) == 'released'


def test_an_unreadable_list_says_nothing_and_frees_nothing(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    house.machine.broken = 'list'
    house.member.turn()
    assert memory_hosts.port.reports[-1].running is None
    assert memory_hosts.state(build) == 'confirmed'


def test_a_guest_that_vanished_frees_its_claim(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    house.machine.running.clear()
    house.member.turn()
    assert memory_hosts.state(build) == 'released'
    assert house.agent.build(build).outcome == 'finished'


def test_many_threads_with_one_build_start_it_once(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    outcomes = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(house.agent.build(build).outcome))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert set(outcomes) <= {'running', 'in_progress'}
    assert house.machine.starts == [build.claim_id]


# -- two agents with one name; a scheduler that forgot us ------------------------------


def test_the_older_of_two_agents_is_fenced(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    register_host(memory_hosts.store, RegisterHost(name='cmp-1', boot_nonce='another'))
    assert house.agent.build(build).outcome == 'gone'
    house.member.turn()  # a doubt: everything is said, and the answer is heard
    assert house.member.session.is_fenced
    with pytest.raises(Fenced, match='another agent registered'):
        house.agent.build(memory_hosts.claim('cmp-1'))
    reports_before = len(memory_hosts.port.reports)
    house.member.turn()
    assert len(memory_hosts.port.reports) == reports_before
    assert house.machine.starts == []


def under_way(memory_hosts, house):
    """The agent dies while its registration is under way; what it said."""
    registrations = []
    memory_hosts.port.before = lambda word, message: (
        registrations.append(message) if word == 'register' else None
    )
    memory_hosts.port.away = True
    house.boot().turn()
    memory_hosts.port.before = lambda word, message: None
    memory_hosts.port.away = False
    return registrations[0]


def test_a_registration_that_a_dead_agent_left_on_its_way_does_not_fence_the_next(
    memory_hosts, house
):
    late = under_way(memory_hosts, house)
    house.boot().turn()
    epoch = house.member.session.epoch
    with pytest.raises(exceptions.StaleRegistration):
        register_host(memory_hosts.store, late)
    build = memory_hosts.claim('cmp-1')
    assert house.agent.build(build).outcome == 'running'
    house.member.changed(True)
    house.member.turn()
    assert (house.member.session.is_fenced, house.member.session.epoch) == (False, epoch)
    assert memory_hosts.state(build) == 'confirmed'


def test_a_registration_that_comes_before_the_next_one_does_no_harm_either(memory_hosts, house):
    register_host(memory_hosts.store, under_way(memory_hosts, house))
    house.boot().turn()
    assert house.agent.build(memory_hosts.claim('cmp-1')).outcome == 'running'


def test_an_earlier_registration_of_the_same_agent_does_not_fence_it(memory_hosts, house):
    registrations = []
    memory_hosts.port.before = lambda word, message: (
        registrations.append(message) if word == 'register' else None
    )
    house.boot().turn()
    memory_hosts.store.hosts.remove_host('cmp-1')
    house.member.changed(True)
    house.member.turn()  # is told that it is not known
    house.member.turn()
    assert [registration.journal_count for registration in registrations] == [2, 3]
    with pytest.raises(exceptions.StaleRegistration):
        register_host(memory_hosts.store, registrations[0])  # the broker had it twice
    assert house.agent.build(memory_hosts.claim('cmp-1')).outcome == 'running'


def test_a_lost_answer_is_no_other_registration(memory_hosts, house):
    registrations = []
    memory_hosts.port.before = lambda word, message: (
        registrations.append(message) if word == 'register' else None
    )
    lost = iter([True, True])
    memory_hosts.port.lose = lambda word: word == 'register' and next(lost, False)
    house.boot()
    for _ in range(3):
        house.member.turn()
    assert house.member.session.is_registered
    assert (len(registrations), registrations[0]) == (3, registrations[2])


def test_a_journal_from_a_backup_stops_its_agent_which_says_what_to_do(memory_hosts, house, caplog):
    guest = memory_hosts.claim('cmp-1')
    house.agent.build(guest)
    backup = house.path.with_suffix('.backup')
    house.close()
    shutil.copy(house.path, backup)
    for _ in range(2):
        house.boot().turn()
    house.close()
    shutil.copy(backup, house.path)

    words = []
    memory_hosts.port.before = lambda word, message: words.append(word)
    house.boot()
    waits = [house.member.turn() for _ in range(3)]
    assert words == ['register'], 'it asks once, and not again before it is restarted'
    assert min(waits) > 50
    messages = [r.getMessage() for r in caplog.records if 'put back to an older state' in r.message]
    assert len(messages) == 3, 'each time logs a line'
    assert 'registration 2 of its journal comes after number 3' in messages[0]
    assert 'move the file that [compute] journal names out of the way' in messages[0]
    with pytest.raises(JournalBehind):
        house.agent.build(memory_hosts.claim('cmp-1'))

    house.close()
    for file in house.path.parent.glob(f'{house.path.name}*'):
        file.unlink()
    house.boot().turn()
    assert house.member.session.is_registered
    assert memory_hosts.state(guest) == 'confirmed'
    assert house.agent.build(memory_hosts.claim('cmp-1')).outcome == 'running'
    memory_hosts.audit()


def test_a_host_that_was_forgotten_registers_again(memory_hosts, house):
    memory_hosts.store.hosts.remove_host('cmp-1')
    for _ in range(12):
        house.member.turn()
    assert house.member.session.is_registered
    assert house.member.session.epoch > 1
    build = memory_hosts.claim('cmp-1')
    assert house.agent.build(build).outcome == 'running'


def test_a_full_report_is_repeated_until_it_is_heard(memory_hosts, house):
    house.boot()
    lost = iter([True, True])
    memory_hosts.port.lose = lambda word: word == 'report' and next(lost, False)
    for _ in range(4):
        house.member.turn()
    assert [r.full for r in memory_hosts.port.reports[-4:]] == [True, True, True, False]
    assert memory_hosts.port.reports[-1].base == memory_hosts.port.reports[-2].sequence


def test_at_least_every_tenth_report_is_full(memory_hosts, house):
    for _ in range(40):
        house.member.turn()
    fulls = [i for i, r in enumerate(memory_hosts.port.reports) if r.full]
    assert max(b - a for a, b in zip(fulls, fulls[1:], strict=False)) == 10


def test_tombstones_are_kept_for_a_day_at_least(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    house.agent.build(build)
    house.agent.delete(a_delete(build))
    terms = AgentSettings(tombstone_seconds=1.0)
    house.agent._terms = terms
    memory_hosts.clock.advance(86_000)
    assert house.agent.purge_journal() == 0
    memory_hosts.clock.advance(1000)
    assert house.agent.purge_journal() == 1


def test_what_is_pending_stays_so_where_another_agent_took_the_name(memory_hosts, house):
    build = memory_hosts.claim('cmp-1')
    entry = JournalEntry(build=build, state=PENDING, lease_until=memory_hosts.clock.wall() + 100)
    house.journal.add(entry)
    register_host(memory_hosts.store, RegisterHost(name='cmp-1', boot_nonce='another'))
    house.member.changed(True)
    house.member.turn()
    assert house.member.session.is_fenced
    assert house.agent.resume() == []
    assert house.machine.starts == []
