# SPDX-License-Identifier: Apache-2.0
"""One suite for both journals; the file must survive what memory need not."""

import sqlite3
import uuid

import pytest

from devel.doubles import ManualClock
from gantt import exceptions
from gantt.compute.agent.journal import (
    FINISHED,
    PENDING,
    PURGE_ROWS,
    RUNNING,
    STARTING,
    Journal,
    JournalEntry,
    SqliteJournal,
    Stamp,
)
from gantt.core.messages.build import Build
from tests.compute.hosts_in_memory import new_uuid

DAY = 86_400.0


def an_entry(state=PENDING, **fields) -> JournalEntry:
    build = Build(
        claim_id=new_uuid(),
        consumer=fields.pop('consumer', new_uuid()),
        host='cmp-1',
        resources={'VCPU': 2},
        layout={'cells': [{'id': 0, 'pcpus': [1, 2]}]},
        guest={'image': 'x', 'nested': {'a': [1, None]}},
    )
    return JournalEntry(build=build, state=state, **fields)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=['sqlite', 'memory'])
def journal(request, tmp_path, clock):
    if request.param == 'memory':
        new_journal = Journal(wall=clock.wall)
    else:
        new_journal = SqliteJournal(tmp_path / 'deep' / 'journal', wall=clock.wall)
    yield new_journal
    new_journal.close()


def test_what_is_added_is_remembered_whole(journal):
    entry = an_entry(lease_until=12.5)
    assert journal.add(entry)
    kept = journal.get(entry.claim_id)
    assert (kept.build, kept.state, kept.lease_until) == (entry.build, PENDING, 12.5)


def test_a_claim_is_added_once(journal):
    entry = an_entry()
    assert journal.add(entry)
    journal.change_state(entry.claim_id, (PENDING,), FINISHED)
    assert not journal.add(entry)
    assert journal.get(entry.claim_id).state == FINISHED


def test_it_moves_only_from_where_it_is(journal):
    entry = an_entry()
    journal.add(entry)
    assert not journal.change_state(entry.claim_id, (STARTING, RUNNING), FINISHED)
    assert journal.change_state(entry.claim_id, (STARTING, PENDING), STARTING)
    assert journal.get(entry.claim_id).state == STARTING
    assert not journal.change_state(new_uuid(), (PENDING,), STARTING)


def test_it_moves_only_for_the_last_question(journal):
    entry = an_entry()
    journal.add(entry)
    assert journal.note_query(entry.claim_id, Stamp(1, 5))
    assert journal.note_query(entry.claim_id, Stamp(2, 1))
    assert not journal.change_state(entry.claim_id, (PENDING,), STARTING, query=Stamp(1, 5))
    assert journal.change_state(entry.claim_id, (PENDING,), STARTING, query=Stamp(2, 1))
    assert not journal.note_query(entry.claim_id, Stamp(2, 2))


def test_the_finished_are_not_live(journal):
    live, over = an_entry(), an_entry(consumer='c' * 8 + '-0000-0000-0000-000000000000')
    journal.add(live)
    journal.add(over)
    journal.change_state(over.claim_id, (PENDING,), FINISHED, 'because')
    assert [e.claim_id for e in journal.live()] == [live.claim_id]
    (kept,) = journal.of_consumer(over.consumer)
    assert (kept.state, kept.reason) == (FINISHED, 'because')


def test_a_purge_is_bounded_and_spares_the_young_and_the_live(journal, clock):
    live = an_entry(RUNNING)
    journal.add(live)
    for _ in range(PURGE_ROWS + 5):
        journal.add(an_entry(FINISHED))
    clock.advance(DAY - 1)
    assert journal.purge(10.0) == 0
    young = an_entry(FINISHED)
    journal.add(young)
    clock.advance(2)
    assert journal.purge(10.0) == PURGE_ROWS
    assert journal.purge(10.0) == 5
    assert journal.purge(10.0) == 0
    assert journal.get(live.claim_id) and journal.get(young.claim_id)


def test_memory_keeps_a_bounded_number_of_tombstones():
    journal = Journal(finished_max=3)
    entries = [an_entry() for _ in range(5)]
    for entry in entries:
        journal.add(entry)
    for entry in entries[:4]:
        journal.change_state(entry.claim_id, (PENDING,), FINISHED)
    is_known = [journal.get(entry.claim_id) is not None for entry in entries]
    assert is_known == [False, True, True, True, True]


def test_a_file_is_read_again_by_the_next_process(tmp_path, clock):
    first = SqliteJournal(tmp_path / 'journal', wall=clock.wall)
    entry = an_entry()
    first.add(entry)
    first.note_query(entry.claim_id, Stamp(3, 7))
    # No close: as after kill -9, what was committed is in the write-ahead log.
    other = sqlite3.connect(tmp_path / 'journal')
    assert other.execute('SELECT state FROM builds').fetchall() == [(PENDING,)]
    other.close()
    first.close()
    second = SqliteJournal(tmp_path / 'journal', wall=clock.wall)
    assert second.get(entry.claim_id).requested == Stamp(3, 7)
    second.close()


def test_registrations_are_counted(journal):
    assert [journal.count_registration() for _ in range(3)] == [1, 2, 3]


def test_each_journal_has_a_name_of_its_own(tmp_path, clock):
    files = [SqliteJournal(tmp_path / name, wall=clock.wall) for name in ('one', 'other')]
    names = {opened.identity for opened in (*files, Journal(), Journal())}
    assert len(names) == 4
    assert all(str(uuid.UUID(name)) == name for name in names)
    for opened in files:
        opened.close()


def test_a_file_goes_on_counting_under_its_name_after_a_crash(tmp_path):
    first = SqliteJournal(tmp_path / 'journal')
    name = first.identity
    assert first.count_registration() == 1
    # No close: what the scheduler may hear of next is on the disk already.
    other = sqlite3.connect(tmp_path / 'journal')
    assert other.execute('SELECT identity, registrations FROM host').fetchall() == [(name, 1)]
    other.close()
    first.close()
    second = SqliteJournal(tmp_path / 'journal')
    assert (second.identity, second.count_registration()) == (name, 2)
    second.close()


def test_every_commit_reaches_the_disk(tmp_path):
    journal = SqliteJournal(tmp_path / 'journal')
    assert journal._db.execute('PRAGMA synchronous').fetchone() == (2,)
    assert journal._db.execute('PRAGMA journal_mode').fetchone() == ('wal',)
    journal.close()


def test_a_file_that_is_none_is_refused_naming_the_option(tmp_path):
    (tmp_path / 'journal').write_text('not a database at all, but long enough to look like one' * 9)
    with pytest.raises(exceptions.Misconfigured, match=r'\[compute\] journal: .*cannot be used'):
        SqliteJournal(tmp_path / 'journal')
    (tmp_path / 'folder').mkdir()
    with pytest.raises(exceptions.Misconfigured, match='cannot be used'):
        SqliteJournal(tmp_path / 'folder')


def test_a_journal_of_a_later_version_is_left_alone(tmp_path):
    SqliteJournal(tmp_path / 'journal').close()
    other = sqlite3.connect(tmp_path / 'journal')
    other.execute('PRAGMA user_version = 7')
    other.close()
    with pytest.raises(exceptions.Misconfigured, match='its version is 7, expected 1'):
        SqliteJournal(tmp_path / 'journal')


def test_of_what_is_finished_only_the_claim_stays_in_memory(journal):
    entry = an_entry(state=RUNNING)
    journal.add(entry)
    assert journal.change_state(entry.claim_id, [RUNNING], FINISHED)
    kept = journal.get(entry.claim_id)
    assert (kept.consumer, kept.build.resources) == (entry.consumer, {'VCPU': 2})
    assert kept.build.guest == {}, 'it is large, and has passwords'


def spoil(path, entry):
    with sqlite3.connect(path) as db:
        db.execute('UPDATE builds SET entry = ? WHERE claim_id = ?', (b'\xc1', entry.claim_id))
    db.close()


def test_a_finished_entry_that_cannot_be_read_is_still_known(tmp_path, clock):
    path = tmp_path / 'journal'
    journal, entry = SqliteJournal(path, wall=clock.wall), an_entry(state=FINISHED)
    journal.add(entry)
    journal.close()
    spoil(path, entry)
    again = SqliteJournal(path, wall=clock.wall)
    assert not again.add(entry), 'a claim that has ended is not begun again'
    assert [kept.claim_id for kept in again.of_consumer(entry.consumer)] == [entry.claim_id]
    again.close()


def test_a_live_entry_that_cannot_be_read_is_refused_at_the_start(tmp_path, clock):
    path = tmp_path / 'journal'
    journal, entry = SqliteJournal(path, wall=clock.wall), an_entry(state=RUNNING)
    journal.add(entry)
    journal.close()
    spoil(path, entry)
    with pytest.raises(exceptions.Misconfigured, match='cannot be used'):
        SqliteJournal(path, wall=clock.wall)
